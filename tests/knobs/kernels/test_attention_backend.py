"""`attention_backend`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import gpu, run

from autotune.knobs.kernels.attention_backend import AttentionBackend
from autotune.model.config import Config
from autotune.model.facts import AttentionFacts
from autotune.testing.knobs import GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = AttentionBackend()
CALLED = AttentionFacts(calls=8, kernel="flash", dtype="float32")
ON_CPU = facts(run=run(attention=CALLED))
ON_GPU = facts(host=GPU_HOST, run=replace(GPU_RUN, attention=replace(CALLED, kernel="efficient")))


class TestAttentionBackend(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "called no scaled_dot_product_attention"),
        (facts(run=run(attention=replace(CALLED, restricted=True))), "itself"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(ON_CPU) is None
    assert KNOB.refuse(facts(run=None)) is None


def test_only_kernels_that_exist_there_and_are_another_than_torchs_choice_are_tried() -> None:
    assert KNOB.domain(ON_CPU) == ("auto", "math")
    chosen = facts(run=run(attention=replace(CALLED, kernel="math")))
    assert KNOB.domain(chosen) == ("auto", "flash")
    dropped = facts(run=run(attention=replace(CALLED, kernel="math", dropout=True)))
    assert KNOB.domain(dropped) == ("auto",)
    assert KNOB.domain(ON_GPU) == ("auto", "flash", "efficient", "cudnn")
    old = facts(host=gpu(7, 5), run=ON_GPU.run)
    assert KNOB.domain(old) == ("auto", "efficient")
    masked = facts(host=GPU_HOST, run=replace(ON_GPU.run, attention=replace(CALLED, masked=True)))
    assert KNOB.domain(masked) == ("auto", "efficient", "cudnn")
    assert KNOB.resolve("flash", masked) is None
    on_cpu = facts(run=run(attention=replace(CALLED, kernel="math", masked=True)))
    assert KNOB.domain(on_cpu) == ("auto", "flash")
    before_cudnn = facts(host=GPU_HOST, run=replace(GPU_RUN, attention=CALLED, versions={"torch": "2.4.1"}))
    assert "cudnn" not in KNOB.domain(before_cudnn)


def test_a_kernel_that_does_not_exist_here_means_nothing() -> None:
    assert KNOB.resolve("cudnn", ON_CPU) is None
    assert KNOB.resolve("efficient", ON_CPU) is None
    assert KNOB.resolve("math", ON_GPU) == "math"


def test_flash_and_cudnn_on_a_gpu_need_half_precision() -> None:
    flash = Config({"attention_backend": "flash"})
    assert KNOB.settle(flash, ON_GPU) == Config()
    both = Config({"attention_backend": "flash", "precision": "bf16"})
    assert KNOB.settle(both, ON_GPU) == both
    pure = Config({"attention_backend": "cudnn", "pure_bf16": True})
    assert KNOB.settle(pure, ON_GPU) == pure
    own_half = facts(host=GPU_HOST, run=replace(GPU_RUN, attention=replace(CALLED, dtype="bfloat16")))
    assert KNOB.settle(flash, own_half) == flash
    assert KNOB.settle(Config({"attention_backend": "flash", "precision": "fp32"}), own_half) == Config(
        {"precision": "fp32"}
    )
    assert KNOB.settle(Config({"attention_backend": "efficient"}), ON_GPU) != Config()
    assert KNOB.settle(flash, ON_CPU) == flash


def test_attention_dropout_is_dealt_anew_by_another_kernel() -> None:
    assert KNOB.changes_rng_streams(facts(run=run(attention=replace(CALLED, dropout=True))))
    assert not KNOB.changes_rng_streams(ON_CPU)

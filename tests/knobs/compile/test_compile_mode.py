"""`compile_mode`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import gpu, model, run

from autotune.knobs.batch.accumulation import Accumulation
from autotune.knobs.compile.compile_mode import CompileMode
from autotune.knobs.memory.set_to_none import SetToNone
from autotune.model.config import Config
from autotune.testing.knobs import CPU_HOST, GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = CompileMode()


class TestCompileMode(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(host=replace(CPU_HOST, cxx="")), "needs a C++ compiler"),
        (facts(run=model(roots=5)), "5 separate modules"),
        (facts(host=gpu(6, 1), run=GPU_RUN), "compute capability 7.0"),
        (facts(host=GPU_HOST, run=replace(GPU_RUN, triton=False)), "needs Triton"),
        (facts(host=replace(GPU_HOST, cxx=""), run=GPU_RUN), "needs a C compiler"),
        (facts(run=run(model=None)), "No trained module"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


def test_on_a_device_a_c_compiler_is_enough_and_what_is_not_known_refuses_nothing() -> None:
    only_c = replace(GPU_HOST, cxx="", cc="/usr/bin/gcc")
    for host, run_ in (
        (only_c, GPU_RUN),
        (only_c, replace(GPU_RUN, triton=True)),
        (gpu(0, 0), GPU_RUN),
        (gpu(7, 0), GPU_RUN),
        (GPU_HOST, None),
    ):
        given = facts(host=host, run=run_)
        assert KNOB.refuse(given) is None
        assert "default" in KNOB.domain(given)
    on_cpu = facts(host=replace(CPU_HOST, cxx="", cc="/usr/bin/gcc"))
    assert "C++" in (KNOB.refuse(on_cpu) or "")


def test_the_device_that_trains_decides_and_not_another_one_in_the_machine() -> None:
    trains = replace(GPU_RUN, devices=GPU_HOST.devices)
    assert "default" in KNOB.domain(facts(host=gpu(6, 1), run=trains))
    old = facts(host=GPU_HOST, run=replace(GPU_RUN, devices=gpu(6, 1).devices))
    assert set(KNOB.domain(old)) == {"off"}
    assert KNOB.resolve("default", old) is None


def test_cuda_graphs_are_for_cuda_and_fixed_shapes() -> None:
    graphs = {"reduce-overhead", "max-autotune"}
    domain = KNOB.domain
    assert set(domain(facts())) == {"off", "default", "max-autotune"}
    assert graphs <= set(domain(facts(host=GPU_HOST, run=GPU_RUN)))
    assert not graphs & set(domain(facts(host=GPU_HOST, run=replace(GPU_RUN, input_shapes_vary=True))))


def test_what_cuda_graphs_return_cannot_be_accumulated() -> None:
    given = facts(host=GPU_HOST, run=GPU_RUN)
    rule = Accumulation()
    for mode, allowed in (("reduce-overhead", False), ("max-autotune", False), ("default", True)):
        settled = rule.settle(Config({"compile_mode": mode, "batch_size": 16}), given)
        assert isinstance(settled, Config) is allowed, mode
        if not allowed:
            assert "2 micro-batches" in str(settled)
    alone = rule.settle(Config({"compile_mode": "reduce-overhead"}), given)
    assert alone == Config({"compile_mode": "reduce-overhead"})
    on_cpu = rule.settle(Config({"compile_mode": "max-autotune", "batch_size": 16}), facts())
    assert isinstance(on_cpu, Config)


def test_a_script_that_accumulates_itself_gets_no_cuda_graphs() -> None:
    own = facts(host=GPU_HOST, run=replace(GPU_RUN, own_accumulation=True, backward_per_step=4.0))
    assert set(KNOB.domain(own)) == {"off", "default", "max-autotune-no-cudagraphs"}


def test_dropout_re_deals_random_streams() -> None:
    assert KNOB.changes_rng_streams(facts(run=model(dropout=True)))
    assert not KNOB.changes_rng_streams(facts())


def test_gradients_that_are_filled_with_zeros_get_no_cuda_graphs() -> None:
    """The gradient lies in the graph's memory, and filling it after the next replay raises."""
    zeroes = facts(host=GPU_HOST, run=replace(GPU_RUN, zeroes_gradients=True))
    for knob in (KNOB, SetToNone()):
        for mode, forbidden in (("reduce-overhead", True), ("max-autotune", True), ("default", False)):
            settled = knob.settle(Config({"compile_mode": mode}), zeroes)
            assert isinstance(settled, str) is forbidden, (knob.name, mode)
            if forbidden:
                assert "set_to_none=True" in str(settled)
            gone = Config({"compile_mode": mode, "set_to_none": True})
            assert knob.settle(gone, zeroes) == gone
        # Where the script lets them go, on a CPU, and before anything is known of it, nothing is forbidden.
        for other in (facts(host=GPU_HOST, run=GPU_RUN), facts(), facts(host=GPU_HOST, run=None)):
            alone = Config({"compile_mode": "max-autotune"})
            assert knob.settle(alone, other) == alone
        message = Config({"compile_mode": "reduce-overhead", "set_to_none": False})
        assert isinstance(knob.settle(message, facts(host=GPU_HOST, run=None)), str)


def test_zeros_that_some_parameters_need_rule_cuda_graphs_out() -> None:
    pausing = replace(GPU_RUN, zeroes_gradients=True, gradients_pause=True)
    assert not {"reduce-overhead", "max-autotune"} & set(KNOB.domain(facts(host=GPU_HOST, run=pausing)))

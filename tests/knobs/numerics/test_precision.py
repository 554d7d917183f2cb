"""`precision`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import gpu, model, run

from autotune.knobs.numerics.precision import Precision
from autotune.model.change import Change
from autotune.model.effect import Effect
from autotune.model.facts import DeviceFacts, OptimizerFacts, ScriptFlag
from autotune.space.choose_delivery import way
from autotune.testing.knobs import CPU_HOST, GPU_RUN, SCRIPT, KnobContract, facts

KNOB = Precision()


class TestPrecision(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=run(own_autocast=True)), "enters autocast itself"),
        (facts(run=model(dtypes=("float32", "float64"))), "not all float32 but float32 and float64"),
        (facts(run=model(products=False)), "no matrix products"),
        (facts(run=model(mkldnn=True)), "MKL-DNN's own memory layout"),
        (facts(run=run(bce_outside=True)), "BCELoss"),
        (facts(run=None, script=replace(SCRIPT, hazards=("bce_on_sigmoid",))), "BCELoss"),
        (facts(run=run(model=None)), "No trained module"),
        (facts(host=replace(CPU_HOST, cpu_flags=("avx2",))), "no bf16 in hardware"),
        (facts(host=gpu(6, 1), run=GPU_RUN), "no bf16 in hardware"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"own_scaler": True},
        {"explicit_backward_gradient": True},
        {"loop_hazards": ("own_gradient",)},
        {"optimizer": None},
        {"optimizer": OptimizerFacts(name="AdamW", count=2)},
    ],
)
def test_fp16_is_not_offered_where_it_cannot_have_its_scaler(changed) -> None:
    turing = facts(host=gpu(7, 5), run=replace(GPU_RUN, **changed))
    assert KNOB.domain(turing) == ("fp32",)
    assert KNOB.resolve("fp16", turing) is None
    assert KNOB.refuse(turing) is not None


def test_fp16_is_for_volta_and_turing_alone() -> None:
    fp16 = [
        c
        for c in ((6, 1), (7, 0), (7, 5), (8, 0), (9, 0))
        if "fp16" in KNOB.domain(facts(host=gpu(*c), run=GPU_RUN))
    ]
    assert fp16 == [(7, 0), (7, 5)]
    assert KNOB.resolve("fp16", facts(host=gpu(9, 0), run=GPU_RUN)) is None


@pytest.mark.parametrize(
    ("given", "effect"),
    [
        (facts(), Effect.NUMERIC),
    ],
)
def test_facts_decide_how_far_it_reaches(given, effect) -> None:
    assert KNOB.effect_for(given) is effect


def test_where_no_driver_reports_the_run_says_what_its_device_can() -> None:
    """A container without NVML, or a trial on another machine of the cluster."""
    device = DeviceFacts(name="NVIDIA H200", uuid="", memory_bytes=1, capability=(9, 0))
    seen = facts(run=replace(GPU_RUN, devices=(device,)))
    assert set(KNOB.domain(seen)) == {"fp32", "bf16"}
    assert KNOB.refuse(seen) is None
    assert KNOB.refuse(facts(run=GPU_RUN)) is not None


def switched(names=("--amp", "--no-amp"), kind="pair", autocast="bf16", **changed):
    option = ScriptFlag(names=names, dest="amp", kind=kind, autocast=autocast)
    script = replace(SCRIPT, flags=(option,), hazards=("own_autocast",))
    return facts(script=script, run=run(**changed))


@pytest.mark.parametrize(
    ("given", "way_of"),
    [
        (switched(), ("flag", "--amp")),
        (switched(names=("--use_amp",), kind="switch"), ("flag", "--use_amp")),
        (switched(names=("--mixed-precision",), kind="switch"), ("flag", "--mixed-precision")),
        (switched(names=("--bf16",), kind="switch"), ("flag", "--bf16")),
        (switched(autocast=""), ("patch", "in-process patch")),
        (switched(autocast="fp16"), ("patch", "in-process patch")),
        (switched(names=("--turbo",), kind="switch"), ("patch", "in-process patch")),
    ],
)
def test_an_option_that_puts_autocast_on_goes_before_the_patch(given, way_of) -> None:
    assert KNOB.refuse(given) is None
    change = way(KNOB, "bf16", given)
    assert isinstance(change, Change)
    assert (change.spelling.how, change.spelling.text) == way_of


def test_a_pair_turns_the_scripts_own_autocast_off() -> None:
    on = switched(own_autocast=True, values={**run().values, "precision": "bf16"})
    assert KNOB.refuse(on) is None
    change = way(KNOB, "fp32", on)
    assert isinstance(change, Change)
    assert change.spelling.text == "--no-amp"


def test_an_option_that_only_sounds_like_autocast_offers_nothing() -> None:
    reason = KNOB.refuse(switched(autocast="", own_autocast=True))
    assert reason is not None
    assert "enters autocast itself" in reason

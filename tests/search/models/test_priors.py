"""What is expected of configs before any was tried: order and size, by what the first run shows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from search_world import dimension, measurement, spec, tell

from autotune.model.config import Config, Value
from autotune.model.facts import Facts, HostFacts, LoaderFacts, ModelFacts, RunFacts, ScriptFacts
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage
from autotune.search.models.priors import Priors
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.samplers.registry import strategy_for

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
SPACE = SearchSpace(
    dimensions={
        d.knob: d
        for d in (
            dimension("precision", ("fp32", "bf16"), "fp32"),
            dimension("num_workers", (0, 1, 2, 4), 0, ordinal=True),
            dimension("persistent_workers", (False, True), False),
            dimension("mp_context", ("fork", "spawn"), "fork"),
            dimension("threads", (2, 1), 2, ordinal=True),
            dimension("wait_policy", ("asis", "PASSIVE"), "asis"),
            dimension("channels_last", (False, True), False),
            dimension("batch_size", (8, 16, 32), 16, ordinal=True),
            dimension("tf32", ("highest", "high"), "highest"),
            dimension("compile_mode", ("off", "default", "reduce-overhead"), "off"),
            dimension("attention_backend", ("auto", "flash", "efficient"), "auto"),
            dimension("style", ("a", "b"), "a"),
        )
    },
    starts=(Config({"num_workers": 2, "threads": 1}),),
)


def study(
    *,
    wait: float,
    rate: float = 200.0,
    device: str = "cpu",
    has_4d: bool = True,
    length: int = 500,
    workers: int = 0,
    busy: float | None = None,
) -> Study:
    """Batches of sixteen, two cores; `busy` is what a device's counters say."""
    loader = LoaderFacts(
        site="t.py:1",
        batch_size=16,
        num_workers=workers,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        length=length,
        fetch_cpu_frac=1.0,
    )
    run = RunFacts(loader=loader, model=ModelFacts(name="Net", has_4d=has_4d, device=device))
    host = HostFacts(cpus=2, physical_cores=2, memory_bytes=2**34)
    facts = Facts(host=host, script=ScriptFacts(path="/s/train.py"), run=run)
    made = Study(spec=spec(seconds=900), space=SPACE, facts=facts)
    proposal = Proposal(stage=Stage.BASELINE, config=Config(), fidelity=FIDELITY, reason="x")
    read = measurement(rate, wait=wait, batch=16.0)
    reported = read if busy is None else replace(read, extra={**read.extra, "device_busy_frac": busy})
    return tell(made, proposal, reported, 7.0)


def expected(of: Study, **changes: Value) -> float:
    """Times the unchanged script."""
    found = Priors.of(of, SPACE)
    assert found is not None
    return math.exp(found.mean(tuple(changes.get(d.knob, d.own) for d in SPACE.dimensions.values())))


def test_nothing_is_expected_of_the_unchanged_script_nor_before_it_ran() -> None:
    assert expected(study(wait=0.7)) == 1.0
    assert expected(study(wait=0.0)) == 1.0
    assert Priors.of(replace(study(wait=0.7), trials=()), SPACE) is None


def test_workers_help_a_loop_that_waits_and_only_where_threads_leave_them_a_core() -> None:
    waits = study(wait=0.7)
    assert expected(waits, num_workers=2, threads=1) > 1.4
    assert expected(waits, num_workers=2) <= 1.0
    assert expected(waits, num_workers=2, wait_policy="PASSIVE") > 1.4
    assert expected(waits, num_workers=1, threads=1) < expected(waits, num_workers=2, threads=1)
    computes = study(wait=0.01)
    assert expected(computes, num_workers=2, threads=1) < 0.75
    assert expected(computes, num_workers=2) <= 1.0


def test_workers_are_started_anew_for_each_short_pass_unless_they_are_kept() -> None:
    """Batches of 3 ms, one to a pass: a twentieth of the rate was seen, and half of it with them kept."""
    short = study(wait=0.66, rate=16 / 0.003, length=1)
    assert expected(short, num_workers=1) < 0.05
    assert expected(short, num_workers=1) < expected(short, num_workers=1, persistent_workers=True) < 0.6
    assert expected(short, num_workers=1, mp_context="spawn") < 0.1 * expected(short, num_workers=1)
    long = study(wait=0.7)
    kept = expected(long, num_workers=2, threads=1, persistent_workers=True)
    assert kept == pytest.approx(expected(long, num_workers=2, threads=1), rel=0.02)


def test_what_computes_faster_counts_for_what_computing_takes() -> None:
    much, little = study(wait=0.0), study(wait=0.9)
    assert expected(much, precision="bf16") == pytest.approx(math.exp(0.10))
    assert 1.0 < expected(little, precision="bf16") < 1.02
    assert expected(much, threads=1) < 0.75
    assert expected(little, threads=1) > 0.9
    assert expected(much, batch_size=8) < 1.0 <= expected(much, batch_size=32)
    assert expected(much, wait_policy="PASSIVE") < 0.8
    assert expected(much, wait_policy="PASSIVE", threads=1) == expected(much, threads=1)


def of_own_workers(study: Study, **changes: Value) -> float:
    """The same where the script loads with two workers by itself."""
    loads = replace(SPACE.dimensions["num_workers"], own=2)
    space = replace(SPACE, dimensions={**SPACE.dimensions, "num_workers": loads})
    found = Priors.of(study, space)
    assert found is not None
    return math.exp(found.mean(tuple(changes.get(d.knob, d.own) for d in space.dimensions.values())))


def test_a_script_with_workers_of_its_own_gains_by_more_of_them_only_where_it_waits() -> None:
    waits, computes = study(wait=0.5, workers=2), study(wait=0.0, workers=2)
    assert of_own_workers(waits) == 1.0
    assert of_own_workers(waits, num_workers=4) == pytest.approx(1 / 0.75, rel=0.02)
    assert of_own_workers(waits, num_workers=0) < 0.8
    assert of_own_workers(computes, num_workers=4) == 1.0
    # On these cores the workers slow the computing down, and nearly make up for what they load.
    assert 0.9 < of_own_workers(computes, num_workers=0) < 1.0
    # Half precision counts for the half that computing takes.
    assert of_own_workers(waits, precision="bf16") == pytest.approx(1.05, rel=0.01)


def test_threads_that_are_not_varied_are_those_of_the_script() -> None:
    plain = SearchSpace(dimensions={k: d for k, d in SPACE.dimensions.items() if k != "threads"})

    def gains(threads: int) -> float:
        made = study(wait=0.7)
        assert made.facts is not None
        assert made.facts.run is not None
        facts = replace(made.facts, run=replace(made.facts.run, threads=threads))
        found = Priors.of(replace(made, facts=facts), plain)
        assert found is not None
        changes: dict[str, Value] = {"num_workers": 2}
        return math.exp(found.mean(tuple(changes.get(d.knob, d.own) for d in plain.dimensions.values())))

    assert gains(1) > 1.4
    assert gains(2) <= 1.0


def test_short_steps_lose_little_by_fewer_threads() -> None:
    assert expected(study(wait=0.0, rate=16 / 0.001), threads=1) > 0.9


def test_a_layout_counts_for_convolutions_and_tf32_for_full_precision() -> None:
    assert expected(study(wait=0.0, has_4d=False), channels_last=True) == 1.0
    assert expected(study(wait=0.0), channels_last=True) > 1.0
    cuda = study(wait=0.0, device="cuda")
    assert expected(cuda, tf32="high") > 1.2
    assert expected(cuda, tf32="high", precision="bf16") == expected(cuda, precision="bf16") > 1.5
    assert expected(cuda, channels_last=True) == 1.0
    assert expected(cuda, channels_last=True, precision="bf16") > expected(cuda, precision="bf16")
    # Its operators leave the cores alone.
    assert expected(study(wait=0.7, device="cuda"), num_workers=4) > 2.0
    assert expected(study(wait=0.0), tf32="high") == 1.0


def test_a_busy_device_gains_by_half_precision_and_an_idle_one_by_fewer_starts() -> None:
    """An H100: busy for 99 % of a transformer's steps, for 21 % of those of a net of many small layers."""
    computes = study(wait=0.0, device="cuda", busy=0.99)
    half = expected(computes, precision="bf16")
    assert half > 2.0
    assert half < expected(computes, precision="bf16", compile_mode="reduce-overhead") < 6.0
    assert expected(computes, precision="bf16", attention_backend="efficient") < half
    assert expected(computes, compile_mode="reduce-overhead") < half
    waits = study(wait=0.06, device="cuda", busy=0.21)
    assert expected(waits, precision="bf16") < 1.0
    assert expected(waits, compile_mode="default") > 1.3
    assert expected(waits, compile_mode="reduce-overhead") > expected(waits, compile_mode="default")
    assert expected(waits) == pytest.approx(1.0)
    # The busier it is, the more half precision is worth, without a leap.
    by_busy = [
        expected(study(wait=0.0, device="cuda", busy=0.2 + 0.01 * i), precision="bf16") for i in range(80)
    ]
    steps = [b / a for a, b in itertools.pairwise(by_busy)]
    assert min(steps) >= 1.0 - 1e-9
    assert max(steps) < 1.1
    # Of several processes no counter shows it: one that waits for the others counts as busy.
    assert waits.facts is not None
    assert waits.facts.run is not None
    several = replace(waits, facts=replace(waits.facts, run=replace(waits.facts.run, ranks=2)))
    assert expected(several, precision="bf16") > 1.5
    # Without a counter, a device is taken for busy.
    assert expected(study(wait=0.0, device="cuda"), precision="bf16") == pytest.approx(half, rel=0.05)


def test_a_model_begins_from_what_is_expected_and_believes_what_it_reads() -> None:
    waits = study(wait=0.7)
    both = Config({"num_workers": 2, "threads": 1})
    found = ThroughputModel.of(waits, SPACE)
    nothing = ThroughputModel.of(waits, SPACE, expects=False)
    assert found is not None
    assert nothing is not None
    assert math.exp(found.predict(both)[0]) == pytest.approx(
        expected(waits, num_workers=2, threads=1), rel=0.02
    )
    assert found.foreseen(both) == (found.predict(both)[0], pytest.approx(found.foreseen(both)[1]))
    assert nothing.predict(both)[0] == pytest.approx(0.0, abs=1e-9)
    assert nothing.foreseen(both)[0] == 0.0
    proposal = Proposal(stage=Stage.INITIAL, config=both, fidelity=FIDELITY, reason="x")
    reported = ThroughputModel.of(tell(waits, proposal, measurement(160.0, wait=0.1, batch=16.0), 7.0), SPACE)
    assert reported is not None
    assert math.exp(reported.predict(both)[0]) == pytest.approx(0.8, rel=0.02)


def test_the_first_run_of_others_is_what_is_expected_to_be_fastest_and_nothing_hopeless_is_drawn() -> None:
    proposal = strategy_for("staged").ask(study(wait=0.7), 800.0)
    assert proposal is not None
    assert proposal.stage is Stage.INITIAL
    assert proposal.config.get("threads") == 1
    assert proposal.config.get("num_workers") in (2, 4)
    assert proposal.config.get("precision") == "bf16"
    assert "times the baseline expected" in proposal.reason


def test_of_a_knob_of_the_users_own_nothing_is_known() -> None:
    found = Priors.of(study(wait=0.0), SPACE)
    assert found is not None
    usual = dict(zip(found.knobs, found.spreads(), strict=True))
    own = dict(zip(found.knobs, replace(found, declared=frozenset({"style"})).spreads(), strict=True))
    assert own["style"] > usual["style"]
    assert (
        usual["num_workers"]
        < dict(zip(found.knobs, replace(found, fetch=0.7).spreads(), strict=True))["num_workers"]
    )


def test_a_compile_is_expected_to_be_paid_by_the_planned_run() -> None:
    made = study(wait=0.0, device="cuda", busy=1.0)
    whole = expected(made, compile_mode="default")
    assert whole > 1.0
    run_steps = 1000
    assert made.trials[0].measurement is not None
    run_s = run_steps * made.trials[0].measurement.step_time_s.value
    planned = replace(made, spec=replace(made.spec, run_steps=run_steps))
    # A first compile is expected to take 40 s.
    assert expected(planned, compile_mode="default") == pytest.approx(1.0 / (1.0 / whole + 40.0 / run_s))
    assert expected(planned, tf32="high") == expected(made, tf32="high")
    short = replace(made, spec=replace(made.spec, run_steps=100))
    assert expected(short, compile_mode="default") < 1.0 < expected(short, tf32="high")


def test_a_measured_compile_replaces_the_usual_time() -> None:
    made = study(wait=0.0, device="cuda", busy=1.0)
    made = replace(made, spec=replace(made.spec, run_steps=1000))
    config = Config({"compile_mode": "default"})
    proposal = Proposal(stage=Stage.INITIAL, config=config, fidelity=FIDELITY, reason="x")
    quick = tell(made, proposal, measurement(300.0, batch=16.0, compile_s=4.0, cold=True), 11.0)
    assert expected(quick, compile_mode="default") > expected(made, compile_mode="default")


def test_the_host_starts_the_work_of_each_of_several_small_batches() -> None:
    starts = study(wait=0.0, device="cuda", busy=0.15)
    assert expected(starts, batch_size=8) < 0.6
    assert expected(starts, batch_size=32) > expected(starts)
    assert expected(study(wait=0.0, device="cuda", busy=1.0), batch_size=8) > 0.8

"""What a run's evidence says about where its time goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from study_fakes import BASE, BEST, facts, measured, spec, study

from autotune.answer.bottleneck import (
    PREFIX,
    Bottleneck,
    Evidence,
    bottleneck,
    evidence_of,
    judge,
    shown,
)
from autotune.model.roofline import Work
from autotune.model.trial import Failure, FailureKind, Stage

PLAIN = {"forward": 0.004, "backward": 0.008, "optimizer": 0.002, "host": 0.0005}


def evidence(**fields) -> Evidence:
    """A step of 14.5 ms that is all work, most of it arithmetic, unless stated otherwise."""
    given = {
        "step_s": 0.0145, "wait_frac": 0.0, "replay_step_s": 0.0145, "drain_step_s": 0.001,
        "phases_s": PLAIN, "blocked_s": dict.fromkeys(PLAIN, 0.0),
        "work": Work(compute_s=0.008, memory_s=0.001, overhead_s=0.001),
        "flops": 8e8, "ops": 120.0, "reads": 1.0, "peak_flops_per_s": 1e11, "cpu_frac": 0.5, **fields,
    }  # fmt: skip
    return Evidence(**given)


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (evidence(), "compute"),
        (evidence(work=Work(compute_s=0.001, memory_s=0.008, overhead_s=0.001)), "memory"),
        (evidence(work=Work(compute_s=0.0005, memory_s=0.0005, overhead_s=0.004)), "overhead"),
        (evidence(step_s=0.060, wait_frac=0.75), "input"),
        (
            evidence(
                phases_s={**PLAIN, "host": 0.030},
                blocked_s={"host": 0.028},
                step_s=0.044,
                replay_step_s=0.044,
            ),
            "sync",
        ),
        (
            evidence(phases_s={**PLAIN, "host": 0.030}, step_s=0.044, replay_step_s=0.044),
            "overhead",
        ),
        (evidence(work=Work(compute_s=0.004, memory_s=0.004, overhead_s=0.003)), "balanced"),
        (evidence(step_s=0.026, wait_frac=0.44), "balanced"),
        (evidence(work=None), "unclear"),
    ],
)
def test_the_verdict_names_the_largest_share_where_it_is_clearly_the_largest(seen, kind) -> None:
    assert judge(seen).kind == kind


def test_a_device_that_only_computes_is_bound_by_what_its_counted_operations_are_if_that_is_clear() -> None:
    busy = {"step_s": 0.1, "wait_frac": 0.0, "on_device": True, "busy_frac": 0.95}
    by_memory = Work(compute_s=0.01, memory_s=0.06)
    assert judge(Evidence(**busy, work=by_memory)).kind == "memory"
    assert judge(Evidence(**busy, work=Work(compute_s=0.06, memory_s=0.01))).kind == "compute"
    assert judge(Evidence(**busy, work=Work(compute_s=0.03, memory_s=0.03))).kind == "device"


def test_shares_never_exceed_the_step() -> None:
    for seen in (evidence(), evidence(step_s=0.02, wait_frac=1.0), evidence(blocked_s={"forward": 9.0})):
        shares = judge(seen).shares
        assert sum(shares.values()) <= 1.0 + 1e-9
        assert all(share >= 0.0 for share in shares.values())


def test_several_threads_wait_for_each_other_without_that_being_a_verdict() -> None:
    blocked = {"forward": 0.001, "backward": 0.002}
    assert judge(evidence(blocked_s=blocked, threads=4)).shares["sync"] == 0.0
    assert judge(evidence(blocked_s=blocked, threads=1)).shares["sync"] > 0.15


def test_waiting_and_cached_batches_both_count_for_input() -> None:
    # The loop hardly waits, but workers take CPU from it: a cached batch shows that.
    seen = evidence(step_s=0.040, wait_frac=0.05, replay_step_s=0.0145)
    assert judge(seen).shares["input"] == pytest.approx(0.5 * (0.05 + (0.040 - 0.0145) / 0.040))


def test_a_share_that_is_neither_of_two_figures_far_apart_is_explained() -> None:
    apart = judge(evidence(step_s=0.040, wait_frac=0.05, replay_step_s=0.0145))
    assert apart.reasons[1].endswith(
        "waiting data takes 5 % of a step, by that batch 64 %: their mean is used."
    )
    alike = judge(evidence(step_s=0.060, wait_frac=0.75, replay_step_s=0.0145))
    assert alike.reasons[1] == "On one cached batch a step takes 14.5 ms in place of 60 ms."


def test_without_a_probe_only_a_long_wait_is_a_verdict() -> None:
    assert judge(Evidence(step_s=0.1, wait_frac=0.7)).kind == "input"
    assert judge(Evidence(step_s=0.1, wait_frac=0.3)).kind == "unclear"


@pytest.mark.parametrize(
    ("busy", "waits", "more", "kind"),
    [
        # An H100 on a script in float32, the same in bfloat16 and compiled, and hundreds of small kernels.
        (0.99, 0.0, {"tensor_frac": 0.03, "dram_frac": 0.16}, "device"),
        (0.93, 0.0, {"tensor_frac": 0.26, "dram_frac": 0.51}, "device"),
        (0.21, 0.06, {"tensor_frac": 0.0, "dram_frac": 0.0}, "host"),
        (0.95, 0.0, {"tensor_frac": 0.6, "dram_frac": 0.4}, "compute"),
        (0.95, 0.0, {"tensor_frac": 0.1, "dram_frac": 0.8}, "memory"),
        (0.65, 0.1, {}, "unclear"),
        (0.05, 0.4, {}, "unclear"),
        (0.2, 0.7, {}, "input"),
    ],
)
def test_without_a_probe_a_device_reports_which_of_both_waits(
    busy: float, waits: float, more: dict[str, float], kind: str
) -> None:
    seen = Evidence(step_s=0.1, wait_frac=waits, on_device=True, busy_frac=busy, **more)
    found = judge(seen)
    assert found.kind == kind
    assert sum(found.shares.values()) <= 1.0 + 1e-9
    assert any(f"it computes {100 * busy:.0f} %" in reason for reason in found.reasons)
    assert judge(replace(seen, on_device=False)).kind in ("input", "unclear")


def test_what_clean_code_can_buy_is_the_hosts_share() -> None:
    assert judge(evidence()).host_frac == pytest.approx(0.0005 / 0.0145)
    assert Bottleneck(kind="unclear").host_frac is None


def test_the_reasons_hold_the_figures() -> None:
    reported = " ".join(judge(evidence(step_s=0.060, wait_frac=0.75)).reasons)
    assert "waits for data 75 % of its time" in reported
    assert "14.5 ms in place of 60 ms" in reported
    assert "ready in 1 ms" in reported
    assert "55.2 GFLOP/s, 55 %" in reported
    assert "120 operations" in reported


def test_compiled_code_is_reported_as_one_part() -> None:
    verdict = judge(evidence(work=None, ops=None, flops=None, compiled=True))
    assert any("not counted one by one" in reason for reason in verdict.reasons)


def test_what_a_screen_shows_first_is_what_the_verdict_rests_on() -> None:
    assert "operations" in " ".join(shown(judge(evidence()), most=2))


def probed(number: int, config=BASE, **figures: float):
    run = measured(number, config, 100.0, Stage.DIAGNOSE)
    extra = {f"{PREFIX}phase_{k}_s": v for k, v in PLAIN.items()}
    extra |= {PREFIX + k: v for k, v in figures.items()}
    return replace(run, outcome=replace(run.outcome, extra=extra, step_time_s=run.outcome.step_time_s))


def test_figures_travel_through_a_measurement() -> None:
    run = probed(6, replay_step_s=0.2, flops=5.0, ops=7.0, work_compute_s=0.1, threads=2.0, compiled=1.0)
    seen = evidence_of(run.outcome)
    assert dict(seen.phases_s) == PLAIN
    assert (seen.replay_step_s, seen.flops, seen.ops, seen.threads, seen.compiled) == (0.2, 5.0, 7.0, 2, True)
    assert seen.work == Work(compute_s=0.1)


def test_a_probe_explains_and_counts_for_nothing_else() -> None:
    made = study()
    with_probe = replace(made, trials=(*made.trials, probed(6, work_compute_s=0.014)))
    assert bottleneck(with_probe, BASE).kind != "unclear"
    assert with_probe.finished() == made.finished()
    assert len(with_probe.of(BASE)) == len(made.of(BASE))
    assert [t.number for t in with_probe.finished(Stage.DIAGNOSE)] == [6]


def test_a_run_under_nsight_systems_reports_nothing_of_what_holds_a_config_back() -> None:
    whole = replace(study(), trials=(*study().trials, probed(6, work_compute_s=0.014)))
    slowed = probed(7, work_compute_s=9.0)
    slowed = replace(slowed, fidelity=replace(slowed.fidelity, probe="nsys"))
    assert bottleneck(replace(whole, trials=(*whole.trials, slowed)), BASE) == bottleneck(whole, BASE)


def test_of_several_processes_no_device_reports_who_waits_for_whom() -> None:
    """It computes while it waits for the others within a collective."""

    def kind(ranks: int) -> str:
        made, given = study(), facts()
        assert given.run is not None
        trials = tuple(
            replace(
                t,
                outcome=replace(
                    m, extra={"device_busy_frac": 0.97}, memory=replace(m.memory, allocator=2**30)
                ),
            )
            for t in made.trials
            if (m := t.measurement) is not None
        )
        given = replace(given, run=replace(given.run, ranks=ranks))
        return bottleneck(replace(made, trials=trials, facts=given), BASE).kind

    assert kind(1) == "device"
    assert kind(2) == "unclear"


def test_a_config_that_was_not_probed_says_why() -> None:
    assert "were not probed" in bottleneck(study(), BASE).reasons[-1]
    short = bottleneck(study(spec=spec(why=True)), BASE)
    assert "budget was too short" in short.reasons[-1]
    made = study(spec=spec(why=True))
    failed = replace(
        probed(6), outcome=Failure(kind=FailureKind.TIMEOUT_TOTAL, message="not done after 9 s.")
    )
    assert "not done after 9 s." in bottleneck(replace(made, trials=(*made.trials, failed)), BASE).reasons[-1]


def test_a_compiled_winner_is_held_to_the_arithmetic_of_the_script_per_sample() -> None:
    made = study()
    own = probed(6, flops=1e9, peak_flops_per_s=1e11, work_compute_s=0.1)
    won = probed(7, BEST, compiled=1.0)
    won = replace(won, outcome=replace(won.outcome, effective_batch=64.0))
    verdict = bottleneck(replace(made, trials=(*made.trials, own, won)), BEST)
    assert verdict.evidence is not None
    assert verdict.evidence.flops == pytest.approx(2e9)


def test_shares_measured_beside_others_are_reported_to_be_rough() -> None:
    assert any("approximate" in reason for reason in judge(evidence(contended=True, threads=2)).reasons)
    assert not any("approximate" in reason for reason in judge(evidence(contended=True)).reasons)


def on_device(**fields) -> Evidence:
    """The device computes nine tenths of the time, most of it arithmetic, unless stated otherwise."""
    given = {"on_device": True, "busy_frac": 0.9, "reads": 0.0, "ops": 120.0, "start_s": 5e-6, **fields}
    return evidence(**given)


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (on_device(), "compute"),
        (on_device(work=Work(compute_s=0.001, memory_s=0.008, overhead_s=0.1)), "memory"),
        (on_device(work=None, dram_frac=0.8, tensor_frac=0.1), "memory"),
        (on_device(work=None, dram_frac=0.2, tensor_frac=0.6), "compute"),
        (on_device(work=None, dram_frac=0.2, tensor_frac=0.1), "unclear"),
        # The device idles: because the host cannot start operations faster, or because it reads values.
        (on_device(busy_frac=0.4, ops=2000.0), "overhead"),
        (on_device(busy_frac=0.4, reads=1.0), "sync"),
        (on_device(busy_frac=0.38), "unclear"),
        (on_device(busy_frac=0.3, step_s=0.060, wait_frac=0.75), "input"),
    ],
)
def test_a_device_reports_itself_how_long_it_had_nothing_to_do(seen: Evidence, kind: str) -> None:
    verdict = judge(seen)
    assert verdict.kind == kind
    assert sum(verdict.shares.values()) <= 1.0 + 1e-9
    assert any("device's own counters" in reason for reason in verdict.reasons)


def test_waiting_for_a_device_within_its_own_work_is_no_synchronisation() -> None:
    """A thread that is set to sleep while it waits was taken for one that sleeps."""
    blocked = {"forward": 0.003, "backward": 0.007}
    assert judge(evidence(blocked_s=blocked)).kind == "sync"
    seen = evidence(blocked_s=blocked, on_device=True)
    assert judge(seen).shares["sync"] == 0.0
    assert judge(seen).kind == "compute"


def test_waiting_within_work_that_exchanges_gradients_is_communication() -> None:
    blocked = {"forward": 0.0, "backward": 0.008}
    verdict = judge(evidence(blocked_s=blocked, collectives=3.0))
    assert verdict.kind == "communication"
    assert verdict.shares["communication"] == pytest.approx(0.008 / 0.0145)
    assert any("other processes, 3 times a step" in reason for reason in verdict.reasons)
    host = judge(evidence(phases_s={**PLAIN, "host": 0.030}, blocked_s={"host": 0.028}, step_s=0.044,
                          replay_step_s=0.044, collectives=3.0))  # fmt: skip
    assert host.kind == "sync", "what sleeps between the operations waits for nobody's gradients"
    assert "communication" not in judge(evidence()).shares, "one process alone has nobody to wait for"


def test_what_a_device_reported_travels_through_a_measurement() -> None:
    run = probed(6, collectives=2.0, start_s=5e-6)
    reported = {"device_busy_frac": 0.8, "device_tensor_frac": 0.3, "device_dram_frac": 0.5}
    outcome = run.outcome
    outcome = replace(
        outcome, extra={**outcome.extra, **reported}, memory=replace(outcome.memory, allocator=2**30)
    )
    seen = evidence_of(outcome)
    assert (seen.busy_frac, seen.tensor_frac, seen.dram_frac) == (0.8, 0.3, 0.5)
    assert (seen.collectives, seen.start_s, seen.on_device) == (2.0, 5e-6, True)
    assert not evidence_of(run.outcome).on_device

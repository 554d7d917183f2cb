"""What was recorded beside the figures of a comparison is reported with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import World, measurement, spec, tell, usual_space

from autotune.answer.pick import answer
from autotune.compare.amortised_rate import objective_runs, objective_values_by_trial, screened
from autotune.compare.comparison import compare
from autotune.compare.disturbances import (
    baseline_is_steady,
    clocks_apart,
    is_crowded,
    is_disturbed,
    left_out,
    marked_runs,
    only_disturbed,
    undisturbed,
)
from autotune.model.config import Config
from autotune.model.machine_load import Culprit, MachineLoad
from autotune.model.measurement import Contamination, Measurement
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage
from autotune.report.text.answer_screen import answer_screen

BASE, OTHER = Config(), Config({"threads": 4})
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)


def study_of(*cycles: tuple[Measurement, Measurement]) -> Study:
    """The script twice, the other config once, and cycles of both."""
    world = World(space=usual_space(), speed={})
    study = replace(Study(spec=spec(), facts=world.facts()), space=world.space)
    runs = [(Stage.BASELINE, 0, BASE, measurement(100.0)), (Stage.BASELINE, 0, BASE, measurement(101.0))]
    runs += [(Stage.REFINE, 0, OTHER, measurement(150.0))]
    for group, halves in enumerate(cycles, start=1):
        runs += [(Stage.CONFIRM, group, c, m) for c, m in zip((BASE, OTHER), halves, strict=True)]
    for stage, group, config, outcome in runs:
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="", seed=group, group=group)
        study = tell(study, proposal, outcome, 5.0)
    return study


def marked(rate: float, *flags: str) -> Measurement:
    return replace(measurement(rate), contamination=Contamination(flags=flags))


def at_clock(rate: float, mhz: float | None) -> Measurement:
    return replace(measurement(rate), extra={} if mhz is None else {"sm_clock_mhz": mhz})


def in_steps(made: Measurement) -> Measurement:
    """The same run where nobody could confirm how many samples a step has."""
    rate, batch = made.throughput, made.effective_batch
    by_steps = replace(
        rate, value=rate.value / batch, low=rate.low / batch, high=rate.high / batch, unit="steps/s"
    )
    return replace(made, throughput=by_steps)


def test_marks_of_the_runs_behind_a_claim_are_counted_in_the_answer() -> None:
    pairs = [(marked(100.0 + k, "cpu_contended"), marked(150.0 + k)) for k in range(2)]
    pairs += [(marked(100.0, "cpu_contended", "drifting"), marked(150.0, "wrote_outside")) for _ in range(3)]
    study = study_of(*pairs)
    (message,) = marked_runs(study, [OTHER])
    assert message.startswith("5 of 10 confirmation runs were irregular: ")
    assert "other processes took its CPU time (5), it drifted (3)." in message
    found = answer(study)
    assert found.best.config == OTHER
    assert message in found.caveats


@pytest.mark.parametrize(("crowded", "is_reported"), [(3, True), (2, False), (0, False)])
def test_a_claim_from_runs_beside_others_says_so_in_its_sentence(crowded: int, is_reported: bool) -> None:
    pairs = [(marked(100.0 + k, "cpu_contended"), marked(150.0 + k, "neighbour")) for k in range(crowded)]
    pairs += [(marked(100.0 + k, "bursty"), marked(150.0 + k, "drifting")) for k in range(4 - crowded)]
    study = study_of(*pairs)
    assert is_crowded(study, OTHER) == is_reported
    found = answer(study)
    assert found.best.config == OTHER
    assert found.sentence.endswith(
        "4 pairs, while other processes used the machine." if is_reported else "4 pairs."
    )
    first = answer_screen(study, found).splitlines()[0]
    assert ("training unchanged; measured beside other processes" in first) == is_reported


def test_without_a_mark_nothing_is_reported() -> None:
    study = study_of(*[(measurement(100.0 + k), measurement(150.0 + k)) for k in range(4)])
    assert marked_runs(study, [OTHER]) == []
    assert not any("mark" in caveat for caveat in answer(study).caveats)


def test_one_marked_run_of_a_config_that_is_not_named_is_not_counted() -> None:
    study = study_of((marked(100.0), marked(150.0, "bursty")), (marked(100.0), marked(150.0)))
    assert marked_runs(study, [OTHER])[0].startswith("1 of 4 confirmation runs")
    assert marked_runs(study, []) == []


@pytest.mark.parametrize(("mhz", "reported"), [(1900.0, False), (1700.0, True), (None, False)])
def test_halves_of_pairs_at_other_clocks_are_named(mhz: float | None, reported: bool) -> None:
    pairs = [(at_clock(100.0 + k, 1900.0), at_clock(150.0 + k, 1900.0)) for k in range(3)]
    study = study_of(*pairs, (at_clock(100.0, 1900.0), at_clock(150.0, mhz)))
    found = clocks_apart(study, [OTHER])
    assert bool(found) is reported
    assert any("clock" in caveat for caveat in answer(study).caveats) is reported
    if reported:
        assert found[0].startswith("In 1 of 4 pairs")
        assert "0.89 times your script's" in found[0]


def test_a_run_in_another_unit_is_left_out_everywhere_and_reported_so() -> None:
    pairs = [(measurement(100.0 + k), measurement(150.0 + k)) for k in range(4)]
    study = study_of(*pairs, (measurement(100.0), in_steps(measurement(150.0))))
    single = Config({"threads": 1})
    proposal = Proposal(stage=Stage.REFINE, config=single, fidelity=FIDELITY, reason="")
    study = tell(study, proposal, in_steps(measurement(900.0)), 5.0)
    (found,) = compare(study)
    assert (found.speedup.n, sorted(found.logs)) == (4, [1, 2, 3, 4])
    assert found.speedup.value == pytest.approx(1.49, abs=0.02)
    assert set(screened(study)) == {BASE, OTHER}
    reported = "2 runs are left out: not counted in samples/s, as the first run of your script was."
    assert left_out(study) == [reported]
    caveats = answer(study).caveats
    assert reported in caveats
    assert not any("another process used" in caveat for caveat in caveats)
    assert all(member.config != single for member in answer(study).front)


def test_a_script_whose_samples_nobody_knows_is_compared_in_steps() -> None:
    study = study_of(*[(measurement(100.0 + k), measurement(150.0 + k)) for k in range(4)])
    stepped = replace(
        study, trials=tuple(replace(t, outcome=in_steps(t.outcome)) for t in study.trials if t.measurement)
    )
    assert left_out(stepped) == []
    assert compare(stepped)[0].speedup.value == pytest.approx(compare(study)[0].speedup.value)


def beside(rate: float, cores: float) -> Measurement:
    return replace(measurement(rate), contamination=Contamination(foreign_cpu_frac=cores))


def screening(*runs: tuple[Config, Measurement]) -> Study:
    """The script's first runs and runs of others, in this order."""
    world = World(space=usual_space(), speed={})
    study = replace(Study(spec=spec(), facts=world.facts()), space=world.space)
    for config, outcome in runs:
        stage = Stage.BASELINE if config.is_baseline else Stage.REFINE
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="", seed=0)
        study = tell(study, proposal, outcome, 5.0)
    return study


def test_a_disturbed_reading_counts_only_until_its_config_has_an_undisturbed_one() -> None:
    runs = [(BASE, beside(100.0, 0.05)), (OTHER, beside(27.0, 1.0))]
    study = screening(*runs)
    assert screened(study)[OTHER] == pytest.approx(27.0, rel=0.01)
    again = screening(*runs, (OTHER, beside(150.0, 0.05)))
    assert screened(again)[OTHER] == pytest.approx(150.0, rel=0.01)
    assert len(objective_runs(again)[OTHER]) == 1
    assert [t.number for t, _ in objective_values_by_trial(again)] == [0, 2]
    assert [t.number for t in undisturbed(again, again.trials)] == [0, 2]


def test_a_disturbed_run_of_the_script_prices_nothing_once_there_is_another() -> None:
    study = screening((BASE, marked(8.5, "cpu_contended")), (BASE, beside(300.0, 0.05)))
    assert screened(study)[BASE] == pytest.approx(300.0, rel=0.01)


def test_configs_that_were_only_read_beside_others_are_due_again_once_the_load_is_gone() -> None:
    runs = [(BASE, beside(100.0, 0.05)), (OTHER, beside(27.0, 1.0))]
    assert only_disturbed(screening(*runs)) == frozenset(), "it may still be there"
    after = [*runs, (BASE, beside(101.0, 0.05))]
    assert only_disturbed(screening(*after)) == {OTHER}
    assert only_disturbed(screening(*after, (OTHER, beside(150.0, 0.05)))) == frozenset()


def test_beside_a_load_that_stays_nothing_is_due_again() -> None:
    runs = [(BASE, beside(50.0, 1.0)), (BASE, beside(51.0, 1.0)), (OTHER, beside(75.0, 1.0))]
    study = screening(*runs)
    assert only_disturbed(study) == frozenset()
    assert screened(study)[OTHER] == pytest.approx(75.0, rel=0.01)
    assert baseline_is_steady(study), "all runs meet the same load"
    assert not baseline_is_steady(screening(*runs, (OTHER, beside(150.0, 0.05)))), "the load has gone"


@pytest.mark.parametrize("cores", [0.05, 1.0])
def test_a_likely_candidate_that_was_read_beside_others_says_so(cores: float) -> None:
    runs = [(BASE, beside(100.0, cores)), (BASE, beside(101.0, cores)), (OTHER, beside(150.0, cores))]
    study = replace(screening(*runs), stopped="finished")
    assert is_crowded(study, OTHER) is (cores > 0.5)
    rows = answer_screen(study, answer(study)).splitlines()
    first = next(row for row in rows if row.startswith("  likely"))
    assert ("not confirmed, measured beside other processes" in first) is (cores > 0.5)


def test_trials_at_once_are_judged_against_the_quietest_run() -> None:
    runs = [(BASE, beside(100.0, 3.0)), (OTHER, beside(150.0, 3.1)), (OTHER, beside(60.0, 9.0))]
    study = screening(*runs)
    study = replace(study, spec=replace(study.spec, concurrency=4))
    assert [is_disturbed(study, t) for t in study.trials] == [False, False, True]


def wide(rate: float) -> Measurement:
    made = measurement(rate)
    return replace(made, throughput=replace(made.throughput, low=0.5 * rate, high=2.0 * rate))


@pytest.mark.parametrize(
    ("runs", "steady"),
    [
        ([], False),
        ([measurement(100.0)], True),
        ([wide(100.0)], False),
        ([marked(100.0, "drifting")], False),
        ([measurement(100.0), measurement(110.0)], True),
        ([wide(100.0), wide(110.0)], True),
        ([measurement(100.0), measurement(140.0)], False),
        ([measurement(20.0), measurement(100.0), measurement(104.0)], True),
        ([beside(8.5, 1.0), beside(100.0, 0.05)], True),
        ([beside(8.5, 1.0)], False),
    ],
)
def test_a_baseline_is_steady_where_undisturbed_runs_agree_or_one_is_narrow(
    runs: list[Measurement], steady: bool
) -> None:
    assert baseline_is_steady(screening(*((BASE, made) for made in runs))) is steady


def test_what_made_the_machine_busy_stands_in_the_answer_and_on_the_screen() -> None:
    study = study_of(*((measurement(100.0 + k), measurement(150.0)) for k in range(4)))
    ffmpeg = Culprit(name="ffmpeg", pid=4711, cores=1.0)
    study = replace(study, busy=(MachineLoad(foreign_cores=1.0, cpus=2, culprits=(ffmpeg,)),))
    message = 'The machine was busy: "ffmpeg" (pid 4711) used 1.0 of 2 cores.'
    assert message in answer(study).caveats
    assert f"note      {message}" in answer_screen(study, answer(study))

"""A search with records of earlier ones: sooner where they are true, little later where they mislead."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
from search_world import World, dimension, measurement, simulate, spec, tell

from autotune.answer.pick import answer
from autotune.compare.transfer import beliefs, fingerprint
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.history_record import Earlier, Gain, Read, Setting, Transfer
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage, Trial
from autotune.model.wire import dumps, loads
from autotune.search.costs import Costs
from autotune.search.history_export import NOISIEST, lessons, unfit
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.screening.feasible import Feasible
from autotune.search.stages import Staged

SPACE = SearchSpace(
    dimensions={
        d.knob: d
        for d in (
            dimension("precision", ("fp32", "bf16"), "fp32", effect=Effect.NUMERIC),
            dimension("channels_last", (False, True), False, effect=Effect.NUMERIC),
            dimension("threads", (1, 2, 4), 2, ordinal=True),
            dimension("fused_optimizer", (False, True), False),
        )
    }
)
WORLD = World(
    space=SPACE,
    speed={
        ("precision", "bf16"): 1.4,
        ("channels_last", True): 1.1,
        ("threads", 4): 1.15,
        ("threads", 1): 0.7,
        ("fused_optimizer", True): 0.97,
    },
)
OPPOSITE = replace(WORLD, speed={item: 1.0 / factor for item, factor in WORLD.speed.items()})
BEST = Config({"precision": "bf16", "channels_last": True, "threads": 4})
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)


def searched(world: World, *earlier: Earlier, salt: int = 0, each=None) -> Study:
    return simulate(Staged(), world, spec(seconds=400.0), salt=salt, earlier=earlier, each=each)


@functools.cache
def first(*, opposite: bool = False) -> Study:
    return searched(OPPOSITE if opposite else WORLD, salt=7)


@functools.cache
def lesson(*, opposite: bool = False) -> Earlier:
    found = lessons(first(opposite=opposite))
    assert found is not None
    return found


def course(study: Study) -> list[tuple[Stage, Config, str]]:
    return [(t.stage, t.config, t.reason) for t in study.trials]


def turn_of(study: Study, config: Config) -> int:
    return next(t.number for t in study.trials if t.config == config)


# What a study reports --------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_study_reports_what_was_confirmed_read_and_gained() -> None:
    reported = lesson()
    assert reported.starts[0].config == answer(first()).best.config == BEST
    assert math.exp(reported.starts[0].log) == pytest.approx(
        WORLD.rate(BEST) / WORLD.rate(Config()), rel=0.05
    )
    gains = {(g.knob, g.value): math.exp(g.log) for g in reported.gains}
    assert gains["precision", "bf16"] == pytest.approx(1.37, rel=0.05)
    assert gains["threads", 4] == pytest.approx(1.14, rel=0.08)
    assert reported.owns == {
        "precision": "fp32",
        "channels_last": False,
        "threads": 2,
        "fused_optimizer": False,
    }
    assert len(reported.seen) <= 32
    assert 0.01 < reported.noise < 0.04


def test_records_that_a_study_received_are_not_exported() -> None:
    """Else three searches would make a certainty of one reading."""
    rumour = Read(config=Config({"threads": 1}), log=0.02)
    liar = replace(lesson(), starts=(), seen=(rumour,), gains=())
    second = searched(WORLD, liar, salt=8)
    reported = lessons(second)
    assert reported is not None
    read = {r.config for r in reported.seen}
    assert read <= {t.config for t in second.trials if t.measurement is not None}


def test_a_study_that_measured_nothing_but_the_script_reports_nothing() -> None:
    only = replace(first(), trials=tuple(t for t in first().trials if t.config.is_baseline))
    assert lessons(only) is None
    assert "nothing but the script" in unfit(seen(only))


def seen(study: Study) -> Study:
    """With facts of a process that reported its Python."""
    assert study.facts is not None
    assert study.facts.run is not None
    run = replace(study.facts.run, versions={"python": "3.11"})
    return replace(study, facts=replace(study.facts, run=run))


def marked(trial: Trial, flag: str) -> Trial:
    measured = trial.measurement
    if measured is None:
        return trial
    flags = replace(measured.contamination, flags=(flag,))
    return replace(trial, outcome=replace(measured, contamination=flags))


@pytest.mark.parametrize("flag", ["cpu_contended", "foreign_gpu", "throttled"])
def test_a_study_of_a_disturbed_machine_reports_nothing(flag: str) -> None:
    study = seen(first())
    assert not unfit(study)
    trials = tuple(marked(t, flag) if t.number % 3 else t for t in study.trials)
    assert "disturbed, or held down" in unfit(replace(study, trials=trials))


def test_a_study_whose_script_scattered_reports_nothing() -> None:
    study = seen(first())
    loud = Study(spec=study.spec, facts=study.facts, space=SPACE)
    for k, rate in enumerate((100.0, 140.0, 90.0, 130.0, 150.0)):
        config = Config() if k < 4 else Config({"threads": 4})
        stage = Stage.DRIFT_CHECK if config.is_baseline else Stage.REFINE
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x")
        loud = tell(loud, proposal, measurement(rate), 5.0)
    assert "runs of the unchanged script differed" in unfit(loud)
    assert NOISIEST < 0.2


def test_a_study_of_a_version_that_kept_less_reports_nothing() -> None:
    assert "too little" in unfit(first())


# What a search makes of it -------------------------------------------------------------------------


def test_what_was_confirmed_before_is_tried_right_after_the_script() -> None:
    plain, again = searched(WORLD, salt=1), searched(WORLD, lesson(), salt=1)
    assert [t.stage for t in again.trials[:2]] == [Stage.BASELINE, Stage.INITIAL]
    assert again.trials[1].config == BEST
    assert turn_of(plain, BEST) >= 3
    assert "earlier study of this script" in again.trials[1].reason
    # It is confirmed by runs of its own, like any other.
    found = answer(again)
    assert found.best.config == BEST
    pairs = [t for t in again.finished(Stage.CONFIRM) if t.config == BEST]
    assert found.best.speedup.n <= len(pairs)
    assert beliefs(again).notes == (
        "start points from 1 earlier study of this script (test), none taken over unmeasured",
    )


@pytest.mark.thorough
def test_a_resumed_search_goes_on_as_the_undisturbed_one_would() -> None:
    """All of its records are in the study; the same study read from a journal proposes the same."""
    for reported in (lesson(), lesson(opposite=True)):
        turns = 0

        def check(study: Study, proposal: Proposal, remaining_s: float) -> None:
            nonlocal turns
            turns += 1
            if turns % 4 == 3:
                again = replace(loads(Study, dumps(replace(study, space=None))), space=study.space)
                assert again.transfer == study.transfer
                assert Staged().ask(again, remaining_s) == proposal

        searched(WORLD, reported, salt=2, each=check)
        assert turns > 10


def test_what_single_values_did_elsewhere_is_tried_together_first() -> None:
    """Of a script that has changed since, nothing of which was confirmed."""
    before = replace(lesson().fingerprint, script="before")
    reported = replace(lesson(), starts=(), fingerprint=before)
    study = searched(WORLD, reported, salt=6)
    assert study.trials[1].stage is Stage.INITIAL
    assert study.trials[1].reason.startswith("What is likely to help, together")
    assert study.trials[1].config == BEST


@pytest.mark.thorough
def test_a_study_of_another_device_changes_nothing() -> None:
    reported = lesson()
    elsewhere = replace(reported, fingerprint=replace(reported.fingerprint, device="another"))
    assert course(searched(WORLD, elsewhere, salt=1)) == course(searched(WORLD, salt=1))


@pytest.mark.parametrize("changed", [False, True])
def test_a_study_that_misleads_is_dropped_and_costs_a_few_runs(changed: bool) -> None:
    liar = lesson(opposite=True)
    if changed:
        liar = replace(liar, fingerprint=replace(liar.fingerprint, script="before"))
    plain, misled = searched(WORLD, salt=2), searched(WORLD, liar, salt=2)
    assert any("no longer counts" in text for text in beliefs(misled).notes)
    assert not beliefs(misled).first
    assert answer(misled).best.config == answer(plain).best.config == BEST
    assert turn_of(misled, BEST) <= turn_of(plain, BEST) + 6


def test_what_others_have_seen_ends_no_search() -> None:
    """Told that nothing gains, by a script that has changed since: too little to be contradicted at once."""
    reported = lesson()
    gains = tuple(Gain(knob=g.knob, value=g.value, log=-0.3, sd=0.01) for g in reported.gains)
    before = replace(reported.fingerprint, script="before")
    dull = replace(reported, starts=(), seen=(), gains=gains, fingerprint=before)
    found = answer(searched(WORLD, dull, salt=3))
    assert found.best.config == BEST


def test_what_is_recommended_rests_on_present_runs_alone() -> None:
    """However much another study makes of a config, who is confirmed is for the readings here."""
    study = searched(WORLD, lesson(), salt=4)
    bare = replace(study, transfer=None)
    assert answer(bare) == answer(study)
    model, informed = (ThroughputModel.of(study, SPACE, informed=i) for i in (False, True))
    plain = ThroughputModel.of(bare, SPACE)
    assert model is not None
    assert informed is not None
    assert plain is not None
    assert all(model.predict(c) == plain.predict(c) for c in SPACE.enumerate())
    assert informed.seen == model.seen


def test_the_model_takes_first_beliefs_for_what_was_not_measured() -> None:
    reported = lesson()
    study = Study(spec=spec(), space=SPACE, facts=WORLD.facts())
    for config, rate in ((Config(), 100.0), (Config({"precision": "bf16"}), 140.0)):
        stage = Stage.REFINE if config else Stage.BASELINE
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x")
        study = tell(study, proposal, measurement(rate), 5.0)
    assert not beliefs(study).first
    bare = replace(study, trials=(), facts=replace(WORLD.facts(), run=None))
    study = replace(study, transfer=Transfer(present=fingerprint(bare), earlier=(reported,)))
    informed, own = (ThroughputModel.of(study, SPACE, informed=i) for i in (True, False))
    assert informed is not None
    assert own is not None
    four = Config({"threads": 4})
    assert own.predict(four)[0] == pytest.approx(0.0, abs=0.06)
    assert informed.predict(four)[0] == pytest.approx(math.log(1.14), abs=0.06)
    assert informed.predict(four)[1] < own.predict(four)[1]
    # What was measured here is believed as it was.
    assert informed.predict(Config({"precision": "bf16"}))[0] == pytest.approx(math.log(1.4), abs=0.03)


def with_records(reported: Earlier, space: SearchSpace = SPACE) -> Study:
    """The script measured once, and this recorded."""
    bare = Study(spec=spec(), facts=replace(WORLD.facts(), run=None))
    transfer = Transfer(present=fingerprint(bare), earlier=(reported,))
    study = Study(spec=spec(), space=space, facts=WORLD.facts(), transfer=transfer)
    proposal = Proposal(stage=Stage.BASELINE, config=Config(), fidelity=FIDELITY, reason="x")
    return tell(study, proposal, measurement(100.0), 5.0)


def test_a_value_that_failed_before_comes_later_and_is_not_forbidden() -> None:
    bf16 = Config({"precision": "bf16"})
    failed = (Setting(knob="precision", value="bf16"),)
    doubting = replace(lesson(), starts=(), seen=(), gains=(), doubted=failed)
    feasible = Feasible.of(with_records(doubting), SPACE)
    assert feasible.allows(bf16)
    assert feasible.works(bf16) < 0.4 < feasible.works(Config({"threads": 4}))
    plain, later = searched(WORLD, salt=5), searched(WORLD, doubting, salt=5)
    first, then = (
        next(t.number for t in study.trials if t.config.get("precision") == "bf16")
        for study in (plain, later)
    )
    assert then > first
    assert answer(later).best.config == BEST
    # It has worked here by now.
    assert not Feasible.of(later, SPACE).doubted


def test_what_failed_for_certain_is_reported() -> None:
    study = first()
    crash = Failure(kind=FailureKind.CRASH_EXIT, message="crash")
    proposal = Proposal(stage=Stage.REFINE, config=Config({"other": 1}), fidelity=FIDELITY, reason="x")
    reported = lessons(tell(study, proposal, crash, 3.0))
    assert reported is not None
    assert reported.doubted == (Setting(knob="other", value=1),)


def test_what_won_its_pairs_and_failed_in_another_is_no_start_for_others() -> None:
    crash = Failure(kind=FailureKind.OOM_CUDA, message="no memory")
    proposal = Proposal(stage=Stage.CONFIRM, config=BEST, fidelity=FIDELITY, reason="x", group=9)
    reported = lessons(tell(first(), proposal, crash, 3.0))
    assert reported is not None
    assert BEST not in {read.config for read in reported.starts}


def test_a_first_compile_is_expected_to_take_what_it_took_before() -> None:
    space = SearchSpace(dimensions={"compile": dimension("compile", ("off", "default"), "off")})
    config = Config({"compile": "default"})
    reported = replace(lesson(), compile_s={"default": 123.0}, owns={})
    assert Costs.of(with_records(reported, space)).cold_compile(config) == 123.0
    assert Costs.of(replace(with_records(reported, space), transfer=None)).cold_compile(config) < 100.0

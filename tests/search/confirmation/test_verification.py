"""Is one config faster? Asked by pairs, answered by an interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import World, loss_trace, measurement, simulate, spec, tell, usual_space
from session_fakes import FIDELITY

from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Outcome, Proposal, Stage
from autotune.search.confirmation.verification import Verification

SPACE = usual_space()
BF16 = Config({"precision": "bf16"})
THREADS = Config({"threads": 1})


def verified(config: Config, gain: float, *, salt: int = 0, noise: float = 0.02, **how: object) -> str:
    study = run(config, gain, salt=salt, noise=noise, **how)
    return Verification(config, **how).verdict(study)  # type: ignore[arg-type]


def run(
    config: Config, gain: float, *, salt: int = 0, noise: float = 0.02, seconds: float = 900.0, **how: object
) -> Study:
    item = next(iter(config.items()))
    world = World(space=SPACE, speed={item: gain}, input_s=0.0, noise=noise)
    return simulate(Verification(config, **how), world, spec(seconds=seconds), salt=salt)  # type: ignore[arg-type]


def test_a_gain_is_shown_and_a_loss_as_well() -> None:
    assert verified(BF16, 1.5) == "faster"
    assert verified(THREADS, 0.7) == "slower"


def test_nothing_but_the_script_and_the_config_is_run_and_the_order_turns() -> None:
    study = run(BF16, 1.02, noise=0.05, most_pairs=6)
    assert {t.config for t in study.trials} == {Config(), BF16}
    assert [t.config.is_baseline for t in study.trials[:2]] == [True, True]
    pairs = [t for t in study.trials if t.stage is Stage.CONFIRM]
    assert [t.config.is_baseline for t in pairs[:6]] == [True, False, False, True, True, False]
    assert all(a.seed == b.seed for a, b in zip(pairs[::2], pairs[1::2], strict=True))
    assert max(t.group for t in pairs) <= 6


def test_a_clear_gain_needs_three_pairs_only() -> None:
    study = run(BF16, 2.0)
    assert max(t.group for t in study.trials) == 3


def test_a_threshold_asks_for_more_than_any_gain() -> None:
    assert verified(BF16, 1.5, at_least=1.3) == "faster"
    assert verified(BF16, 1.5, at_least=1.6) == "no_difference"


def test_a_config_that_always_fails_is_no_difference_but_a_failure() -> None:
    world = World(space=SPACE, speed={}, broken=frozenset(BF16.items()))
    study = simulate(Verification(BF16), world, spec(seconds=900.0))
    assert Verification(BF16).verdict(study) == "failed"
    assert sum(1 for t in study.trials if t.config == BF16) == 1


def test_too_short_a_budget_claims_nothing() -> None:
    study = run(BF16, 2.0, seconds=40.0)
    assert Verification(BF16).verdict(study) == "no_difference"


def test_a_worse_loss_is_named_however_fast_it_is() -> None:
    study = run(BF16, 2.0)
    spoiled = tuple(
        replace(
            t,
            outcome=replace(t.outcome, loss=tuple(replace(p, loss=p.loss + 3.0) for p in t.outcome.loss)),
        )
        if t.config == BF16 and t.measurement
        else t
        for t in study.trials
    )
    assert Verification(BF16).verdict(replace(study, trials=spoiled)) == "worse"


def shaky(rate: float) -> Study:
    """Eight pairs; the script itself runs at 100 and at 160, in the turn that its control pairs them in."""
    study = Study(spec=spec(), space=SPACE)
    runs = [(Stage.BASELINE, 0, Config(), 100.0)] * 2
    for group in range(1, 9):
        base = 100.0 if group % 4 in (1, 0) else 160.0
        runs += [(Stage.CONFIRM, group, Config(), base), (Stage.CONFIRM, group, THREADS, rate)]
    for stage, group, config, figure in runs:
        proposal = Proposal(
            stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=group, group=group
        )
        study = tell(study, proposal, measurement(figure), 7.0)
    return study


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (400.0, ("faster", "")),
        (200.0, ("no_difference", "unsteady")),
        (126.0, ("no_difference", "not_cleared")),
        (60.0, ("no_difference", "unsteady")),
        (30.0, ("slower", "")),
    ],
)
def test_a_difference_has_to_clear_what_the_script_differs_from_itself_by(
    rate: float, message: tuple[str, str]
) -> None:
    study, proposal = shaky(rate), Verification(THREADS)
    assert (proposal.verdict(study), proposal.because(study)) == message


def test_too_few_pairs_are_no_measured_no_difference() -> None:
    short = run(BF16, 2.0, seconds=40.0)
    assert Verification(BF16).because(short) == "too_few_pairs"
    measured = run(BF16, 1.0, most_pairs=5)
    proposal = Verification(BF16, most_pairs=5)
    assert (proposal.verdict(measured), proposal.because(measured)) == ("no_difference", "not_cleared")
    assert proposal.because(run(BF16, 1.5)) == ""


def test_a_loss_that_nobody_saw_leaves_a_gain_unclaimed_and_says_so() -> None:
    study = run(BF16, 2.0)
    mute = [replace(t, outcome=replace(t.measurement, loss=())) for t in study.trials if t.measurement]
    proposal, reported = Verification(BF16), replace(study, trials=tuple(mute))
    assert (proposal.verdict(reported), proposal.because(reported)) == ("no_difference", "loss_unclear")


def failing(
    kind: FailureKind, *, of: Config, pair: int, seconds: float = 900.0, every: bool = False
) -> Study:
    """BF16 is twice as fast, and one run of either arm fails in that pair; or every one from then on."""
    study, requested, remaining_s = (
        Study(spec=spec(seconds=seconds), space=SPACE),
        Verification(BF16),
        seconds,
    )
    # Runs of one config are so far apart that three pairs settle nothing.
    rates = (150.0, 250.0, 190.0, 230.0, 170.0, 210.0)
    while (proposal := requested.ask(study, remaining_s)) is not None:
        rate = 100.0 if proposal.config.is_baseline else rates[proposal.group % len(rates)]
        outcome: Outcome = measurement(
            rate, loss=loss_trace(seed=proposal.seed, jitter_seed=len(study.trials))
        )
        is_it = proposal.group == pair or (every and proposal.group > pair)
        if proposal.stage is Stage.CONFIRM and proposal.config == of and is_it:
            outcome = Failure(kind=kind, message="it ended")
        study = tell(study, proposal, outcome, 7.0)
        remaining_s -= 7.0
    return study


def judged(study: Study) -> tuple[str, str]:
    proposal = Verification(BF16)
    return proposal.verdict(study), proposal.because(study)


@pytest.mark.parametrize("pair", [1, 4])
@pytest.mark.parametrize("kind", [k for k in FailureKind if k.teaches], ids=lambda kind: kind.label)
def test_a_config_that_fails_in_any_pair_does_not_pass(kind: FailureKind, pair: int) -> None:
    study = failing(kind, of=BF16, pair=pair)
    assert max(t.group for t in study.trials) == pair
    assert judged(study) == ("worse" if kind is FailureKind.DIVERGED else "failed", "")


@pytest.mark.parametrize("pair", [1, 4])
def test_a_script_that_fails_by_itself_is_not_taken_for_the_config(pair: int) -> None:
    study = failing(FailureKind.OOM_CUDA, of=Config(), pair=pair)
    assert judged(study) == ("no_difference", "script_failed")


def test_harm_that_pairs_have_shown_is_reported_beside_a_script_that_fails() -> None:
    study = run(THREADS, 0.5, most_pairs=4)
    proposal = Proposal(stage=Stage.CONFIRM, config=Config(), fidelity=FIDELITY, reason="x", seed=9, group=9)
    study = tell(study, proposal, Failure(kind=FailureKind.OOM_CUDA, message="no memory"), 7.0)
    assert Verification(THREADS).verdict(study) == "slower"


@pytest.mark.parametrize("of", [Config(), BF16], ids=["script", "config"])
@pytest.mark.parametrize(
    "kind", [FailureKind.CONTENDED, FailureKind.THROTTLED, FailureKind.WARMUP_SHORT, FailureKind.NO_METRIC]
)
def test_runs_that_were_lost_are_no_failure_of_the_config(kind: FailureKind, of: Config) -> None:
    assert judged(failing(kind, of=of, pair=2, every=True)) == ("no_difference", "lost_runs")
    # One lost pair costs no more than itself.
    assert judged(failing(kind, of=of, pair=2)) == ("faster", "")


def test_a_config_that_takes_no_effect_here_is_a_failure_though_it_teaches_nothing() -> None:
    study = failing(FailureKind.CONFIG_REJECTED, of=BF16, pair=1, every=True)
    assert judged(study) == ("failed", "")


def test_a_run_that_the_budget_cut_short_asks_for_more_time() -> None:
    study = failing(FailureKind.TIMEOUT_TOTAL, of=BF16, pair=1)
    last = study.trials[-1]
    assert judged(study) == ("failed", "")
    cut = replace(last, fidelity=replace(last.fidelity, deadline_s=9.0))
    assert judged(study.with_trial(cut)) == ("no_difference", "too_few_pairs")


@pytest.mark.thorough
def test_the_same_script_twice_is_seldom_called_faster_or_slower() -> None:
    found = [verified(BF16, 1.0, salt=salt, noise=0.03) for salt in range(50)]
    assert found.count("faster") <= 4
    assert found.count("slower") <= 4

"""Is one config faster? Asked by pairs, answered by an interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import World, measurement, simulate, spec, tell, usual_space
from session_fakes import FIDELITY

from autotune.core.config import Config
from autotune.core.study import Study
from autotune.core.trial import Proposal, Stage
from autotune.search.verification import Verification

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
        asked = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=group, group=group)
        study = tell(study, asked, measurement(figure), 7.0)
    return study


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (400.0, ("faster", "")),
        (200.0, ("no_difference", "unsteady")),
        (126.0, ("no_difference", "not_cleared")),
        (60.0, ("no_difference", "unsteady")),
        (30.0, ("slower", "")),
    ],
)
def test_a_difference_has_to_clear_what_the_script_differs_from_itself_by(
    rate: float, said: tuple[str, str]
) -> None:
    study, asked = shaky(rate), Verification(THREADS)
    assert (asked.verdict(study), asked.because(study)) == said


def test_too_few_pairs_are_no_measured_no_difference() -> None:
    short = run(BF16, 2.0, seconds=40.0)
    assert Verification(BF16).because(short) == "too_few_pairs"
    measured = run(BF16, 1.0, most_pairs=5)
    asked = Verification(BF16, most_pairs=5)
    assert (asked.verdict(measured), asked.because(measured)) == ("no_difference", "not_cleared")
    assert asked.because(run(BF16, 1.5)) == ""


def test_a_loss_that_nobody_saw_leaves_a_gain_unclaimed_and_says_so() -> None:
    study = run(BF16, 2.0)
    mute = [replace(t, outcome=replace(t.measurement, loss=())) for t in study.trials if t.measurement]
    asked, told = Verification(BF16), replace(study, trials=tuple(mute))
    assert (asked.verdict(told), asked.because(told)) == ("no_difference", "loss_unclear")


@pytest.mark.thorough
def test_the_same_script_twice_is_seldom_called_faster_or_slower() -> None:
    found = [verified(BF16, 1.0, salt=salt, noise=0.03) for salt in range(50)]
    assert found.count("faster") <= 4
    assert found.count("slower") <= 4

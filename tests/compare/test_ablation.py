"""What each knob of a winner buys, and what is left without those that buy nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_world import World, measurement, spec, tell, usual_space

from autotune.answer.pick import answer
from autotune.compare.ablation import ablated, knob_gains, late_members, variants, without_idle
from autotune.compare.comparison import compare
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage

SPACE = usual_space()
BASE = Config()
WINNER = Config({"precision": "bf16", "num_workers": 4, "prefetch_factor": 4, "channels_last": True})
LEFT = Config({"precision": "bf16", "num_workers": 4})
OTHER = Config({"threads": 4})
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
WOBBLE = (0.01, -0.008, 0.004, -0.006, 0.0)


def begun() -> Study:
    world = World(space=SPACE, speed={})
    return replace(Study(spec=spec(), facts=world.facts()), space=SPACE)


def add(study: Study, stage: Stage, config: Config, rate: float, group: int) -> Study:
    noisy = rate * math.exp(WOBBLE[(group + len(config)) % len(WOBBLE)])
    proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="", seed=group, group=group)
    return tell(study, proposal, measurement(noisy), 5.0)


def apart(rates: dict[str, float], cycles: int = 3) -> Study:
    """The winner at 200, and without each knob at these rates."""
    study = begun()
    for group in range(1, cycles + 1):
        study = add(study, Stage.ABLATE, WINNER, 200.0, group)
        for knob, variant in variants(study, WINNER).items():
            study = add(study, Stage.ABLATE, variant, rates[knob], group)
    return study


RATES = {"precision": 120.0, "num_workers": 150.0, "prefetch_factor": 200.0, "channels_last": 199.0}


def test_a_variant_lacks_one_knob_and_what_goes_with_it() -> None:
    found = variants(begun(), WINNER)
    assert set(found) == {"precision", "num_workers", "prefetch_factor", "channels_last"}
    # Without workers there is nothing to prefetch.
    assert found["num_workers"] == Config({"precision": "bf16", "channels_last": True})
    assert found["prefetch_factor"] == WINNER.without("prefetch_factor")


def test_every_knob_is_given_its_gain_in_pairs() -> None:
    study = apart(RATES)
    assert ablated(study) == WINNER
    found = knob_gains(study)
    assert next(iter(found)) == "precision"
    assert found["precision"].value == pytest.approx(200 / 120, rel=0.03)
    assert all(gain.n == 3 for gain in found.values())


def test_what_buys_nothing_is_taken_out_together() -> None:
    assert without_idle(apart(RATES)) == LEFT


def test_two_cycles_take_nothing_out() -> None:
    assert without_idle(apart(RATES, cycles=2)) is None


def test_a_knob_that_brings_a_little_stays() -> None:
    assert without_idle(apart({**RATES, "channels_last": 190.0})) == WINNER.without("prefetch_factor")


def test_a_variant_that_had_never_compiled_before_is_not_charged_for_its_first_time() -> None:
    winner = Config({"compile": "default", "threads": 4})
    study = replace(begun(), spec=spec(run_steps=1000))
    for group in range(1, 4):
        for config, rate, compile_s in (
            (winner, 200.0, 3.0),
            (Config({"compile": "default"}), 200.0, 60.0 if group == 1 else 3.0),
            (Config({"threads": 4}), 100.0, 0.0),
        ):
            proposal = Proposal(
                stage=Stage.ABLATE, config=config, fidelity=FIDELITY, reason="", seed=group, group=group
            )
            study = tell(study, proposal, measurement(rate, compile_s=compile_s), 5.0)
    assert knob_gains(study)["threads"].value == pytest.approx(1.0)
    assert knob_gains(study)["compile"].value > 1.9
    assert without_idle(study) == Config({"compile": "default"})


def confirmed(late_rate: float, winner_rate: float = 200.0, *, other_rate: float = 0.0) -> Study:
    study = begun()
    for number in range(2):
        study = add(study, Stage.BASELINE, BASE, 100.0, 0)
        del number
    for group in range(1, 5):
        for config, rate in ((BASE, 100.0), (WINNER, winner_rate)):
            study = add(study, Stage.CONFIRM, config, rate, group)
    for trial in apart(RATES).trials:
        study = replace(study, trials=(*study.trials, replace(trial, number=len(study.trials))))
    for group in range(5, 9):
        line = [(BASE, 100.0), (WINNER, winner_rate), (LEFT, late_rate)]
        for config, rate in [*line, (OTHER, other_rate)] if other_rate else line:
            study = add(study, Stage.CONFIRM, config, rate, group)
    losses = tuple(
        replace(t, outcome=replace(t.outcome, loss=(), memory=t.measurement.memory)) if t.measurement else t
        for t in study.trials
    )
    exact = {k: replace(d, effect=type(d.effect).EXACT) for k, d in SPACE.dimensions.items()}
    return replace(study, trials=losses, space=replace(SPACE, dimensions=exact))


def test_what_is_left_takes_the_place_of_a_winner_that_is_no_faster() -> None:
    study = confirmed(200.0)
    assert late_members(study) == {LEFT}
    found = answer(study)
    assert found.best.config == LEFT
    assert any(reason.startswith("Removed, because") for reason in found.best.reasons)


def test_what_is_left_and_slower_does_not() -> None:
    assert answer(confirmed(180.0)).best.config == WINNER


def test_what_is_left_of_no_winner_is_not_claimed() -> None:
    assert not answer(confirmed(130.0, winner_rate=100.0)).is_better


def test_who_comes_in_late_and_is_no_part_of_the_winner_is_one_chance_more_and_may_win() -> None:
    study = confirmed(130.0, winner_rate=100.0, other_rate=150.0)
    assert late_members(study) == {LEFT}
    assert answer(study).best.config == OTHER
    alone = replace(study, trials=tuple(t for t in study.trials if t.config != OTHER))
    counted = [next(c.speedup.confidence for c in compare(s) if c.config == LEFT) for s in (alone, study)]
    assert counted[0] < counted[1]


def test_a_part_of_the_winner_is_one_whatever_follows_from_it() -> None:
    follower = replace(SPACE.dimensions["threads"], derived=True)
    space = replace(SPACE, dimensions={**SPACE.dimensions, "threads": follower})
    study = replace(begun(), space=space)
    winner = Config({"precision": "bf16", "num_workers": 4, "threads": 4})
    study = add(study, Stage.ABLATE, winner, 200.0, 1)
    left = Config({"precision": "bf16", "threads": 1})
    study = add(study, Stage.CONFIRM, left, 200.0, 1)
    assert late_members(study) == {left}

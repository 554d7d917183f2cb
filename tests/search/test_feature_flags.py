"""Each part of the planner: what is found, spent or kept with it, and not without it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest
from search_world import World, dimension, loss_trace, measurement, simulate, spec, tell

from autotune.answer.pick import answer
from autotune.compare.comparison import compare
from autotune.errors import UsageError
from autotune.model.config import Config, Value
from autotune.model.effect import Effect
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage
from autotune.search.confirmation import racing
from autotune.search.costs import Costs
from autotune.search.feature_flags import DEFAULT, NAMES, FeatureFlags
from autotune.search.screening.acquisition import cost_power
from autotune.search.screening.refinement import training_changing
from autotune.search.screening.shortlist import shortlist
from autotune.search.screening.state import SearchState
from autotune.search.stages import Staged

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
EVERY = FeatureFlags().put("all", present=True)
NONE = FeatureFlags().put("all", present=False)
A, B, AB = Config({"a": 1}), Config({"b": 1}), Config({"a": 1, "b": 1})


def switches(*names: str, effect: Effect = Effect.EXACT) -> SearchSpace:
    return SearchSpace(dimensions={n: dimension(n, (0, 1), 0, effect=effect) for n in names})


def screened(
    space: SearchSpace, rates: dict[Config, float], *, baselines: tuple[float, ...], delay: float = 0.0
) -> Study:
    """The script as often as that, and every config once; what changes a lags behind by the delay."""
    study = Study(spec=spec(seconds=900), space=space)
    runs = [(Config(), rate) for rate in baselines] + list(rates.items())
    for number, (config, rate) in enumerate(runs):
        stage = Stage.REFINE if config else Stage.BASELINE
        seed = 0 if config else number
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=seed)
        lag = delay if "a" in config else 0.0
        trace = loss_trace(seed=seed, jitter_seed=number, delay=lag)
        study = tell(study, proposal, measurement(rate, loss=trace), 7.0)
    return study


# Parts by name -----------------------------------------------------------------------------------


def test_parts_are_put_in_and_left_out_by_name() -> None:
    assert EVERY.put("ceilings", present=False) == replace(DEFAULT, ceilings=False)
    assert NONE.put("focuses", "gives_up", present=True) == replace(NONE, focuses=True, gives_up=True)
    assert all(getattr(EVERY, name) and not getattr(NONE, name) for name in NAMES)
    with pytest.raises(UsageError) as raised:
        DEFAULT.put("free_draw", present=False)
    assert raised.value.hint == 'Did you mean "free_draws"?'


# Ties --------------------------------------------------------------------------------------------


def test_of_two_that_no_run_reports_apart_the_one_that_takes_far_less_memory_is_confirmed() -> None:
    def leaders(rate: float, gib: float, first: float = 150.0) -> tuple[Config, ...]:
        study = Study(spec=spec(seconds=900), space=switches("a", "b"))
        runs = ((Config(), 100.0, 1.0), (A, first, 1.0), (B, rate, gib))
        for number, (config, value, peak) in enumerate(runs):
            stage = Stage.REFINE if config else Stage.BASELINE
            proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=number)
            read = measurement(value, peak_bytes=int(peak * 2**30), loss=loss_trace(seed=number))
            study = tell(study, proposal, read, 7.0)
        return shortlist(study, EVERY)

    assert leaders(151.0, 5.0)[0] == A
    assert leaders(151.0, 1.2)[0] == B, "a little memory is no reason"
    assert leaders(156.0, 5.0)[0] == B, "four per cent are"
    assert leaders(100.7, 5.0, first=99.9)[0] == B, "less memory than the script needs no place of a gain"


def three_per_cent_apart(space: SearchSpace) -> Study:
    """What b adds to a is more than a tie, and less than two runs of the script differ here."""
    return screened(space, {A: 153.0, B: 106.0, AB: 158.0}, baselines=(100.0, 106.0))


def test_a_gain_within_the_noise_of_single_runs_is_not_given_away_before_pairs() -> None:
    study = three_per_cent_apart(switches("a", "b"))
    assert shortlist(study, EVERY)[0] == AB
    assert shortlist(study, replace(EVERY, ties_after_pairs=False))[0] == A


def carried_through(study: Study, truth: dict[Config, float], parts: FeatureFlags) -> Study:
    """Confirmation to its end; pairs read the truth but for a third of a per cent."""
    strategy, remaining_s, draw = Staged(parts=parts), 600.0, random.Random(0)
    while (proposal := strategy.ask(study, remaining_s)) is not None:
        rate = truth[proposal.config] * math.exp(draw.gauss(0.0, 0.003))
        trace = loss_trace(seed=proposal.seed, jitter_seed=len(study.trials))
        study = tell(study, proposal, measurement(rate, loss=trace), 7.0)
        remaining_s -= 7.0
    return study


def in_pairs(ahead: float, scatter: float) -> Config:
    """Who is best where both were confirmed in eight cycles, one ahead of the simpler one by so much."""
    study = screened(switches("a", "b"), {A: 150.0, B: 101.0, AB: 151.5}, baselines=(100.0, 100.0))
    for group in range(1, 9):
        turn = math.exp(scatter * (1 if group % 2 else -1))
        for config, rate in {Config(): 100.0, A: 150.0, AB: 150.0 * ahead * turn}.items():
            study = after_run(study, config, rate, group)
    return answer(study).best.config


def test_of_two_that_cannot_be_distinguished_the_simpler_is_taken_only_where_little_is_lost() -> None:
    assert in_pairs(ahead=1.005, scatter=0.01) == A
    assert in_pairs(ahead=1.015, scatter=0.08) == AB, "it may as well be five per cent behind"
    assert in_pairs(ahead=1.03, scatter=0.01) == AB


@pytest.mark.parametrize(("bring", "best"), [(1.03, AB), (1.0, A)])
def test_pairs_say_whether_the_simpler_one_is_as_fast(bring: float, best: Config) -> None:
    # By single runs b brings something, but less than a tie.
    study = screened(switches("a", "b"), {A: 150.0, B: 101.0, AB: 151.5}, baselines=(100.0, 100.0))
    assert shortlist(study, EVERY) == (AB, A)
    truth = {Config(): 100.0, A: 150.0, B: 100.0 * bring, AB: 150.0 * bring}
    ended = carried_through(study, truth, EVERY)
    confirmed = {t.config for t in ended.finished(Stage.CONFIRM)}
    assert {A, AB} <= confirmed
    assert answer(ended).best.config == best


def test_the_one_beside_the_first_takes_no_time_from_screening_and_leaves_first_where_time_is_short() -> None:
    study = screened(switches("a", "b"), {A: 150.0, B: 101.0, AB: 151.5}, baselines=(100.0, 100.0))
    assert study.space is not None
    search = SearchState.of(study, study.space, 300.0, EVERY)
    assert search is not None
    assert search.reserve_s == pytest.approx(search.costs.reserve([AB], 300.0))
    short = Staged(parts=EVERY).ask(study, 70.0)
    assert short is not None
    assert short.reason.endswith("finalists: 1.")


# Starts -------------------------------------------------------------------------------------------


def started(space: SearchSpace, rates: dict[Config, float], parts: FeatureFlags) -> Proposal:
    """What is requested next after these starts, in this order."""
    study = Study(spec=spec(seconds=900), space=space)
    for number, (config, rate) in enumerate([(Config(), rates[Config()]), *rates.items()]):
        stage = Stage.INITIAL if config else Stage.BASELINE
        requested = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=number)
        study = tell(study, requested, measurement(rate), 7.0)
    proposal = Staged(parts=parts).ask(study, 800.0)
    assert proposal is not None
    return proposal


def test_the_next_change_is_tried_beside_what_helped() -> None:
    space = switches("a", "b")
    reported = {Config(): 100.0, A: 150.0}
    assert started(space, reported, EVERY).config == AB
    assert started(space, reported, EVERY).reason.startswith("What b=1 brings beside the best so far.")
    listed = replace(EVERY, expects=False)
    assert started(space, reported, listed).config == AB
    assert started(space, reported, replace(listed, from_leader=False)).config == B


def test_beside_what_does_not_help_a_change_is_tried_by_itself() -> None:
    assert started(switches("a", "b"), {Config(): 100.0, A: 100.5}, EVERY).config == B


def test_starts_beside_what_compiles_would_pay_for_a_compile_each_and_are_not_tried_there() -> None:
    modes = dimension("compile_mode", ("none", "default"), "none", effect=Effect.EXACT)
    space = SearchSpace(dimensions={"compile_mode": modes, **switches("b").dimensions})
    compiled = Config({"compile_mode": "default"})
    assert started(space, {Config(): 100.0, compiled: 150.0}, EVERY).config == B


# Who stays and who comes in ------------------------------------------------------------------------

C, D = Config({"c": 1}), Config({"d": 1})
BY_SCREENING = replace(EVERY, overtakes=False)
CRASH = Failure(kind=FailureKind.CRASH_EXIT, message="crash")


def in_cycles(*cycles: dict[Config, float]) -> Study:
    """Cycles of the script and of these at their rates, seven seconds each; a rate of zero is a crash."""
    space = switches("a", "b", "c", "d")
    rates = {AB: 190.0, A: 188.0, C: 170.0, D: 168.0}
    study = screened(space, rates, baselines=(100.0, 100.0))
    for group, members in enumerate(cycles, start=1):
        for config, rate in {Config(): 100.0, **members}.items():
            study = after_run(study, config, rate, group)
    return study


def after_run(study: Study, config: Config, rate: float, group: int) -> Study:
    proposal = Proposal(
        stage=Stage.CONFIRM, config=config, fidelity=FIDELITY, reason="x", seed=group + 1, group=group
    )
    return tell(study, proposal, measurement(rate) if rate else CRASH, 7.0)


def taking_part(
    monkeypatch: pytest.MonkeyPatch,
    study: Study,
    chosen: tuple[Config, ...],
    *,
    remaining_s: float = 900.0,
    before: int = 0,
    parts: FeatureFlags = EVERY,
) -> tuple[Config, ...]:
    """Who takes part from now on where these are the finalists; `before` a cycle under way if one is."""
    monkeypatch.setattr(racing, "shortlist", lambda _study, **_more: chosen)
    past = replace(study, trials=tuple(t for t in study.trials if t.group < before)) if before else study
    return racing.select_members(past, compare(past), study, Costs.of(study), remaining_s, parts)


def test_who_stood_beside_one_that_crashed_keeps_its_pairs_and_goes_on(monkeypatch) -> None:
    study = in_cycles({AB: 190.0, A: 188.0}, {AB: 0.0, A: 188.0})
    assert taking_part(monkeypatch, study, (C,), parts=BY_SCREENING) == (C, A)
    assert taking_part(monkeypatch, study, (C,)) == (A, C), "by all runs A is faster"


def test_who_stood_beside_a_replacement_goes_on_when_that_is_out_as_well(monkeypatch) -> None:
    first = {AB: 50.0, A: 50.0}
    second = {C: 50.0, D: 168.0}
    study = in_cycles(first, first, first, second, second, second)
    assert taking_part(monkeypatch, study, (B,), parts=BY_SCREENING) == (B, D)
    assert taking_part(monkeypatch, study, (B,)) == (D, B), "by all runs D is faster"


def test_without_a_replacement_nobody_comes_in_and_nobody_is_kept_for_it(monkeypatch) -> None:
    study = in_cycles({AB: 190.0, A: 188.0}, {AB: 190.0, A: 188.0})
    assert taking_part(monkeypatch, study, (AB, C), parts=BY_SCREENING) == (AB,)
    assert taking_part(monkeypatch, study, (AB, C)) == (AB, A), "who has pairs goes on"


def test_of_those_that_come_late_as_many_come_as_get_their_three_pairs(monkeypatch) -> None:
    """Two with two pairs each are no claim; one with four is."""
    slow = {AB: 50.0, A: 50.0}
    study = in_cycles(slow, slow, slow)
    cycle_s = Costs.of(study).cycle([C, D])
    assert taking_part(monkeypatch, study, (C, D), remaining_s=3 * cycle_s + 1) == (C, D)
    assert taking_part(monkeypatch, study, (C, D), remaining_s=3 * cycle_s - 1) == (C,)
    # The same throughout a cycle, whose runs have their part of the time ...
    running = after_run(study, Config(), 100.0, 4)
    for left_s, expected in ((3 * cycle_s + 1 - 7, (C, D)), (3 * cycle_s - 1 - 7, (C,))):
        assert taking_part(monkeypatch, running, (C, D), remaining_s=left_s, before=4) == expected
    # ... and one that was left out does not come in a cycle later.
    later = after_run(running, C, 170.0, 4)
    assert taking_part(monkeypatch, later, (C, D), remaining_s=3 * cycle_s - 1 - 14) == (C,)


def test_a_number_of_trials_has_room_for_three_pairs_of_those_that_come_late(monkeypatch) -> None:
    slow = {AB: 50.0, A: 50.0}
    study = in_cycles(slow, slow, slow)

    def limited(more: int) -> Study:
        budget = replace(study.spec.budget, trials=len(study.trials) + more)
        return replace(study, spec=replace(study.spec, budget=budget))

    assert taking_part(monkeypatch, limited(9), (C, D)) == (C, D)
    assert taking_part(monkeypatch, limited(8), (C, D)) == (C,)
    assert taking_part(monkeypatch, limited(2), (C, D)) == (C,)


def test_one_look_at_what_a_rule_refuses_is_enough_and_no_bar_to_what_may_win() -> None:
    precision = dimension("precision", ("fp32", "bf16", "fp16"), "fp32", effect=Effect.NUMERIC)
    batch = dimension("effective_batch", (32, 64, 128, 256), 32, ordinal=True, effect=Effect.TRAINING)
    bf16, fp16 = Config({"precision": "bf16"}), Config({"precision": "fp16"})

    def proposal(rates: dict[Config, float], *dimensions: Dimension) -> Config:
        space = SearchSpace(dimensions={d.knob: d for d in dimensions})
        search = SearchState.of(screened(space, rates, baselines=(100.0, 101.0)), space, 800.0, EVERY)
        assert search is not None
        picked = training_changing(search)
        assert picked is not None
        return picked.config

    assert proposal({bf16: 120.0}, precision) == fp16
    rates = {bf16: 120.0, Config({"effective_batch": 64}): 115.0, fp16: 300.0}
    looked = proposal(rates, precision, batch)
    assert looked.get("precision") != "fp16"
    assert "effective_batch" in looked


# Interactions --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Together(World):
    """Two changes that each cost a lot and gain much where both are there."""

    factor: float = 2.6

    def rate(self, config: Config) -> float:
        helps = config.get("a") == 1 and config.get("b") == 1
        return super().rate(config) * (self.factor if helps else 1.0)


NAMES_OF_SWITCHES = ("c", "a", "d", "b", "e")
SPEED: dict[tuple[str, Value], float] = {
    ("a", 1): 0.8, ("b", 1): 0.8, ("c", 1): 0.97, ("d", 1): 1.03, ("e", 1): 0.98,
}  # fmt: skip
TOGETHER = Together(space=switches(*NAMES_OF_SWITCHES), speed=SPEED, input_s=0.0, noise=0.01)


def finds_it(parts: FeatureFlags, seed: int) -> bool:
    study = simulate(Staged(parts=parts), TOGETHER, spec(seconds=900, trials=40, seed=seed), salt=seed)
    return {"a", "b"} <= set(answer(study).best.config)


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [EVERY, DEFAULT])
def test_two_changes_that_help_only_together_are_found(parts: FeatureFlags) -> None:
    """An adding-up model expects 0.64 of the baseline and never looks."""
    assert all(finds_it(parts, seed) for seed in range(2))
    assert not any(finds_it(replace(parts, free_draws=False), seed) for seed in range(2))


@pytest.mark.thorough
def test_draws_at_random_come_early_and_ever_less_often_and_a_seed_repeats_them() -> None:
    def reasons(parts: FeatureFlags, seed: int = 0) -> list[str]:
        study = simulate(Staged(parts=parts), TOGETHER, spec(seconds=900, trials=40, seed=seed))
        return [t.reason for t in study.trials if t.stage is Stage.REFINE]

    drawn = [n for n, reason in enumerate(reasons(EVERY)) if reason.startswith("Drawn at random")]
    assert 4 in drawn
    assert {n for n in drawn if n >= 8} <= {9, 16, 25}
    assert reasons(EVERY) == reasons(EVERY)
    without = reasons(replace(EVERY, free_draws=False))
    assert not any(reason.startswith("Drawn at random") for reason in without)


# Costs -----------------------------------------------------------------------------------------------


def after(runs: int, remaining_s: float, parts: FeatureFlags, **more: object) -> float:
    """The power of the cost after so many screening runs of seven seconds."""
    space = switches(*(f"k{n}" for n in range(6)))
    configs = [c for c in space.enumerate() if c][:runs]
    study = screened(space, dict.fromkeys(configs, 90.0), baselines=(100.0, 100.0))
    study = replace(study, spec=replace(study.spec, **more))
    search = SearchState.of(study, space, remaining_s, parts)
    assert search is not None
    return cost_power(search)


def test_the_cost_of_a_run_counts_until_the_time_is_nearly_spent() -> None:
    assert after(2, 900.0, DEFAULT) == after(2, 900.0, EVERY)
    early, middle = after(2, 900.0, EVERY), after(20, 500.0, EVERY)
    assert 0.65 < early <= 0.7
    assert 0.5 <= middle < early
    assert after(40, 5.0, EVERY) < 0.1
    without = replace(EVERY, lasting_cost=False)
    assert after(2, 900.0, without) > 0.5
    assert after(20, 500.0, without) == 0.0


def test_a_number_of_trials_that_is_nearly_spent_counts_as_time_does() -> None:
    limited = spec(seconds=900, trials=30).budget
    assert after(23, 900.0, EVERY, budget=limited) < 0.1 < after(4, 900.0, EVERY, budget=limited)


# Loss that cannot be cleared -------------------------------------------------------------------------


DELAY = 0.02


def near_the_margin(parts: FeatureFlags, rates: dict[Config, float]) -> Study:
    """What changes a lags by about what the script's own noise allows: neither less nor clearly more."""
    space = switches("a", "b", effect=Effect.NUMERIC)
    space = replace(space, rules=(lambda config: config if config in rates or not config else "not known",))
    study = screened(space, rates, baselines=(100.0, 100.0), delay=DELAY)
    strategy, remaining_s = Staged(parts=parts), 2000.0
    while (proposal := strategy.ask(study, remaining_s)) is not None:
        lag = DELAY if "a" in proposal.config else 0.0
        trace = loss_trace(seed=proposal.seed, jitter_seed=len(study.trials), delay=lag)
        rate = rates.get(proposal.config, 100.0)
        study = tell(study, proposal, measurement(rate, loss=trace), 7.0)
        remaining_s -= 7.0
    return study


def confirmed(study: Study, config: Config) -> int:
    return sum(t.config == config for t in study.finished(Stage.CONFIRM))


def test_a_finalist_whose_loss_cannot_be_cleared_makes_room_with_a_reason() -> None:
    ended = near_the_margin(EVERY, {A: 160.0, B: 130.0})
    assert 3 <= confirmed(ended, A) <= 6
    assert answer(ended).best.config == B
    reported = next(t.reason for t in ended.trials if "makes room" in t.reason)
    assert "a=1 makes room: The loss may be worse" in reported
    assert "unlikely" in reported
    stuck = near_the_margin(replace(EVERY, gives_up=False), {A: 160.0, B: 130.0})
    assert confirmed(stuck, A) == 12
    assert confirmed(stuck, B) == 0
    assert not answer(stuck).is_better


def test_what_has_all_changes_of_one_that_was_given_up_does_not_come_in_its_place() -> None:
    ended = near_the_margin(EVERY, {A: 160.0, AB: 150.0, B: 130.0})
    assert confirmed(ended, A) >= 3
    assert confirmed(ended, AB) == 0
    assert answer(ended).best.config == B

"""What a short trace cannot show is refused by rule, and taken by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import dimension, measurement, spec, tell

from autotune.answer.pick import answer
from autotune.compare.comparison import compare
from autotune.compare.finalists import finalists
from autotune.compare.loss_verdicts import trace_steps
from autotune.knobs.declared import declared_knob
from autotune.knobs.registry import builtin
from autotune.loss.delayed_harm_rules import barred, is_ruled, unshown
from autotune.model.change import Keyword
from autotune.model.config import Config, Value
from autotune.model.effect import Effect
from autotune.model.facts import Facts, HostFacts, ModelFacts, RunFacts, ScriptFacts
from autotune.model.measurement import LossPoint, Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import VERIFY, DeclaredSpec, SpaceRequest, Study
from autotune.model.trial import Fidelity, Proposal, Stage

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
HOST = HostFacts(cpus=2, physical_cores=2, memory_bytes=2**34)
FP16 = Config({"precision": "fp16"})
EIGHT_BIT = DeclaredSpec(
    name="optim",
    effect=Effect.NUMERIC,
    values=("adamw_torch", "adamw_bnb_8bit"),
    spelling=Keyword("transformers.TrainingArguments", "optim"),
)
SPACE = SearchSpace(
    dimensions={
        d.knob: d
        for d in (
            dimension("precision", ("fp32", "bf16", "fp16"), "fp32", effect=Effect.NUMERIC),
            dimension("batch_size", (4, 8, 32), 32, ordinal=True, effect=Effect.TRAINING),
            dimension("accumulation", (1, 4), 1, derived=True, effect=Effect.NUMERIC),
            dimension("effective_batch", (16, 32, 64), 32, ordinal=True, effect=Effect.TRAINING),
            dimension("optim", ("adamw_torch", "adamw_bnb_8bit"), "adamw_torch", effect=Effect.NUMERIC),
            dimension("pure_bf16", (False, True), False, effect=Effect.TRAINING),
            dimension("in_order", (False, True), True, effect=Effect.TRAINING),
        )
    }
)


def study(
    run: RunFacts | None = None, *, hazards: tuple[str, ...] = (), declared: bool = False, **more: object
) -> Study:
    space = SpaceRequest(name="test", declared=(EIGHT_BIT,) if declared else ())
    facts = Facts(host=HOST, script=ScriptFacts(path="/s/train.py", hazards=hazards), run=run or RunFacts())
    return Study(spec=spec(**{"space": space, **more}), facts=facts, space=SPACE)


def allowing(made: Study, *knobs: str) -> Study:
    return replace(made, spec=replace(made.spec, space=replace(made.spec.space, allowed=knobs)))


PARTS = Config({"batch_size": 8, "accumulation": 4})
NORMED = RunFacts(model=ModelFacts(name="Net", batch_norm=True, has_4d=True))
RAGGED = RunFacts(model=ModelFacts(name="Net"), input_shapes_vary=True, reduction="mean")


@pytest.mark.parametrize(
    ("made", "config", "words"),
    [
        (study(), FP16, "2000 steps"),
        (study(hazards=("own_autocast",)), FP16, "without a gradient scaler"),
        (study(RunFacts(own_autocast=True)), FP16, "without a gradient scaler"),
        (study(NORMED), Config({"batch_size": 8}), "BatchNorm"),
        (study(), Config({"effective_batch": 16}), "gains early"),
        (study(), Config({"pure_bf16": True}), "1/256"),
        (study(), Config({"fp8": "rowwise"}), "8-bit"),
        (study(), Config({"in_order": False}), "arrive late"),
        (study(declared=True), Config({"optim": "adamw_bnb_8bit"}), "optimizer state"),
    ],
    ids=lambda given: given.text() if isinstance(given, Config) else "",
)
def test_a_harm_that_comes_late_is_refused_and_reported(made: Study, config: Config, words: str) -> None:
    found = barred(made, config, 240)
    assert found is not None
    assert found.sentence.startswith(f"What {config.text()} may cost is not shown by a trace of 240 steps: ")
    assert words in found.sentence
    assert "includes it nevertheless" in found.sentence


@pytest.mark.parametrize(
    ("made", "config"),
    [
        (study(), Config({"precision": "bf16"})),
        (study(), Config({"accumulation": 4})),
        (study(), Config({"batch_size": 8})),
        (study(NORMED), Config({"batch_size": 16})),
        (study(NORMED), Config({"batch_size": 64})),
        (study(declared=True), Config({"optim": "adamw_torch"})),
        (study(), Config({"optim": "adamw_bnb_8bit"})),
        (study(), Config()),
    ],
    ids=lambda given: given.text() if isinstance(given, Config) else "",
)
def test_what_a_short_trace_shows_is_not_refused(made: Study, config: Config) -> None:
    assert barred(made, config, 240) is None


def test_parts_of_a_step_that_differ_in_length_are_reported_and_not_refused() -> None:
    """A mean over samples is that of the whole step, and no fact distinguishes it from a mean over tokens."""
    assert barred(study(RAGGED), PARTS, 240) is None
    (message,) = unshown(study(RAGGED), PARTS, 240)
    assert "where the loss is a mean over tokens" in message.sentence
    assert unshown(study(replace(RAGGED, reduction="sum")), PARTS, 240) == ()
    assert unshown(study(replace(RAGGED, model=ModelFacts(name="Net", has_4d=True))), PARTS, 240) == ()


def test_a_script_that_scales_its_gradients_is_one_whose_fp16_is_scaled() -> None:
    found = barred(study(hazards=("own_autocast", "own_scaler")), FP16, 240)
    assert found is not None
    assert "larger scale" in found.sentence


def test_a_trace_that_is_long_enough_shows_it() -> None:
    assert barred(study(), FP16, 1999) is not None
    assert barred(study(), FP16, 2000) is None
    assert barred(study(run_steps=500), FP16, 500) is None
    # A plan counts the short last batch of an epoch as a step.
    assert barred(study(run_steps=500), FP16, 485) is None
    assert barred(study(run_steps=500), FP16, 484) is not None
    assert barred(study(hazards=("own_autocast",)), FP16, 100_000) is not None
    assert barred(study(run_steps=300), Config({"effective_batch": 16}), 300) is None


def test_what_training_cannot_show_at_all_no_trace_shows() -> None:
    assert barred(study(NORMED, run_steps=100), Config({"batch_size": 8}), 100_000) is not None


def test_the_user_takes_it_by_name() -> None:
    allowed = allowing(study(), "precision")
    assert barred(allowed, FP16, 240) is None
    (message,) = unshown(allowed, FP16, 240)
    assert message.sentence.endswith("overflows late; you requested it by name.")
    pinned = study(space=SpaceRequest(name="test", fixed={"precision": "fp16"}))
    assert barred(pinned, FP16, 240) is None


def test_what_follows_from_a_pinned_micro_batch_is_taken_with_it() -> None:
    pinned = study(RAGGED, space=SpaceRequest(name="test", fixed={"batch_size": 16}))
    smaller = Config({"batch_size": 16, "effective_batch": 16})
    # Without accumulation the pin makes the effective batch, which the search adds to its own pins.
    held = replace(pinned, space=replace(SPACE, fixed=smaller))
    assert barred(held, smaller, 240) is None
    (message,) = unshown(replace(pinned, space=replace(SPACE, fixed=Config({"batch_size": 8}))), PARTS, 240)
    assert message.sentence.endswith("; you requested it by name.")
    # Where the effective batch is varied beside the pin, it is nobody's wish.
    varied = replace(pinned, space=replace(SPACE, fixed=Config({"batch_size": 16})))
    assert barred(varied, smaller, 240) is not None


def test_bounds_on_the_effective_batch_are_a_permission() -> None:
    smaller = Config({"effective_batch": 16})
    found = barred(study(), smaller, 240)
    assert found is not None
    assert "--effective-batch LO..HI includes it" in found.sentence
    assert barred(study(effective_batch="16..64"), smaller, 240) is None


def test_a_larger_effective_batch_is_reported_and_not_refused() -> None:
    larger = Config({"effective_batch": 64})
    assert barred(study(), larger, 240) is None
    (message,) = unshown(study(), larger, 240)
    assert message.sentence.endswith("on held-out data.")


def test_a_verification_recommends_nothing_and_so_refuses_nothing() -> None:
    assert unshown(study(purpose=VERIFY), FP16, 240) == ()


def test_permission_is_there_for_what_is_refused() -> None:
    assert is_ruled("precision")
    assert is_ruled("optim", EIGHT_BIT)
    assert not is_ruled("optim", replace(EIGHT_BIT, values=("adamw_torch", "sgd")))
    assert not is_ruled("effective_batch")  # has an option of its own
    assert not is_ruled("tf32")


def test_every_rule_says_where_it_is_known_from() -> None:
    rules = [harm for knob in (*builtin().values(), declared_knob(EIGHT_BIT)) for harm in knob.late_harms]
    assert len(rules) == 10
    assert all(rule.source and rule.harm and not rule.harm.endswith(".") for rule in rules)


# In a search: what is refused is neither confirmed nor recommended, and it is reported.


def trace(steps: int, seed: int) -> tuple[LossPoint, ...]:
    return tuple(
        LossPoint(samples=32 * k, loss=2.0 - k / steps + 0.01 * ((k * 7 + seed) % 5), t_s=0.05 * k)
        for k in range(1, steps + 1)
    )


def searched(rates: dict[Value, float], *, confirmed: tuple[str, ...] = (), steps: int = 60) -> Study:
    made = study()

    def run(value: Value, stage: Stage, seed: int, group: int) -> None:
        nonlocal made
        config = Config({} if value == "fp32" else {"precision": value})
        proposal = Proposal(
            stage=stage, config=config, fidelity=FIDELITY, reason="test", seed=seed, group=group
        )
        outcome = measurement(rates[value] * (1 + 0.001 * (group % 3)), loss=trace(steps, seed))
        made = tell(made, proposal, outcome, 7.0)

    for seed in range(2):
        run("fp32", Stage.BASELINE, seed, 0)
    for value in rates:
        if value != "fp32":
            run(value, Stage.REFINE, 0, 0)
    for group in range(1, 6) if confirmed else ():
        for value in ("fp32", *confirmed):
            run(value, Stage.CONFIRM, group + 1, group)
    return made


def test_traces_count_as_long_as_the_shortest_of_the_scripts_first_runs() -> None:
    """Confirmation records no more, so what it will judge is no longer."""
    made = searched({"fp32": 100.0, "fp16": 250.0}, steps=2100)
    first = made.trials[0]
    assert isinstance(first.outcome, Measurement)
    shorter = replace(first, outcome=replace(first.outcome, loss=first.outcome.loss[:1500]))
    made = replace(made, trials=(shorter, *made.trials[1:]))
    assert trace_steps(made) == 1500
    assert finalists(made) == ()


def test_what_is_refused_is_no_finalist_and_the_next_takes_its_place() -> None:
    made = searched({"fp32": 100.0, "bf16": 150.0, "fp16": 250.0})
    assert trace_steps(made) == 60
    assert finalists(made) == (Config({"precision": "bf16"}),)
    assert FP16 in finalists(allowing(made, "precision"))


def test_an_answer_says_what_it_passed_over_and_how_to_take_it() -> None:
    made = searched({"fp32": 100.0, "bf16": 150.0, "fp16": 250.0}, confirmed=("bf16",))
    found = answer(made)
    assert found.best.config == Config({"precision": "bf16"})
    reported = next(c for c in found.caveats if "fp16" in c)
    assert "read 2.50 in screening and was not confirmed" in reported
    assert "not shown by a trace of 60 steps" in reported
    assert "--allow precision" in reported


def test_what_was_confirmed_all_the_same_is_not_recommended() -> None:
    made = searched({"fp32": 100.0, "fp16": 250.0}, confirmed=("fp16",))
    (compared,) = compare(made)
    assert compared.wins
    assert (compared.loss.verdict, compared.loss.rule) == ("unclear", "precision")
    found = answer(made)
    assert not found.is_better
    assert "but what precision=fp16 may cost is not shown by a trace of 60 steps" in found.sentence
    taken = answer(allowing(made, "precision"))
    assert taken.best.config == FP16
    assert any("you requested it by name" in reason for reason in taken.best.reasons)


def test_a_trace_as_long_as_the_scalers_turn_lets_it_win() -> None:
    made = searched({"fp32": 100.0, "fp16": 250.0}, confirmed=("fp16",), steps=2100)
    assert answer(made).best.config == FP16

"""`accumulation`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import loader, model, optimizer, run

from autotune.knobs.batch.accumulation import ACCUMULATION_OPTIONS, Accumulation
from autotune.model.change import Patch
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import FetchState, InputFacts, ModelFacts, ScriptFlag
from autotune.testing.knobs import CPU_RUN, SCRIPT, KnobContract, facts

KNOB = Accumulation()


def own_batches(**rest):
    """A script whose own batches show in what its model is called with."""
    shown = InputFacts(batch_size=32, dims=(0,), shape=(32, 20))
    return run(loader=None, samples_source="option", inputs=shown, **rest)


class TestAccumulation(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=optimizer(count=2)), "2 optimizers step"),
        (facts(run=optimizer(closure=True)), "closure"),
        (facts(run=run(optimizer=None)), "No optimizer was seen"),
        (facts(run=run(explicit_backward_gradient=True)), "its own gradient"),
        (facts(run=run(backward_per_step=3.0)), "3 backward passes per step"),
        (facts(run=run(backward_per_step=0.0)), "No backward pass"),
        (facts(run=run(own_accumulation=True)), "accumulates by itself"),
        (facts(run=loader(custom_batch_sampler=True)), "does not set the micro-batch"),
        (facts(run=loader(beside=1)), "several loaders"),
        (facts(run=run(loader=None)), "No training DataLoader was seen"),
        (facts(run=own_batches()), "is not visible in the loop"),
        (facts(run=own_batches(pass_samples=960, scheduler_per_step=True)), "scheduled per step"),
        (facts(run=run(zero_grad_seen=False)), "No zero_grad"),
        (facts(run=run(reduction="unknown")), "reduced over the batch"),
        (facts(run=run(own_scaler=True)), "gradient scaler"),
        (facts(run=run(scheduler_per_step=True)), "scheduled per step"),
        (facts(script=replace(SCRIPT, hazards=("step_counted_loop",))), "counts steps"),
        (facts(run=run(loop_hazards=("step_counted_loop",))), "counts steps"),
        (facts(run=run(loop_hazards=("own_gradient",))), "uses gradients"),
        (facts(run=run(loop_hazards=("own_average",))), "moving average"),
        (facts(run=run(loop_hazards=("own_rate",))), "learning rate"),
        (facts(run=run(loop_hazards=("carried_state",))), "of the next call"),
        (facts(run=run(loop_hazards=("unread_loop",))), "could not be read"),
        (facts(run=run(averages_apart=True)), "would change its rate"),
        (
            facts(run=loader(fetch_state=FetchState(what="your x counts", by="collate_fn"))),
            "once per batch",
        ),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


def test_a_loop_over_a_pass_of_own_batches_counts_no_steps() -> None:
    seen = own_batches(pass_samples=960, loop_hazards=("step_counted_loop",))
    assert KNOB.refuse(facts(run=seen)) is None
    assert "counts steps" in (KNOB.refuse(facts(run=replace(seen, pass_samples=0))) or "")


def test_an_option_of_the_script_lifts_what_only_concerns_the_patch() -> None:
    option = ScriptFlag(names=("--gradient_accumulation_steps",), dest="g", kind="int", default=8)
    for seen in (run(own_accumulation=True), run(scheduler_per_step=True)):
        given = facts(run=seen, script=replace(SCRIPT, flags=(option,)))
        assert KNOB.refuse(given) is None
        assert KNOB.refuse_spelling(Patch(), given) is not None


@pytest.mark.parametrize(
    ("seen", "refused"),
    [
        (run(own_accumulation=True, backward_per_step=4.0, loss_scale=1.0), True),
        (run(own_accumulation=True, backward_per_step=4.0, loss_scale=0.25), False),
        # Two losses of which one counts half: whether they are divided shows another number of parts.
        (run(own_accumulation=True, backward_per_step=4.0, loss_scale=0.7), False),
        (run(own_accumulation=True, backward_per_step=4.0, loss_scale=None), False),
        (run(own_accumulation=True, backward_per_step=4.0, loss_scale=None, reduction="sum"), False),
        (run(loss_scale=1.0), False),
    ],
)
def test_an_option_whose_parts_are_added_up_undivided_is_another_gradient(seen, refused) -> None:
    option = ScriptFlag(names=("--accum-steps",), dest="accum_steps", kind="int", default=4)
    given = facts(run=seen, script=replace(SCRIPT, flags=(option,)))
    reasons = (KNOB.refuse(given), KNOB.refuse_spelling(ACCUMULATION_OPTIONS, given))
    assert [reason is not None for reason in reasons] == [refused, refused]
    assert all("does not divide them" in reason for reason in reasons if reason is not None)


@pytest.mark.parametrize("name", ["--accum-freq", "--accum_grad", "--iter_size", "--accumulation-step"])
def test_names_that_projects_give_the_option_are_known(name: str) -> None:
    flag = ScriptFlag(names=(name,), dest="parts", kind="int", default=1)
    assert replace(SCRIPT, flags=(flag,)).flag(*ACCUMULATION_OPTIONS.names) == flag


def test_several_backward_passes_are_accumulation_only_where_the_script_accumulates() -> None:
    values = {**run().values, "accumulation": 3}
    assert KNOB.own(facts(run=run(values=values, backward_per_step=3.0))) == 1
    assert KNOB.own(facts(run=run(values=values, backward_per_step=3.0, own_accumulation=True))) == 3


@pytest.mark.parametrize(
    ("given", "effect"),
    [
        (facts(run=model(batch_norm=True, dropout=True)), Effect.TRAINING),
        (facts(run=model(moves=True)), Effect.TRAINING),
        (facts(run=model(dropout=True)), Effect.NUMERIC),
        (facts(run=run(loop_draws="device")), Effect.NUMERIC),
        (facts(run=run(loop_hazards=("own_draws",))), Effect.NUMERIC),
        (facts(run=loader(random=True)), Effect.NUMERIC),
        (facts(run=loader(kind="iterable", length=None)), Effect.TRAINING),
        (
            facts(run=loader(kind="iterable", length=None, batch_size=32, shares=(1603, 801, 801))),
            Effect.TRAINING,
        ),
        (
            facts(run=loader(kind="iterable", length=None, batch_size=32, shares=(1600, 800, 800))),
            Effect.EXACT,
        ),
        (facts(run=loader(kind="iterable", length=50)), Effect.EXACT),
        (facts(), Effect.EXACT),
    ],
)
def test_facts_decide_how_far_it_reaches(given, effect) -> None:
    assert KNOB.effect_for(given) is effect


def test_dropout_re_deals_random_streams() -> None:
    assert KNOB.changes_rng_streams(facts(run=model(dropout=True)))
    assert not KNOB.changes_rng_streams(facts())


def test_parts_that_the_script_draws_by_itself_are_other_data() -> None:
    given = facts(run=run(loader=None))
    assert KNOB.changes_rng_streams(given)
    assert KNOB.effect_for(given) is Effect.NUMERIC


def test_a_sum_is_not_accumulated_in_compiled_code_where_it_cannot_be_seen() -> None:
    given = facts(run=run(reduction="sum"))
    own = given.run.loader.batch_size
    half = Config({"batch_size": own // 2})
    settled = KNOB.settle(half, given)
    assert isinstance(settled, Config)
    assert settled["accumulation"] == 2
    reason = KNOB.settle(half.with_(compile_mode="default"), given)
    assert isinstance(reason, str)
    assert "sum" in reason
    assert isinstance(KNOB.settle(half.with_(compile_mode="default"), facts()), Config)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (CPU_RUN, ""),
        (replace(CPU_RUN, model=ModelFacts(name="Net", batch_norm=True)), "BatchNorm"),
        (replace(CPU_RUN, model=ModelFacts(name="Net", moves=True)), "at each call"),
        (replace(CPU_RUN, model=ModelFacts(name="Net", dropout=True)), "Random numbers"),
        (replace(CPU_RUN, loader=None), "makes its batches itself"),
        (replace(CPU_RUN, model=None), "No trained module"),
        (loader(kind="iterable", length=None), "stream's length is unknown"),
    ],
)
def test_a_raised_effect_has_a_reason_and_one_that_is_not_has_none(seen, words):
    given = facts(run=seen)
    assert (Accumulation().raised(given) == "") is (Accumulation().effect_for(given) is Effect.EXACT)
    assert words in Accumulation().raised(given)

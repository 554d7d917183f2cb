"""Which training framework owns a knob, and by which of its arguments it is set. Standard library only.

A framework's argument is a `Keyword` among a knob's spellings, a *row*. The outermost framework that the
script was seen to use and that has a row is the owner; every other way into the process is then refused, for
two owners of one setting multiply it, or contradict each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.model.change import Constant, Keyword, Patch, Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts

ARGUMENTS: Final = "transformers.TrainingArguments"
TRAINER: Final = "transformers.Trainer"
LIGHTNING: Final = "lightning.Trainer"
ACCELERATOR: Final = "accelerate.Accelerator"
DEEPSPEED: Final = "deepspeed.initialize"
"""Its rows are entries of the configuration that it is given, as a dictionary or a file."""
OWNER_OF: Final = {
    ARGUMENTS: "transformers",
    TRAINER: "transformers",
    LIGHTNING: "lightning",
    ACCELERATOR: "accelerate",
    DEEPSPEED: "deepspeed",
}
"""Target of a row -> the word for its framework in `RunFacts.owners`."""
KERAS: Final = "keras"
"""Has no rows: what it takes is given to `compile` and `fit`, and to the layers as they are built."""
_OUTERMOST_FIRST: Final = ("transformers", "lightning", "accelerate", "deepspeed")
_UNSEEN: Final = "The first run shows whether the script trains through a framework."


def is_row(spelling: Spelling) -> bool:
    """Whether this way is an argument of a training framework."""
    return isinstance(spelling, Keyword) and spelling.target in OWNER_OF


def owner_of(spellings: Sequence[Spelling], facts: Facts) -> str | None:
    """The framework that a knob with these ways belongs to; None where it belongs to none."""
    used = () if facts.run is None else facts.run.owners
    having = {OWNER_OF[s.target] for s in spellings if isinstance(s, Keyword) and s.target in OWNER_OF}
    return next((name for name in _OUTERMOST_FIRST if name in used and name in having), None)


def rows(spellings: Sequence[Spelling], facts: Facts) -> tuple[Keyword, ...]:
    """The arguments of the owner that set this knob; empty without an owner."""
    owner = owner_of(spellings, facts)
    found = (s for s in spellings if isinstance(s, Keyword) and s.target in OWNER_OF)
    return tuple(row for row in found if OWNER_OF[row.target] == owner)


def ways(spellings: Sequence[Spelling], facts: Facts) -> tuple[Spelling, ...]:
    """These ways without the arguments of frameworks that do not own the knob, best first."""
    owned = rows(spellings, facts)
    return tuple(s for s in spellings if not is_row(s) or s in owned)


def refuse_by_owner(name: str, spellings: Sequence[Spelling], spelling: Spelling, facts: Facts) -> str | None:
    """Why this way is not the owner's, as a whole sentence; None where it is, or nobody owns the knob.

    Options of the script and variables are no matter of ownership: what they say, the owner is told by the
    script itself.
    """
    if not isinstance(spelling, (Keyword, Patch, Constant)):
        return None
    owner, row = owner_of(spellings, facts), is_row(spelling)
    if owner is None:
        return None if not row else (_UNSEEN if facts.run is None else _unused(spelling))
    if isinstance(spelling, Keyword) and OWNER_OF.get(spelling.target) == owner:
        return None
    return f"{name} belongs to {owner}, which this script uses."


def _unused(spelling: Spelling) -> str:
    framework = OWNER_OF[spelling.target] if isinstance(spelling, Keyword) else ""
    return f"The script does not train through {framework}."


def setting(facts: Facts, name: str) -> Value | None:
    """What a framework was built with, as in ``transformers.optim``; None where that was not seen."""
    return None if facts.run is None else facts.run.owner_settings.get(name)


def fits_by_keras(facts: Facts) -> bool:
    """Whether Keras runs the training loop, on PyTorch."""
    return facts.run is not None and KERAS in facts.run.owners


def refuse_engine(row: Keyword, facts: Facts) -> str | None:
    """Why this argument of a framework is not the last word on batches and formats."""
    if setting(facts, "transformers.deepspeed") is True:
        return "The Trainer delegates the training to DeepSpeed, whose configuration file sets this as well."
    owner = OWNER_OF.get(row.target, "deepspeed")
    if owner != "deepspeed" and facts.run is not None and "deepspeed" in facts.run.owners:
        return f"{owner} delegates the training to DeepSpeed, whose configuration sets this as well."
    return None


def refuse_accumulation(row: Keyword, facts: Facts) -> str | None:
    """Why the owner's accumulation would not be that of the full batch; None where it would.

    A framework divides the loss of every part by their number. That is right for a mean over the batch, and
    for nothing else. The transformers Trainer does so unless the model takes a count of items to divide by,
    which it assumes of every model that takes keyword arguments; one that then ignores the count trains with
    gradients so many times too large (seen with `BertForSequenceClassification`, transformers 5.23), unless
    the Trainer is told to divide: that is what the row of the Trainer itself is for.
    """
    run = facts.run
    if run is None:
        return _UNSEEN
    if run.loader is None or run.loader.batch_size is None or run.loader.custom_batch_sampler:
        return "autotune does not set the micro-batch here, so the optimizer step cannot be deferred."
    match OWNER_OF[row.target]:
        case "transformers":
            return _of_transformers(row, facts) or refuse_engine(row, facts)
        case "lightning":
            return _of_lightning(facts) or refuse_engine(row, facts) or _mean(facts)
        case "deepspeed":
            return _of_deepspeed(facts) or _mean(facts)
        case _:
            return _of_accelerate(facts) or refuse_engine(row, facts) or _mean(facts)


def _mean(facts: Facts) -> str | None:
    if facts.run is not None and facts.run.reduction == "mean":
        return None
    return "The framework divides the loss by the number of micro-batches, which is correct for a mean only."


def _of_transformers(row: Keyword, facts: Facts) -> str | None:
    run = facts.run
    if run is not None and run.scheduler_per_step and setting(facts, "transformers.own_scheduler") is True:
        return "The script passes its own learning-rate schedule to the Trainer, which counts steps."
    if setting(facts, "transformers.router_loss") is True:
        return "The model adds its router loss, which the Trainer would count once per micro-batch."
    if is_per_item(facts):
        if setting(facts, "transformers.own_loss") is True:
            return "The script adds to the model's loss, and only the model divides by the items of the step."
        exact = row.target == ARGUMENTS
        return None if exact else "The model already divides its loss by the items of the whole step."
    refused = _mean(facts)
    if refused is None and row.target == TRAINER and setting(facts, "transformers.own_loss") is True:
        return "The script computes the loss itself; it is not known whether it divides by the whole step."
    if refused is None and (row.target == ARGUMENTS) is not (setting(facts, "transformers.divides") is True):
        return (
            "The Trainer leaves the division of the loss to the model, and the model does not divide."
            if row.target == ARGUMENTS
            else "The Trainer already divides the loss by the number of micro-batches."
        )
    return refused


def is_per_item(facts: Facts) -> bool:
    """Whether the model divides its loss by the items of the whole step, which the Trainer has counted.

    Seen in the losses of transformers, or read off the argument names of a model or loss of the script's own.
    Which models get the count is decided by the version that is installed.
    """
    names = ("transformers.loss_per_item", "transformers.takes_items")
    return any(setting(facts, name) is True for name in names)


def _of_lightning(facts: Facts) -> str | None:
    if setting(facts, "lightning.automatic_optimization") is False:
        return "The LightningModule uses manual optimization, where Lightning does not accumulate."
    if setting(facts, "lightning.counts_batches") is True:
        return (
            "The Trainer's limit_train_batches or val_check_interval counts batches, which would be smaller."
        )
    if setting(facts, "lightning.after_backward") is True:
        return "The script's own on_after_backward would act on every micro-batch, for example to clip."
    if facts.run is not None and facts.run.optimizer is not None and facts.run.optimizer.closure:
        return "The optimizer may run its closure any number of times."
    if facts.run is not None and facts.run.scheduler_per_step:
        return "The learning rate is scheduled per step, possibly over the loader's length, which would grow."
    return None


def _of_accelerate(facts: Facts) -> str | None:
    if setting(facts, "accelerate.plugin") is True:
        return "A plugin of the Accelerator sets its accumulation."
    if setting(facts, "accelerate.accumulates") is not True:
        return "The loop does not use Accelerator.accumulate, without which nothing is accumulated."
    if setting(facts, "accelerate.zeroes_first") is True:
        return (
            "The loop zeroes gradients inside Accelerator.accumulate before its backward pass, which "
            "discards all micro-batches of a step but the last."
        )
    if setting(facts, "accelerate.zeroes_module") is True:
        return (
            "The loop zeroes gradients by the module, past Accelerate, so each micro-batch would discard "
            "the previous ones."
        )
    return None


def _of_deepspeed(facts: Facts) -> str | None:
    if setting(facts, "deepspeed.pipeline") is True:
        return (
            "A DeepSpeed pipeline fetches the micro-batches of a step itself and needs enough of them to "
            "be full."
        )
    if setting(facts, "deepspeed.managed") is not True:
        return "The loop decides when DeepSpeed steps and how many micro-batches a step has."
    if setting(facts, "deepspeed.divides") is not True:
        return (
            "The loss does not pass through the engine's backward, which divides it by the number of "
            "micro-batches."
        )
    if facts.run is not None and facts.run.ranks > 1:
        return "DeepSpeed configurations are changed for one process only."
    return None


def refuse_rest(spellings: Sequence[Spelling], facts: Facts, effective: Value | None) -> str | None:
    """Why a pass over the data must be a whole number of these steps, where it is not one.

    At the end of a pass frameworks step on the parts that are left, and divide each as one of a whole step
    (Lightning, Accelerate), count a smaller last part as a whole one (transformers), or carry what is left
    over to the next pass (DeepSpeed): none is the mean that the script's own last batch was.
    """
    owner, run = owner_of(spellings, facts), facts.run
    if owner is None or run is None or is_per_item(facts):
        return None
    loader = run.loader
    length = None if loader is None else loader.dataset_length
    if loader is None or length is None or not isinstance(effective, int):
        return f"Whether a pass over the data is a whole number of steps is not known, as {owner} needs it."
    if (loader.length or 0) * (loader.batch_size or 0) != length:
        return (
            f"A pass over the loader is not over all of the {length} samples in full batches, and {owner} "
            f"weights the micro-batches of its last step differently from a batch."
        )
    if length % effective == 0:
        return None
    return (
        f"A pass over {length} samples is not a whole number of steps of {effective}, and {owner} weights "
        "the micro-batches of its last step differently from a batch."
    )

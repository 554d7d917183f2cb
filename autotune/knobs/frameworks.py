"""Ownership of knobs by training frameworks, and the arguments that set them. Standard library only.

An argument of a framework is a `Keyword` among a knob's spellings, called a *row*. The owner is the outermost
framework that the script uses and that has a row. Every other delivery in the process is refused, because two
owners of a setting would multiply or contradict each other.
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
LIGHTNING_DDP: Final = "lightning.pytorch.strategies.DDPStrategy"
"""Also what ``Trainer(strategy="ddp")`` constructs."""
ACCELERATOR: Final = "accelerate.Accelerator"
DEEPSPEED: Final = "deepspeed.initialize"
"""Rows are entries of the configuration that it receives, as a dictionary or a file."""
OWNER_OF: Final = {
    ARGUMENTS: "transformers",
    TRAINER: "transformers",
    LIGHTNING: "lightning",
    LIGHTNING_DDP: "lightning",
    ACCELERATOR: "accelerate",
    DEEPSPEED: "deepspeed",
}
"""Target of a row -> the word for its framework in `RunFacts.owners`."""
KERAS: Final = "keras"
"""Without rows: its settings are arguments of `compile`, `fit` and the constructors of layers."""
_OUTERMOST_FIRST: Final = ("transformers", "lightning", "accelerate", "deepspeed")
_UNSEEN: Final = "The first run shows whether the script trains through a framework."


def is_row(spelling: Spelling) -> bool:
    """Return whether this delivery is an argument of a training framework."""
    return isinstance(spelling, Keyword) and spelling.target in OWNER_OF


def owner_of(spellings: Sequence[Spelling], facts: Facts) -> str | None:
    """Return the framework that owns a knob with these spellings, or None."""
    used = () if facts.run is None else facts.run.owners
    having = {OWNER_OF[s.target] for s in spellings if isinstance(s, Keyword) and s.target in OWNER_OF}
    return next((name for name in _OUTERMOST_FIRST if name in used and name in having), None)


def rows(spellings: Sequence[Spelling], facts: Facts) -> tuple[Keyword, ...]:
    """Return the owner's arguments that set this knob; empty without an owner."""
    owner = owner_of(spellings, facts)
    found = (s for s in spellings if isinstance(s, Keyword) and s.target in OWNER_OF)
    return tuple(row for row in found if OWNER_OF[row.target] == owner)


def ways(spellings: Sequence[Spelling], facts: Facts) -> tuple[Spelling, ...]:
    """Return these spellings, best first, without the arguments of frameworks that do not own the knob."""
    owned = rows(spellings, facts)
    return tuple(s for s in spellings if not is_row(s) or s in owned)


def refuse_by_owner(name: str, spellings: Sequence[Spelling], spelling: Spelling, facts: Facts) -> str | None:
    """Return why the owner rules out this delivery, as a whole sentence, or None.

    Options of the script and variables are always possible: the script passes them to the framework itself.
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
    """Return a setting of a framework such as ``transformers.optim``, or None if it was not observed."""
    return None if facts.run is None else facts.run.owner_settings.get(name)


def fits_by_keras(facts: Facts) -> bool:
    """Return whether Keras runs the training loop, on PyTorch."""
    return facts.run is not None and KERAS in facts.run.owners


def refuse_engine(row: Keyword, facts: Facts) -> str | None:
    """Return why another configuration overrides this argument for batches and formats, or None."""
    if setting(facts, "transformers.deepspeed") is True:
        return "The Trainer delegates the training to DeepSpeed, whose configuration file sets this as well."
    owner = OWNER_OF.get(row.target, "deepspeed")
    if owner != "deepspeed" and facts.run is not None and "deepspeed" in facts.run.owners:
        return f"{owner} delegates the training to DeepSpeed, whose configuration sets this as well."
    return None


def refuse_accumulation(row: Keyword, facts: Facts) -> str | None:
    """Return why the owner's accumulation would differ from the full batch, or None.

    A framework divides the loss of every micro-batch by their number, which is correct for a mean only. The
    transformers Trainer does not divide if the model takes a count of items. It assumes so for every model
    with keyword arguments. A model that ignores the count then trains with gradients too large by that factor
    (seen with `BertForSequenceClassification`, transformers 5.23). The row of the Trainer itself makes it
    divide.
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
    """Return whether the model divides its loss by the items of the whole step, counted by the Trainer.

    Detected in the losses of transformers, or by argument names of the script's own model or loss. The
    installed version decides which models receive the count.
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
    """Return why a pass over the data that is not a whole number of steps rules out this batch, or None.

    Frameworks treat the remaining micro-batches of a pass differently. Lightning and Accelerate divide each
    as part of a whole step. transformers weights a smaller last micro-batch as a whole one. DeepSpeed carries
    the rest over to the next pass. None of these is the mean over the script's own last batch.
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

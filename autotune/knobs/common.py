"""What several knobs ask of facts. Standard library only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from autotune.model.change import Constant, Flag
from autotune.source.constants import key_of, rank_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autotune.model.change import Spelling
    from autotune.model.config import Value
    from autotune.model.facts import (
        DeviceFacts,
        Facts,
        FetchState,
        LoaderFacts,
        ScriptConstant,
        ScriptFacts,
    )

LOADER: Final = "torch.utils.data.DataLoader"
_ON: Final = frozenset({"1", "on", "true", "yes"})
_OFF: Final = frozenset({"0", "off", "false", "no"})


def flag_variants(*stems: str) -> Flag:
    """Both spellings of each option, dashes first: ``--batch-size``, ``--batch_size``."""
    names: dict[str, None] = {}
    for stem in stems:
        names[f"--{stem}"] = None
        names[f"--{stem.replace('-', '_')}"] = None
    return Flag(tuple(names))


def constants_named(names: Sequence[str], script: ScriptFacts) -> tuple[ScriptConstant, ...]:
    """The script's constants with one of these names; where the user has named some, those alone."""
    keys = {key_of(name) for name in names}
    found = tuple(constant for constant in script.constants if key_of(constant.name) in keys)
    return tuple(constant for constant in found if constant.is_chosen) or found


def constant_of(
    spelling: Constant,
    script: ScriptFacts,
    own: Value | None,
    written: Callable[[Value, Value], Value | None] | None = None,
) -> ScriptConstant | str:
    """The one constant that holds a knob's value, or why there is none, as a clause.

    Args:
        spelling: The names of such a constant.
        script: Its constants.
        own: What the run has; a constant with another value is not the one. None before a run.
        written: `Knob.written`, where constants hold the value in a notation of their own.
    """
    named = constants_named(spelling.names, script)
    if not named:
        return f"its source contains no literal value of {spelling.names[0]}"
    found = [
        c
        for c in named
        if c.is_chosen or own is None or _is_same(c.value, written(own, c.value) if written else own)
    ]
    if not found:
        return f"{listed(c.place for c in named)} has another value than the run, {own}"
    first = min(rank_of(c.name) for c in found)
    found = [c for c in found if rank_of(c.name) == first]
    if len(found) > 1:
        return (
            f"which of {listed(c.place for c in found)} it is is not clear from the source (--set "
            f"{found[0].name}=A,B names one)"
        )
    if found[0].times > 1:
        return f"{found[0].place} is given a value {found[0].times} times, and only one would change"
    return found[0]


def is_by_constant(ways: Iterable[Spelling], own: Value | None, script: ScriptFacts) -> bool:
    """Whether a constant of the source sets a knob; an option of the script would come first."""
    constants: list[Constant] = []
    for way in ways:
        if isinstance(way, Flag) and script.flag(*way.names) is not None:
            return False
        if isinstance(way, Constant):
            constants.append(way)
    return any(not isinstance(constant_of(way, script, own), str) for way in constants)


def _is_same(one: Value, other: Value | None) -> bool:
    return type(one) is type(other) and one == other


def trains_on_cuda(facts: Facts) -> bool:
    """Whether training happens on an NVIDIA device: as seen, else as the machine suggests."""
    if facts.run is not None and facts.run.model is not None:
        return facts.run.model.device.startswith("cuda")
    return facts.host.has_cuda


def devices_of(facts: Facts) -> Sequence[DeviceFacts]:
    """The devices that train: those the run used, else all that a process started here would see.

    They differ on machines with unlike devices, and where trials run on another machine than this.
    """
    return facts.run.devices if facts.run is not None and facts.run.devices else facts.host.devices


def loader_of(facts: Facts) -> LoaderFacts | None:
    """The training loader, None where none was seen or nothing has run yet."""
    return None if facts.run is None else facts.run.loader


def no_loader(facts: Facts) -> str | None:
    """The refusal that every knob of the DataLoader shares."""
    if facts.run is not None and facts.run.loader is None:
        if facts.run.loader_in_thread:
            return (
                "The script reads its DataLoader in a separate thread, so the batches of a step are not "
                "known."
            )
        return "No training DataLoader was seen: batches come from elsewhere."
    return None


def fetch_state_of(facts: Facts) -> FetchState | None:
    """State that a fetch changes, where other workers would change it otherwise; None without any."""
    loader = loader_of(facts)
    return None if loader is None else loader.fetch_state


def dealt_otherwise(facts: Facts) -> str:
    """Why other samples may be trained on where workers are dealt otherwise; empty where none may."""
    held = fetch_state_of(facts)
    return "" if held is None or held.apart else dealt(held)


def dealt(held: FetchState) -> str:
    """Why fetches that change a state are others where workers are dealt otherwise."""
    if held.by == "indices":
        return f"{sentence(held.what)} as indices are drawn, and workers draw ahead of the loop."
    return f"{sentence(held.what)}, and each worker changes a copy of its own."


def dealt_by_batch(facts: Facts) -> str:
    """The same of batches of another size: with workers, which one makes a sample depends on its batch."""
    loader = loader_of(facts)
    return dealt_otherwise(facts) if loader is not None and loader.num_workers else ""


def counted_by_batch(facts: Facts) -> str | None:
    """Why batches of another size are other ones: the collate function changes something with each batch."""
    held = fetch_state_of(facts)
    if held is None or held.by != "collate_fn":
        return None
    return f"{sentence(held.what)}, once per batch, so another batch size changes them."


def sentence(text: str) -> str:
    """The same with a capital letter."""
    return text[:1].upper() + text[1:]


def per_rank(count: int, facts: Facts) -> int:
    """Return a process's share of what the processes of a training have in common: cores, memory."""
    return max(1, count // (1 if facts.run is None else facts.run.ranks))


def refuse_sharded(facts: Facts) -> str | None:
    """Return why what a model consists of stays as it is where processes share it out, or None.

    `DistributedDataParallel` takes over the parameters as they are when it is constructed, so they are
    converted right before that.
    """
    run = facts.run
    if run is None or run.ranks == 1:
        return None
    if run.parallel is None or run.parallel.wrapper != "ddp":
        return (
            f"{run.ranks} processes train together without DistributedDataParallel, and what they exchange "
            "depends on the layout of the parameters."
        )
    return None


def torch_version(facts: Facts) -> tuple[int, int] | None:
    """(2, 13), of the run or else of this environment; None where it is not known."""
    versions = facts.host.versions if facts.run is None else facts.run.versions
    found = re.match(r"(\d+)\.(\d+)", versions.get("torch", ""))
    return None if found is None else (int(found[1]), int(found[2]))


def listed(words: Iterable[object]) -> str:
    """``a, b and c``."""
    texts = [str(word) for word in words]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def as_switch(wanted: Value) -> bool | None:
    """True and False in any of the notations of space files, None for anything else."""
    word = str(wanted).lower()
    return True if word in _ON else False if word in _OFF else None


def as_count(wanted: Value, own: Value | None, *, least: int) -> int | None:
    """A whole number, or ``x2`` and ``x0.5`` relative to `own`; None where there is none."""
    if isinstance(wanted, str) and wanted[:1] == "x":
        return _scaled(wanted[1:], own, least)
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or wanted != int(wanted):
        return None
    return int(wanted) if wanted >= least else None


def _scaled(factor_text: str, own: Value | None, least: int) -> int | None:
    try:
        factor = float(factor_text)
    except ValueError:
        return None
    if isinstance(own, bool) or not isinstance(own, int) or not 0 < factor < float("inf"):
        return None
    scaled = own * factor
    if scaled == float("inf"):
        return None
    return int(scaled) if scaled == int(scaled) and scaled >= least else None


def joined(values: Iterable[int], own: Value | None) -> tuple[int, ...]:
    """These values and the script's own, ascending and each once."""
    known = {own} if isinstance(own, int) and not isinstance(own, bool) else set[int]()
    return tuple(sorted({*values, *known}))

"""Facts that several knobs read, and notations that they share. Standard library only."""

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
    """Return both spellings of each option, dashes first: ``--batch-size``, ``--batch_size``."""
    names: dict[str, None] = {}
    for stem in stems:
        names[f"--{stem}"] = None
        names[f"--{stem.replace('-', '_')}"] = None
    return Flag(tuple(names))


def constants_named(names: Sequence[str], script: ScriptFacts) -> tuple[ScriptConstant, ...]:
    """Return the script's constants with one of these names; only the chosen ones if the user chose any."""
    keys = {key_of(name) for name in names}
    found = tuple(constant for constant in script.constants if key_of(constant.name) in keys)
    return tuple(constant for constant in found if constant.is_chosen) or found


def constant_of(
    spelling: Constant,
    script: ScriptFacts,
    own: Value | None,
    written: Callable[[Value, Value], Value | None] | None = None,
) -> ScriptConstant | str:
    """Return the one constant that holds a knob's value, or a clause with the reason why there is none.

    Args:
        spelling: The names of such a constant.
        script: Its constants.
        own: The value in the run, None before a run; a constant with another value does not match.
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
    """Return whether a constant of the source sets a knob; an option of the script takes precedence."""
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
    """Return whether training uses an NVIDIA device: as observed, or before a run as the machine suggests."""
    if facts.run is not None and facts.run.model is not None:
        return facts.run.model.device.startswith("cuda")
    return facts.host.has_cuda


def devices_of(facts: Facts) -> Sequence[DeviceFacts]:
    """Return the devices of the run, or before a run all that a process on this machine would see.

    They differ on machines with unlike devices, and where trials run on another machine than this.
    """
    return facts.run.devices if facts.run is not None and facts.run.devices else facts.host.devices


def loader_of(facts: Facts) -> LoaderFacts | None:
    """Return the training loader, or None if none was observed or before a run."""
    return None if facts.run is None else facts.run.loader


def no_loader(facts: Facts) -> str | None:
    """Return the refusal that all knobs of the DataLoader share, or None."""
    if facts.run is not None and facts.run.loader is None:
        if facts.run.loader_in_thread:
            return (
                "The script reads its DataLoader in a separate thread, so the batches of a step are not "
                "known."
            )
        return "No training DataLoader was seen: batches come from elsewhere."
    return None


def fetch_state_of(facts: Facts) -> FetchState | None:
    """Return the state that fetches change if it depends on the workers, or None."""
    loader = loader_of(facts)
    return None if loader is None else loader.fetch_state


def dealt_otherwise(facts: Facts) -> str:
    """Return why another distribution over workers may change the samples, or "" if it does not."""
    held = fetch_state_of(facts)
    return "" if held is None or held.apart else dealt(held)


def dealt(held: FetchState) -> str:
    """Return why fetches that change a state depend on the distribution over workers."""
    if held.by == "indices":
        return f"{sentence(held.what)} as indices are drawn, and workers draw ahead of the loop."
    return f"{sentence(held.what)}, and each worker changes a copy of its own."


def dealt_by_batch(facts: Facts) -> str:
    """Return `dealt_otherwise` for another batch size: with workers, it changes which one makes a sample."""
    loader = loader_of(facts)
    return dealt_otherwise(facts) if loader is not None and loader.num_workers else ""


def counted_by_batch(facts: Facts) -> str | None:
    """Return why another batch size changes the batches, namely a state in the collate function, or None."""
    held = fetch_state_of(facts)
    if held is None or held.by != "collate_fn":
        return None
    return f"{sentence(held.what)}, once per batch, so another batch size changes them."


def sentence(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def per_rank(count: int, facts: Facts) -> int:
    """Return a process's share of a resource that the processes of a training divide: cores, memory."""
    return max(1, count // (1 if facts.run is None else facts.run.ranks))


def refuse_sharded(facts: Facts) -> str | None:
    """Return why the layout of a model must not change where processes share it, or None.

    `DistributedDataParallel` takes over the parameters at construction, so they are converted right before.
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
    """Return (major, minor) of torch in the run, or before a run in this environment; None if unknown."""
    versions = facts.host.versions if facts.run is None else facts.run.versions
    found = re.match(r"(\d+)\.(\d+)", versions.get("torch", ""))
    return None if found is None else (int(found[1]), int(found[2]))


def listed(words: Iterable[object]) -> str:
    """Join words as in ``a, b and c``."""
    texts = [str(word) for word in words]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def as_switch(wanted: Value) -> bool | None:
    """Return the switch that a value of a space file means, or None if it is no switch."""
    word = str(wanted).lower()
    return True if word in _ON else False if word in _OFF else None


def as_count(wanted: Value, own: Value | None, *, least: int) -> int | None:
    """Return a whole number, also from ``x2`` or ``x0.5`` relative to `own`, or None if there is none."""
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
    """Return these values and the script's own, sorted and unique."""
    known = {own} if isinstance(own, int) and not isinstance(own, bool) else set[int]()
    return tuple(sorted({*values, *known}))

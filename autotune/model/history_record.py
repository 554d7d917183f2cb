"""What an ended study has to tell a new one, as it is journaled: numbers, values of knobs, digests.

`autotune.compare.transfer` decides what of it counts. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from autotune.model.config import Config, Value

SAME_SCRIPT: Final = "same-script"
OFF: Final = "off"

SETTINGS: Final = (SAME_SCRIPT, OFF)
"""What may be taken over: from studies of the same script, or nothing. Old journals may have ``all``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What two studies have to share before one is of use to the other; digests.

    Args:
        device: Processor, cores, memory and accelerators, and the cluster if there is one.
        power: What the accelerators may draw, in watts; empty where that is not known.
        script: Content of the script.
        path: Its place.
        args: Its arguments as they are journaled, without secrets; objective and planned length of the run.
        versions: Python, the libraries, drivers.
        modules: Content of the user's own modules that the script has imported; empty before it ran.
        data: Shape of the batches and of the data set; empty before it ran.
        model, bound: Of older journals; not used.
    """

    device: str = ""
    power: str = ""
    script: str = ""
    path: str = ""
    args: str = ""
    versions: str = ""
    modules: str = ""
    data: str = ""
    model: str = ""
    bound: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """How fast a config was there.

    Args:
        log: ln of its rate over the script's.
    """

    config: Config
    log: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What one value did by itself there, as far as runs with several changes tell.

    Args:
        log: In ln rate.
        sd: How sure that is.
    """

    knob: str
    value: Value
    log: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value of one knob."""

    knob: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """One earlier study, as far as it is of use to others.

    Args:
        study_id: Of it.
        label: For people.
        starts: What pairs confirmed to be faster than the script, the recommended one first.
        seen: As single runs read, in which compiling counts as it did for a first run; of confirmed configs
            that do not compile their pairs.
        gains: By value.
        owns: The script's own value of each knob there.
        compile_s: Seconds of a first compile, by mode.
        doubted: Values that failed for certain.
        noise: Standard deviation of ln rate between runs of the unchanged script.
    """

    study_id: str
    label: str
    fingerprint: Fingerprint
    starts: tuple[Read, ...] = ()
    seen: tuple[Read, ...] = ()
    gains: tuple[Gain, ...] = ()
    owns: Mapping[str, Value] = field(default_factory=dict[str, Value])
    compile_s: Mapping[str, float] = field(default_factory=dict[str, float])
    doubted: tuple[Setting, ...] = ()
    noise: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What a study was told at its start.

    Args:
        present: Its own fingerprint, as far as it is known before the script has run.
        earlier: Newest first.
        left_out: Studies that were looked at and say nothing here, a sentence each.
    """

    present: Fingerprint
    earlier: tuple[Earlier, ...] = ()
    left_out: tuple[str, ...] = ()

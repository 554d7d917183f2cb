"""Record of an ended study for new ones: numbers, values of knobs, digests.

`autotune.compare.transfer` decides which records count. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from autotune.model.config import Config, Value

SAME_SCRIPT: Final = "same-script"
OFF: Final = "off"

SETTINGS: Final = (SAME_SCRIPT, OFF)
"""Permitted sources: studies of the same script, or none. Old journals may have ``all``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Properties compared between two studies; digests.

    Args:
        device: Processor, cores, memory and accelerators, and the cluster if there is one.
        power: Power limits of the accelerators, in watts; empty if unknown.
        script: Content of the script.
        path: Its path.
        args: Its arguments in the journal, without secrets; objective and planned length of the run.
        versions: Python, the libraries, drivers.
        modules: Content of the user's own modules that the script has imported; empty before it ran.
        data: Shape of the batches and of the dataset; empty before it ran.
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
    """Reading of a config in an earlier study.

    Args:
        log: ln of its rate over the script's.
    """

    config: Config
    log: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Effect of one value in an earlier study, estimated from runs with several changes.

    Args:
        log: Effect in ln rate.
        sd: Its standard deviation.
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
    """One earlier study, in the parts relevant to others.

    Args:
        study_id: Its id.
        label: Readable name.
        starts: Configs confirmed in pairs to be faster than the script, the recommended one first.
        seen: Readings of single runs, with compiling as in a first run; for confirmed configs that do not
            compile, those of their pairs.
        gains: By value.
        owns: The script's own value of each knob there.
        compile_s: Seconds of a first compile, by mode.
        doubted: Values that certainly failed.
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
    """Records of earlier studies at the start of a study.

    Args:
        present: Its own fingerprint, as far as known before the script has run.
        earlier: Newest first.
        left_out: Irrelevant studies, a sentence each.
    """

    present: Fingerprint
    earlier: tuple[Earlier, ...] = ()
    left_out: tuple[str, ...] = ()

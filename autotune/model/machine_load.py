"""Load of other processes on the machine at one moment of a search, and its description.

Pure; standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

QUIET_CORES: Final = 0.35
"""Cores that other processes may use beside an undisturbed run; idle machines were seen at 0.03 to 0.1, one
busy neighbour at 1.0."""

QUIET_SHARE: Final = 0.05
"""Or this share of the machine, if that is more."""

MOST_NAMED: Final = 3
"""Culprits in one check, and in the notes of a study: one or two explain nearly all of a load."""

_LEAST_SHARE: Final = 0.2
"""Least share of the foreign load for a named culprit; also of the largest process of its name."""


def quiet_cores(cpus: float) -> float:
    """Cores that other processes may use beside a run that still counts as undisturbed.

    Args:
        cpus: Of the machine, or of the quota; 0 where unknown.
    """
    return max(QUIET_CORES, QUIET_SHARE * cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Foreign processes of one name.

    Args:
        name: Of the executable, never its arguments; empty where it cannot be read.
        pid: Of the one that uses most; 0 where unknown.
        cores: CPUs' worth of time that they use together; 0 on an accelerator.
        device: The accelerator that they compute on; empty for CPUs.
        count: Of processes.
        study: The study and its owner if it is another search on the same CPUs or accelerators, else empty.
    """

    name: str
    pid: int = 0
    cores: float = 0.0
    device: str = ""
    count: int = 1
    study: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Return the identity of a culprit across checks."""
        return self.study or self.name, self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    """Result of a load check.

    Args:
        foreign_cores: CPUs' worth of time used by processes outside the search.
        cpus: CPUs that the search may use; the quota if there is one.
        culprits: Largest first.
        pressure_frac: Share of the time in which some task waited for a CPU; None if unreadable.
        slowdowns: Accelerator and the reason for its reduced clocks, as ``NAME: REASON``.
    """

    foreign_cores: float
    cpus: float
    culprits: tuple[Culprit, ...] = ()
    pressure_frac: float | None = None
    slowdowns: tuple[str, ...] = ()

    @property
    def is_busy_on_cpus(self) -> bool:
        """Whether others use more of the CPUs than of a quiet machine."""
        return self.foreign_cores > quiet_cores(self.cpus)

    @property
    def is_busy(self) -> bool:
        """Whether readings taken now would be disturbed."""
        known = any(culprit.device or culprit.study for culprit in self.culprits)
        return known or bool(self.slowdowns) or self.is_busy_on_cpus


def named(cores: Sequence[Culprit], foreign_cores: float) -> tuple[Culprit, ...]:
    """Culprits on CPUs that are worth a line, those of one name together; the rest has no name.

    Args:
        cores: One for each process.
        foreign_cores: That all foreign processes used, those that cannot be seen included.
    """
    groups: dict[str, list[Culprit]] = {}
    for one in cores:
        groups.setdefault(one.name, []).append(one)
    found: list[Culprit] = []
    for name, group in groups.items():
        most = max(group, key=lambda one: one.cores)
        count = sum(one.cores >= _LEAST_SHARE * most.cores for one in group)
        found.append(Culprit(name=name, pid=most.pid, cores=sum(one.cores for one in group), count=count))
    unseen = foreign_cores - sum(one.cores for one in cores)
    found.append(Culprit(name="", cores=unseen, count=0))
    found = [one for one in found if one.cores >= _LEAST_SHARE * foreign_cores > 0]
    return tuple(sorted(found, key=lambda one: -one.cores)[:MOST_NAMED])


def news(load: MachineLoad, known: set[tuple[str, str]]) -> list[str]:
    """Return a sentence for each cause of load that is not known yet; `known` is extended by them."""
    if not load.is_busy:
        return []
    rows = [(culprit.key, _uses(culprit, load.cpus)) for culprit in load.culprits]
    rows += [(("", row), _held_down(row, "are")) for row in load.slowdowns]
    found = [text for key, text in rows if key not in known]
    known.update(key for key, _ in rows)
    return found


def warning(sentence: str, *, advises: bool) -> str:
    """Return the line of the terminal for one of `news`.

    Args:
        sentence: Of `news`.
        advises: Whether to name the option that waits.
    """
    hint = " Wait for it with --wait-for-quiet 10m." if advises else ""
    return f"busy: {sentence}; readings will scatter.{hint}"


def summary(loads: Iterable[MachineLoad]) -> list[str]:
    """Return a sentence for each culprit in these checks, the largest first."""
    largest: dict[tuple[str, str], tuple[Culprit, float]] = {}
    slow: dict[str, None] = {}
    for load in loads:
        slow |= dict.fromkeys(load.slowdowns)
        for culprit in load.culprits:
            known = largest.get(culprit.key)
            if known is None or culprit.cores > known[0].cores:
                largest[culprit.key] = culprit, load.cpus
    rows = sorted(largest.values(), key=lambda row: (not row[0].study, -row[0].cores))[:MOST_NAMED]
    found = [f"The machine was busy: {_uses(culprit, cpus, 'used')}." for culprit, cpus in rows]
    return [*found, *(f"The machine was busy: {_held_down(row, 'were')}." for row in slow)]


def _uses(culprit: Culprit, cpus: float, verb: str = "uses") -> str:
    more = f" and {culprit.count - 1} more" if culprit.count > 1 else ""
    where = f" (pid {culprit.pid}{more})" if culprit.pid else ""
    if culprit.study:
        measures = "measured" if verb == "used" else "measures"
        return f"{culprit.study}{where} {measures} on the same {culprit.device or 'CPUs'}"
    name = f'"{culprit.name}"' if culprit.name else "a process without a visible name"
    if culprit.device:
        return f"{name}{where} {'computed' if verb == 'used' else 'computes'} on {culprit.device}"
    return f"{name}{where} {verb} {culprit.cores:.1f} of {cpus:g} cores"


def _held_down(row: str, verb: str) -> str:
    device, _, reason = row.partition(": ")
    return f"the clocks of {device} {verb} held down ({reason})"

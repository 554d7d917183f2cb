"""CPU time quota around this process (``docker --cpus``, a Kubernetes limit), and its use.

A quota is a share of time, not a set of CPUs. Threads run on any CPU until the time of a period is used up,
and are throttled until the next period. So load on the machine's CPUs matters little. What counts is the use
by all processes under the quota, and their throttled time.

Standard library only, and nothing of autotune: the guard loads it by path under ``python -S -E``.
"""

from __future__ import annotations


class Quota:
    """One control group with a quota.

    Args:
        cpus: CPUs' worth of time per period.
        folder: Folder of the group that sets the quota.
        usage: File with the CPU nanoseconds of all its processes; empty if ``cpu.stat`` has them.
    """

    def __init__(self, cpus: float, folder: str, usage: str = "") -> None:
        self.cpus = cpus
        self.folder = folder
        self._stat = f"{folder}/cpu.stat"
        self._usage = usage

    def look(self) -> tuple[float | None, float | None]:
        """Return the CPU seconds of all its processes and their throttled seconds; None if unreadable."""
        fields = dict(line.split()[:2] for line in _read(self._stat).splitlines() if len(line.split()) > 1)
        used_s = _seconds(_read(self._usage).strip(), 1e9) if self._usage else None
        if used_s is None:
            used_s = _seconds(fields.get("usage_usec", ""), 1e6)
        still_s = _seconds(fields.get("throttled_usec", ""), 1e6)
        return used_s, still_s if still_s is not None else _seconds(fields.get("throttled_time", ""), 1e9)


def find(cpus: int, root: str = "") -> Quota | None:
    """Return the tightest quota around this process; None if none is below its number of CPUs.

    Args:
        cpus: Number of CPUs that it may use.
        root: Prefix of all paths; for tests.
    """
    found = [q for q in [*_second(root), *_first(root)] if q.cpus < cpus]
    return min(found, key=lambda q: q.cpus, default=None)


def _second(root: str) -> list[Quota]:
    """Return the quotas of control groups version 2."""
    found: list[Quota] = []
    for folder in _groups(root, ""):
        words = _read(f"{folder}/cpu.max").split()
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]) > 0:
            found.append(Quota(int(words[0]) / int(words[1]), folder))
    return found


def _first(root: str) -> list[Quota]:
    """Return the quotas of version 1, which counts use in a hierarchy that may be another one."""
    found: list[Quota] = []
    counted = _groups(root, "cpuacct")
    for folder in _groups(root, "cpu"):
        words = [_read(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if all(word.isdecimal() for word in words) and int(words[1]) > 0:
            same = folder.replace("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct", 1)
            usage = f"{same}/cpuacct.usage" if same in counted else ""
            found.append(Quota(int(words[0]) / int(words[1]), folder, usage))
    return found


def _groups(root: str, controller: str) -> list[str]:
    """Return the folders of this process's control group and its parents; empty controller: version 2."""
    found: list[str] = []
    for line in _read(f"{root}/proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or controller not in parts[1].split(","):
            continue
        below = [part for part in parts[2].split("/") if part not in ("", "..")]
        top = [f"{root}/sys/fs/cgroup", *([controller] if controller else [])]
        found += ["/".join([*top, *below[:depth]]) for depth in range(len(below), -1, -1)]
    return found


def _seconds(text: str, per_second: float) -> float | None:
    return int(text) / per_second if text.isdecimal() else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

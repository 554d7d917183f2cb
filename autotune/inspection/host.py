"""Facts about this machine, as far as this process may use it. Linux; torch is not imported."""

from __future__ import annotations

import functools
import math
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.devices.find import find_devices
from autotune.devices.nsys import find_nsys
from autotune.inspection.interpreter import PACKAGES
from autotune.model.facts import HostFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLAGS: Final = frozenset(
    {
        "avx",
        "avx2",
        "avx512f",
        "avx512_bf16",
        "avx512_fp16",
        "avx512_vnni",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
    }
    | {"asimd", "bf16", "sve", "i8mm"}
)
_PACKAGES: Final = (*PACKAGES, "ray", "optuna", "mlflow")
_ALLOCATORS: Final = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": (
        "libtcmalloc_minimal.so.4",
        "libtcmalloc.so.4",
        "libtcmalloc_minimal.so",
        "libtcmalloc.so",
    ),
}
"""File names, best first. The minimal variant lacks profiling."""
_NO_LIMIT_BYTES: Final = 1 << 60
"""cgroup v1 writes a number near 2^63 if there is no limit."""
_MEMORY_FILES: Final = (
    ("", "memory.max", "memory.current", ("active_file", "inactive_file")),
    (
        *("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("total_active_file", "total_inactive_file"),
    ),
)
"""Controller -> files of its limit and its use, and the reclaimable part of the use."""


@functools.cache
def host_facts() -> HostFacts:
    """Return the facts about this machine and its devices; read once per process."""
    return read_host(Path("/"))


def read_host(root: Path) -> HostFacts:
    """Return the same, with ``/proc`` and ``/sys`` below `root`."""
    blocks = _cpuinfo(root)
    usable = usable_cpus(root)
    return HostFacts(
        cpus=usable,
        physical_cores=min(usable, _physical_cores(blocks) or _counted_cores() or usable),
        memory_bytes=memory_limit_bytes(root),
        cpu_flags=tuple(sorted(_FLAGS & _cpu_flags(blocks))),
        devices=tuple(device.facts for device in find_devices()),
        cpu_model=next((b["model name"] for b in blocks if "model name" in b), platform.processor()),
        platform=platform.platform(),
        python=platform.python_version(),
        versions=dict(_versions()),
        cxx=compiler(),
        cc=c_compiler(),
        allocators=allocators(root),
        libc=_libc(),
        huge_pages=_huge_pages(root),
        nsys=find_nsys(os.environ),
    )


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the CPUs by affinity and cgroup quota, at least 1; a part of a CPU counts as one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [math.ceil(quota) for quota in _quotas(root)]
    return max(1, min([allowed, *quotas]))


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Return the memory of the machine, or of the tightest cgroup around this process."""
    limits = [int(text) for text in _limits(root) if text.isdecimal()]
    return min([_total_bytes(root), *(n for n in limits if 0 < n < _NO_LIMIT_BYTES)])


def memory_room_bytes(root: Path = Path("/")) -> int:
    """Return the free memory of the machine, limited by every cgroup around this process.

    Page cache counts as free: the kernel reclaims it when needed.
    """
    rooms = [_available_bytes(root)]
    for controller, limit, used, cached in _MEMORY_FILES:
        for folder in _cgroups(root, controller):
            bound, taken = _read(folder / limit), _read(folder / used)
            if bound.isdecimal() and taken.isdecimal() and 0 < int(bound) < _NO_LIMIT_BYTES:
                stat = [line.split() for line in _read(folder / "memory.stat").splitlines()]
                files = sum(int(words[1]) for words in stat if len(words) == 2 and words[0] in cached)
                rooms.append(int(bound) - int(taken) + files)
    return max(0, min(rooms))


def compiler() -> str:
    """Return the path of a C++ compiler, empty if none is found; ``CXX`` has priority."""
    return _first_compiler("CXX", "g++", "clang++", "c++")


def c_compiler() -> str:
    """Return the path of a C compiler, empty if none is found; ``CC`` has priority."""
    return _first_compiler("CC", "gcc", "clang", "cc")


def _first_compiler(variable: str, *names: str) -> str:
    named = os.environ.get(variable, "").split()
    candidates = [*named[:1], *names]
    return next((found for name in candidates if (found := shutil.which(name))), "")


def allocators(root: Path = Path("/")) -> dict[str, str]:
    """Return name -> path of installed libraries that can replace `malloc`."""
    found: dict[str, str] = {}
    known = {path.name: path for path in reversed([*_cached_libraries(root), *_library_files(root)])}
    for name, files in _ALLOCATORS.items():
        path = next((known[f] for f in files if f in known and _for_this_machine(known[f])), None)
        if path is not None:
            found[name] = str(path)
    return found


def _cached_libraries(root: Path) -> Iterator[Path]:
    """Yield libraries in the dynamic linker's cache, for the machine itself."""
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', os.defpath)}:/sbin:/usr/sbin")
    if root != Path("/") or ldconfig is None:
        return
    try:
        listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return
    for line in listed.stdout.splitlines():
        _, arrow, path = line.partition(" => ")
        if arrow:
            yield Path(path.strip())


def _library_files(root: Path) -> Iterator[Path]:
    folders = [root / "usr/lib" / f"{platform.machine()}-linux-gnu", root / "usr/lib64", root / "usr/lib"]
    folders += [root / "usr/local/lib64", root / "usr/local/lib"]
    if root == Path("/"):
        prefixes = dict.fromkeys([os.environ.get("CONDA_PREFIX", ""), sys.prefix])
        folders += [Path(prefix, "lib") for prefix in prefixes if prefix]
    for folder in folders:
        for file in (file for files in _ALLOCATORS.values() for file in files):
            if (folder / file).is_file():
                yield folder / file


def _for_this_machine(library: Path) -> bool:
    """Return whether a library matches the interpreter's processor and word size, by both files' headers."""
    try:
        with library.open("rb") as file, Path(sys.executable).open("rb") as own:
            header, own_header = file.read(20), own.read(20)
    except OSError:
        return False
    return header[:5] == own_header[:5] and header[18:20] == own_header[18:20]


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def _huge_pages(root: Path) -> str:
    """Return the word in brackets: ``always [madvise] never``."""
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return text.partition("[")[2].partition("]")[0]


def _psutil() -> Any | None:
    """Return psutil; None if it is not installed, as grids are recorded with PyTorch alone."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil


def _counted_cores() -> int | None:
    psutil = _psutil()
    return None if psutil is None else psutil.cpu_count(logical=False)


def _total_bytes(root: Path) -> int:
    psutil = _psutil()
    if psutil is not None:
        return psutil.virtual_memory().total
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available_bytes(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return _total_bytes(root)


def _quotas(root: Path) -> Iterator[float]:
    """Yield CPUs' worth of time per period, for every cgroup around this process."""
    for folder in _cgroups(root, ""):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdecimal() and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])
    for folder in _cgroups(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            yield int(quota) / int(period)


def _limits(root: Path) -> Iterator[str]:
    for folder in _cgroups(root, ""):
        yield _read(folder / "memory.max")
    for folder in _cgroups(root, "memory"):
        yield _read(folder / "memory.limit_in_bytes")


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield folders of this process's cgroup and its parents; empty controller: version 2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or controller not in parts[1].split(","):
            continue
        mount = root / "sys/fs/cgroup" / controller
        below = [p for p in parts[2].split("/") if p and p != ".."]
        for depth in range(len(below), -1, -1):
            yield mount.joinpath(*below[:depth])


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """Return one mapping per logical CPU."""
    blocks = _read(root / "proc/cpuinfo").split("\n\n")
    rows = [[line.split(":", 1) for line in block.splitlines() if ":" in line] for block in blocks]
    return [{key.strip(): value.strip() for key, value in row} for row in rows if row]


def _physical_cores(blocks: list[dict[str, str]]) -> int:
    """Return the number of cores among the permitted CPUs; 0 if the file does not show it."""
    allowed = {str(n) for n in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set[str]()
    mine = [b for b in blocks if not allowed or b.get("processor") in allowed]
    return len({(b.get("physical id", "0"), b["core id"]) for b in mine if "core id" in b})


def _cpu_flags(blocks: list[dict[str, str]]) -> frozenset[str]:
    for block in blocks:
        for key in ("flags", "Features"):
            if key in block:
                return frozenset(block[key].split())
    return frozenset()


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

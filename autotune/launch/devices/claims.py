"""Claims of searches on this machine's CPUs and accelerators, as numbered files that every account can read.

A claim is live while its file is locked (`flock`). Any account can write its own files, so no content of a
claim is trusted. Its owner comes from the file system, and an unreadable file is no claim.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import re
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.devices.bounded import Bounded
from autotune.devices.find import find_devices
from autotune.launch.devices.load_check import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from autotune.model.study import StudySpec

PREFIX: Final = "autotune-claim-"
MOST_BYTES: Final = 1 << 16
"""Largest claim that is read; one of 4096 CPUs takes 24 KiB."""

LABEL_CHARACTERS: Final = 64
ACCELERATORS, CPUS = "accelerators", "CPUs"

_NAME: Final = re.compile(re.escape(PREFIX) + r"(\d{1,12})")
_TRIES: Final = 100
"""Attempts to get a number. Each failure means that another search has just got it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """CPUs and accelerators that a search measures on.

    Args:
        cpus: Numbers of the CPUs that its processes may use (affinity, cpuset).
        devices: UUIDs of the accelerators that it sees.
    """

    cpus: frozenset[int] = frozenset()
    devices: frozenset[str] = frozenset()

    @classmethod
    def of_machine(cls, environ: Mapping[str, str]) -> Resources:
        """Return the resources of a search on this machine whose trials run in that environment."""
        facts = [Bounded(device).facts for device in find_devices(environ)]
        return cls(cpus=frozenset(usable_cpus()), devices=frozenset(f.uuid for f in facts if f.uuid))

    def shared_with(self, other: Resources) -> str:
        """Return the kind of resource that two searches share: ``accelerators``, ``CPUs`` or an empty string.

        Searches with separate accelerators may share CPUs, as is usual on servers with several of them.
        """
        if self.devices & other.devices:
            return ACCELERATORS
        if self.devices and other.devices:
            return ""
        return CPUS if self.cpus & other.cpus else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Owner and options of a claim.

    Args:
        study_id: Claims of one study do not exclude each other.
        label: Name shown to waiting searches.
        wait_s: Longest wait for claims that come first.
        share: Measure beside another search after that wait.
    """

    study_id: str
    label: str
    wait_s: float = 0.0
    share: bool = False

    @classmethod
    def of(cls, spec: StudySpec) -> ClaimRequest:
        """Return the request of a study."""
        return cls(study_id=spec.study_id, label=spec.label, wait_s=spec.longest_wait_s, share=spec.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A live claim of another search.

    Args:
        study_id: Id of its study.
        label: Label of its study.
        pid: Pid of its driver, as written in the claim.
        user: Owner of the file.
        since: Local time at which it began to measure or to wait.
        measures: False while it waits.
        shared: Resources that the own search needs as well, from `Resources.shared_with`.
    """

    study_id: str
    label: str
    pid: int
    user: str
    since: str
    measures: bool
    shared: str

    @property
    def study(self) -> str:
        """The study's label and owner."""
        return f"study {self.label} of {self.user}"

    @property
    def text(self) -> str:
        """Clause that names the search and its use of the machine."""
        does = "has used" if self.measures else "has waited for"
        return f"{self.study} (pid {self.pid}) {does} the same {self.shared} since {self.since}"

    @property
    def key(self) -> tuple[str, int]:
        """Key that is equal for claims of the same holder."""
        return self.study_id, self.pid


def claim_path(folder: Path, number: int) -> Path:
    """Return the file of a claim."""
    return folder / f"{PREFIX}{number:06d}"


def claim_bytes(request: ClaimRequest, resources: Resources, *, measures: bool) -> bytes:
    """Return the text of a claim. Its length is fixed, so that a reader gets the old or the new text."""
    data = {
        "study_id": request.study_id,
        "label": request.label,
        "pid": os.getpid(),
        "since_s": int(time.time()),
        "measures": int(measures),
        "cpus": sorted(resources.cpus),
        "devices": sorted(resources.devices),
    }
    return json.dumps(data).encode()


def numbers(folder: Path) -> list[int]:
    """Return the numbers of all claims in ascending order, dead ones included."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found is not None)


def published(folder: Path, temporary: Path) -> int:
    """Give a locked file the number after all claims, and return the number.

    Raises:
        OSError: The folder does not support links, or no number is free.
    """
    for _ in range(_TRIES):
        number = max(numbers(folder), default=0) + 1
        path = claim_path(folder, number)
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            continue
        if numbers(folder)[-1:] == [number]:
            return number
        # The number was free again, and the holder of a higher one may have begun without seeing this claim.
        path.unlink()
    raise OSError(errno.EAGAIN, "no number is free for a claim", str(folder))


def read_claim(path: Path, ours: Resources) -> Claim | None:
    """Return a claim and the resources it shares; None if it is dead or malformed."""
    with _opened(path) as fd:
        if fd < 0 or _taken(fd, fcntl.LOCK_SH):
            return None
        try:
            data = json.loads(os.pread(fd, MOST_BYTES, 0))
            cpus = frozenset(int(cpu) for cpu in data["cpus"])
            claimed = Resources(cpus=cpus, devices=frozenset(map(str, data["devices"])))
            return Claim(
                study_id=str(data["study_id"]),
                label=_sanitized(str(data["label"])),
                pid=int(data["pid"]),
                user=_user(os.fstat(fd).st_uid),
                since=time.strftime("%Y-%m-%d %H:%M", time.localtime(int(data["since_s"]))),
                measures=bool(data["measures"]),
                shared=ours.shared_with(claimed),
            )
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None


def remove_dead(folder: Path) -> None:
    """Remove claims of this account whose process has ended without withdrawing them."""
    for number in numbers(folder):
        path = claim_path(folder, number)
        with _opened(path) as fd, contextlib.suppress(OSError):
            is_dead = fd >= 0 and os.fstat(fd).st_uid == os.geteuid() and _taken(fd, fcntl.LOCK_EX)
            # While the lock is held no other process removes this file, so the name is still valid.
            if is_dead and os.path.samestat(os.lstat(path), os.fstat(fd)):
                path.unlink()


@contextlib.contextmanager
def _opened(path: Path) -> Generator[int, None, None]:
    """Open a file for reading; yield -1 if it cannot be opened or is not a regular file."""
    try:
        # A link may lead elsewhere, and opening a pipe would block.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield -1
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else -1
    finally:
        os.close(fd)


def _taken(fd: int, operation: int) -> bool:
    """Take a lock; return False if another process holds it."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _user(uid: int) -> str:
    try:
        return _sanitized(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return f"uid {uid}"


def _sanitized(text: str) -> str:
    """Return the text without terminal control characters."""
    return re.sub(r"[^\w.@$-]", "?", text, flags=re.ASCII)[:LABEL_CHARACTERS]

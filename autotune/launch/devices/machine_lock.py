"""Lock that admits one search at a time to the same CPUs or accelerators, across accounts.

A search publishes a claim and waits for live claims with a lower number on the same resources. The kernel
withdraws a claim with the process that holds it. Claims are advisory: another account can make a search wait
up to its own bound, and can neither change nor remove its claim.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import weakref
from typing import TYPE_CHECKING

from autotune.launch.devices import claims
from autotune.launch.devices.claims import ClaimRequest, Resources
from autotune.launch.devices.lock_folder import lock_folder
from autotune.model.machine_load import Culprit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.launch.devices.claims import Claim
    from autotune.model.study import StudySpec

log = logging.getLogger(__name__)

_OPEN: weakref.WeakSet[MachineLock] = weakref.WeakSet()
"""Locks of this process."""


class MachineLock:
    """The claim of one search.

    Args:
        request: Owner and options of the claim.
        resources: Resources to measure on.
        folder: Folder of the claims; None: the machine's default.
    """

    def __init__(self, request: ClaimRequest, resources: Resources, *, folder: Path | None = None) -> None:
        self.request = request
        self._resources = resources
        self._folder = folder
        self._number = 0
        self._fd = -1
        self._pid = os.getpid()
        self._is_published = False
        _OPEN.add(self)

    @classmethod
    def of_machine(cls, environ: Mapping[str, str], spec: StudySpec) -> MachineLock:
        """Return the lock of a search on this machine."""
        return cls(ClaimRequest.of(spec), Resources.of_machine(environ))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that keep the claim alive, also in a child; empty without a claim."""
        return (self._fd,) if self._fd >= 0 else ()

    def ahead(self) -> Claim | None:
        """Publish the claim if necessary, and return the first claim before it.

        Returns:
            None if the search may start. If locking is not possible, always None, and a warning is logged.
        """
        if not self._is_published:
            self._is_published = True
            self._publish()
        return next((claim for number, claim in self._others() if number < self._number), None)

    def begin(self) -> None:
        """Mark the claim as measuring."""
        if self._fd >= 0:
            self._write(measures=True)

    def beside(self) -> tuple[Culprit, ...]:
        """Return the other searches that measure on the same resources now."""
        return tuple(
            Culprit(
                name="",
                pid=claim.pid,
                study=claim.study,
                device="" if claim.shared == claims.CPUS else claim.shared,
            )
            for _, claim in self._others()
            if claim.measures
        )

    def release(self) -> None:
        """Withdraw the claim; a second call does nothing. In a fork of the holder the parent keeps it."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if os.getpid() == self._pid and self._folder is not None:
            with contextlib.suppress(OSError):
                claims.claim_path(self._folder, self._number).unlink()
        os.close(fd)

    def _publish(self) -> None:
        try:
            folder = self._folder = self._folder or lock_folder()
            claims.remove_dead(folder)
            temporary = folder / f".{claims.PREFIX}{secrets.token_hex(8)}"
            self._fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                # Readable for other accounts whatever the umask, and locked before it is visible.
                os.fchmod(self._fd, 0o644)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._write(measures=False)
                self._number = claims.published(folder, temporary)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            for fd in self.descriptors:
                os.close(fd)
            self._fd = -1
            log.warning("other searches on this machine cannot be locked out: %s", error)

    def _write(self, *, measures: bool) -> None:
        os.pwrite(self._fd, claims.claim_bytes(self.request, self._resources, measures=measures), 0)

    def _others(self) -> list[tuple[int, Claim]]:
        """Return live claims of other studies on the same resources, by number."""
        if self._fd < 0 or self._folder is None:
            return []
        found: list[tuple[int, Claim]] = []
        for number in claims.numbers(self._folder):
            if number == self._number:
                continue
            claim = claims.read_claim(claims.claim_path(self._folder, number), self._resources)
            if claim is not None and claim.shared and claim.study_id != self.request.study_id:
                found.append((number, claim))
        return found


def _close_all() -> None:
    """Close the claims in a fork of the host program, which would keep them while it lives."""
    for lock in list(_OPEN):
        lock.release()


os.register_at_fork(after_in_child=_close_all)

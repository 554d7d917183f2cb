"""Creation of a study: its directory, journal, and unique label."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.driver.spec import untaken_label
from autotune.launch.devices.lock_folder import opened
from autotune.model.wire import to_wire
from autotune.store.journal import Journal
from autotune.store.outbox import rows_for
from autotune.store.paths import JOURNAL_FILE, home, make_study_dir

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from autotune.model.study import StudySpec

LOCK_FILE: Final = "labels.lock"
LOCK_S: Final = 10.0
"""Creating a study takes milliseconds; a stopped process must not block others for longer."""

_POLL_S: Final = 0.01


def create_study(
    spec: StudySpec, *, wall_s: float, secrets: Sequence[str] = ()
) -> tuple[StudySpec, Path, Journal]:
    """Create the directory and the journal of a study.

    The label is chosen and journaled under a lock, as two searches may begin in the same second.

    Args:
        spec: Its label gets a number if another study has it.
        wall_s: Seconds since the epoch.
        secrets: Names of the secret variables that trials get.

    Returns:
        The specification with its label, the directory, and the journal with its first event.

    Raises:
        StoreError: It cannot be created.
    """
    folder = make_study_dir(spec.study_id)
    with _locked_labels():
        spec = replace(spec, label=untaken_label(spec.label))
        journal = Journal.create(folder / JOURNAL_FILE)
        append_opened(journal, spec, wall_s=wall_s, secrets=secrets)
    return spec, folder, journal


def append_opened(journal: Journal, spec: StudySpec, *, wall_s: float, secrets: Sequence[str] = ()) -> None:
    """Journal that a driver starts or continues a study; secret variables by name only."""
    data: dict[str, object] = to_wire(
        {
            "spec": spec,
            "wall_s": wall_s,
            "host": platform.node(),
            "pid": os.getpid(),
            "version": spec.version,
            "secrets": list(secrets),
        }
    )
    rows = () if spec.purpose else rows_for("opened", data)
    journal.append("opened", f"opened/{journal.epoch}", data, outbox=rows)


@contextlib.contextmanager
def _locked_labels() -> Generator[None, None, None]:
    """Lock the labels of this home against other processes; without effect if locking is unsupported."""
    lock = -1
    with contextlib.suppress(OSError):
        lock = opened(home(), LOCK_FILE)
        until_s = time.monotonic() + LOCK_S
        while not _taken(lock) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""Cleanup after killed drivers, by the next command of any kind.

A killed driver writes no secret, but a script may have printed one. The guard of a trial removes it if it
outlives the driver (`autotune.launch.guard.guard`); this module handles the other case.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.store.paths import DRIVEN_FILE, JOURNAL_FILE, newest_study_dirs

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from autotune.model.study import StudySpec
    from autotune.store.journal import Entry

log = logging.getLogger(__name__)

_RAYS = "at-ray-*"
"""Folders of local Rays: `autotune.driver.backends.local_ray.FOLDER`."""


def clear_up_all() -> None:
    """Clean up after every dead driver of this user. Never raises; costs one scan if there is none."""
    with _passed_over("the Rays of dead drivers"):
        # Imported only if needed, as every command calls this.
        if any(Path(tempfile.gettempdir()).glob(_RAYS)):
            from autotune.driver.backends.local_ray import end_abandoned_rays

            end_abandoned_rays()
    study_dirs: list[Path] = []
    with _passed_over("the studies"):
        study_dirs = newest_study_dirs()
    for study_dir in study_dirs:
        with _passed_over(str(study_dir)):
            if (study_dir / DRIVEN_FILE).is_file():
                _clear_up_study(study_dir)


@contextlib.contextmanager
def _passed_over(what: str) -> Generator[None]:
    """Log errors of a cleanup; the current command reports those that concern it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (no cleanup may end the command)
        log.debug("%s: not cleared up: %s", what, error)


def _clear_up_study(study_dir: Path) -> None:
    """Clean up after the last driver of a study; do nothing if it is alive, or another user's."""
    from autotune.store.fold import fold
    from autotune.store.journal import Journal
    from autotune.store.study_lock import is_locked, locked

    if study_dir.stat().st_uid != os.geteuid() or is_locked(study_dir):
        return
    with locked(study_dir), Journal.read(study_dir / JOURNAL_FILE) as journal:
        entries = list(journal.entries())
        clear_up(study_dir, entries, fold(entries).spec)
        (study_dir / DRIVEN_FILE).unlink(missing_ok=True)


def clear_up(study_dir: Path, entries: Sequence[Entry], spec: StudySpec) -> None:
    """End and remove what a dead driver has left: processes, secrets, scratch files.

    Args:
        study_dir: The study, locked by the caller: no other process drives it now.
        entries: Its whole journal.
        spec: Its specification.
    """
    from autotune.driver.backends.local_ray import SNAPSHOTS, end_abandoned_rays
    from autotune.driver.loop.recovery import unfinished
    from autotune.launch.fork_pool import FORKS
    from autotune.launch.workspace import isolation, orphans
    from autotune.text.redact import is_incomplete, restore

    # Supervisors first: a living worker would start the next trial.
    end_abandoned_rays(study_dir)
    words = [restore(word) for word in (*spec.options, *spec.args)]
    knows_all = not any(map(is_incomplete, words)) and not missing_variables(entries, os.environ)
    for uid in unfinished(entries, platform.node()):
        orphans.clear_up(study_dir / "trials" / uid, words, os.environ, knows_all=knows_all)
    for name in (FORKS, SNAPSHOTS):
        isolation.remove(study_dir / name)


def missing_variables(entries: Sequence[Entry], environ: Mapping[str, str]) -> list[str]:
    """Return the secret variables that the search began with and this environment lacks.

    Args:
        entries: A study's journal. It holds the names only: a digest of a short password is as good as the
            password.
        environ: Environment of the process that continues the study.
    """
    began: Sequence[str] = next((e.data.get("secrets", ()) for e in entries if e.kind == "opened"), ())
    return [name for name in began if name not in environ]

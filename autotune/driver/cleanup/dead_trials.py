"""Cleanup of trials whose search and guard were both killed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from autotune.launch.guard.owned_resources import RECORD
from autotune.launch.workspace.orphans import Swept, end_strays
from autotune.store.paths import newest_study_dirs
from autotune.store.study_lock import is_locked

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

MOST_STUDIES = 100
"""Number of newest studies checked; older ones are cleaned up when they are resumed."""


def end_dead_trials() -> list[str]:
    """End the trials of studies without a living driver; called at the start of any search.

    Returns:
        A sentence for each study with leftovers.
    """
    found: list[str] = []
    try:
        places = newest_study_dirs()[:MOST_STUDIES]
    except OSError:
        return found
    for study_dir in places:
        try:
            swept = _end_in(study_dir)
        except OSError:
            log.debug("%s could not be searched for dead trials", study_dir, exc_info=True)
            continue
        if swept:
            what = f"processes: {swept.processes}, System V objects: {swept.objects}"
            found.append(f"an earlier search was killed; its files were removed ({what})")
    return found


def _end_in(study_dir: Path) -> Swept:
    swept = Swept()
    for record in sorted(study_dir.glob(f"trials/*/{RECORD}")):
        if is_locked(study_dir):
            break
        swept += end_strays(record.parent)
    return swept

"""Recovery of a broken default MLflow store from the journals."""

from __future__ import annotations

import logging

from autotune.errors import AutotuneError, StudyLocked
from autotune.report.mlflow.local_store import needs_refill, refilled
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import JOURNAL_FILE, default_store, default_tracking_uri, studies

log = logging.getLogger(__name__)


def is_due() -> bool:
    """Return whether the default store is broken, or was replaced and lacks studies."""
    return needs_refill(default_store())


def refill(deadline_s: float = 60.0) -> None:
    """Send every study of this home to its default store again; unsent ones are retried at the next call.

    Args:
        deadline_s: Time limit per study.
    """
    from autotune.driver.sinks.sync import sync_study

    missing = 0
    # The oldest first, in the order of the searches.
    for found in reversed(studies()):
        try:
            with Journal.read(found.path / JOURNAL_FILE) as journal:
                spec = fold(journal.entries()).spec
            if not spec.purpose and spec.tracking_uri in ("", default_tracking_uri()):
                missing += sync_study(found.path, deadline_s, again=True) > 0
        except StudyLocked:
            # Its search is running and sends new records itself.
            missing += 1
        except AutotuneError:
            # Its journal cannot be read, now or later.
            log.debug("study %s is not in the new store", found.study_id, exc_info=True)
    if not missing:
        refilled(default_store())

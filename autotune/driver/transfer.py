"""Transfer: earlier studies on this disk relevant to a new one; read once, at its start, within seconds.

Results are journaled with the new study (`autotune.model.history_record`). Which of them count is decided
later and purely (`autotune.compare.transfer`). Errors in this module never end a search: a study that cannot
be read, or is irrelevant, is left out with a reason.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.compare.transfer import fingerprint, is_own
from autotune.driver.rebuild_space import space_of
from autotune.errors import AutotuneError
from autotune.model.history_record import OFF, Transfer
from autotune.search.history_export import lessons, unfit
from autotune.search.samplers.registry import PLANNER
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import JOURNAL_FILE, newest_study_dirs
from autotune.store.study_lock import is_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autotune.model.history_record import Earlier, Fingerprint
    from autotune.model.study import Study
    from autotune.store.journal import Entry

log = logging.getLogger(__name__)

MOST_READ: Final = 20
"""Studies that are opened, the newest ones."""
MOST_OWN: Final = 3
"""Largest number of used studies of the same script."""
MOST_S, MOST_SHARE = 3.0, 0.02
"""Reading ends after this time, or this share of the budget if less; a started study is completed."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""A larger journal is not read."""


def gather(
    present: Study,
    *,
    folders: Sequence[Path] | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> Transfer | None:
    """Return the relevant records of earlier studies.

    Args:
        present: The new study, read from its journal before its first trial, so that both sides of every
            comparison
            had the same redaction.
        folders: Folders of studies, newest first; None: those below the home.
        now_s: Clock for the time limit.

    Returns:
        None if no study is used, or none exists.
    """
    if present.spec.transfer == OFF or present.spec.sampler != PLANNER:
        return None
    until_s = now_s() + min(MOST_S, MOST_SHARE * present.spec.budget.seconds)
    try:
        found = newest_study_dirs() if folders is None else folders
        mine = fingerprint(present)
    except (OSError, AutotuneError):
        log.warning("earlier studies could not be searched for", exc_info=True)
        return None
    own: list[Earlier] = []
    left_out: list[str] = []
    for path in [p for p in found if p.name != present.spec.study_id][:MOST_READ]:
        if len(own) == MOST_OWN:
            break
        if now_s() > until_s:
            left_out.append(f"what is older than {path.name}: reading takes too long.")
            break
        record = _record_of(path, present, mine)
        if isinstance(record, str):
            left_out.append(record)
            log.info("earlier study left out: %s", record)
        elif record is not None:
            own.append(record)
    if not own and not left_out:
        return None
    return Transfer(present=mine, earlier=tuple(own), left_out=tuple(left_out))


def _record_of(path: Path, present: Study, mine: Fingerprint) -> Earlier | str | None:
    """Return a study's record, or why it is irrelevant, as a sentence; None if no reason need be shown."""
    try:
        return _read(path, present, mine)
    except AutotuneError as error:
        return f"{path.name}: it cannot be read ({type(error).__name__})."
    except Exception as error:
        log.debug("an earlier study could not be read", exc_info=True)
        return f"{path.name}: it cannot be read ({type(error).__name__})."


def _read(path: Path, present: Study, mine: Fingerprint) -> Earlier | str | None:
    file = path / JOURNAL_FILE
    if not file.is_file():
        return None
    if file.stat().st_size > MOST_BYTES:
        return f"{path.name}: its journal is too large to be read here."
    if is_locked(path):
        return f"{path.name}: it has not ended."
    journal = Journal.read(file)
    try:
        entries: list[Entry] = []
        for entry in journal.entries():
            entries.append(entry)
            # The begin of the journal identifies the study: irrelevant ones are not read to the end.
            if entry.kind == "inspected" and not _is_relevant(fold(entries), mine):
                return None
        study = fold(entries)
    finally:
        journal.close()
    if not _is_relevant(study, mine):
        return None
    earlier, label = fingerprint(study), study.spec.label or path.name
    if not study.stopped:
        return f"{label}: it has not ended."
    if earlier.device != mine.device:
        return f"{label}: another machine."
    if earlier.power != mine.power:
        return f"{label}: another power limit."
    if study.spec.objective != present.spec.objective:
        return f"{label}: another objective."
    if why := unfit(study):
        return f"{label}: {why}"
    assert study.facts is not None
    space, refusals = space_of(study.spec, study.facts)
    return lessons(replace(study, space=space, refusals=refusals))


def _is_relevant(study: Study, mine: Fingerprint) -> bool:
    """Return whether it is a search of the same script."""
    return not study.spec.purpose and is_own(mine, fingerprint(study))

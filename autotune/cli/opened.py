"""A study opened from its journal alone: nothing is locked, nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.pick import Answer
    from autotune.core.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A study on disk and what it answers as of now.

    Args:
        answer: None where the script was never measured as it is.
        path: Its directory.
    """

    study: Study
    answer: Answer | None
    path: Path


def open_study(path: Path) -> Opened:
    """Fold the journal of the study in this directory.

    Raises:
        StoreError: It cannot be read, or is damaged.
    """
    from autotune.core.pick import answer
    from autotune.driver.rebuilt import space_of
    from autotune.store.fold import fold
    from autotune.store.journal import Journal
    from autotune.store.paths import JOURNAL_FILE

    journal = Journal.read(path / JOURNAL_FILE)
    try:
        study = fold(journal.entries(), build=space_of)
    finally:
        journal.close()
    is_measured = any(trial.measurement is not None for trial in study.baseline)
    return Opened(study=study, answer=answer(study) if is_measured else None, path=path)


def compiled_for(study_id: str, trial: int) -> dict[str, str]:
    """Variables that name the compile caches a study has published for a trial's config.

    Raises:
        StoreError: The study is not here.
    """
    from autotune.driver.planner import cache_key
    from autotune.launch.caches import VARIABLES
    from autotune.store.fold import fold
    from autotune.store.journal import Journal
    from autotune.store.paths import JOURNAL_FILE, study_dir

    path = study_dir(study_id)
    if not (path / "cache").is_dir():
        return {}
    journal = Journal.read(path / JOURNAL_FILE)
    try:
        study = fold(journal.entries())
    finally:
        journal.close()
    config = next((t.config for t in study.trials if t.number == trial), None)
    if config is None or study.facts is None:
        return {}
    folder = path / "cache" / cache_key(config, study.facts)
    return {name: str(folder / part) for name, part in VARIABLES.items() if (folder / part).is_dir()}

"""A study opened from its journal alone: nothing is locked, nothing is run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.answer.answer import Answer
    from autotune.model.facts import HostFacts
    from autotune.model.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStudy:
    """A study on disk and its answer at the time of opening.

    Args:
        answer: None if the baseline was never measured.
        path: Its directory.
    """

    study: Study
    answer: Answer | None
    path: Path


def open_study(path: Path) -> OpenStudy:
    """Fold the journal of the study in this directory.

    Raises:
        StoreError: It cannot be read, or is damaged.
    """
    from autotune.answer.pick import answer
    from autotune.driver.rebuild_space import space_of
    from autotune.store.fold import fold
    from autotune.store.journal import Journal
    from autotune.store.paths import JOURNAL_FILE

    journal = Journal.read(path / JOURNAL_FILE)
    try:
        study = fold(journal.entries(), build=space_of)
    finally:
        journal.close()
    is_measured = any(trial.measurement is not None for trial in study.baseline)
    return OpenStudy(study=study, answer=answer(study) if is_measured else None, path=path)


def open_search(name: str | None, *, purposes: Sequence[str] = ()) -> OpenStudy:
    """Return the search with this name, or the newest one.

    Args:
        name: Name or id of a study, or its beginning.
        purposes: Purposes of studies that are accepted besides searches.

    Raises:
        StoreError: It does not exist, or cannot be read.
        UsageError: It is the study of another command.
    """
    from autotune.cli.remote import find_study
    from autotune.errors import UsageError

    opened = open_study(find_study(name, searches=True))
    label = opened.study.spec.label
    purpose = opened.study.spec.purpose
    if purpose and purpose not in purposes:
        message = f"study {label} is what `autotune {purpose}` measured, and no search"
        raise UsageError(message, hint=f"it is here: autotune show {label}")
    return opened


def own_file(opened: OpenStudy) -> str:
    """Return the best.yaml with the picks of this study, of the user or of the study's folder, or "".

    A later search may have replaced the user's file.
    """
    from pathlib import Path

    from autotune.errors import UsageError
    from autotune.export.best_config import read_best

    for path in (opened.study.spec.out, str(opened.path / "best.yaml")):
        if path and Path(path).is_file():
            try:
                if read_best(path).study.id == opened.study.spec.study_id:
                    return path
            except UsageError:
                continue
    return ""


def named_file(opened: OpenStudy) -> str:
    """Return `own_file` for use in a command, or the path that the study's file would have."""
    from pathlib import Path

    out = opened.study.spec.out
    return own_file(opened) or (str(opened.path / "best.yaml") if out and Path(out).exists() else out)


def filed(study: Study, file: str) -> Study:
    """Return a copy of a study whose picks lie in that file."""
    return replace(study, spec=replace(study.spec, out=file))


def elsewhere(study: Study) -> str:
    """Return the folder for commands of this study if it is not the current one, or ""."""
    from pathlib import Path

    cwd = study.spec.cwd
    return "" if not cwd or Path(cwd).resolve() == Path.cwd().resolve() else cwd


def check_address(name: str | None, path: Path, tracking_uri: str) -> None:
    """Refuse the tracking address of a study that this account did not search.

    MLflow sends this account's credentials to any address it is given.

    Args:
        name: Typed label, or path of a folder of any account.
        path: The study's folder.
        tracking_uri: Typed address, or "" for the study's own.

    Raises:
        UsageError: No address is typed, and the study lies outside of the home.
    """
    import os

    from autotune.errors import UsageError
    from autotune.store.paths import is_in_home

    if name and os.sep in name and not tracking_uri and not is_in_home(path):
        raise UsageError(
            f"{path} does not lie in this account's home; its tracking address is not used",
            hint="name the MLflow that is meant: --tracking-uri URI",
        )


def recorded(study_id: str) -> Study | None:
    """Return the study of that id as this account's own home records it, without its space.

    None where it is not there, belongs to another account, or cannot be read.
    """
    from autotune.errors import AutotuneError
    from autotune.store.fold import fold
    from autotune.store.journal import Journal
    from autotune.store.paths import foreign, study_dir

    try:
        path = study_dir(study_id)
        if foreign(path):
            return None
        with Journal.read(path) as journal:
            return fold(journal.entries())
    except AutotuneError:
        return None


def compiled_for(study_id: str, trial: int, host: HostFacts, script_sha256: str) -> Path | None:
    """Return the compile caches that a study published for a trial's config, or None if they do not fit here.

    Args:
        study_id: Id of the study.
        trial: Number of one of its trials.
        host: This machine, with the versions of the interpreter that will run the script.
        script_sha256: Hash of the script about to run.

    Raises:
        StoreError: The id is malformed.
    """
    from autotune.driver.loop.planner import cache_key
    from autotune.store.paths import study_dir

    path = study_dir(study_id)
    study = recorded(study_id) if (path / "cache").is_dir() else None
    if study is None:
        return None
    config = next((t.config for t in study.trials if t.number == trial), None)
    facts = study.facts
    if config is None or facts is None or dict(facts.host.versions) != dict(host.versions):
        return None
    here = replace(facts, host=host, script=replace(facts.script, sha256=script_sha256))
    key = cache_key(config, facts)
    folder = path / "cache" / key
    return folder if key == cache_key(config, here) and folder.is_dir() else None

"""Where studies lie on disk, how they are named and found again."""

from __future__ import annotations

import json
import os
import re
import secrets
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import AutotuneError, StoreError, StudyNotFound, did_you_mean
from autotune.shortage import shortage

JOURNAL_FILE = "journal.db"
LOCK_FILE = "journal.lock"
BALLAST_FILE = "journal.ballast"
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
SET_HOME = "Set AUTOTUNE_HOME to a directory that can be written."
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ULID = re.compile(rf"[{_ALPHABET}]{{26}}")


def home() -> Path:
    """The directory that holds everything we keep: ``$AUTOTUNE_HOME``, else below the XDG data home.

    Raises:
        StoreError: None of these is set, and this user has no home directory.
    """
    try:
        if own := os.environ.get("AUTOTUNE_HOME"):
            return Path(own).expanduser().absolute()
        # The XDG specification has relative paths ignored.
        xdg = os.environ.get("XDG_DATA_HOME", "")
        base = Path(xdg) if xdg.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise StoreError("no home directory is known for this user", hint=SET_HOME) from error
    return base / "autotune"


def make_study_dir(study_id: str) -> Path:
    """The directory of a new study, for its user alone: arguments and environment of a script lie in it.

    Raises:
        StoreError: It cannot be made.
    """
    path = study_dir(study_id)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(f"the study directory {path} cannot be made", path, error, hint=SET_HOME) from error
    return path


def unwritable(what: str, path: Path, error: Exception, *, hint: str = "") -> AutotuneError:
    """The error of a file or folder that cannot be made or written: what this machine lacks, if it is that.

    Args:
        what: That was tried, with the path.
        path: Where.
        error: What it ended with.
        hint: For any other cause.
    """
    reason = getattr(error, "strerror", "") or error
    return shortage(error, what=what, places=(path,)) or StoreError(f"{what}: {reason}", hint=hint)


def is_study_id(text: str) -> bool:
    """Whether a name has the form of our ids."""
    return _ULID.fullmatch(text) is not None


def study_dir(study_id: str) -> Path:
    """The directory of a study; not created here.

    Raises:
        StoreError: The id is none of ours; it never becomes part of a path then.
    """
    if not _ULID.fullmatch(study_id):
        message = f"{study_id!r} is no study id"
        raise StoreError(message, hint="`autotune list` shows the studies and their ids.")
    return home() / "studies" / study_id


def default_tracking_uri() -> str:
    """The MLflow store that is used where the user names none."""
    return f"sqlite:///{home() / 'mlflow.db'}"


def default_artifact_root() -> Path:
    """Where artifacts of the default MLflow store go."""
    return home() / "mlartifacts"


def new_id() -> str:
    """A ULID: 26 characters that sort by time (milliseconds) and are unique without asking anybody.

    Source: https://github.com/ulid/spec
    """
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def new_label(script: str, wall_s: float) -> str:
    """A name for people, from the script and the local time: ``train-1121-1002``."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("-.")[:40] or "study"
    return f"{stem}-{time.strftime('%m%d-%H%M', time.localtime(wall_s))}"


def is_label(text: str) -> bool:
    """Whether a name that a person chose may be a label; labels are never paths."""
    return _LABEL.fullmatch(text) is not None and text.strip(".") != ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One study on disk.

    Args:
        path: Its directory.
        created: Wall time label, seconds since the epoch.
        purpose: As in the study's specification; empty for a search.
    """

    path: Path
    study_id: str
    label: str
    created: float
    purpose: str = ""


def studies(root: Path | None = None) -> list[Found]:
    """Every study below the home, newest first; directories without a readable journal are left out."""
    base = (root or home()) / "studies"
    if not base.is_dir():
        return []
    rows = [_look(path) for path in base.iterdir() if _ULID.fullmatch(path.name)]
    return sorted((r for r in rows if r is not None), key=lambda r: r.study_id, reverse=True)


def newest_study_dirs(root: Path | None = None) -> list[Path]:
    """Directories of studies below the home, newest first by their names; nothing in them is read."""
    base = (root or home()) / "studies"
    if not base.is_dir():
        return []
    return sorted((p for p in base.iterdir() if _ULID.fullmatch(p.name)), key=lambda p: p.name, reverse=True)


def find_study(name: str | None, *, searches: bool = False) -> Path:
    """The directory of the study of that id, label or unambiguous beginning of either.

    Args:
        name: None for the newest study; a directory that holds a journal is taken as it is.
        searches: The newest is the newest search, and not what `autotune verify` has measured since.

    Raises:
        StudyNotFound: None, or more than one, is called so.
    """
    if name and os.sep in name and (Path(name) / JOURNAL_FILE).is_file():
        return Path(name).absolute()
    found = studies()
    if not found:
        message = f"there is no study below {home() / 'studies'}"
        raise StudyNotFound(message, hint="`autotune search --script train.py` begins one.")
    if name is None:
        return next((f for f in found if not (searches and f.purpose)), found[0]).path
    for exact in (
        [f for f in found if f.study_id == name.upper()],
        [f for f in found if f.label == name],
        [f for f in found if f.study_id.startswith(name.upper()) or f.label.startswith(name)],
    ):
        if len(exact) == 1:
            return exact[0].path
        if exact:
            listed = ", ".join(f"{f.label} ({f.study_id})" for f in exact[:5])
            message = f"{len(exact)} studies are called {name!r}: {listed}"
            raise StudyNotFound(message, hint="Give the id, or more of it.")
    message = f"no study is called {name!r}"
    guess = did_you_mean(name, [f.label for f in found])
    raise StudyNotFound(message, hint=guess or "`autotune list` shows the studies.")


def _look(path: Path) -> Found | None:
    file = path / JOURNAL_FILE
    if not file.is_file():
        return None
    try:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=2.0)
        try:
            row = connection.execute(
                "SELECT json FROM events WHERE kind = 'opened' ORDER BY seq LIMIT 1"
            ).fetchone()
        finally:
            connection.close()
        data = json.loads(row[0]) if row else {}
        spec = data.get("spec", {})
        return Found(
            path=path,
            study_id=path.name,
            label=str(spec.get("label", "")),
            created=float(data.get("wall_s", 0.0)),
            purpose=str(spec.get("purpose", "")),
        )
    except (sqlite3.Error, ValueError, AttributeError, TypeError):
        return None

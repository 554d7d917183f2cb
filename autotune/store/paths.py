"""Locations, names and lookup of studies on disk."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.errors import AutotuneError, StoreError, StudyNotFound, did_you_mean
from autotune.shortage import shortage
from autotune.store.owners import foreign
from autotune.store.sqlite_file import check_schema, connect_to_read

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

JOURNAL_FILE = "journal.db"
LOCK_FILE = "journal.lock"
BALLAST_FILE = "journal.ballast"
DRIVEN_FILE = "driven"
"""File in a study with a driver. Without a lock on the journal, the driver was killed."""
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
SET_HOME = "Set AUTOTUNE_HOME to a directory that can be written."
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_NAMED: Final = 5
_YEAR_10000_S: Final = 253_402_300_800.0
_logged: set[str] = set()
"""Messages about left-out studies, each logged once."""
_ULID = re.compile(rf"[{_ALPHABET}]{{26}}")


def home() -> Path:
    """Return the directory of all autotune data: ``$AUTOTUNE_HOME``, else below the XDG data home.

    Raises:
        StoreError: Neither is set, and this user has no home directory.
    """
    try:
        if own := os.environ.get("AUTOTUNE_HOME"):
            return Path(own).expanduser().absolute()
        # The XDG specification requires relative paths to be ignored.
        xdg = os.environ.get("XDG_DATA_HOME", "")
        base = Path(xdg) if xdg.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise StoreError("no home directory is known for this user", hint=SET_HOME) from error
    return base / "autotune"


def make_home() -> Path:
    """Create `home` for its user only if it is missing, whatever the umask; an existing one may be shared.

    Raises:
        OSError: It cannot be created.
        StoreError: As `home` does.
    """
    place = home()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def make_study_dir(study_id: str) -> Path:
    """Return the directory of a new study, readable by its user alone.

    Raises:
        StoreError: It cannot be created.
    """
    path = study_dir(study_id)
    try:
        make_home()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(f"the study directory {path} cannot be made", path, error, hint=SET_HOME) from error
    return path


def unwritable(what: str, path: Path, error: Exception, *, hint: str = "") -> AutotuneError:
    """Return the error of a file or folder that cannot be created or written.

    Args:
        what: Attempted operation, with the path.
        path: The path.
        error: Its error.
        hint: Hint for other causes.
    """
    reason = getattr(error, "strerror", "") or error
    return shortage(error, what=what, places=(path,)) or StoreError(f"{what}: {reason}", hint=hint)


def is_study_id(text: str) -> bool:
    """Return whether a name has the form of a study id."""
    return _ULID.fullmatch(text) is not None


def study_dir(study_id: str) -> Path:
    """Return the directory of a study; not created here.

    Raises:
        StoreError: The id is invalid; it is not used in a path.
    """
    if not _ULID.fullmatch(study_id):
        message = f"{study_id!r} is not a study id"
        raise StoreError(message, hint="`autotune list` shows the studies and their ids.")
    return home() / "studies" / study_id


def default_tracking_uri() -> str:
    """Return the MLflow store used by default."""
    return f"sqlite:///{default_store()}"


def default_store() -> Path:
    """Return the database of the default MLflow store."""
    return home() / "mlflow.db"


def own_store(tracking_uri: str) -> Path | None:
    """Return the database of the default MLflow store, None if the address is another store's."""
    try:
        return default_store() if tracking_uri == default_tracking_uri() else None
    except StoreError:
        return None


def is_in_home(path: Path) -> bool:
    """Return whether a study's folder is in this account's home, like those of its searches."""
    return path.resolve().parent == (home() / "studies").resolve()


def new_id() -> str:
    """Return a ULID: 26 characters that sort by time (milliseconds) and are unique without coordination."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def new_label(script: str, wall_s: float) -> str:
    """Return a readable name from the script and the local time: ``train-1121-1002``."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("-.")[:40] or "study"
    return f"{stem}-{time.strftime('%m%d-%H%M', time.localtime(wall_s))}"


def is_label(text: str) -> bool:
    """Return whether a user's text may be a label; labels are never paths."""
    return _LABEL.fullmatch(text) is not None and text.strip(".") != ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStudy:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Studies:
    """Studies below a home.

    Args:
        found: Readable studies of this account, newest first.
        left_out: Id -> why it is left out, as a clause. A home can be shared by several accounts.
    """

    found: tuple[FoundStudy, ...]
    left_out: Mapping[str, str]

    @property
    def note(self) -> str:
        """Left-out studies in one line; empty if there are none."""
        if not self.left_out:
            return ""
        named = [f"{study_id}: {why}" for study_id, why in [*self.left_out.items()][:_MOST_NAMED]]
        more = len(self.left_out) - len(named)
        rest = f"; and {more} more" if more else ""
        count = len(self.left_out)
        return f"{count} {'studies are' if count > 1 else 'study is'} left out ({'; '.join(named)}{rest})"


def all_studies(root: Path | None = None) -> Studies:
    """Return every readable study below the home, and the names of those that cannot be read.

    Folders without a journal are ignored.
    """
    found: list[FoundStudy] = []
    left_out: dict[str, str] = {}
    for path in _study_dirs(root):
        seen = foreign(path) or _read_study(path)
        if isinstance(seen, FoundStudy):
            found.append(seen)
        elif seen:
            left_out[path.name] = seen
    return Studies(found=tuple(found), left_out=left_out)


def studies(root: Path | None = None) -> list[FoundStudy]:
    """Return this account's studies below the home, newest first; left-out ones are logged once."""
    seen = all_studies(root)
    if seen.note and seen.note not in _logged:
        _logged.add(seen.note)
        log.warning("%s: %s", (root or home()) / "studies", seen.note)
    return list(seen.found)


def newest_study_dirs(root: Path | None = None) -> list[Path]:
    """Return directories of this account's studies below the home, newest first by name, unread."""
    return [path for path in _study_dirs(root) if not foreign(path)]


def _study_dirs(root: Path | None) -> list[Path]:
    base = (root or home()) / "studies"
    try:
        found = [path for path in base.iterdir() if _ULID.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        message = f"{base} cannot be read: {error.strerror}"
        raise StoreError(message, hint=SET_HOME) from error
    return sorted(found, key=lambda path: path.name, reverse=True)


def find_study(name: str | None, *, searches: bool = False) -> Path:
    """Return the directory of the study of that id, label or unambiguous beginning of either.

    Args:
        name: None for the newest study; a directory with a journal is used directly.
        searches: Newest means the newest search, not a later study by `autotune verify`.

    Raises:
        StudyNotFound: No study, or more than one, has this name.
    """
    if name and os.sep in name and os.path.isfile(os.path.join(name, JOURNAL_FILE)):  # noqa: PTH113, PTH118 (False for an overlong name)
        return Path(name).absolute()
    found = studies()
    if not found:
        message = f"there is no study below {home() / 'studies'}"
        raise StudyNotFound(message, hint="`autotune search train.py` starts one.")
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


def _read_study(path: Path) -> FoundStudy | str:
    """Return the study in this folder, or why it is left out; empty if there is none."""
    try:
        with contextlib.closing(connect_to_read(path / JOURNAL_FILE, timeout_s=2.0)) as connection:
            check_schema(connection, path / JOURNAL_FILE)
            connection.begin()
            row = connection.execute(
                "SELECT json FROM events WHERE kind = 'opened' ORDER BY seq LIMIT 1"
            ).fetchone()
        data = json.loads(row[0]) if row else {}
        spec = data.get("spec", {})
        return FoundStudy(
            path=path,
            study_id=path.name,
            label=str(spec.get("label", "")),
            created=_label_s(data.get("wall_s", 0.0)),
            purpose=str(spec.get("purpose", "")),
        )
    except StudyNotFound:
        return ""
    except (StoreError, sqlite3.Error, ValueError, AttributeError, TypeError, RecursionError):
        return "its journal cannot be read"


def _label_s(wall_s: object) -> float:
    """Return seconds since the epoch within the calendar's years, else 0."""
    value = float(str(wall_s))
    return value if 0.0 <= value < _YEAR_10000_S else 0.0

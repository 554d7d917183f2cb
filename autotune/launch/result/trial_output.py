"""Output of a trial in its folder: trimmed, read from its end, and without secrets."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from autotune.launch.result.classify import TAIL_LINES
from autotune.protocol.lines import open_plain
from autotune.text.redact import redact, redact_data, secret_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

KEPT_LOG_BYTES = 64 * 1024
KEPT_FAILURES = 10
_LOGS = ("stdout.log", "stderr.log")
_NOTE_BYTES = 40
_TAIL_BYTES = 64 * 1024
_REDACTED_FILES = (
    *("plan.json", "result.json", "stdout.log", "stderr.log", "guard.log"),
    *("stacks.txt", "faults.log", "events.jsonl"),
)


def _redacted(folder: Path) -> list[str]:
    """Return the names of files that may contain secrets, with the stacks of further ranks."""
    return [*_REDACTED_FILES, *(path.name for path in folder.glob("stacks.*.txt"))]


def trim_logs(folder: Path, *, failed: bool) -> None:
    """Trim the output of trials.

    Only the end of a measured trial's output is kept. The last `KEPT_FAILURES` failed trials keep all of it.

    Args:
        folder: Folder of a trial that has ended, among those of its study.
        failed: Whether the trial failed.
    """
    if not failed:
        chosen = [folder]
    else:
        ended = [place for place in folder.parent.iterdir() if (place / "result.json").is_file()]
        whole = [place for place in ended if any(_is_long(place / name) for name in _LOGS)]
        chosen = sorted(whole, key=lambda place: (place / "result.json").stat().st_mtime)[:-KEPT_FAILURES]
    for place in chosen:
        for name in _LOGS:
            with contextlib.suppress(OSError):
                _trim(place / name)


def _is_long(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > KEPT_LOG_BYTES + _NOTE_BYTES


def _trim(path: Path) -> None:
    with open_plain(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size <= KEPT_LOG_BYTES + _NOTE_BYTES:
            return
        file.seek(size - KEPT_LOG_BYTES)
        tail = file.read()
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as shorter:
        shorter.write(f"[{size - len(tail)} bytes left out]\n".encode() + tail)
    part.replace(path)


def log_tail(folder: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a trial's error output, or of its output if there is none."""
    for name in ("stderr.log", "stdout.log"):
        text = last_text(folder / name)
        if text.strip():
            return "\n".join(text.splitlines()[-lines:])
    return ""


def hide_secrets(folder: Path, words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Remove secrets from a trial's files: output, stacks, events, and its plan.

    Files without secrets are not changed. A file that cannot be rewritten is removed.

    Args:
        folder: Folder of a trial that has ended.
        words: Words of its command.
        environ: Its environment.
    """
    known = secret_values(words)
    for name in _redacted(folder):
        path = folder / name
        try:
            if path.is_symlink() or not path.is_file():
                continue
            # One character per byte, so that binary data is preserved.
            text = path.read_bytes().decode(errors="surrogateescape")
            if name.endswith(".json"):
                clean = _clean_json(text, environ)
            elif name == "events.jsonl":
                # Most events are rows of steps: numbers, which hold no secret.
                clean = "".join(
                    line if '"Steps"' in line else redact(line, environ, known=known, free=True)
                    for line in text.splitlines(keepends=True)
                )
            else:
                clean = redact(text, environ, known=known, free=True)
            if clean != text:
                path.write_bytes(clean.encode(errors="surrogateescape"))
        except OSError:
            path.unlink(missing_ok=True)


def remove_output(folder: Path) -> None:
    """Remove a trial's text output, for use where its secrets are unknown."""
    for name in _redacted(folder):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def _clean_json(text: str, environ: Mapping[str, str]) -> str:
    """Return JSON with secrets removed from its fields; other text unchanged."""
    try:
        data = json.loads(text)
    except ValueError:
        return text
    clean = redact_data(data, environ)
    return text if clean == data else json.dumps(clean)


def last_text(path: Path, last_bytes: int = _TAIL_BYTES) -> str:
    """Return the end of a file as text, whatever its bytes; empty if there is no file."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
            return file.read().decode(errors="backslashreplace")
    except OSError:
        return ""

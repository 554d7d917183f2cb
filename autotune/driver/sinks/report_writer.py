"""Writer of the report next to the journal; its errors do not affect the answer."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.answer.answer import Answer
    from autotune.model.study import Study

log = logging.getLogger(__name__)

REPORT_FILE: Final = "report.html"
"""File name in the study's directory."""


def write_page(path: Path, text: str) -> None:
    """Write a complete file or none, for this account only, in place of a previous one.

    Raises:
        OSError: It cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            # As private as the study. A file that the user has opened to others stays so.
            os.fchmod(descriptor, path.stat().st_mode & 0o777 if path.exists() else 0o600)
            stream.write(text)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def write_report(
    directory: Path, study: Study, answer: Answer | None, *, links: Mapping[str, str] | None = None
) -> Path | None:
    """Write the report of a study; never raises.

    Args:
        directory: Directory of the file.
        study: Study to report.
        answer: Its answer, if any.
        links: Name -> address of MLflow's pages, for the head of the report.

    Returns:
        Its file, None if it could not be written.
    """
    try:
        from autotune.report.html.page import report_html

        path = directory / REPORT_FILE
        write_page(path, report_html(study, answer, links=links))
    except Exception:
        log.warning(
            "the report could not be written; write it again with: autotune report %s",
            study.spec.label,
            exc_info=True,
        )
        return None
    return path

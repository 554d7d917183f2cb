"""Puts the report beside the journal when a search has ended; a page that fails costs no answer."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.answer import Answer
    from autotune.core.study import Study

log = logging.getLogger(__name__)

REPORT_FILE: Final = "report.html"
"""Its name in the study's directory."""


def write_page(path: Path, text: str) -> None:
    """Write a whole file or none; what was there is replaced.

    Raises:
        OSError: It cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def write_report(directory: Path, study: Study, answer: Answer | None) -> Path | None:
    """The report of a study that has ended; never raises.

    Returns:
        Its file, None where it could not be made.
    """
    try:
        from autotune.report.page import report_html

        path = directory / REPORT_FILE
        write_page(path, report_html(study, answer))
    except Exception:
        log.warning(
            "the report could not be written; make it again with: autotune report %s",
            study.spec.label,
            exc_info=True,
        )
        return None
    return path

"""Shell completions of a command's arguments."""

from __future__ import annotations


def study_labels(incomplete: str) -> list[str]:
    """Return labels of local studies with this beginning, newest first; none if they cannot be read."""
    from autotune.errors import AutotuneError
    from autotune.store.paths import all_studies

    try:
        return [study.label for study in all_studies().found if study.label.startswith(incomplete)]
    except (AutotuneError, OSError):
        return []

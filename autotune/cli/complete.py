"""What a shell offers behind a verb, beside its options."""

from __future__ import annotations


def study_labels(incomplete: str) -> list[str]:
    """Labels of the studies on this machine that begin so, newest first; none where they cannot be read."""
    from autotune.errors import AutotuneError
    from autotune.store.paths import all_studies

    try:
        return [study.label for study in all_studies().found if study.label.startswith(incomplete)]
    except (AutotuneError, OSError):
        return []

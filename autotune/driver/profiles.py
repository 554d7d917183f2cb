"""Profiles that a search has kept: where they lie, under the names of what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.trial import Stage
from autotune.protocol.plan import PROFILE_TOP, PROFILE_TRACE

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.study import Study


def kept_profiles(study: Study, folder: Path) -> dict[str, Path]:
    """``baseline`` and ``winner`` -> the folder of a trial that holds a whole trace; those that were kept.

    Args:
        study: As it is.
        folder: The study's directory.
    """
    found: dict[str, Path] = {}
    for trial in study.told(Stage.WHY):
        name = "baseline" if trial.config.is_baseline else "winner"
        for path in sorted(folder.glob(f"trials/t{trial.number:04d}-*/{PROFILE_TRACE}")):
            found[name] = path.parent
    return found


def profile_files(study: Study, folder: Path) -> dict[str, Path]:
    """``profile/baseline`` -> file, several to a name's folder: traces and tables of operators."""
    return {
        f"profile/{name}/{file}": place / file
        for name, place in kept_profiles(study, folder).items()
        for file in (PROFILE_TRACE, PROFILE_TOP)
        if (place / file).is_file()
    }


def profile_lines(study: Study, folder: Path) -> list[str]:
    """Where the traces are, a line each."""
    return [
        f"{name}: {place / PROFILE_TRACE}   (https://ui.perfetto.dev opens it; the longest operators: "
        f"{PROFILE_TOP} beside it)"
        for name, place in kept_profiles(study, folder).items()
    ]

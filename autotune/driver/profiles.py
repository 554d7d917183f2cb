"""Profiles that a search has kept: where they lie, under the names of what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.trial import Stage
from autotune.protocol.plan import PRIVATE, PROFILE_NSYS, PROFILE_TOP, PROFILE_TRACE

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.study import Study
    from autotune.core.trial import Trial


_PRIVATE_NOTE = "; it may hold secrets of your environment and was not sent to MLflow"


def kept_profiles(study: Study, folder: Path) -> dict[str, Path]:
    """``baseline`` and ``winner`` -> the folder of a trial that holds a whole trace; those that were kept.

    Args:
        study: As it is.
        folder: The study's directory.
    """
    return {
        _name(trial): path.parent
        for trial in study.told(Stage.WHY)
        for path in _files(trial, folder, PROFILE_TRACE)
    }


def kept_reports(study: Study, folder: Path) -> dict[str, Path]:
    """The same -> the report that Nsight Systems left of it, where it is installed and did."""
    return {
        _name(trial): path
        for trial in study.told(Stage.WHY)
        if trial.fidelity.under_nsys and trial.measurement is not None
        for path in _files(trial, folder, PROFILE_NSYS)
    }


def profile_files(study: Study, folder: Path) -> dict[str, Path]:
    """``profile/baseline`` -> file, several to a name's folder: traces, tables of operators, reports.

    What may be sent to MLflow: a report of a process that was started with secrets is not among them.
    """
    found = {
        f"profile/{name}/{file}": place / file
        for name, place in kept_profiles(study, folder).items()
        for file in (PROFILE_TRACE, PROFILE_TOP)
        if (place / file).is_file()
    }
    reports = kept_reports(study, folder)
    return found | {
        f"profile/{name}/{PROFILE_NSYS}": path for name, path in reports.items() if not _is_private(path)
    }


def profile_lines(study: Study, folder: Path) -> list[str]:
    """Where the traces and reports are, a line each; and why Nsight Systems left none, where it was asked."""
    lines = [
        f"{name}: {place / PROFILE_TRACE}   (https://ui.perfetto.dev opens it; the longest operators: "
        f"{PROFILE_TOP} beside it)"
        for name, place in kept_profiles(study, folder).items()
    ]
    reports = kept_reports(study, folder)
    lines += [
        f"{name}: {path}   (nsys-ui opens it{_PRIVATE_NOTE if _is_private(path) else ''})"
        for name, path in reports.items()
    ]
    tried = [t for t in study.told(Stage.WHY) if t.fidelity.under_nsys and t.failure is not None]
    return lines + [
        f"{_name(t)}: nothing by Nsight Systems: {t.failure.message}" for t in tried if t.failure is not None
    ]


def _is_private(path: Path) -> bool:
    return path.with_name(path.name + PRIVATE).exists()


def _name(trial: Trial) -> str:
    return "baseline" if trial.config.is_baseline else "winner"


def _files(trial: Trial, folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"trials/t{trial.number:04d}-*/{name}"))

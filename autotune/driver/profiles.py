"""Profiles of a search: their locations, by the config that they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.answer.bottleneck import why_not_probed
from autotune.answer.pick import answer_or_none
from autotune.model.config import Config
from autotune.model.trial import Stage
from autotune.protocol.plan import PRIVATE, PROFILE_NSYS, PROFILE_TOP, PROFILE_TRACE

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.model.study import Study
    from autotune.model.trial import Trial


_PRIVATE_NOTE = "; it may hold secrets of your environment and was not sent to MLflow"


def kept_profiles(study: Study, folder: Path) -> dict[str, Path]:
    """Return ``baseline`` and ``winner`` -> folder of a trial with a complete trace, if it exists.

    Args:
        study: Study so far.
        folder: The study's directory.
    """
    return {
        _name(trial): path.parent
        for trial in study.finished(Stage.DIAGNOSE)
        for path in _files(trial, folder, PROFILE_TRACE)
    }


def kept_reports(study: Study, folder: Path) -> dict[str, Path]:
    """Return the same -> report of Nsight Systems, if it is installed and wrote one."""
    return {
        _name(trial): path
        for trial in study.finished(Stage.DIAGNOSE)
        if trial.fidelity.under_nsys and trial.measurement is not None
        for path in _files(trial, folder, PROFILE_NSYS)
    }


def profile_files(study: Study, folder: Path) -> dict[str, Path]:
    """Return ``profile/baseline`` -> file, several per name: traces, tables of operators, reports.

    Only files that may be sent to MLflow: no report of a process that was started with secrets.
    """
    found = {
        f"profile/{name}/{file}": place / file
        for name, place in kept_profiles(study, folder).items()
        for file in (PROFILE_TRACE, PROFILE_TOP)
        if _is_plain(place / file)
    }
    reports = kept_reports(study, folder)
    return found | {
        f"profile/{name}/{PROFILE_NSYS}": path for name, path in reports.items() if not _is_private(path)
    }


def profile_lines(study: Study, folder: Path) -> list[str]:
    """Return a line per trace and report, and the reason for each missing one."""
    kept = kept_profiles(study, folder)
    lines = [
        f"{name}: {place / PROFILE_TRACE}   (https://ui.perfetto.dev opens it, and tensorboard --logdir "
        f"{place} with torch-tb-profiler; the longest operators: {PROFILE_TOP} beside it)"
        for name, place in kept.items()
    ]
    lines += [f"{name}: none. {why}" for name, why in _missing(study).items() if name not in kept]
    reports = kept_reports(study, folder)
    lines += [
        f"{name}: {path}   (nsys-ui opens it{_PRIVATE_NOTE if _is_private(path) else ''})"
        for name, path in reports.items()
    ]
    tried = [t for t in study.finished(Stage.DIAGNOSE) if t.fidelity.under_nsys and t.failure is not None]
    return lines + [
        f"{_name(t)}: nothing by Nsight Systems: {t.failure.message}" for t in tried if t.failure is not None
    ]


def _missing(study: Study) -> dict[str, str]:
    """Return the requested profiles that may be missing -> reason, a sentence."""
    if not study.spec.profile:
        return {}
    answer = answer_or_none(study)
    wanted = {"baseline": Config()}
    if answer is not None and answer.is_better:
        wanted["winner"] = answer.best.config
    traced = {_name(t) for t in study.finished(Stage.DIAGNOSE) if t.measurement and t.fidelity.explains}
    return {
        name: "The process that records it ended without one." if name in traced else _why_none(study, config)
        for name, config in wanted.items()
    }


def _why_none(study: Study, config: Config) -> str:
    if any(t.config == config for t in study.finished(Stage.DIAGNOSE)):
        return why_not_probed(study, config)
    if study.facts is not None and study.facts.run is not None and study.facts.run.without_torch:
        return "The script does not use PyTorch."
    if study.stopped not in ("", "finished", "budget"):
        return "The search was stopped before that."
    return "The budget had no time left for its run: choose a larger --budget."


def _is_private(path: Path) -> bool:
    return path.with_name(path.name + PRIVATE).exists()


def _name(trial: Trial) -> str:
    return "baseline" if trial.config.is_baseline else "winner"


def _files(trial: Trial, folder: Path, name: str) -> list[Path]:
    return [path for path in sorted(folder.glob(f"trials/t{trial.number:04d}-*/{name}")) if _is_plain(path)]


def _is_plain(path: Path) -> bool:
    """Return whether a path is a regular file: a link could expose another file."""
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()

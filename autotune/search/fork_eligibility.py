"""Selection of trials that may be forked from a process with loaded libraries, and reasons against; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.model.trial import Stage, StartMode, StartPolicy

if TYPE_CHECKING:
    from autotune.model.facts import RunFacts
    from autotune.model.study import Study
    from autotune.model.trial import Trial

_FORKED: Final = (Stage.INITIAL, Stage.REFINE)
"""Stages of forked trials. Claims and their baseline are measured as `apply` runs them, by a cold start."""

_SHOWN = 3


def wants_forks(study: Study, trial: Trial) -> bool:
    """Return whether forks are allowed and this trial is of a kind that may be forked."""
    return study.spec.start is not StartPolicy.COLD and trial.stage in _FORKED and trial.attempt == 1


def refusal(study: Study) -> str:
    """Return why no trial of this study may be forked; empty if they may."""
    facts = study.facts
    run = facts.run if facts is not None else None
    if facts is None or run is None:
        return "the script has not run yet"
    if study.spec.ray_address:
        return "not supported on a cluster"
    if facts.host.devices or run.devices:
        return "not supported with an accelerator"
    if run.ranks > 1:
        return f"{run.ranks} processes train together, which start in new interpreters"
    if run.without_torch:
        return "the script does not use PyTorch, whose import is what a fork saves"
    if run.environ_set is None:
        return "what the script does before it imports PyTorch is not known"
    if run.environ_set:
        names = ", ".join(run.environ_set[:_SHOWN])
        return (
            f"the script sets {names} before it imports PyTorch, which a forked process has already imported"
        )
    if run.loaded_first:
        names = ", ".join(run.loaded_first[:_SHOWN])
        return (
            f"the script loads {names}, with another OpenMP, before PyTorch; a forked process loads it "
            "after PyTorch"
        )
    return ""


def mismatch(study: Study, facts: RunFacts | None) -> str:
    """Return what differs between a forked trial and a cold start of the script; empty if nothing does."""
    first = study.facts.run if study.facts is not None else None
    if first is None or facts is None:
        return ""
    for name, version in facts.versions.items():
        if first.versions.get(name, version) != version:
            return f"it ran with {name} {version} in place of {first.versions[name]}"
    if facts.openmp != first.openmp:
        return f"it ran on the OpenMP of {facts.openmp or 'an unknown library'}"
    return ""


def start_of(study: Study, trial: Trial) -> StartMode:
    """Return the start mode of a trial's process."""
    return StartMode.FORK if wants_forks(study, trial) and not refusal(study) else StartMode.COLD

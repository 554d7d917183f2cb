"""Selection of runs that find what limits the script or the winner; pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.answer.communication import FAMILY, silent_runs
from autotune.answer.pick import answer_or_none
from autotune.model.config import Config
from autotune.model.trial import NO_COMMUNICATION, Proposal, Stage

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial
    from autotune.search.costs import Costs

PROBE_S = 6.0
"""Seconds for cached batches, the loader alone, and machine limits."""
PROBE_STEPS = 12
"""Steps beyond the window that a slow script has to take."""
BUDGET_SHARE = 0.05
"""Share of the budget above which a probe is skipped."""
PROFILE_SHARE = 0.2
"""The same if the user requested a profile, the run under Nsight Systems included."""
NSYS_S = 30.0
"""Seconds of starting under Nsight Systems, of its slowdown, and of its report."""

CEILING_SHARE = 0.15
"""Share of the budget above which a run without communication is skipped. It saves the runs of a whole
family, about six."""

LONG_BUDGET_S = 1200.0
"""Budget from which a twentieth of it (`BUDGET_SHARE`) is reserved for each probe."""

_BASE = Config()


def probe_s(study: Study, costs: Costs, config: Config, *, is_spare: bool = False) -> float:
    """Return the seconds that a probe of this config takes; 0 if none is worth it.

    Args:
        study: Current study.
        costs: Costs of the study.
        config: Config to be probed.
        is_spare: Whether the time has no other use, so that a probe may take any share.
    """
    if not study.spec.why or study.spec.budget.trials is not None or costs.plain_s <= 0:
        return 0.0
    run = None if study.facts is None else study.facts.run
    if run is not None and run.without_torch:
        return 0.0  # a probe measures torch only
    if run is not None and run.ranks > 1:
        return 0.0  # without its loader one process is no faster: the others wait for their loaders
    steps = [t.measurement.step_time_s.value for t in study.baseline if t.measurement]
    warm_s = 0.0 if config.is_baseline else 0.2 * costs.cold_compile(config)
    seconds = costs.plain_s + PROBE_S + PROBE_STEPS * max(steps, default=0.0) + warm_s
    share = PROFILE_SHARE if study.spec.profile else BUDGET_SHARE
    return seconds if is_spare or seconds <= share * study.spec.budget.seconds else 0.0


def nsys_s(study: Study, costs: Costs, config: Config) -> float:
    """Return the seconds of a run under Nsight Systems; 0 if it is unavailable or not worth it.

    It is a separate run after the one with torch's trace: both use the same device interface, and a process
    has only one. A failed one is not retried on another config.
    """
    facts = study.facts
    if not study.spec.profile or facts is None or not facts.host.nsys:
        return 0.0
    if any(t.fidelity.under_nsys and t.failure is not None for t in study.trials):
        return 0.0
    seconds = probe_s(study, costs, config)
    whole = seconds + NSYS_S if seconds else 0.0
    return whole if seconds + whole <= PROFILE_SHARE * study.spec.budget.seconds else 0.0


def spare_probe(study: Study, costs: Costs, remaining_s: float) -> Proposal | None:
    """Return a probe of the script, then of the recommended config, if nothing is left to try or confirm.

    A probe explains and changes no result, so it uses time without another use.
    """
    # While time is reserved for probes, the rest may be needed by another pair.
    is_spare = not reserved_s(study, costs, _BASE)
    own = _probe(study, costs, _BASE, remaining_s, "your script", is_spare=is_spare)
    found = answer_or_none(study) if any(t.stage is Stage.CONFIRM for t in study.trials) else None
    if own is not None or found is None or not found.is_better:
        return own
    return _probe(study, costs, found.best.config, remaining_s, "the winner", is_spare=is_spare)


def reserved_s(study: Study, costs: Costs, config: Config) -> float:
    """Return the seconds reserved for probes of the script and of a likely winner, `config`.

    A search of less than `LONG_BUDGET_S` reserves none unless a profile was requested.
    """
    if study.spec.budget.seconds < LONG_BUDGET_S and not study.spec.profile:
        return 0.0
    reserved = 0.0
    for is_own in (True, False):
        runs = [t for t in _probes(study) if t.config.is_baseline is is_own]
        if all(t.fidelity.under_nsys for t in runs):
            reserved += probe_s(study, costs, _BASE if is_own else config)
        if not any(t.fidelity.under_nsys for t in runs):
            reserved += nsys_s(study, costs, config)
    return reserved


def _probe(
    study: Study, costs: Costs, config: Config, remaining_s: float, whose: str, *, is_spare: bool = False
) -> Proposal | None:
    """Return a probe of the config, then one under Nsight Systems if requested and installed."""
    if study.open_trials:
        return None
    runs = [t for t in _probes(study) if t.config == config]
    seconds = probe_s(study, costs, config, is_spare=is_spare)
    if not any(not t.fidelity.under_nsys for t in runs):
        probe, reason, slow_s = "profile" if study.spec.profile else "why", "What holds {} back.", 0.0
    elif not any(t.fidelity.under_nsys for t in runs):
        seconds = nsys_s(study, costs, config)
        probe, reason, slow_s = _kind(study), "What {} does, for Nsight Systems.", NSYS_S
    else:
        return None
    if not seconds or seconds > remaining_s:
        return None
    fidelity = costs.fidelity(Stage.DIAGNOSE, config, remaining_s=remaining_s, reserve_s=0.0)
    deadline_s = min(remaining_s, fidelity.deadline_s + PROBE_S + slow_s)
    fidelity = replace(
        fidelity,
        probe=probe,
        setup_s=min(deadline_s, fidelity.setup_s + slow_s),
        deadline_s=deadline_s,
        loss_samples=0,
    )
    return Proposal(stage=Stage.DIAGNOSE, config=config, fidelity=fidelity, reason=reason.format(whose))


def _probes(study: Study) -> list[Trial]:
    return [t for t in study.trials if t.stage is Stage.DIAGNOSE and t.fidelity.probe != NO_COMMUNICATION]


def without_communication(study: Study, costs: Costs, remaining_s: float) -> Proposal | None:
    """Return the run that bounds the gain of communication knobs, before any of them is tried; once.

    Only the gradient exchange of `DistributedDataParallel` can be disabled.
    """
    facts, space = study.facts, study.space
    parallel = None if facts is None or facts.run is None else facts.run.parallel
    if parallel is None or parallel.wrapper != "ddp" or space is None or not study.spec.why:
        return None
    if study.open_trials or silent_runs(study) or study.spec.budget.trials is not None:
        return None
    if all(d.family != FAMILY for d in space.free()):
        return None
    if not 0.0 < costs.plain_s <= min(remaining_s, CEILING_SHARE * study.spec.budget.seconds):
        return None
    fidelity = costs.fidelity(Stage.DIAGNOSE, _BASE, remaining_s=remaining_s, reserve_s=0.0)
    return Proposal(
        stage=Stage.DIAGNOSE,
        config=_BASE,
        fidelity=replace(fidelity, probe=NO_COMMUNICATION, loss_samples=0),
        reason="Your script without an exchange of gradients: the ceiling of communication.",
    )


def _kind(study: Study) -> str:
    """Return the kind of probe: on a CUDA device some steps are recorded, elsewhere nothing can mark them."""
    run = None if study.facts is None else study.facts.run
    return "nsys" if run is not None and run.devices else "nsys_whole"

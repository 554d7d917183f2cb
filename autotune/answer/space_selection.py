"""Selection of a search space for ``--space auto``, from the first run of the script. Pure.

The candidates are loaded at the start and journaled with the study. The choice depends on journaled facts
alone, so a resumed study and every reader of its journal make the same choice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.knobs.registry import builtin
from autotune.model.effect import Effect
from autotune.model.facts import training_memory_bytes

if TYPE_CHECKING:
    from autotune.model.facts import Facts, RunFacts
    from autotune.model.measurement import Measurement
    from autotune.model.study import SpaceRequest, Study, StudySpec

CANDIDATES: Final = ("default", "cpu", "gpu_vision", "gpu_transformer", "memory", "dataloader")
"""Presets that ``auto`` chooses among; the first, `default`, if the first run shows no clear need."""

# Design values, not measured.
_MAX_IO_WORKERS: Final = 32
"""Upper limit of useful workers if fetching waits for storage or a network; cores limit others."""
_DATA_WAIT_FRAC: Final = 0.1
"""Share of a step spent waiting for data that is worth a mention."""
_DATA_WAIT_FRAC_ON_CPU: Final = 0.8
"""The same for a choice, where training and loading compete for cores."""
_CPU_BOUND_FETCH_FRAC: Final = 0.5
"""Share of a fetch on the CPU from which more workers need more cores."""
_LOADING_RATIO: Final = 2.0
"""Time of loading over time of computing."""
_MEMORY_FRAC: Final = 0.85
"""Share of the memory limit that the peak takes."""
_STATE_FRAC: Final = 0.6
"""Share of the memory limit that model and optimizer take."""
_COPIES_OF_WEIGHTS: Final = 4
"""Weights, gradients and the two moments of Adam, the usual optimizer of large models."""


def settled(study: Study) -> StudySpec:
    """Return the study's specification with the selected search space and its memory limit.

    Unchanged before a baseline was measured, and if the user named the space. The tighter memory limit holds.
    """
    spec, facts = study.spec, study.facts
    measured = next((t.measurement for t in study.baseline if t.measurement), None)
    if not spec.space.candidates or facts is None or facts.run is None or measured is None:
        return spec
    name, reason = _choice(facts, measured, spec.max_memory_bytes)
    space = _with_suggested_knobs(_candidate(spec.space, name, reason), facts.run)
    space = _with_distributed_knobs(space, facts.run)
    bounds = [b for b in (spec.max_memory_bytes, space.bound_bytes(facts.host, facts.run)) if b is not None]
    return replace(spec, space=space, max_memory_bytes=min(bounds, default=None))


def likely(request: SpaceRequest, facts: Facts) -> SpaceRequest:
    """Return the candidate to expect, by imports and hardware, before the script has run.

    Unchanged if the user named the space.
    """
    if not request.candidates:
        return request
    if not facts.host.has_cuda:
        return _candidate(request, "cpu", "no NVIDIA GPU was found")
    imports = set(facts.script.imports)
    for packages, name in (
        ({"transformers"}, "gpu_transformer"),
        ({"torchvision", "timm"}, "gpu_vision"),
    ):
        if found := sorted(packages & imports):
            return _candidate(request, name, f"the script imports {' and '.join(found)}")
    return _candidate(request, "default", "the script's imports do not show what kind of model it trains")


def _candidate(request: SpaceRequest, name: str, reason: str) -> SpaceRequest:
    """Return the candidate of that name, with a reason; the first one if it is not offered."""
    found = next((c for c in request.candidates if c.name == name), request.candidates[0])
    return replace(found, reason=reason)


def _with_suggested_knobs(space: SpaceRequest, run: RunFacts) -> SpaceRequest:
    """Return the space with knobs for which the run showed a need, behind its first and most useful knob.

    Unchanged if the user narrowed the space.
    """
    for name, knob in builtin().items():
        found = knob.added_by(run)
        if found is None or space.narrowed or name in {*space.knobs, *space.fixed}:
            continue
        values, why = found
        first, *rest = space.knobs.items() or [(name, ())]
        knobs = dict([first, (name, tuple(values)), *rest])
        reason = f"{space.reason}; {name} is included: {why}"
        space = replace(space, knobs=knobs, added=(*space.added, name), reason=reason)
    return space


def _with_distributed_knobs(space: SpaceRequest, run: RunFacts) -> SpaceRequest:
    """Return the space with the knobs of DDP or FSDP first, as the run uses one of them.

    Unchanged if the user narrowed the space, and for a single process, where all of these knobs are refused.
    """
    if run.parallel is None or space.narrowed:
        return space
    wrappers = ("any", run.parallel.wrapper)
    offered = [k for k in builtin().values() if k.wrapper in wrappers and k.effect is not Effect.TRAINING]
    added = tuple(k.name for k in offered if k.name not in {*space.knobs, *space.fixed})
    firsts = tuple(
        {k.name: k.first_value} for k in offered if k.first_value is not None and k.name not in space.fixed
    )
    return replace(
        space,
        knobs={**dict.fromkeys(added, ()), **space.knobs},
        starts=(*firsts, *space.starts),
        added=(*space.added, *added),
        reason=f"{space.reason}; {run.ranks} processes train together",
    )


def _choice(facts: Facts, measured: Measurement, bound_bytes: int | None) -> tuple[str, str]:
    """Return the name of a preset, and the reason: memory before data before the kind of model."""
    model = None if facts.run is None else facts.run.model
    if model is None:
        return "default", "no trained model was observed"
    cuda = model.device.startswith("cuda")
    if why := _short_of_memory(facts, measured, bound_bytes, cuda=cuda):
        return "memory", why
    if why := _data_bound(facts, measured, cuda=cuda):
        return "dataloader", why
    if model.device == "cpu":
        return "cpu", f"training runs on the CPU{_waiting(measured)}"
    if not cuda:
        return "default", f"there is no preset for devices of type {model.device}"
    attends = facts.run is not None and facts.run.attention is not None
    if attends and model.has_4d:
        return "default", "the model has attention and convolutions over images"
    if attends:
        return (
            "gpu_transformer",
            f"the model has attention and trains on an NVIDIA device{_waiting(measured)}",
        )
    if model.has_4d:
        return (
            "gpu_vision",
            f"the model has convolutions over images, on an NVIDIA device{_waiting(measured)}",
        )
    return "default", "neither attention nor convolutions over images were found"


def _waiting(measured: Measurement) -> str:
    """Return a clause on the wait for data; empty if it is short."""
    wait_frac = measured.data_wait_frac
    if wait_frac < _DATA_WAIT_FRAC:
        return ""
    return f", and the script waits for data {100 * wait_frac:.0f} % of its time"


def _short_of_memory(
    facts: Facts, measured: Measurement, bound_bytes: int | None, *, cuda: bool
) -> str | None:
    """Return a clause if peak memory, or model and optimizer alone, fill much of the limit, or None."""
    available_bytes = training_memory_bytes(facts.host, facts.run) if cuda else measured.memory.limit
    limit_bytes = min((b for b in (available_bytes, bound_bytes) if b), default=0)
    peak_bytes = measured.memory.peak_bytes or 0
    if limit_bytes and peak_bytes >= _MEMORY_FRAC * limit_bytes:
        share = 100 * peak_bytes / limit_bytes
        return f"at its peak the script takes {share:.0f} % of the memory that it may use"
    model = None if facts.run is None else facts.run.model
    state_bytes = 0 if model is None else _COPIES_OF_WEIGHTS * model.parameter_bytes
    if cuda and limit_bytes and state_bytes >= _STATE_FRAC * limit_bytes:
        share = 100 * state_bytes / limit_bytes
        return f"the model and its optimizer take about {share:.0f} % of the memory that it may use"
    return None


def _data_bound(facts: Facts, measured: Measurement, *, cuda: bool) -> str | None:
    """Return a clause if loading stays slower than computing with as many workers as can help, or None."""
    loader = None if facts.run is None else facts.run.loader
    wait_frac = measured.data_wait_frac
    if loader is None or wait_frac < _DATA_WAIT_FRAC:
        return None
    busy = loader.fetch_cpu_frac
    # Fetches in worker processes are not observed, and taken for CPU-bound.
    needs_cores = busy is None or busy >= _CPU_BOUND_FETCH_FRAC
    # On the CPU training and loading compete for cores, so faster training helps the loader.
    if not cuda and needs_cores and wait_frac < _DATA_WAIT_FRAC_ON_CPU:
        return None
    max_workers = max(1, facts.host.cpus) if needs_cores else _MAX_IO_WORKERS
    # Shares of today's step. Without workers, loading and computing alternate; with workers, a step takes as
    # long as loading.
    loading_frac = wait_frac / max_workers
    if loader.num_workers:
        loading_frac = min(1.0, loader.num_workers / max_workers)
    if loading_frac <= _LOADING_RATIO * (1.0 - wait_frac):
        return None
    return (
        f"the script waits for data {100 * wait_frac:.0f} % of its time, and loading would still be slower "
        f"than computing with {max_workers} workers"
    )

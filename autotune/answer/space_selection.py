"""Selection of a search space for ``--space auto``, from the first run of the script. Pure.

The candidates are loaded at the start and journaled with the study. The choice depends on journaled facts
alone, so a resumed study and every reader of its journal make the same one.
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
"""Presets that ``auto`` chooses among; `default` if the first run shows no clear need."""

MOST_WORKERS: Final = 32
"""Most workers that can help if the loader waits for storage or a network instead of a core."""

# Design values: shares of the time or of the memory, or ratios.
_WAITS: Final = 0.1
_FULL: Final = 0.85
_STATE_SHARE: Final = 0.6
_COPIES: Final = 4
_STILL_WAITS: Final = 2.0
_LOADER_WAITS: Final = 0.5
_STARVED_ON_CPU: Final = 0.8


def settled(study: Study) -> StudySpec:
    """Return the study's specification with a single search space once a baseline was measured.

    A space that the user named is unchanged.
    """
    spec, facts = study.spec, study.facts
    measured = next((t.measurement for t in study.baseline if t.measurement), None)
    if not spec.space.candidates or facts is None or facts.run is None or measured is None:
        return spec
    space = _with_seen(_taken(spec.space, *_choice(facts, measured, spec.max_memory_bytes)), facts.run)
    space = _with_distributed(space, facts.run)
    bounds = [b for b in (spec.max_memory_bytes, space.bound_bytes(facts.host, facts.run)) if b is not None]
    return replace(spec, space=space, max_memory_bytes=min(bounds, default=None))


def likely(request: SpaceRequest, facts: Facts) -> SpaceRequest:
    """Return the likely candidate before the script has run; a named space is unchanged."""
    if not request.candidates:
        return request
    if not facts.host.has_cuda:
        return _taken(request, "cpu", "there is no NVIDIA device")
    imports = set(facts.script.imports)
    for packages, name in (
        ({"transformers"}, "gpu_transformer"),
        ({"torchvision", "timm"}, "gpu_vision"),
    ):
        if found := sorted(packages & imports):
            return _taken(request, name, f"the script imports {' and '.join(found)}")
    return _taken(request, "default", "the source does not show which kind of model it trains")


def _taken(request: SpaceRequest, name: str, reason: str) -> SpaceRequest:
    """Return the candidate of that name, or the first one."""
    found = next((c for c in request.candidates if c.name == name), request.candidates[0])
    return replace(found, reason=reason)


def _with_seen(space: SpaceRequest, run: RunFacts) -> SpaceRequest:
    """Return the space with knobs for which the run showed a need, after the first knob.

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


def _with_distributed(space: SpaceRequest, run: RunFacts) -> SpaceRequest:
    """Return the space with the knobs of the run's wrapper first, if several processes train.

    Unchanged if the user narrowed the space. In a single process they would add nothing but refusals.
    """
    if run.parallel is None or space.narrowed:
        return space
    wrappers = ("any", run.parallel.wrapper)
    offered = [k for k in builtin().values() if k.wrapper in wrappers and k.effect is not Effect.TRAINING]
    added = tuple(k.name for k in offered if k.name not in {*space.knobs, *space.fixed})
    firsts = tuple({k.name: k.first_value} for k in offered if k.first_value is not None)
    return replace(
        space,
        knobs={**dict.fromkeys(added, ()), **space.knobs},
        starts=(*firsts, *space.starts),
        added=(*space.added, *added),
        reason=f"{space.reason}; {run.ranks} processes train together",
    )


def _choice(facts: Facts, measured: Measurement, bound_bytes: int | None) -> tuple[str, str]:
    """Return the name of a preset, and the reason."""
    model = None if facts.run is None else facts.run.model
    if model is None:
        return "default", "no model was seen that is trained"
    cuda = model.device.startswith("cuda")
    if why := _short_of_memory(facts, measured, bound_bytes, cuda=cuda):
        return "memory", why
    if why := _starved(facts, measured, cuda=cuda):
        return "dataloader", why
    if model.device == "cpu":
        return "cpu", f"training runs on the CPU{_waiting(measured)}"
    if not cuda:
        return "default", f"training runs on a device of the kind {model.device}"
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
    return "default", "neither attention nor convolutions over images were seen"


def _waiting(measured: Measurement) -> str:
    waits = measured.data_wait_frac
    return f", and the script waits for data {100 * waits:.0f} % of its time" if waits >= _WAITS else ""


def _short_of_memory(
    facts: Facts, measured: Measurement, bound_bytes: int | None, *, cuda: bool
) -> str | None:
    """Return a clause if peak memory, or model with optimizer, nearly fills the available memory."""
    whole = training_memory_bytes(facts.host, facts.run) if cuda else measured.memory.limit
    limit = min((b for b in (whole, bound_bytes) if b), default=0)
    peak = measured.memory.peak_bytes or 0
    if limit and peak >= _FULL * limit:
        return f"at its peak the script takes {100 * peak / limit:.0f} % of the memory that it may use"
    model = None if facts.run is None else facts.run.model
    # Weights, gradients and Adam's two moments.
    state = 0 if model is None else _COPIES * model.parameter_bytes
    if cuda and limit and state >= _STATE_SHARE * limit:
        return f"the model and its optimizer take about {100 * state / limit:.0f} % of the device's memory"
    return None


def _starved(facts: Facts, measured: Measurement, *, cuda: bool) -> str | None:
    """Return a clause if the script would wait for data even with as many workers as can help."""
    loader = None if facts.run is None else facts.run.loader
    waits = min(0.999, measured.data_wait_frac)
    if loader is None or waits < _WAITS:
        return None
    busy = loader.fetch_cpu_frac
    shares_cores = busy is None or busy >= _LOADER_WAITS
    # If both share cores, faster computing frees cores for the loader.
    if not cuda and shares_cores and waits < _STARVED_ON_CPU:
        return None
    most = max(1, facts.host.cpus) if shares_cores else MOST_WORKERS
    # Without workers loading and computing alternate; with workers the loop runs at the loader's pace.
    rest = waits / most if loader.num_workers == 0 else 1.0 / max(1.0, most / loader.num_workers)
    if rest <= _STILL_WAITS * (1.0 - waits):
        return None
    return (
        f"the script waits for data {100 * waits:.0f} % of its time, and loading would still be the "
        f"slower part with {most} workers"
    )

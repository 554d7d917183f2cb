"""Transfer from earlier studies to a new one: start points and priors, never results. Pure.

All results follow from the journal's start (`autotune.model.history_record`) and from the study's own
measurements, so a resumed or replayed search has the same priors.

A study of the same script, with the same arguments, data and versions on the same device, gives start points
and readings. One that differs in some of that gives start points and the effect of each value. Evidence
against a study's records drops them.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from autotune.compare.amortised_rate import objective_value
from autotune.compare.disturbances import NEIGHBOUR
from autotune.compare.rounds import in_own_unit
from autotune.model.config import Config, Value
from autotune.model.history_record import Earlier, Fingerprint
from autotune.model.identity_cache import IdentityCache, study_key
from autotune.model.trial import Family, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.model.facts import RunFacts
    from autotune.model.history_record import Transfer
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study
    from autotune.model.trial import FailureKind

APART: Final = 0.10
"""A config that was read there and reads by more than this in ln rate otherwise here contradicts."""
SPREADS: Final = 5.0
"""Alternative limit, in standard deviations between runs of the script there, if that is larger.

Both readings, and the script's own that each is divided by, scatter by as much.
"""
WEAK_APART: Final = 0.15
"""Mean error beyond which predictions from single values are contradicted ..."""
WEAK_FEWEST: Final = 3
"""... over at least so many configs, and further off than foretelling no gain at all."""

TRUSTED: Final = 2
"""Number of confirmed predictions after which a study's other readings replace runs."""

SPOILED: Final = frozenset({"cpu_contended", NEIGHBOUR, "foreign_gpu", "throttled"})
"""Marks of runs that others on the machine, or its limits, have slowed down."""

_MOST_STARTS: Final = 3
_MOST_FIRST: Final = 48
_OURS: Final = ("ray", "optuna", "mlflow")
_WHOLE: Final = ("script", "args", "versions", "modules", "data")
_SCREENED: Final = (Stage.BASELINE, Stage.INITIAL, Stage.REFINE, Stage.DRIFT_CHECK)


class Kinship(Enum):
    """Similarity of an earlier study, nearest first."""

    SAME = "same"
    CHANGED = "changed"


_SD: Final = {Kinship.SAME: 0.04, Kinship.CHANGED: 0.12}
"""Added uncertainty of a figure from there, in ln rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialConfig:
    """A config worth trying first, and why."""

    config: Config
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRate:
    """Prediction of a config's rate before its first run.

    Args:
        config: A single change may stand for the effect of its value, whether it can run alone or not.
        log: ln of its rate over the script's.
        sd: Its standard deviation.
    """

    config: Config
    log: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """Records of earlier studies that count now.

    Args:
        starts: Start points, best first.
        first: For the throughput model, in addition to measurements.
        trusted: Configs that need no run at the start: an identical study has measured them, and its readings
            were confirmed so far.
        compile_s: Seconds of a first compile, by mode.
        doubted: (knob, value) that failed for certain there.
        notes: Messages for the user, in the order of their validity.
    """

    starts: tuple[InitialConfig, ...] = ()
    first: tuple[PredictedRate, ...] = ()
    trusted: frozenset[Config] = frozenset()
    compile_s: Mapping[str, float] = field(default_factory=dict[str, float])
    doubted: frozenset[tuple[str, Value]] = frozenset()
    notes: tuple[str, ...] = ()


NOTHING: Final = Beliefs()
_BELIEFS: IdentityCache[Beliefs] = IdentityCache()


# What studies share ------------------------------------------------------------------------------


def fingerprint(study: Study) -> Fingerprint:
    """Return the fingerprint of a study from its journal; facts of the first run are empty before it."""
    spec, facts = study.spec, study.facts
    if facts is None:
        return Fingerprint()
    host, run = facts.host, facts.run
    devices = [(d.name, _gib(d.memory_bytes), d.capability) for d in host.devices]
    versions = {name: number for name, number in host.versions.items() if name not in _OURS}
    return Fingerprint(
        device=_digest(
            host.cpu_model,
            host.cpus,
            host.physical_cores,
            _gib(host.memory_bytes),
            sorted(host.cpu_flags),
            devices,
            spec.ray_address,
        ),
        power="/".join(f"{d.power_limit_w:.0f}" for d in host.devices if d.power_limit_w > 0),
        script=facts.script.sha256,
        path=_digest(spec.inspected, spec.module),
        args=_digest(spec.args, spec.options, spec.objective, spec.run_steps, *_given(spec.launcher)),
        versions=_digest(host.python, sorted(versions.items()), [d.driver for d in host.devices]),
        modules="" if run is None else _digest(sorted(run.modules.values())),
        data="" if run is None else _data(run),
    )


def here(study: Study, transfer: Transfer) -> Fingerprint:
    """Return the study's own fingerprint: the journaled facts of its start, the rest from its first run."""
    now = fingerprint(study)
    return replace(transfer.present, modules=now.modules, data=now.data)


def is_own(now: Fingerprint, then: Fingerprint) -> bool:
    """Both are of one script, though it, or what it was given, may have changed."""
    return bool(now.script and now.script == then.script) or bool(now.path and now.path == then.path)


def kinship(now: Fingerprint, then: Fingerprint) -> Kinship | None:
    """Return the similarity of two studies; None if they are unrelated.

    Of another script, on another device, or with another power limit, nothing does.
    """
    if not now.device or (now.device, now.power) != (then.device, then.power):
        return None
    if not is_own(now, then):
        return None
    is_same = all(getattr(now, name) == getattr(then, name) for name in _WHOLE)
    return Kinship.SAME if is_same else Kinship.CHANGED


# What counts -------------------------------------------------------------------------------------


def beliefs(study: Study) -> Beliefs:
    """Return the records of the study's start that count now; none before its space is known."""
    transfer, space = study.transfer, study.space
    if transfer is None or not transfer.earlier or space is None:
        return NOTHING
    if study.facts is None or study.facts.run is None:
        return NOTHING
    # Confirmation claims by present figures alone, and teaches nothing of the past.
    known = tuple(t for t in study.trials if not t.group)
    key = study_key(study, trials=known)
    return _BELIEFS.get(key, lambda: _believed(study, transfer, space))


@dataclass(frozen=True, slots=True)
class _Kin:
    """An earlier study beside the present space."""

    earlier: Earlier
    kinship: Kinship
    singles: Mapping[Config, PredictedRate]
    readings: Mapping[Config, PredictedRate]

    @classmethod
    def of(cls, earlier: Earlier, now: Fingerprint, space: SearchSpace) -> _Kin | None:
        near = kinship(now, earlier.fingerprint)
        if near is Kinship.SAME and not _same_owns(earlier, space):
            near = Kinship.CHANGED
        if near is None:
            return None
        doubt = _SD[near]
        readings: dict[Config, PredictedRate] = {}
        if near is Kinship.SAME:
            for read in earlier.seen:
                if _in(space, read.config) == read.config:
                    sd = math.hypot(doubt, earlier.noise)
                    readings[read.config] = PredictedRate(config=read.config, log=read.log, sd=sd)
        return cls(earlier, near, _singles(earlier, space, doubt), readings)

    @property
    def label(self) -> str:
        changed = " (changed since)" if self.kinship is Kinship.CHANGED else ""
        return f"{self.earlier.label}{changed}"

    @property
    def first(self) -> Mapping[Config, PredictedRate]:
        return self.readings or self.singles

    def predict(self, config: Config) -> float | None:
        """Return the sum of what its changes did by themselves; None where one of them was not seen."""
        parts = [self.singles.get(Config({knob: value})) for knob, value in config.items()]
        known = [part.log for part in parts if part is not None]
        return math.fsum(known) if known and len(known) == len(parts) else None


def _believed(study: Study, transfer: Transfer, space: SearchSpace) -> Beliefs:
    now = here(study, transfer)
    found = (_Kin.of(earlier, now, space) for earlier in transfer.earlier)
    own = [kin for kin in found if kin is not None]
    has_starts = bool(_starts(own, space))
    chosen = sorted(own, key=lambda kin: kin.kinship is not Kinship.SAME)
    runs = list(_runs(study))
    against = {kin.earlier.study_id: why for kin in chosen if (why := _contradiction(kin, runs))}
    left = [kin for kin in chosen if kin.earlier.study_id not in against]
    compiles: dict[str, float] = {}
    for kin in left:
        if kin.kinship is not Kinship.SAME:
            continue  # other arguments, another model: it compiles for another time
        for mode, seconds in kin.earlier.compile_s.items():
            compiles[mode] = max(seconds, compiles.get(mode, 0.0))
    gone = [kin.earlier for kin in chosen if kin.earlier.study_id in against]
    dropped = [f"{earlier.label} no longer counts: {against[earlier.study_id]}" for earlier in gone]
    return Beliefs(
        starts=_starts(left, space),
        first=_together(left),
        trusted=frozenset(config for kin in left if _agrees(kin, runs) for config in kin.readings),
        compile_s=compiles,
        doubted=frozenset((s.knob, s.value) for kin in left for s in kin.earlier.doubted),
        notes=(*_notes(chosen, has_starts=has_starts), *dropped),
    )


def _starts(own: Sequence[_Kin], space: SearchSpace) -> tuple[InitialConfig, ...]:
    found: dict[Config, InitialConfig] = {}
    for kin in own:
        for read in kin.earlier.starts:
            config = _in(space, read.config)
            if config is None or config in found:
                continue
            as_it_was = " as it was" if kin.kinship is Kinship.CHANGED else ""
            reason = (
                f"Confirmed in an earlier study of this script{as_it_was}, {kin.earlier.label}: "
                f"{math.exp(read.log):.2f} times your script there."
            )
            found[config] = InitialConfig(config=config, reason=reason)
    return tuple(found.values())[:_MOST_STARTS]


def _together(kin: Sequence[_Kin]) -> tuple[PredictedRate, ...]:
    """Return one figure for each config, each study's by how sure it is."""
    found: dict[Config, list[PredictedRate]] = {}
    for one in kin:
        for config, prediction in one.first.items():
            found.setdefault(config, []).append(prediction)
    merged: list[PredictedRate] = []
    for config, each in found.items():
        weights = [prediction.sd**-2 for prediction in each]
        log = math.fsum(w * prediction.log for w, prediction in zip(weights, each, strict=True)) / math.fsum(
            weights
        )
        merged.append(PredictedRate(config=config, log=log, sd=math.fsum(weights) ** -0.5))
    return tuple(merged[:_MOST_FIRST])


def _notes(chosen: Sequence[_Kin], *, has_starts: bool) -> Iterator[str]:
    """Yield messages on the records used at the start, whether they still count or not."""
    if not chosen:
        return
    labels = ", ".join(kin.label for kin in chosen)
    studies = "1 earlier study" if len(chosen) == 1 else f"{len(chosen)} earlier studies"
    if has_starts or not any(kin.earlier.starts for kin in chosen):
        what = "start points" if has_starts else "first beliefs"
        rest = "none taken over unmeasured" if has_starts else "where nothing was confirmed"
        yield f"{what} from {studies} of this script ({labels}), {rest}"
    else:
        yield f"priors from {studies} of this script ({labels}), whose winners cannot be tried here"


# What contradicts --------------------------------------------------------------------------------


def _runs(study: Study) -> Iterator[tuple[Config, float | None]]:
    """Screening runs in their order: ln rate over what the script had read by then, None for a failure."""
    # In the order of their results: with several at once the last one started may be the first to end.
    finished = sorted(study.finished(*_SCREENED), key=lambda trial: (trial.finished_s, trial.number))
    rated = {trial.number for trial in in_own_unit(study, finished)}
    own: list[float] = []
    for trial in finished:
        if trial.measurement is not None:
            rate = objective_value(study, trial.measurement) if trial.number in rated else 0.0
            if rate > 0.0 and trial.config.is_baseline:
                own.append(rate)
            elif rate > 0.0 and own and not SPOILED & set(trial.measurement.contamination.flags):
                # A disturbed run does not contradict a prediction.
                yield trial.config, math.log(rate / statistics.fmean(own))
        elif trial.failure is not None and _blames(trial.failure.kind):
            yield trial.config, None


def _blames(kind: FailureKind) -> bool:
    """Return the config is the cause; limits of time and memory may be others than they were."""
    return kind.teaches and kind.family not in (Family.HANG, Family.OOM)


def _contradiction(kin: _Kin, runs: Sequence[tuple[Config, float | None]]) -> str:
    """Return the evidence of present runs against an earlier study, empty without any.

    Once there is some, it stays: runs are checked in order, each with the knowledge at its time.
    """
    if kin.kinship is Kinship.SAME:
        return _otherwise(kin, runs)
    off: list[float] = []
    shown: list[float] = []
    for config, log in runs:
        predicted = kin.predict(config)
        if log is None or predicted is None:
            continue
        off.append(abs(log - predicted))
        shown.append(abs(log))
        apart = statistics.fmean(off)
        if len(off) >= WEAK_FEWEST and apart > WEAK_APART and apart > statistics.fmean(shown):
            off_frac = math.expm1(apart)
            return f"what {len(off)} configurations read is {100 * off_frac:.0f} % off the prediction"
    return ""


def _otherwise(kin: _Kin, runs: Sequence[tuple[Config, float | None]]) -> str:
    bound = max(APART, SPREADS * kin.earlier.noise)
    for config, log in runs:
        known = kin.readings.get(config)
        if known is None:
            continue
        if log is None:
            return f"{config.text()} fails here, and ran there"
        if abs(log - known.log) > bound:
            prediction = f"{math.exp(known.log):.2f} were predicted"
            return f"{config.text()} reads {math.exp(log):.2f} times your script, {prediction}"
    return ""


def _agrees(kin: _Kin, runs: Sequence[tuple[Config, float | None]]) -> bool:
    """Return whether several of its readings were confirmed."""
    return len({config for config, log in runs if log is not None and config in kin.readings}) >= TRUSTED


# Spaces of both studies ------------------------------------------------------------------------


def _in(space: SearchSpace, config: Config) -> Config | None:
    """Return the config as the present space has it, None where it is not in there."""
    for knob, value in config.items():
        known = space.dimensions.get(knob)
        if known is None or not (known.derived or value == known.own or value in known.values):
            return None
    wanted = {k: v for k, v in config.items() if not space.dimensions[k].derived}
    found = space.complete(wanted)
    if not isinstance(found, Config) or not found or not space.contains(found):
        return None
    # What is pinned here, or follows from a rule, makes another config of it.
    added = {k for k in found if k in space.dimensions and not space.dimensions[k].derived} - wanted.keys()
    alike = all(found.get(k, space.dimensions[k].own) == v for k, v in wanted.items())
    return found if alike and not added else None


def _same_owns(earlier: Earlier, space: SearchSpace) -> bool:
    dimensions = space.dimensions.values()
    known = [d for d in dimensions if d.own is not None and d.knob in earlier.owns]
    return all(d.own == earlier.owns[d.knob] for d in known)


def _singles(earlier: Earlier, space: SearchSpace, doubt: float) -> dict[Config, PredictedRate]:
    """Return the predicted effect of each value in the present space, relative to the script here."""
    gains = {Config({g.knob: g.value}): (g.log, g.sd) for g in earlier.gains}
    gains |= {Config({knob: value}): (0.0, 0.0) for knob, value in earlier.owns.items()}
    found: dict[Config, PredictedRate] = {}
    for dimension in space.free():
        knob, own = dimension.knob, dimension.own
        known = None if own is None else gains.get(Config({knob: own}))
        # What the script itself has here was never seen there: nothing is known over it.
        if own is None or known is None:
            continue
        for value in dimension.values:
            single = Config({knob: value})
            if single in gains and single != Config({knob: own}):
                log, sd = gains[single]
                sd = math.hypot(sd, known[1], doubt)
                found[single] = PredictedRate(config=single, log=log - known[0], sd=sd)
    return found


def _given(word: str) -> tuple[str, ...]:
    """Return the word as a tuple; without it the digest equals that of older studies."""
    return (word,) if word else ()


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def _gib(size: int) -> int:
    return round(size / 2**30)


def _data(run: RunFacts) -> str:
    loader, inputs = run.loader, run.inputs
    batches = None if loader is None else (loader.kind, loader.batch_size, loader.dataset_length)
    made = None if inputs is None else (inputs.batch_size, inputs.shape)
    return _digest(batches, made, run.effective_batch, run.input_shapes_vary)

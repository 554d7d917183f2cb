"""The search space of one script on one machine: a request narrowed by facts. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from autotune.errors import InvalidSpace, UnknownKnob, did_you_mean
from autotune.knobs.base import Knob
from autotune.model.config import Config, Value
from autotune.model.space import Dimension, Rule, SearchSpace
from autotune.space.choose_delivery import Dead, way

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.model.facts import Facts
    from autotune.model.study import SpaceRequest

_MICRO, _EFFECTIVE = "batch_size", "effective_batch"


def build_space(
    request: SpaceRequest, facts: Facts, knobs: Mapping[str, Knob], *, dead: Dead = frozenset()
) -> tuple[SearchSpace, dict[str, str]]:
    """Everything that may be tried, and a sentence for each knob that may not.

    Args:
        request: Knobs, values, starts and pins in the notation of space files.
        facts: With `run` None (before the baseline) values relative to the script's own are not
            known yet, and dimensions may be empty.
        knobs: All knobs by name, in the order in which their rules apply.
        dead: (knob, how) pairs that were seen not to act on this script.

    Raises:
        UnknownKnob: The request names a knob that does not exist.
        InvalidSpace: A pin cannot be had for this script, or, before a run, nothing is left to
            vary. After a run, a space without dimensions is an answer and no error.
    """
    builder = _Builder(request=request, facts=facts, knobs=knobs, dead=dead)
    builder.check_names()
    builder.collect()
    builder.drop_idle()
    builder.heed_micro_batches()
    space = builder.finished()
    builder.withhold()
    if facts.run is None and not space.dimensions:
        reasons = "; ".join(f"{knob}: {reason}" for knob, reason in builder.refusals.items())
        message = f"{request.source or request.name}: nothing is left to vary. {reasons}".rstrip()
        raise InvalidSpace(message, hint="Name other knobs, or see `autotune inspect` for the reasons.")
    return space, builder.refusals


def not_here(
    request: SpaceRequest, facts: Facts, knobs: Mapping[str, Knob], space: SearchSpace
) -> tuple[str, ...]:
    """Return requested values that are not available for this script on this machine: ``precision=fp16``.

    Only for searched knobs; others are refused as a whole. Values relative to the script's own value are not
    judged before that is known.

    Args:
        request: The request.
        facts: As for `build_space`.
        knobs: As for `build_space`.
        space: Result of `build_space`.
    """
    found: list[str] = []
    for dimension in space.dimensions.values():
        knob = None if dimension.derived else knobs.get(dimension.knob)
        for value in request.knobs.get(dimension.knob, ()) if knob is not None else ():
            if value == "asis" or (facts.run is None and isinstance(value, str) and value[:1] == "x"):
                continue
            plain = None if knob is None else knob.resolve(value, facts)
            if plain is None or not _among(plain, dimension.values):
                found.append(f"{dimension.knob}={str(value).lower() if isinstance(value, bool) else value}")
    return tuple(found)


@dataclass(slots=True, kw_only=True)
class _Builder:
    request: SpaceRequest
    facts: Facts
    knobs: Mapping[str, Knob]
    dead: Dead
    values: dict[str, tuple[Value, ...]] = field(default_factory=dict[str, tuple[Value, ...]])
    refusals: dict[str, str] = field(default_factory=dict[str, str])

    def check_names(self) -> None:
        named = [*self.request.knobs, *self.request.fixed, *(k for s in self.request.starts for k in s)]
        for name in named:
            if name not in self.knobs:
                message = f'{self.request.source or self.request.name}: there is no knob "{name}"'
                raise UnknownKnob(message, hint=did_you_mean(name, self.knobs))
        for name in self.request.fixed:
            if self.knobs[name].derived:
                message = f"{name} follows from other knobs and cannot be pinned"
                raise InvalidSpace(message, hint="Pin batch_size and effective_batch instead.")
        for name, values in self.request.knobs.items():
            if values and self.knobs[name].derived:
                message = f"{name} follows from other knobs and takes no values of its own"
                raise InvalidSpace(message, hint="Give values for batch_size and effective_batch instead.")

    def collect(self) -> None:
        """Values of every knob that facts and ways leave."""
        for name in self._wanted():
            knob = self.knobs[name]
            reason = self._reason(knob)
            if reason is None and not knob.derived:
                reason = self._narrow(knob)
            elif reason is None:
                self.values[name] = ()
                reason = self._no_way(knob)
            if reason is not None:
                self._refuse(name, reason)

    def _reason(self, knob: Knob) -> str | None:
        """Return why a knob must not be varied; a reading in PyTorch requires a script that uses it."""
        run = self.facts.run
        readable = knob.virtual or type(knob).seen is not Knob.seen
        if run is not None and run.without_torch and readable:
            return (
                "The script does not use PyTorch, whose setting this is. Values that it requests by "
                "autotune.value() can be searched."
            )
        return knob.refuse(self.facts)

    def _wanted(self) -> Iterable[str]:
        names: dict[str, None] = {}
        for name in (*self.request.knobs, *self.request.fixed):
            names[name] = None
            names.update(dict.fromkeys(b for b in self.knobs[name].requires if b in self.knobs))
        return names

    def _refuse(self, name: str, reason: str) -> None:
        if name in self.request.fixed:
            message = f"{name} cannot be pinned: {reason}"
            raise InvalidSpace(message, hint=f"Leave {name} out, or pin it to another value.")
        self.values.pop(name, None)
        self.refusals[name] = reason

    def _narrow(self, knob: Knob) -> str | None:
        """Keep what means something here and can be delivered; a sentence if nothing is left."""
        own = knob.own(self.facts)
        if knob.name in self.request.fixed:
            wanted: Sequence[Value] = (self.request.fixed[knob.name],)
            named = True
        else:
            wanted = self.request.knobs.get(knob.name, ())
            named = bool(wanted)
        resolved = [knob.resolve(v, self.facts) for v in wanted] if named else list(knob.domain(self.facts))
        meant = [v for v in resolved if v is not None]
        lost = [str(v) for v, r in zip(wanted, resolved, strict=True) if r is None] if named else []
        kept, reason = self._deliverable(knob, meant, own)
        changed = [v for v in kept if not _same(v, own)]
        self.values[knob.name] = _ordered(kept, own, ordinal=knob.ordinal)
        if changed or self._is_open(knob):
            return None
        if knob.name in self.request.fixed and kept:
            return None
        if reason:
            return reason
        only = "" if own is None else f"; only the script's own value {own} is left"
        what = f"None of {', '.join(lost)} means anything here" if lost else "There is nothing else to try"
        return f"{what}{only}."

    def _is_open(self, knob: Knob) -> bool:
        """Before a run, a knob whose own value counts cannot be judged yet."""
        return self.facts.run is None and knob.own(self.facts) is None

    def _deliverable(
        self, knob: Knob, values: Sequence[Value], own: Value | None
    ) -> tuple[list[Value], str | None]:
        if knob.virtual:
            return list(values), None
        kept: list[Value] = []
        reason: str | None = None
        for value in values:
            found = None if _same(value, own) else way(knob, value, self.facts, self.dead)
            if isinstance(found, str):
                reason = reason or found
            else:
                kept.append(value)
        return kept, reason

    def _no_way(self, knob: Knob) -> str | None:
        """Return why no value of a derived knob could be delivered; None if one can."""
        own = knob.own(self.facts)
        trial = own + 1 if isinstance(own, int) else 2
        found = way(knob, trial, self.facts, self.dead)
        return found if isinstance(found, str) else None

    def withhold(self) -> None:
        """Say of knobs that change the training how they could take part."""
        for name in self.request.withheld:
            if name in self.knobs and name not in self.values:
                reason = self._reason(self.knobs[name])
                self.refusals[name] = reason or (
                    f"It changes the training; --allow {name} lets it take part, for `fastest` alone."
                )

    def drop_idle(self) -> None:
        """Drop knobs that could change nothing without others, until nothing changes any more."""
        while True:
            varied = self._varied()
            idle = {n: r for n in varied if (r := self.knobs[n].idle(self.facts, varied)) is not None}
            if not idle:
                return
            name, reason = next(iter(idle.items()))
            self._refuse(name, reason)

    def _varied(self) -> tuple[str, ...]:
        return tuple(self.values)

    def heed_micro_batches(self) -> None:
        """Apply the user's micro-batch values to the effective batch as well, if it determines them."""
        requested = bool(self.request.knobs.get(_MICRO)) or _MICRO in self.request.fixed
        varied = self._varied()
        if not {_MICRO, _EFFECTIVE} <= set(varied) or not requested:
            return
        if not self.knobs[_MICRO].derived_in(self.facts, varied) or _EFFECTIVE in self.request.fixed:
            return
        possible = {self._effective_of(v) for v in self.values[_MICRO]}
        self.values[_EFFECTIVE] = tuple(v for v in self.values[_EFFECTIVE] if v in possible)

    def finished(self) -> SearchSpace:
        space = self._with_possible_pins(self._space())
        while self._drop_impossible(space):
            self.drop_idle()
            space = self._with_possible_pins(self._space())
        return replace(space, starts=tuple(self._starts(space)))

    def _space(self) -> SearchSpace:
        varied = self._varied()
        return SearchSpace(
            dimensions={name: self._dimension(name, varied) for name in varied},
            rules=tuple(self._rules(varied)),
            fixed=Config({n: self._pinned(n) for n in self.request.fixed}),
        )

    def _drop_impossible(self, space: SearchSpace) -> bool:
        """Drop values that no config of this space can have; whether there were any."""
        if self.facts.run is None:
            return False
        dropped = False
        for dimension in space.free():
            own = dimension.own
            kept = [v for v in dimension.values if _same(v, own) or self._possible(space, dimension.knob, v)]
            if len(kept) == len(dimension.values):
                continue
            dropped = True
            self.values[dimension.knob] = tuple(kept)
            if all(_same(v, own) for v in kept):
                reason = space.complete({dimension.knob: dimension.values[-1]})
                self._refuse(
                    dimension.knob, reason if isinstance(reason, str) else "Nothing else is possible."
                )
        return dropped

    def _possible(self, space: SearchSpace, name: str, value: Value) -> bool:
        tied = [
            n for n in space.dimensions if n in self.knobs[name].requires or name in self.knobs[n].requires
        ]
        # Rules may tie it to any other knob as well.
        rest = [n for n in space.dimensions if n not in (name, *tied)]
        others = [
            {n: v}
            for n in (*tied, *rest)
            for v in space.dimensions[n].values
            if not space.dimensions[n].derived
        ]
        return any(isinstance(space.complete({name: value, **other}), Config) for other in ({}, *others))

    def _pinned(self, name: str) -> Value:
        value = self.knobs[name].resolve(self.request.fixed[name], self.facts)
        return self.request.fixed[name] if value is None else value

    def _dimension(self, name: str, varied: Sequence[str]) -> Dimension:
        knob = self.knobs[name]
        own = knob.own(self.facts)
        derived = knob.derived_in(self.facts, varied)
        values = self.values[name]
        if derived:
            values = _ordered(
                [*(values if name in self.request.fixed else ()), *knob.follow(self.values, self.facts)],
                own,
                ordinal=knob.ordinal,
            )
        return Dimension(
            knob=name,
            values=values,
            own=own,
            ordinal=knob.ordinal,
            derived=derived,
            effect=knob.effect_for(self.facts),
            changes_rng_streams=knob.changes_rng_streams(self.facts),
            family=knob.family,
        )

    def _rules(self, varied: Sequence[str]) -> Iterable[Rule]:
        for name, knob in self.knobs.items():
            if name in varied:
                yield partial(_settled, knob, self.facts, frozenset(varied))

    def _with_possible_pins(self, space: SearchSpace) -> SearchSpace:
        """Pins that imply an effective batch get it; pins that contradict each other are an error."""
        done = space.complete({})
        if isinstance(done, Config) or not space.fixed:
            return space
        implied = self._with_effective(space, dict(space.fixed))
        if implied is not None:
            wider = replace(space, fixed=Config({**space.fixed, _EFFECTIVE: implied}))
            if isinstance(wider.complete({}), Config):
                return wider
        raise InvalidSpace(f"{space.fixed.text()} cannot be pinned: {done}", hint="Pin other values.")

    def _with_effective(self, space: SearchSpace, wanted: Mapping[str, Value]) -> Value | None:
        """Return the effective batch of a given micro-batch without accumulation, if it may be tried."""
        dimension, micro = space.dimensions.get(_EFFECTIVE), wanted.get(_MICRO)
        if dimension is None or not isinstance(micro, int) or _EFFECTIVE in wanted:
            return None
        effective = self._effective_of(micro)
        return effective if effective in dimension.values else None

    def _effective_of(self, micro: Value) -> Value:
        own = self.knobs["accumulation"].own(self.facts) if "accumulation" in self.knobs else 1
        return micro * own if isinstance(micro, int) and isinstance(own, int) else micro

    def _starts(self, space: SearchSpace) -> Iterable[Config]:
        seen = {Config()}
        for start in self.request.starts:
            wanted = self._resolved(start, space)
            config = space.complete(wanted)
            if isinstance(config, str) and (effective := self._with_effective(space, wanted)) is not None:
                config = space.complete({**wanted, _EFFECTIVE: effective})
            if isinstance(config, Config) and config not in seen and space.contains(config):
                seen.add(config)
                yield config

    def _resolved(self, start: Mapping[str, Value], space: SearchSpace) -> dict[str, Value]:
        """Return a start without refused knobs and invalid values."""
        wanted: dict[str, Value] = {}
        for name, value in start.items():
            dimension = space.dimensions.get(name)
            plain = None if dimension is None else self.knobs[name].resolve(value, self.facts)
            if dimension is not None and plain is not None and _among(plain, dimension.values):
                wanted[name] = plain
        return wanted


def _settled(knob: Knob, facts: Facts, varied: frozenset[str], config: Config) -> Config | str:
    return knob.settle(config, facts, varied)


def _same(value: Value, other: Value | None) -> bool:
    return type(value) is type(other) and value == other


def _among(value: Value, values: Iterable[Value]) -> bool:
    return any(_same(value, other) for other in values)


def _ordered(values: Sequence[Value], own: Value | None, *, ordinal: bool) -> tuple[Value, ...]:
    """Each once, with the script's own; ascending where the order means something."""
    unique: list[Value] = []
    for value in values if own is None else (own, *values):
        if not _among(value, unique):
            unique.append(value)
    numbers = [v for v in unique if isinstance(v, (int, float))]
    return tuple(sorted(numbers)) if ordinal and len(numbers) == len(unique) else tuple(unique)

"""The search space: dimensions, rules that tie them, and the effect of each value. Standard library only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.model.config import Config, Value
from autotune.model.effect import Effect, strictest

Rule = Callable[[Config], "Config | str"]
"""Completes a config (drops what does not apply, derives what follows) or returns why it is not possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One knob's values for this script, the script's own value among them.

    Args:
        values: In a meaningful order (ordinal knobs ascending).
        own: The script's own value; a config with it does not change the knob. None if the script's value is
            unreadable and none of `values` is known to equal it.
        ordinal: The order of `values` means something.
        derived: Never sampled; a rule sets it (accumulation).
        effect: Effect of changing this knob in this script.
        changes_rng_streams: A change affects random streams, so losses pair by distribution only.
        family: Family of the knob, see `autotune.model.knob_families`.
    """

    knob: str
    values: tuple[Value, ...]
    own: Value | None
    ordinal: bool = False
    derived: bool = False
    effect: Effect = Effect.EXACT
    changes_rng_streams: bool = False
    family: str = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Every config that may be tried.

    Args:
        dimensions: By knob name, in order of expected gain per cost.
        rules: Applied in order by `complete`.
        starts: Configs worth trying first, already complete.
        fixed: Knobs the user pinned; in every config.
    """

    dimensions: Mapping[str, Dimension]
    rules: tuple[Rule, ...] = ()
    starts: tuple[Config, ...] = ()
    fixed: Config = field(default_factory=Config)

    def complete(self, wanted: Mapping[str, Value]) -> Config | str:
        """Return the canonical config with these values, or the reason why there is none.

        Values equal to the script's own are dropped, so equal behaviour has an equal digest.
        """
        config = self._canonical(Config({**wanted, **self.fixed}))
        for rule in self.rules:
            answer = rule(config)
            if isinstance(answer, str):
                return answer
            config = self._canonical(answer)
        return config

    def _canonical(self, config: Config) -> Config:
        own = {knob for knob, value in config.items() if self._is_own(knob, value)}
        return config.without(*own)

    def _is_own(self, knob: str, value: Value) -> bool:
        dimension = self.dimensions.get(knob)
        return dimension is not None and type(dimension.own) is type(value) and dimension.own == value

    def contains(self, config: Config) -> bool:
        """Return whether the config is complete and every value is one of its dimension's."""
        known = all(
            (knob in self.dimensions and value in self.dimensions[knob].values) or knob in self.fixed
            for knob, value in config.items()
        )
        return known and self.complete(config) == config

    def effect(self, config: Config) -> Effect:
        """Return the strictest effect among the changed knobs; unknown knobs count as TRAINING."""
        effects = (self.dimensions[k].effect if k in self.dimensions else Effect.TRAINING for k in config)
        return strictest(*effects)

    def changes_rng_streams(self, config: Config) -> bool:
        """Return whether losses pair with the baseline's by distribution only."""
        return any(self.dimensions[k].changes_rng_streams for k in config if k in self.dimensions)

    def free(self) -> Sequence[Dimension]:
        """Dimensions that are sampled: more than one value, not derived, not pinned."""
        return [
            d
            for d in self.dimensions.values()
            if len(d.values) > 1 and not d.derived and d.knob not in self.fixed
        ]

    def resolved(self, config: Config) -> dict[str, Value]:
        """Return every knob with the value it has under this config, unreadable ones left out."""
        own = {k: d.own for k, d in self.dimensions.items() if d.own is not None}
        return {**own, **config}

    def size_bound(self) -> int:
        """Product of the free dimensions' sizes; rules only make it smaller."""
        size = 1
        for dimension in self.free():
            size *= len(dimension.values)
        return size

    def enumerate(self) -> Iterator[Config]:
        """Every distinct complete config, the baseline first if it is one; may be long."""
        free = self.free()
        seen: set[Config] = set()
        first = self.complete({})
        if isinstance(first, Config):
            seen.add(first)
            yield first
        for values in itertools.product(*(d.values for d in free)):
            config = self.complete({d.knob: v for d, v in zip(free, values, strict=True)})
            if isinstance(config, Config) and config not in seen:
                seen.add(config)
                yield config

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Complete configs that differ from this one in a single sampled knob."""
        seen = {config}
        for dimension in self.free():
            for value in dimension.values:
                other = self.complete({**self.resolved_free(config), dimension.knob: value})
                if isinstance(other, Config) and other not in seen:
                    seen.add(other)
                    yield other

    def resolved_free(self, config: Config) -> dict[str, Value]:
        """`config` without derived knobs: what `complete` needs to rebuild it."""
        return {k: v for k, v in config.items() if not self.dimensions[k].derived}

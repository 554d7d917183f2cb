"""Parts that the knobs of compiled code share. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.config import Config
    from autotune.model.facts import Facts


def is_compiled(config: Config | None, facts: Facts) -> bool:
    """Return whether the trained module is compiled under this config (None: by the script itself)."""
    mode = None if config is None else config.get("compile_mode")
    if mode is None:
        mode = facts.value("compile_mode")
    if mode is None:
        return own_compile(facts)
    return mode != "off"


def own_compile(facts: Facts) -> bool:
    """Return whether the script compiles code itself, as observed, or before a run as in its source."""
    return "own_compile" in facts.script.hazards if facts.run is None else facts.run.own_compile


def without_compile(facts: Facts, varied: Collection[str]) -> str | None:
    """Return the refusal of settings that only compiled code has, or None."""
    if "compile_mode" in varied or facts.run is None or is_compiled(None, facts):
        return None
    return "Nothing is compiled: the script does not compile, and compile_mode is not varied."


def has_dropout(facts: Facts) -> bool:
    """Return whether the model has dropout, whose random numbers differ in compiled code."""
    model = None if facts.run is None else facts.run.model
    return model is not None and model.dropout


class CompiledKnob(Knob):
    """A setting of compiled code: without effect where nothing is compiled."""

    effect: ClassVar[Effect] = Effect.NUMERIC
    spellings: ClassVar[Sequence[Spelling]] = (Patch(),)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        return without_compile(facts, varied)

    def changes_rng_streams(self, facts: Facts) -> bool:
        return has_dropout(facts)

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return config if is_compiled(config, facts) else config.without(self.name)

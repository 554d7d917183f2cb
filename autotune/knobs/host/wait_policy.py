"""Behaviour of an operation's threads while they wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import trains_on_cuda
from autotune.knobs.traits import Prior
from autotune.model.change import Env, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts

_GNU: Final = "OMP_WAIT_POLICY"
_INTEL: Final = "KMP_BLOCKTIME"
_FIXED: Final = "spincount"
_FOREVER_MS: Final = 2**31 - 1


class WaitPolicy(Knob):
    """Behaviour of threads that wait for each other: `PASSIVE` sleeps instead of spinning.

    Spinning takes time from loader workers and other processes on the same cores. Set by ``OMP_WAIT_POLICY``
    under GNU's OpenMP, by ``KMP_BLOCKTIME`` under Intel's and LLVM's.

    Effect: EXACT. Unit: none. Source: GCC libgomp manual, `GOMP_SPINCOUNT` (300 000 turns where the
    policy is unset, none where it is PASSIVE); PyTorch performance tuning guide, "Intel OpenMP
    Runtime Library".
    """

    name: ClassVar[str] = "wait_policy"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "threads"
    spellings: ClassVar[Sequence[Spelling]] = (Env(_GNU), Env(_INTEL))
    rank: ClassVar[int] = 120
    prior: ClassVar[Prior] = Prior(spread=0.15)

    def domain(self, facts: Facts) -> Sequence[Value]:
        return tuple(dict.fromkeys((self.own(facts) or "unset", "PASSIVE")))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        # YAML files and users also write it in lower case.
        known = {str(value).lower(): value for value in self.domain(facts)}
        return known.get(str(wanted).lower())

    def refuse(self, facts: Facts) -> str | None:
        if trains_on_cuda(facts):
            return "Training runs on an NVIDIA device, where threads of CPU operations have little effect."
        if facts.host.cpus < 2:
            return "There is one core, so no thread waits for another."
        if self.own(facts) == _FIXED:
            return "GOMP_SPINCOUNT is set and decides how long threads spin."
        return None

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        runtime = "" if facts.run is None else facts.run.openmp
        if spelling == Env(_INTEL) and runtime in ("", "gnu"):
            return "This PyTorch uses GNU OpenMP, which ignores this setting."
        if spelling == Env(_GNU) and runtime not in ("", "gnu"):
            return "This PyTorch uses Intel or LLVM OpenMP, where KMP_BLOCKTIME decides."
        return None

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        if facts.run is not None and facts.run.threads == 1 and "threads" not in varied:
            return "Operations run in one thread, and the number of threads is not varied."
        return None

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        own = 0 if facts.run is None else facts.run.threads
        return config.without(self.name) if config.get("threads", own or None) == 1 else config

    def environment(self, value: Value, spelling: Env, facts: Facts) -> str | None:
        if value != "PASSIVE":
            return None
        return "PASSIVE" if spelling.name == _GNU else "0"

    def seen(self, patches: Patches) -> Value | None:
        process = patches.process
        if process.openmp() in ("intel", "llvm"):
            waits_ms = process.blocktime_ms()
            if waits_ms is None:
                return None
            return "PASSIVE" if waits_ms == 0 else "ACTIVE" if waits_ms >= _FOREVER_MS else "unset"
        if process.variable("GOMP_SPINCOUNT"):
            return _FIXED
        return process.variable(_GNU).strip().upper() or "unset"

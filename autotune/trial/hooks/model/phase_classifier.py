"""Purpose of calls without gradients: an evaluation, or collection of training data.

In reinforcement learning the trained model is called for its next action, without gradients and often in
evaluation mode, like in an evaluation. The callers distinguish them: names of the functions on the stack, and
steps of environments.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import re
import time
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.runtime.state import caller

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_JUDGING: Final = frozenset(
    {
        *("eval", "evals", "evaluate", "evaluates", "evaluation", "evaluator"),
        *("test", "tests", "testing", "validate", "validates", "validation"),
    }
)
_TRAINING: Final = frozenset({"fit", "learn", "train", "trainer", "training"})
"""A function named after both, such as ``train_and_eval``, has no known purpose."""
_ACTING: Final = frozenset({"act", "acts", "action", "actions"})
_GATHERING: Final = frozenset(
    {
        *("rollout", "rollouts", "explore", "exploration", "interact", "episode", "episodes"),
        *("trajectory", "trajectories", "experience", "experiences"),
    }
)
_COLLECTING: Final = frozenset({"collect", "collects", "collecting", "collector"})
_COLLECTED: Final = frozenset(
    {
        *("data", "dataset", "sample", "samples", "step", "steps", "transition", "transitions", "path"),
        *("paths", "game", "games", "buffer", "replay", "batch", "policy", "on", "off", "random", "initial"),
        *("async", "parallel", "from", "env", "envs", "with", "and", "to", "one", "multi", "agent", "agents"),
    }
)
"""Words in the names of functions that collect experience; others collect metrics, or features."""
_MOST_FRAMES: Final = 100
_MOST_NAMES: Final = 4096
_ENVIRONMENTS: Final = {
    "gymnasium.wrappers.common": ("OrderEnforcing", "PassiveEnvChecker"),
    "gymnasium.wrappers.order_enforcing": ("OrderEnforcing",),
    "gymnasium.wrappers.env_checker": ("PassiveEnvChecker",),
    "gymnasium.vector.vector_env": ("VectorEnv",),
    "gymnasium.vector.sync_vector_env": ("SyncVectorEnv",),
    "gymnasium.vector.async_vector_env": ("AsyncVectorEnv",),
    "gym.wrappers.order_enforcing": ("OrderEnforcing",),
    "gym.vector.vector_env": ("VectorEnv",),
    "stable_baselines3.common.vec_env.base_vec_env": ("VecEnv",),
    "tianshou.env.venvs": ("BaseVectorEnv",),
}
"""Classes of libraries through which most environments are stepped.

The script's own classes are not wrapped, since they may be pickled to another process, where hooks cannot
follow.
"""


class PhaseClassifier:
    """Classifies calls of a model without gradients.

    Args:
        state: Notified that data is collected.
    """

    def __init__(self, state: RuntimeState) -> None:
        """Start without observations."""
        self._state = state
        self._kinds: dict[str, str] = {}
        self._around: set[str] = set()
        """Names after an evaluation of functions that also train; they are no evidence."""
        self._known: tuple[int, int, int] | None = None
        """A collecting frame, the one around it, and the step in which they were found.

        Both last at least as long as the rollout, so frames outside of them need not be examined again.
        """
        self._is_stepping = False
        self._steps_environments = False
        self.gathers = False
        """Collection of training data was observed."""

    def gathering(self, frame: FrameType | None) -> bool:
        """Return whether a call without gradients from here collects training data."""
        found = self._purpose(frame)
        gathers = found == "gathers" or (not found and self._steps_environments)
        self.gathers = self.gathers or gathers
        return gathers

    def _purpose(self, frame: FrameType | None) -> str:
        """Return ``judges`` or ``gathers``, or an empty string if no name shows it."""
        known = self._known
        steps = self._state.steps
        found: FrameType | None = None
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if known is not None and id(frame) == known[0] and known[1:] == (id(frame.f_back), steps):
                return "gathers"
            name = frame.f_code.co_name
            kind = self._kinds.get(name)
            if kind is None:
                kind = self._learnt(name)
            if kind == "judges" and name not in self._around:
                return kind
            if kind == "gathers":
                found = frame
            frame = frame.f_back
        if found is None:
            return ""
        self._known = (id(found), id(found.f_back), steps)
        return "gathers"

    def _learnt(self, name: str) -> str:
        if len(self._kinds) >= _MOST_NAMES:
            self._kinds.clear()
        kind = self._kinds[name] = kind_of_name(name)
        return kind

    def trained(self, frame: FrameType | None) -> None:
        """Record a backward pass made from here."""
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if self._learnt(frame.f_code.co_name) == "judges":
                self._around.add(frame.f_code.co_name)
            frame = frame.f_back

    # Environments

    def watch(self, hooks: AfterImport, undo: Undo) -> None:
        """Observe steps of environments in known libraries from now on."""
        for module, names in _ENVIRONMENTS.items():
            hooks.on(module, functools.partial(self._watch, names, undo))

    def _watch(self, names: tuple[str, ...], undo: Undo, module: Any) -> None:
        try:
            for name in names:
                cls = getattr(module, name, None)
                if isinstance(cls, type) and "step" in vars(cls):
                    undo.assign(cls, "step", self._watched(vars(cls)["step"]))
        except Exception as error:
            self._state.faults.note("rollouts", error)

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        state = self._state

        @functools.wraps(original)
        def step(this: Any, *args: Any, **kwargs: Any) -> Any:
            # Environments may be nested wrappers.
            if self._is_stepping or not state.here():
                return original(this, *args, **kwargs)
            self._is_stepping = True
            try:
                self._stepped(caller(1))
                return original(this, *args, **kwargs)
            finally:
                self._is_stepping = False

        return step

    def _stepped(self, frame: FrameType | None) -> None:
        """Record an environment step from here, for learning or for evaluation."""
        state = self._state
        if "rollouts" in state.faults.off:
            return
        try:
            if self._purpose(frame) != "judges":
                self._steps_environments = self.gathers = True
                state.collects(time.perf_counter_ns())
        except Exception as error:
            state.faults.note("rollouts", error)


def kind_of_name(name: str) -> str:
    """Return the purpose of a function by its name: ``judges``, ``gathers``, or neither."""
    words = {word.lower() for word in _WORDS.findall(name)}
    if words & _ACTING:
        # The `evaluate_actions` of a policy is a term of its loss.
        return "gathers"
    if words & _JUDGING:
        return "" if words & _TRAINING else "judges"
    if words & _COLLECTING:
        return "gathers" if words <= _COLLECTING | _COLLECTED | _GATHERING else ""
    return "gathers" if words & _GATHERING else ""

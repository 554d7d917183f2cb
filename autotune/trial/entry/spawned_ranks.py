"""Ranks that the script starts itself: by `torch.multiprocessing`, or by starting itself again.

Frameworks use two methods. `mp.spawn`, Lightning's ``ddp_spawn`` and Accelerate's notebook launcher call
`start_processes`. Each new process then enters the trial runtime before its function, and the parent waits as
for ranks of the launcher. Lightning's ``ddp`` starts the script again with ``LOCAL_RANK`` in its environment.
Then the parent is rank 0, and the others start through the trial runtime.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from autotune.protocol.plan import PLAN_VARIABLE, RANK_VARIABLE, RANKS_VARIABLE
from autotune.trial.entry import ranks

if TYPE_CHECKING:
    from autotune.protocol.plan import Plan
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

NOT_APPLIED: Final = 6
"""Exit code of `autotune apply` if a knob was not applied."""
_START_PROCESSES: Final = ("fn", "args", "nprocs", "join", "daemon", "start_method")
"""Parameters of `torch.multiprocessing.start_processes`, torch 2.4 to 2.13."""


class Process(Protocol):
    """Interface of the training process under observation."""

    plan: Plan
    state: RuntimeState
    hooks: AfterImport
    undo: Undo

    def joins(self, rank: int, count: int) -> None:
        """Become one of several ranks."""

    def leaves_knobs_to_ranks(self) -> None:
        """Leave reading back of knobs to the ranks, as this process trains nothing."""

    def waits_for(self, processes: Sequence[Any]) -> NoReturn:
        """Leave measuring to rank 0 of these processes, and end with them."""
        ...


class Entry:
    """Function of a spawned rank, run under the trial runtime; pickled for the rank.

    Args:
        function: The script's function.
        count: Number of ranks.
    """

    def __init__(self, function: Callable[..., Any], count: int) -> None:
        self.function = function
        self.count = count

    def __call__(self, rank: int, *args: Any) -> Any:
        """Run the function as this rank."""
        runs = importlib.import_module("autotune.trial.__main__")
        return runs.run_spawned(rank, self.count, functools.partial(self.function, rank, *args))


class Spawning:
    """Detects that the script starts its own ranks.

    Args:
        session: Runtime of this process, which started as the only one.
    """

    def __init__(self, session: Process) -> None:
        self._session = session

    def watch(self) -> None:
        """Observe processes that the script starts from now on."""
        session = self._session
        session.hooks.on("torch.multiprocessing", self._watch_spawn)
        original = subprocess.Popen.__init__

        @functools.wraps(original)
        def start(this: Any, args: Any = (), *rest: Any, **kwargs: Any) -> None:
            given: Any = kwargs.get("env")
            count = self._starts_itself(args, given)
            if not count:
                original(this, args, *rest, **kwargs)
                return
            rank = int(given["LOCAL_RANK"])
            session.joins(0, count)
            env = {**given, RANK_VARIABLE: str(rank), RANKS_VARIABLE: str(count)}
            original(this, [sys.executable, *sys.orig_argv[1:]], *rest, **{**kwargs, "env": env})
            if session.plan.measure:
                threading.Thread(target=self._await, args=(this, rank), daemon=True).start()

        session.undo.assign(subprocess.Popen, "__init__", start)

    def _starts_itself(self, args: Any, env: Any) -> int:
        """Return the number of ranks if the command runs the script as another local rank, else 0."""
        plan = self._session.plan
        if not self._session.state.active or not isinstance(args, Sequence) or not isinstance(env, Mapping):
            return 0
        words = [str(word) for word in args]
        script = ["-m", plan.module] if plan.module else [os.path.abspath(plan.script)]
        if words[: 1 + len(script)] != [sys.executable, *script] or PLAN_VARIABLE not in env:
            return 0
        rank, count = str(env.get("LOCAL_RANK", "")), str(env.get("WORLD_SIZE", ""))
        is_one = rank.isdecimal() and count.isdecimal() and 0 < int(rank) < int(count)
        return int(count) if is_one else 0

    def _await(self, process: Any, rank: int) -> None:
        """Report the end of a rank that cannot report it itself."""
        ranks.report_end(self._session.plan, rank, process.wait())

    def _run_freely(self, start: Callable[..., Any], given: dict[str, Any], lost: type[Exception]) -> Any:
        """Start the ranks under `apply`. If one ends with `NOT_APPLIED`, so does this process."""
        self._session.leaves_knobs_to_ranks()
        try:
            return start(**given)
        except lost as error:
            if getattr(error, "exit_code", None) == NOT_APPLIED:
                raise SystemExit(NOT_APPLIED) from None
            raise

    def _watch_spawn(self, module: Any) -> None:
        spawning = sys.modules[f"{module.__name__}.spawn"]
        original = spawning.start_processes

        @functools.wraps(original)
        def start_processes(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(_START_PROCESSES, args, strict=False)), **kwargs}
            count = int(given.get("nprocs", 1))
            if count < 2 or not self._session.state.here():
                return original(*args, **kwargs)
            given["fn"] = Entry(given["fn"], count)
            if not self._session.plan.measure:
                return self._run_freely(original, given, spawning.ProcessExitedException)
            context = original(**{**given, "join": False})
            return self._session.waits_for(context.processes)

        self._session.undo.assign(spawning, "start_processes", start_processes)
        self._session.undo.assign(module, "start_processes", start_processes)

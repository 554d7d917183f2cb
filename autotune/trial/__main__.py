"""Entry point ``python -m autotune.trial``: runs the user's script, observed and changed by plan.

Only the standard library is imported before the script; modules that need torch wait for the script's own
import.
"""

from __future__ import annotations

import builtins
import faulthandler
import importlib
import importlib.util
import io
import os
import signal
import sys
import time
import traceback
import types
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.protocol.events import Hello
from autotune.protocol.plan import (
    FORKS_VARIABLE,
    HIDDEN_VARIABLE,
    PLAN_VARIABLE,
    Plan,
    load_plan,
    stacks_name,
)
from autotune.trial.entry import ranks
from autotune.trial.entry.spawned_ranks import NOT_APPLIED
from autotune.trial.entry.trial_runtime import TrialRuntime
from autotune.trial.loop import replaced_constants
from autotune.trial.runtime.channel import Channel
from autotune.trial.runtime.exception_kind import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.loop.replaced_constants import Constants

_TAIL_LINES = 40
_THREADS_S = 0.05
"""Ten times the interval after which Python hands the interpreter to a waiting thread."""


def main() -> None:
    """Run the plan named in the environment."""
    forks = os.environ.pop(FORKS_VARIABLE, "")
    if forks:
        importlib.import_module("autotune.trial.entry.fork_server").serve(int(forks))
    if not os.environ.get(PLAN_VARIABLE):
        sys.stderr.write(f"autotune: {PLAN_VARIABLE} is not a plan; this module is started by the launcher\n")
        raise SystemExit(2)
    plan = load_plan(os.environ)
    rank = 0
    if plan.ranks > 1:
        number = ranks.own_rank()
        if number is None:
            ranks.lead(plan)
        rank = number
        # Rank 0 reports the readings of all ranks.
        argv = ranks.own_argv(plan.argv, rank)
        plan = replace(plan, argv=argv, status_path="" if rank else plan.status_path)
    # Only after the start of the ranks, which read it too. Child processes of the script do not.
    os.environ.pop(HIDDEN_VARIABLE, None)
    _run_rank(plan, rank, lambda session: run_script(session.plan, session.constants))


def run_spawned(rank: int, count: int, function: Callable[[], Any]) -> Any:
    """Run a function as one of several ranks started by the script; return its value under `apply`."""
    plan = replace(load_plan(os.environ), ranks=count)
    if plan.measure:
        _run_rank(plan, rank, lambda _session: function(), spawned_as=(rank, count))
        return None
    session = TrialRuntime(replace(plan, status_path="" if rank else plan.status_path), None)
    session.state.spawned_as = (rank, count)
    session.begin()
    try:
        result = function()
    finally:
        session.ended()
        _let_threads_end(count)
    _check_applied(session)
    return result


def _run_rank(
    plan: Plan,
    rank: int,
    body: Callable[[TrialRuntime], Any],
    *,
    spawned_as: tuple[int, int] | None = None,
) -> None:
    """Run the script, or its function, as this rank under observation."""
    channel = None
    if plan.measure and plan.segments and rank == 0:
        channel = Channel(Path(plan.events_path), plan.nonce)
        channel.send(Hello(pid=os.getpid(), t_ns=time.perf_counter_ns(), python=sys.version.split()[0]))
    _register_stacks(plan, rank)
    session = TrialRuntime(plan, channel)
    session.state.spawned_as = spawned_as
    if plan.measure and plan.ranks > 1:
        session.watch_rank(rank)
    if plan.measure and rank:
        session.recorder.ending.on_untuned = lambda knob, why: ranks.report_unapplied(plan, rank, knob, why)
        session.recorder.acceptance.on_applied = lambda: ranks.report_applied(plan, rank)
    if plan.shadow_dir and plan.measure:
        try:
            shadow = importlib.import_module("autotune.trial.entry.file_redirect")
            shadow.install(plan.protected, plan.shadow_dir)
            session.hooks.on("torch", shadow.wrap_torch)
            session.hooks.on("safetensors.torch", shadow.wrap_safetensors)
        except Exception as error:
            # Without protection the user's files could be overwritten, so no trial is run.
            session.faults.note("shadow", error)
            if rank:
                ranks.report_error(plan, rank, error, "")
                raise SystemExit(1) from error
            if channel is not None:
                session.recorder.ending.broke(
                    kind="crash_exit",
                    error=type(error).__name__,
                    message=f"the user's files cannot be protected: {error}",
                )
    session.begin()
    if rank and plan.measure:
        _run_beside(plan, session, rank, body)
    elif channel is None:
        _run_freely(session, body)
    else:
        _run_measured(session, body)


def run_script(plan: Plan, values: Constants) -> None:
    """Run the script as ``__main__``, like ``python script.py`` or ``python -m module``."""
    if plan.module:
        _first_on_path(os.getcwd())
        sys.argv = ["-m", *plan.argv]
        code, names = _module(plan.module)
        sys.argv[0] = names["__file__"]
    else:
        _first_on_path(os.path.dirname(os.path.realpath(plan.script)))
        sys.argv = [plan.script, *plan.argv]
        with io.open_code(plan.script) as file:
            code = values.compiled(plan.script, file.read())
        names = {"__file__": plan.script, "__cached__": None}
    module = types.ModuleType("__main__")
    module.__dict__.update({**names, "__builtins__": builtins})
    # It stays the main module until the process ends, for exit handlers and pickles.
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # noqa: S102 (runs the user's script as python does)


def _first_on_path(folder: str) -> None:
    """Set the first entry of `sys.path` as in a direct run: this folder, or none under ``-P`` and ``-I``."""
    safe = bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
    if sys.path and (not safe or sys.path[0] == sys.argv[0]):
        # The present entry is the folder that autotune was started from.
        del sys.path[0]
    if not safe:
        sys.path.insert(0, folder)


def _module(name: str) -> tuple[types.CodeType, dict[str, Any]]:
    """Return the code of a module and its globals; parent packages are imported, as Python does."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
        code: Any = None if spec is None else spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = code = None
    if spec is None or code is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    return code, {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }


def _run_freely(session: TrialRuntime, body: Callable[[TrialRuntime], Any]) -> None:
    """Run under `apply`: the process ends like the script, unless a requested knob failed."""
    try:
        body(session)
    except SystemExit as ending:
        if ending.code not in (None, 0):
            raise
    except BaseException as error:
        _show(error)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None
    finally:
        session.ended()
        _let_threads_end(session.plan.ranks)
    _check_applied(session)


def _check_applied(session: TrialRuntime) -> None:
    """End with `NOT_APPLIED` if a requested knob was not applied."""
    why = session.recorder.acceptance.unapplied() if session.state.active else None
    if why is not None:
        sys.stderr.write(f"autotune: {why}\n")
        raise SystemExit(NOT_APPLIED)


def _let_threads_end(count: int) -> None:
    """Let threads of a process group release their objects before the interpreter ends.

    Backward attaches a Python object to the data of its collectives (torch 2.13,
    `autograd.graph._engine_run_backward`). The gloo thread that releases it needs the interpreter. If that is
    already ending, the process is aborted (SIGABRT, code 134; pytorch issue 190489).

    Args:
        count: Number of ranks; those of `mp.spawn` have no ``WORLD_SIZE``.
    """
    is_one_of_several = count > 1 or os.environ.get("WORLD_SIZE", "1") != "1"
    if is_one_of_several and "torch" in sys.modules:
        time.sleep(_THREADS_S)


def _run_beside(plan: Plan, session: TrialRuntime, rank: int, body: Callable[[TrialRuntime], Any]) -> None:
    """Run a rank that does not measure."""
    try:
        body(session)
    except SystemExit as ending:
        code = _exit_code(ending)
        ranks.report_exit(plan, rank, code)
        raise SystemExit(code) from None
    except BaseException as error:
        _show(error)
        ranks.report_error(plan, rank, error, "".join(_lines(error)))
        # Other threads, of a process group that has lost a member, may prevent its end.
        sys.stdout.flush()
        os._exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    finally:
        _let_threads_end(plan.ranks)


def _run_measured(session: TrialRuntime, body: Callable[[TrialRuntime], Any]) -> NoReturn:
    recorder = session.recorder
    try:
        body(session)
    except SystemExit as ending:
        code = _exit_code(ending)
        recorder.script_ended(code, "script_exit" if code else "script_end")
    except BaseException as error:
        _show(error)
        recorder.ending.broke(
            kind=kind_of(error),
            error=type(error).__name__,
            message=ranks.first_line(session.plan, 0, error),
            tail="".join(_lines(error))[-8000:],
            code=130 if isinstance(error, KeyboardInterrupt) else 1,
        )
    else:
        recorder.script_ended(0, "script_end")
    raise AssertionError("the process has ended before this line")


def _exit_code(ending: SystemExit) -> int:
    if ending.code is None:
        return 0
    if isinstance(ending.code, int):
        return ending.code & 0xFF
    sys.stderr.write(f"{ending.code}\n")
    return 1


def _show(error: BaseException) -> None:
    """Print the traceback on the script's stderr, without autotune's frames."""
    try:
        sys.excepthook(type(error), error.with_traceback(_own_part(error)), _own_part(error))
        sys.stderr.flush()
    except Exception:
        traceback.print_exception(type(error), error, error.__traceback__)


def _own_part(error: BaseException) -> Any:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, replaced_constants.__file__):
        trace = trace.tb_next
    return trace or error.__traceback__


def _lines(error: BaseException) -> list[str]:
    return traceback.format_exception(type(error), error, _own_part(error))[-_TAIL_LINES:]


def _register_stacks(plan: Plan, rank: int) -> None:
    """Register SIGUSR2 to write every thread's stack into the trial's folder."""
    if not plan.trial_dir or not plan.measure:
        return
    try:
        # A descriptor, unlike a file object, stays open until the process ends.
        path = Path(plan.trial_dir, stacks_name(rank))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        faulthandler.register(signal.SIGUSR2, file=descriptor, all_threads=True)
    except (OSError, ValueError, AttributeError):
        return


if __name__ == "__main__":
    main()

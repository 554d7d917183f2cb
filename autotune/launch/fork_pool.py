"""Fork servers: trials that start in a fraction of a second from a process with their libraries loaded.

A server (`autotune.trial.entry.fork_server`) belongs to one runner. It lives while the runner's end of the
connection is open and the thread that started it lives. It forks a keeper and a guard with the same orders,
pipes, locks and cleanup as a cold start.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from autotune.knobs.registry import builtin
from autotune.launch.guard import guard, process_tree
from autotune.launch.workspace import compile_caches, isolation, runtime_library
from autotune.protocol import forking
from autotune.protocol.plan import FORKS_VARIABLE, PLAN_VARIABLE, TRIAL_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autotune.model.trial import Launch

_K = TypeVar("_K")

LOADED = ("torch", "torch._dynamo")
"""PyTorch and its imports when the first optimizer is created (torch 2.13, `torch._compile`)."""

LOADED_TO_COMPILE = (*LOADED, "torch._inductor.compile_fx")
"""The same for a trial that compiles."""

FORKS = "forks"
"""Folder of a study for the output of its running servers."""

LOAD_S = 120.0
"""A server ends itself if its libraries are not loaded within this time."""

MOST_SERVERS = 4
"""Largest number per runner. Trials that differ in variables read at import need separate servers."""

MEMORY_SHARE = 0.1
"""Largest share of the trials' memory for idle servers."""

ANSWER_S = 10.0
LEAVING_S = 2.0
MOST_DEATHS = 2
MOST_REFUSALS = 2
"""After refusals in this many environments no further server is tried."""

_POLL_MS = 100
_OUTPUT_BYTES = 4096
_OUTPUT_CHARS = 200


class ForkFailed(OSError):
    """The server did not answer. It was ended with all its children, as a trial may have been forked."""


class Forked:
    """The keeper of a forked trial, with the part of `subprocess.Popen` that the launcher uses.

    Args:
        server: Parent of the keeper; the only process that can read its exit code.
        pid: Pid of the keeper.
        stdin: Write end of the pipe for the guard's orders.

    Raises:
        OSError: The kernel grants no pidfd.
    """

    def __init__(self, server: ForkServer, pid: int, stdin: BinaryIO) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._server = server
        # The server reaps it only on request, so the pid cannot have been reused.
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._wait_status(0)

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: The process is still running.
        """
        code = self._wait_status(max(0, round(timeout * 1000)))
        if code is None:
            raise subprocess.TimeoutExpired("guard", timeout)
        return code

    def _wait_status(self, wait_ms: int) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if poll.poll(wait_ms):
                os.close(self._fd)
                self.returncode = self._server.reap(self.pid)
        return self.returncode


@dataclass(frozen=True, slots=True)
class _Key:
    """Properties that a trial inherits from its server; a server is needed for each combination."""

    command: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    places: tuple[str, ...]
    preload: tuple[str, ...]
    inherited: tuple[object, ...]


class ForkServer:
    """One server, started on construction.

    Args:
        key: Properties that its trials inherit.
        scratch: Folder for files written by imports; created here, removed with the server.

    Raises:
        OSError: The server cannot be started.
    """

    def __init__(self, key: _Key, scratch: Path) -> None:
        self.key = key
        self.lent_bytes = 0
        self.broken = ""
        """Reason why the server is not used any more; empty while it works."""
        self._scratch = scratch
        self._output = b""
        self._channel, server_end = forking.channel()
        self._channel.settimeout(ANSWER_S)
        self._out, out = os.pipe()
        os.set_blocking(self._out, False)
        own = {name: str(scratch / name.lower()) for name in ("TMPDIR", *compile_caches.VARIABLES)}
        try:
            for place in own.values():
                Path(place).mkdir(parents=True, exist_ok=True)
            self._process = subprocess.Popen(
                [*key.command],
                stdin=subprocess.DEVNULL,
                # Pipes, as for a cold start: Python inspects their type at start-up.
                stdout=out,
                stderr=out,
                pass_fds=[server_end.fileno()],
                start_new_session=True,
                cwd=key.cwd,
                env={
                    **dict(key.env),
                    **own,
                    FORKS_VARIABLE: str(server_end.fileno()),
                    TRIAL_VARIABLE: forking.BLANK,
                    process_tree.GUARD_VARIABLE: forking.BLANK,
                },
            )
        except BaseException:
            self._release()
            raise
        finally:
            server_end.close()
            os.close(out)
        with contextlib.suppress(OSError):
            forking.send(
                self._channel,
                {
                    "launcher": os.getpid(),
                    "guard": os.path.dirname(os.path.abspath(guard.__file__)),
                    "preload": list(key.preload),
                    "marks": {"guard": process_tree.GUARD_VARIABLE, "trial": TRIAL_VARIABLE},
                    "own": [*own, PLAN_VARIABLE],
                    "places": list(key.places),
                    "limit_s": LOAD_S,
                },
            )

    @property
    def pid(self) -> int:
        """Pid of the server."""
        return self._process.pid

    def await_ready(self, within_s: float, stopped: Callable[[], bool]) -> str:
        """Wait until the libraries are loaded; return why the server is not usable, or an empty string."""
        until_s = time.monotonic() + within_s
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._out, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(_POLL_MS)}
            if self._out in ready and not self._listen():
                poll.unregister(self._out)
            if self._channel.fileno() in ready:
                return self._take_answer()
            if stopped():
                return "the search was stopped"
            if time.monotonic() > until_s:
                return f"the fork server was not ready after {within_s:.0f} s"

    def _take_answer(self) -> str:
        try:
            answer, _ = forking.receive(self._channel)
        except (OSError, ValueError) as error:
            return f"the fork server sent an unreadable answer: {error}"
        if answer is None:
            while self._listen():
                pass
            lines = self._output.decode(errors="replace").strip().splitlines()
            last = f": {lines[-1][:_OUTPUT_CHARS]}" if lines else ""
            return f"the fork server ended while it loaded{last}"
        self.lent_bytes = int(answer.get("lent_bytes", 0))
        return str(answer.get("refused", ""))

    def _listen(self) -> bool:
        """Receive available output; return False if there is none."""
        try:
            data = os.read(self._out, 1 << 16)
        except OSError:
            return False
        self._output = (self._output + data)[-_OUTPUT_BYTES:]
        return bool(data)

    def fork(self, uid: str, life_fd: int, log_fd: int, locks: Sequence[int]) -> Forked | str:
        """Start a keeper and a guard, or return the reason for the refusal.

        Args:
            uid: Uid of the attempt.
            life_fd: Read end of the life pipe.
            log_fd: Error log of the guard.
            locks: File descriptors of locks, held by the guard while it runs.

        Raises:
            ForkFailed: The server did not answer.
        """
        orders_read, orders_write = os.pipe()
        stdin = os.fdopen(orders_write, "wb")
        try:
            answer = self._request({"fork": uid}, [orders_read, life_fd, log_fd, *locks])
            if "pid" not in answer:
                stdin.close()
                self.broken = str(answer.get("refused", "it gave no reason"))
                return self.broken
            return Forked(self, int(answer["pid"]), stdin)
        except OSError as error:
            with contextlib.suppress(OSError):
                stdin.close()
            self.broken = self.broken or f"the fork server failed: {error}"
            self.kill()
            raise ForkFailed(self.broken) from error
        finally:
            os.close(orders_read)

    def reap(self, pid: int) -> int:
        """Return the exit code of a keeper that has ended; that of SIGKILL if it is unknown."""
        status: object = None
        with contextlib.suppress(OSError):
            status = self._request({"reap": pid}).get("status")
        return os.waitstatus_to_exitcode(status) if isinstance(status, int) else -signal.SIGKILL

    def _request(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> dict[str, Any]:
        try:
            forking.send(self._channel, message, fds)
            answer, _ = forking.receive(self._channel)
        except (OSError, ValueError) as error:
            self.broken = self.broken or f"the fork server does not answer: {error}"
            raise OSError(self.broken) from error
        if answer is None:
            self.broken = self.broken or "the fork server has died"
            raise OSError(self.broken)
        return answer

    def is_alive(self) -> bool:
        """Return whether the server runs and has reported no error."""
        if self._process.poll() is not None:
            self.broken = self.broken or "the fork server has died"
        return not self.broken

    def kill(self) -> None:
        """Kill the server and its descendants."""
        process_tree.send([*reversed(process_tree.descendants(self.pid)), self.pid], signal.SIGKILL)

    def close(self) -> None:
        """Request the end of the server, and kill it if it does not end in time."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING_S)
        if self._process.poll() is None:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVING_S)
        self._release()

    def _release(self) -> None:
        self._channel.close()
        with contextlib.suppress(OSError):
            os.close(self._out)
        isolation.remove(self._scratch)


class Forks:
    """The fork servers of one runner, started on demand.

    A server is started per environment, command and folder. The most recently used ones are retained. The
    first trial of an environment waits for its server and so takes about as long as a cold start; each later
    one is forked at once.

    Args:
        folder: Folder of the study.
        loaded: Modules that a server imports.
        loaded_to_compile: The same for trials that compile, if supported.
        free_memory: Bytes available to trials; idle servers may use `MEMORY_SHARE` of it. None: only their
            number is bounded.
    """

    def __init__(
        self,
        folder: Path,
        loaded: Sequence[str] = LOADED,
        loaded_to_compile: Sequence[str] = LOADED_TO_COMPILE,
        free_memory: Callable[[], int] | None = None,
    ) -> None:
        self._folder = folder
        self._loaded = tuple(loaded)
        self._loaded_to_compile = tuple(loaded_to_compile)
        self._free_memory = free_memory
        self._servers: dict[_Key, ForkServer] = {}
        self._refused: dict[_Key, str] = {}
        self._requested: set[_Key] = set()
        self._served: set[tuple[str, ...]] = set()
        self._given_up = ""
        self._deaths = 0
        self._made = 0

    @property
    def loads(self) -> bool:
        """Whether servers import any module before they fork."""
        return bool(self._loaded or self._loaded_to_compile)

    def server(
        self, launch: Launch, our_part: str, *, within_s: float, stopped: Callable[[], bool]
    ) -> ForkServer | str:
        """Return a server for this launch, or the reason why there is none.

        Args:
            launch: Launch of the trial.
            our_part: From `runtime_library.make`.
            within_s: Time for a new server to load its libraries.
            stopped: Returns True once the trial has been cancelled.
        """
        if reason := _unsupported() or self._given_up:
            return reason
        found: ForkServer | str = ""
        candidates = [_key(launch, our_part, self._loaded)]
        if compiles(launch) and self._loaded_to_compile != self._loaded:
            candidates = in_order(
                self._servers, self._requested, candidates[0], _key(launch, our_part, self._loaded_to_compile)
            )
        for key in candidates:
            found = self._why_not(key) or self._at_hand(key, within_s, stopped)
            if isinstance(found, ForkServer):
                return found
        return found

    def _at_hand(self, key: _Key, within_s: float, stopped: Callable[[], bool]) -> ForkServer | str:
        known = self._servers.pop(key, None)
        if known is not None and known.is_alive():
            self._servers[key] = known
            return known
        if known is not None:
            self._deaths += 1
            known.close()
            if self._deaths >= MOST_DEATHS:
                self._given_up = known.broken
                return known.broken
        self._make_room()
        self._made += 1
        try:
            server = ForkServer(key, self._folder / FORKS / f"{os.getpid()}-{self._made}")
        except OSError as error:
            self._refused[key] = f"no fork server could be started: {error}"
            return self._refused[key]
        reason = server.await_ready(min(within_s, LOAD_S), stopped)
        if reason:
            server.close()
            if not stopped():
                self._refused[key] = reason
            return reason
        self._servers[key] = server
        self._served.add(key.preload)
        return server

    def _why_not(self, key: _Key) -> str:
        """Return why no server with this key is tried; empty if one can be."""
        refused = [reason for other, reason in self._refused.items() if other.preload == key.preload]
        hopeless = len(refused) >= MOST_REFUSALS and key.preload not in self._served
        return self._refused.get(key, refused[-1] if hopeless else "")

    def _make_room(self) -> None:
        """End the least recently used servers until there is room for another one."""
        while len(self._servers) >= MOST_SERVERS or (self._servers and self._hold_too_much()):
            self._servers.pop(next(iter(self._servers))).close()

    def _hold_too_much(self) -> bool:
        if self._free_memory is None:
            return False
        return sum(s.lent_bytes for s in self._servers.values()) > MEMORY_SHARE * self._free_memory()

    def close(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()


def in_order(available: Collection[_K], requested: set[_K], plain: _K, with_compiler: _K) -> list[_K]:
    """Return the servers that can fork a trial that compiles, preferred one first.

    The first such trial of an environment uses an available plain server and imports the compiler itself,
    which a new server would not do sooner. Further trials get a server with the compiler loaded.
    """
    if with_compiler in available or plain not in available or with_compiler in requested:
        return [with_compiler, plain]
    requested.add(with_compiler)
    return [plain, with_compiler]


def compiles(launch: Launch) -> bool:
    """Return whether the launch compiles, so that a server with the compiler loaded is useful."""
    changed = (builtin().get(change.knob) for change in launch.changes)
    return any(knob is not None and knob.loads_compiler for knob in changed)


def _key(launch: Launch, our_part: str, preload: tuple[str, ...]) -> _Key:
    place = launch.cwd if launch.module else os.path.dirname(os.path.realpath(launch.script))
    return _Key(
        command=(launch.python, *launch.options, our_part),
        cwd=launch.cwd,
        env=tuple(sorted(runtime_library.environment(launch.env, our_part).items())),
        places=(place,),
        preload=preload,
        inherited=_inherited(),
    )


def _inherited() -> tuple[object, ...]:
    """Return what a process inherits from its parent, and a forked trial from the server's start."""
    found: list[object] = [sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)]
    for name in ("/proc/self/cgroup", "/proc/self/status"):
        with contextlib.suppress(OSError), open(name, encoding="utf-8", errors="replace") as file:
            found.append([line for line in file if name.endswith("cgroup") or line.startswith("Umask:")])
    for name in sorted(n for n in dir(resource) if n.startswith("RLIMIT_")):
        with contextlib.suppress(ValueError, OSError):
            found.append(resource.getrlimit(getattr(resource, name)))
    return tuple(map(repr, found))


def _unsupported() -> str:
    """Return why this machine cannot fork trials; empty if it can."""
    if sys.platform != "linux":
        return "only Linux gives enough information on processes"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return "this kernel has no handles for other processes"
    return ""

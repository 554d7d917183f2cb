"""Fork servers: trials that start from a process with their libraries loaded, in a fraction of a second.

A server (`autotune.trial.entry.fork_server`) belongs to one runner and lasts as long as its end of the
connection is
held and the thread that started it lives. It forks a keeper and guard like those that are started anew, with
the same orders, pipes and locks; what they own, and how they end it, is no different.
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
"""PyTorch, and what it imports itself as soon as an optimizer is made (torch 2.13, `torch._compile`)."""

LOADED_TO_COMPILE = (*LOADED, "torch._inductor.compile_fx")
"""The same for a trial that compiles."""

FORKS = "forks"
"""Folder of a study: where its servers write, while there are any."""

LOAD_S = 120.0
"""A server that has not loaded its libraries by then ends itself."""

MOST_SERVERS = 4
"""Of one runner. Variables that libraries read when they are loaded need a server each."""

MEMORY_SHARE = 0.1
"""Of the memory that trials have: servers beside the one in use may hold so much of it."""

ANSWER_S = 10.0
LEAVING_S = 2.0
MOST_DEATHS = 2
MOST_REFUSALS = 2
"""In so many environments a server may refuse to serve before no other one is asked."""

_POLL_MS = 100
_SAID_BYTES = 4096
_SAID_CHARS = 200


class ForkFailed(OSError):
    """The server did not answer: it may have forked or not, and was ended with all that is below it."""


class Forked:
    """The keeper of a forked trial, with as much of `subprocess.Popen` as its owner needs.

    Args:
        server: That has forked it and alone may ask how it ended.
        pid: Of the keeper.
        stdin: The guard reads its orders from the other end.

    Raises:
        OSError: The kernel lends no handle on it.
    """

    def __init__(self, server: ForkServer, pid: int, stdin: BinaryIO) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._server = server
        # Nobody else collects it before we ask for that, so that the number is still its own.
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float) -> int:
        """The same once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not.
        """
        code = self._look(max(0, round(timeout * 1000)))
        if code is None:
            raise subprocess.TimeoutExpired("guard", timeout)
        return code

    def _look(self, wait_ms: int) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if poll.poll(wait_ms):
                os.close(self._fd)
                self.returncode = self._server.reap(self.pid)
        return self.returncode


@dataclass(frozen=True, slots=True)
class _Key:
    """What a forked trial has from its server: another one of any of these needs another server."""

    command: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    places: tuple[str, ...]
    preload: tuple[str, ...]
    inherited: tuple[object, ...]


class ForkServer:
    """One server; started by this.

    Args:
        key: What it is a server of.
        scratch: A folder of ours for what an import writes; made, and removed with the server.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, key: _Key, scratch: Path) -> None:
        self.key = key
        self.lent_bytes = 0
        self.broken = ""
        """Why nothing more is asked of it; empty while it works."""
        self._scratch = scratch
        self._said = b""
        self._channel, theirs = forking.channel()
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
                # Pipes, as a trial has them: Python looks at their kind when it starts.
                stdout=out,
                stderr=out,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd=key.cwd,
                env={
                    **dict(key.env),
                    **own,
                    FORKS_VARIABLE: str(theirs.fileno()),
                    TRIAL_VARIABLE: forking.BLANK,
                    process_tree.GUARD_VARIABLE: forking.BLANK,
                },
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            theirs.close()
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
        """Of the server."""
        return self._process.pid

    def await_ready(self, within_s: float, stopped: Callable[[], bool]) -> str:
        """Wait until it has loaded its libraries; why it will not serve, empty where it does."""
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
            said = self._said.decode(errors="replace").strip().splitlines()
            last = f": {said[-1][:_SAID_CHARS]}" if said else ""
            return f"the fork server ended while it loaded{last}"
        self.lent_bytes = int(answer.get("lent_bytes", 0))
        return str(answer.get("refused", ""))

    def _listen(self) -> bool:
        """Take what it has printed; False where there is nothing (more)."""
        try:
            data = os.read(self._out, 1 << 16)
        except OSError:
            return False
        self._said = (self._said + data)[-_SAID_BYTES:]
        return bool(data)

    def fork(self, uid: str, life_fd: int, log_fd: int, locks: Sequence[int]) -> Forked | str:
        """Start a keeper and guard; in place of them the reason why it refused.

        Args:
            uid: Of the attempt.
            life_fd: Read end of the life pipe.
            log_fd: Where the guard says what is wrong with it.
            locks: Held by the guard for as long as it runs.

        Raises:
            ForkFailed: It did not answer.
        """
        orders_read, orders_write = os.pipe()
        stdin = os.fdopen(orders_write, "wb")
        try:
            answer = self._ask({"fork": uid}, [orders_read, life_fd, log_fd, *locks])
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
        """The exit code of a keeper that has ended; as if it was killed where nobody knows any more."""
        status: object = None
        with contextlib.suppress(OSError):
            status = self._ask({"reap": pid}).get("status")
        return os.waitstatus_to_exitcode(status) if isinstance(status, int) else -signal.SIGKILL

    def _ask(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> dict[str, Any]:
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
        """It has not ended, and nothing has gone wrong with it."""
        if self._process.poll() is not None:
            self.broken = self.broken or "the fork server has died"
        return not self.broken

    def kill(self) -> None:
        """End it and everything below it, now."""
        process_tree.send([*reversed(process_tree.descendants(self.pid)), self.pid], signal.SIGKILL)

    def close(self) -> None:
        """Let it go; it ends by itself, and is ended where it does not."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING_S)
        if self._process.poll() is None:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVING_S)
        self._let_go()

    def _let_go(self) -> None:
        self._channel.close()
        with contextlib.suppress(OSError):
            os.close(self._out)
        isolation.remove(self._scratch)


class Forks:
    """The fork servers of one runner, made when they are first needed.

    A trial whose environment, command or folder is another one has another server, started in that
    environment. A few are kept, those that were used last: a first trial of an environment takes about as
    long as one that is started anew, as it waits for its server, and every later one is forked at once.

    Args:
        folder: Of the study.
        loaded: What a server imports.
        loaded_to_compile: The same for trials that compile, where that can be.
        free_memory: Bytes that trials may take; servers that are only kept take little of it. None for no
            other bound than their number.
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
        self._asked: set[_Key] = set()
        self._served: set[tuple[str, ...]] = set()
        self._given_up = ""
        self._deaths = 0
        self._made = 0

    @property
    def loads(self) -> bool:
        """Servers import something before they fork."""
        return bool(self._loaded or self._loaded_to_compile)

    def server(
        self, launch: Launch, our_part: str, *, within_s: float, stopped: Callable[[], bool]
    ) -> ForkServer | str:
        """A server that this launch may be forked from; in place of it the reason why there is none.

        Args:
            launch: What is to be started.
            our_part: From `runtime_library.make`.
            within_s: How long a new one may take to load its libraries.
            stopped: Asked meanwhile: nobody wants it any more.
        """
        if reason := _unsupported() or self._given_up:
            return reason
        found: ForkServer | str = ""
        wanted = [_key(launch, our_part, self._loaded)]
        if compiles(launch) and self._loaded_to_compile != self._loaded:
            wanted = in_order(
                self._servers, self._asked, wanted[0], _key(launch, our_part, self._loaded_to_compile)
            )
        for key in wanted:
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
        """Why no server of this kind is tried any more; empty where one is."""
        refused = [reason for other, reason in self._refused.items() if other.preload == key.preload]
        hopeless = len(refused) >= MOST_REFUSALS and key.preload not in self._served
        return self._refused.get(key, refused[-1] if hopeless else "")

    def _make_room(self) -> None:
        """End those that were not used for longest, until another one may come."""
        while len(self._servers) >= MOST_SERVERS or (self._servers and self._hold_too_much()):
            self._servers.pop(next(iter(self._servers))).close()

    def _hold_too_much(self) -> bool:
        if self._free_memory is None:
            return False
        return sum(s.lent_bytes for s in self._servers.values()) > MEMORY_SHARE * self._free_memory()

    def close(self) -> None:
        """End all of them."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()


def in_order(at_hand: Collection[_K], asked: set[_K], plain: _K, with_compiler: _K) -> list[_K]:
    """Whom a trial that compiles is forked from, the better first.

    The first in an environment takes the server that is there and imports the compiler itself, which a server
    of its own would do no sooner; one that is not the only one is worth such a server.
    """
    if with_compiler in at_hand or plain not in at_hand or with_compiler in asked:
        return [with_compiler, plain]
    asked.add(with_compiler)
    return [plain, with_compiler]


def compiles(launch: Launch) -> bool:
    """It wants a server that has loaded the compiler."""
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
    """What a new process has from the one that starts it, and a forked one from the server's start."""
    found: list[object] = [sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)]
    for name in ("/proc/self/cgroup", "/proc/self/status"):
        with contextlib.suppress(OSError), open(name, encoding="utf-8", errors="replace") as file:
            found.append([line for line in file if name.endswith("cgroup") or line.startswith("Umask:")])
    for name in sorted(n for n in dir(resource) if n.startswith("RLIMIT_")):
        with contextlib.suppress(ValueError, OSError):
            found.append(resource.getrlimit(getattr(resource, name)))
    return tuple(map(repr, found))


def _unsupported() -> str:
    """Why this machine cannot fork trials at all; empty where it can."""
    if sys.platform != "linux":
        return "only Linux gives enough information on processes"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return "this kernel has no handles for other processes"
    return ""

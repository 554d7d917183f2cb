"""Fork server: a process that has loaded the slow imports of a training script, and forks once per trial.

It starts like a trial, by the same command in the same environment and folder, but waits instead of reading a
plan. Its forks are the trial's keeper and guard (`autotune.launch.guard.guard`, loaded by path). The process
that the guard forks for the script continues here like a new one.

It refuses to fork if the fork would differ from a new process. Reasons are a thread, a process or a file that
a library has opened, and an accelerator in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import os
import random
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

from autotune.protocol.forking import BLANK, MARK_CHARS, receive, send
from autotune.protocol.plan import FORKS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from types import ModuleType

_GUARD_PARTS: Final = ("sysv_ipc", "process_tree", "owned_resources", "namespace", "cpu_quota", "guard")
_ACCELERATORS: Final = ("cuda", "xpu", "mtia")
_ENV_START, _ENV_END = 47, 48
"""Fields 50 and 51 of ``/proc/<pid>/stat``, counted from the state on."""
_PR_SET_PDEATHSIG = 1
_CAPABILITY_VERSION_3 = 0x20080522
_SHOWN = 3


def serve(fd: int) -> None:
    """Fork trials until the launcher has ended; return only in the process of a trial.

    Args:
        fd: This end of the connection.
    """
    channel = socket.socket(fileno=fd)
    channel.set_inheritable(False)
    zygote = Zygote(channel)
    try:
        refused = zygote.prepare()
    except (Exception, SystemExit) as error:
        refused = f"{type(error).__name__}: {error}"
    if refused:
        for pid in _children():
            # Processes started by a library would outlive it; each trial starts its own.
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            send(channel, {"refused": refused})
        os._exit(0)
    zygote.run()


class Zygote:
    """The fork server; see the module.

    Args:
        channel: Connection to the launcher.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._block = _block()
        """Environment with which this process was started."""
        self._writes_bytecode = not sys.dont_write_bytecode
        self._keepers: set[int] = set()
        self._changed: dict[bytes, bytes | None] = {}
        self._guard: Any = None
        self._marks: Marks | None = None
        self._mark_of_guard = self._mark_of_trial = ""

    def prepare(self) -> str:
        """Import all libraries; return why no fork is possible, or an empty string."""
        orders, _ = receive(self._channel)
        if orders is None:
            os._exit(0)
        _die_with(int(orders["launcher"]))
        self._mark_of_guard, self._mark_of_trial = orders["marks"]["guard"], orders["marks"]["trial"]
        self._marks = Marks((self._mark_of_guard, self._mark_of_trial))
        for name in (self._mark_of_guard, self._mark_of_trial):
            os.environ.pop(name, None)
        # Compiled files would land in the user's folders; a trial's land in its own.
        sys.dont_write_bytecode = True
        self._guard = _load_guard(orders["guard"])
        before = set(sys.modules)
        with _bounded(float(orders["limit_s"])):
            for name in orders["preload"]:
                importlib.import_module(name)
        loaded = set(sys.modules) - before
        if (name := _shadowed(loaded, orders["places"])) is not None:
            return f"{name} beside the script has the name of a library"
        self._changed = self._changes()
        if own := sorted(os.fsdecode(n) for n in self._changed if os.fsdecode(n) in orders["own"]):
            return f"importing {', '.join(orders['preload'])} sets {', '.join(own)}"
        for stream in (sys.stdout, sys.stderr):
            # Each trial would print the contents of the buffers.
            stream.flush()
        # Libraries with threads, such as OpenBLAS, end them before a fork and restart them when needed.
        os.waitpid(_fork_nothing(), 0)
        gc.collect()
        # The guard's collector would copy the pages that it shares with its trial.
        gc.freeze()
        if reason := self.unsafe(()):
            return reason
        send(self._channel, {"lent_bytes": _anonymous_bytes()})
        return ""

    def run(self) -> None:
        """Answer the launcher's requests; return in the process of a trial."""
        while True:
            try:
                request, fds = receive(self._channel)
                if request is None:
                    os._exit(0)
                if "reap" in request:
                    send(self._channel, {"status": self._reaped(int(request["reap"]))})
                elif self._forked(str(request["fork"]), fds):
                    return
            except (OSError, ValueError, KeyError):
                os._exit(1)

    def unsafe(self, fds: Iterable[int]) -> str:
        """Return why a fork would differ from a new process now; empty if it would not.

        Args:
            fds: Descriptors that are open on purpose.
        """
        if threads := _threads():
            return f"a library keeps threads ({', '.join(threads[:_SHOWN])})"
        if _children() - self._keepers:
            return "a library has started a process"
        torch = sys.modules.get("torch")
        for name in _ACCELERATORS:
            is_initialized = getattr(getattr(torch, name, None), "is_initialized", None)
            if is_initialized is not None and is_initialized():
                return f"a library has begun to use the accelerator ({name})"
        expected = {0, 1, 2, self._channel.fileno(), *fds}
        others = [target for fd, target in _open_files().items() if fd not in expected]
        return f"a library holds files open ({', '.join(others[:_SHOWN])})" if others else ""

    def _reaped(self, pid: int) -> int | None:
        """Return how a keeper has ended; None if it runs, or is no child of this process."""
        if pid not in self._keepers:
            return None
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        self._keepers.discard(pid)
        return status

    def _forked(self, uid: str, fds: Sequence[int]) -> bool:
        """Fork one trial and report it; return True in its process."""
        reason = self.unsafe(fds) if len(uid) <= MARK_CHARS else "its name is too long"
        pid = 0
        if not reason:
            try:
                pid = os.fork()
            except OSError as error:
                reason = str(error)
            else:
                if pid == 0:
                    self._become_keeper(uid, fds)
                    return True
                self._keepers.add(pid)
        for fd in fds:
            os.close(fd)
        send(self._channel, {"refused": reason} if reason else {"pid": pid})
        return False

    def _become_keeper(self, uid: str, fds: Sequence[int]) -> None:
        """Turn the new process into a trial's keeper, then its guard; return in the trial itself."""
        code = 1
        try:
            self._channel.close()
            os.setsid()
            orders, life, log, *_ = fds
            nothing = os.open(os.devnull, os.O_WRONLY)
            for fd, wanted in ((orders, 0), (nothing, 1), (log, 2)):
                os.dup2(fd, wanted)
                os.close(fd)
            os.chdir("/")
            self._put(self._mark_of_guard, uid)
            os.environ[self._mark_of_guard] = uid
            code = self._guard.main(life, self._become_script)
        except self._guard.IsScript:
            return
        except BaseException:
            traceback.print_exc()
        os._exit(code)

    def _put(self, name: str, text: str) -> None:
        assert self._marks is not None
        self._marks.put(name, text)

    def _become_script(self, orders: Mapping[str, Any]) -> None:
        """Turn this fork of a fork into the equivalent of a new process started with these orders."""
        self._put(self._mark_of_guard, "")
        self._put(self._mark_of_trial, str(orders["uid"]))
        if orders.get("enclosure") and os.geteuid() != 0:
            _drop_capabilities()
        self._set_environment(orders["env"])
        signal.set_wakeup_fd(-1)
        # As set by Python at its start.
        for number, handler in (
            (signal.SIGPIPE, signal.SIG_IGN),
            (signal.SIGXFSZ, signal.SIG_IGN),
            (signal.SIGINT, signal.default_int_handler),
        ):
            signal.signal(number, handler)
        _reseed()
        sys.dont_write_bytecode = not self._writes_bytecode
        gc.unfreeze()
        for name in (__name__, "autotune.protocol.forking"):
            parent, _, last = name.rpartition(".")
            sys.modules.pop(name, None)
            vars(sys.modules[parent]).pop(last, None)
        # Last, as the guard takes the closing of one of them for a successful start.
        os.closerange(3, max([2, *_open_files()]) + 1)

    def _changes(self) -> dict[bytes, bytes | None]:
        """Return the environment changes made by Python's start and the libraries; None for removed."""
        own = {os.fsencode(n) for n in (FORKS_VARIABLE, self._mark_of_guard, self._mark_of_trial)}
        names = [*self._block, *(name for name in os.environb if name not in self._block)]
        return {
            name: os.environb.get(name)
            for name in names
            if name not in own and os.environb.get(name) != self._block.get(name)
        }

    def _set_environment(self, wanted: Mapping[str, str]) -> None:
        # The launcher's encoding of undecodable names, whatever this interpreter's is.
        found = {_bytes(name): _bytes(value) for name, value in wanted.items()}
        for name, value in self._changed.items():
            found.pop(name, None)
            if value is not None:
                found[name] = value
        os.environb.clear()
        os.environb.update(found)


class Marks:
    """Variables in the memory block that the kernel shows as this process's environment.

    The kernel writes the block at exec only; later changes are stored elsewhere. A forked process has its own
    copy of its parent's block, so the name of its trial is written into space reserved for it.

    Args:
        names: Variables that this process was started with, each with `BLANK` as its value.

    Raises:
        OSError: They cannot be written here.
    """

    def __init__(self, names: Sequence[str]) -> None:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        begin, end = int(fields[_ENV_START]), int(fields[_ENV_END])
        block = ctypes.string_at(begin, end - begin) if 0 < begin < end else b""
        self._places: dict[str, int] = {}
        for name in names:
            at = (b"\0" + block).find(b"\0" + _bytes(f"{name}={BLANK}") + b"\0")
            if at < 0:
                message = f"there was no room for the mark {name}"
                raise OSError(message)
            self._places[name] = begin + at + len(name) + 1
            self.put(name, "")
            if _block().get(_bytes(name)) != b"":
                message = f"the mark {name} does not show"
                raise OSError(message)

    def put(self, name: str, text: str) -> None:
        """Write a mark in place of the previous one."""
        data = _bytes(text)[:MARK_CHARS]
        ctypes.memmove(self._places[name], data.ljust(MARK_CHARS, b"\0"), MARK_CHARS)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogateescape")


def _block() -> dict[bytes, bytes]:
    """Return this process's environment in ``/proc``; of two with one name the first, as in C."""
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    found: dict[bytes, bytes] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(name, value)
    return found


def _load_guard(folder: str) -> ModuleType:
    """Load the guard and its folder by path, under names that a script does not use."""
    kept = {name: sys.modules.pop(name) for name in _GUARD_PARTS if name in sys.modules}
    try:
        for name in _GUARD_PARTS:
            spec = importlib.util.spec_from_file_location(name, os.path.join(folder, f"{name}.py"))
            if spec is None or spec.loader is None:
                message = f"{folder} holds no {name}.py"
                raise OSError(message)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        return sys.modules["guard"]
    finally:
        for name in _GUARD_PARTS:
            sys.modules.pop(name, None)
        sys.modules.update(kept)


@contextlib.contextmanager
def _bounded(limit_s: float) -> Generator[None, None, None]:
    """Have the kernel end this process after a time limit, even if it hangs."""
    kept = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if kept is not None:
            signal.signal(signal.SIGALRM, kept)


def _die_with(launcher: int) -> None:
    """Have the kernel end this process with the thread that started it.

    The end of the connection does not suffice: a fork of the launcher's program keeps it open.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(0)


def _shadowed(loaded: set[str], places: Sequence[str]) -> str | None:
    """Return a user file that the script's own import would have found instead of a library; else None."""
    names = sorted({name.partition(".")[0] for name in loaded})
    for place in places:
        known = place in sys.path_importer_cache
        specs = [importlib.machinery.PathFinder.find_spec(name, [place]) for name in names]
        if not known:
            sys.path_importer_cache.pop(place, None)
        for name, spec in zip(names, specs, strict=True):
            origin = None if spec is None else spec.origin
            if origin and origin != getattr(sys.modules.get(name), "__file__", None):
                return origin
    return None


def _fork_nothing() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


def _threads() -> list[str]:
    """Return the names of this process's threads other than the main one."""
    found: list[str] = []
    for thread in os.listdir("/proc/self/task"):
        if int(thread) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            found.append(file.read().strip())
    return found


def _children() -> set[int]:
    """Return the child processes; empty if the kernel does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return {int(word) for word in file.read().split()}
    except OSError:
        return set()


def _open_files() -> dict[int, str]:
    """Return descriptor -> target."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        # The descriptor used for the listing is closed again.
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _anonymous_bytes() -> int:
    """Return the memory that a trial shares with this process from its start, in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def _reseed() -> None:
    """Draw new random states, keys and names, as a new process does at its start."""
    random.seed()
    modules: Any = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "torch.random" in modules:
        modules["torch.random"].default_generator.seed()
    if "tempfile" in modules:
        # The folder belongs to the trial.
        modules["tempfile"].tempdir = modules["tempfile"]._name_sequence = None
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _drop_capabilities() -> None:
    """Drop the capabilities that exec would drop, for a user other than root in its own user namespace.

    Raises:
        OSError: The kernel refuses.
    """
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if library.capset(header, none) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")

# ruff: noqa: E501 (scripts as lines)
"""Trials that are forked are like trials that are started anew, and whoever dies, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.launch import fork_pool
from autotune.launch.fork_pool import Forks
from autotune.launch.guard import process_tree
from autotune.launch.process import LocalRunner
from autotune.launch.runner import TrialResult
from autotune.launch.workspace import runtime_library
from autotune.model.change import Change, Patch
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Failure, FailureKind, StartMode

pytestmark = pytest.mark.thorough

MINE = f"{os.getpid() % 2**24:06x}"

OBSERVES = """
import atexit, ctypes, faulthandler, gc, inspect, json, locale, multiprocessing, os, random, resource, signal
import sys, tempfile, threading, warnings

modules = sorted(sys.modules)
stack = [frame.f_code.co_name for frame in (record.frame for record in inspect.stack())]
folder = os.path.dirname(os.environ["AUTOTUNE_PLAN"])


def handler(number):
    found = signal.getsignal(number)
    return getattr(found, "__name__", repr(found))


def stream(name):
    one = getattr(sys, name)
    return [one.name, one.mode, one.encoding, one.errors, one.line_buffering, one.write_through, one.isatty(),
            one.seekable(), one.fileno(), type(one.buffer).__name__, one is getattr(sys, f"__{name}__")]


def files():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}").split(":")[0]
            found.append([int(number), target.replace(str(os.getpid()), "PID")])
        except OSError:
            pass
    return sorted(found)


def status(*names):
    with open("/proc/self/status") as file:
        return [line.split() for line in file if line.split(":")[0] in names]


def mark(pid, name):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = dict(e.partition(b"=")[::2] for e in file.read().split(b"\\0"))
    except PermissionError:
        # Out of a user namespace, which a trial of an ordinary user is in, its guard is not to be looked at.
        return "hidden"
    return entries.get(name.encode(), b"").decode()


def in_a_fork():
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, mark(os.getpid(), "AUTOTUNE_TRIAL").encode())
        os._exit(0)
    os.wait()
    message = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    return message


def in_a_program():
    read, write = os.pipe()
    pid = os.posix_spawn("/usr/bin/env", ["env"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, encoding="utf-8", errors="replace") as file:
        return sorted(file.read().splitlines())


class C:
    getenv = ctypes.CDLL(None).getenv


C.getenv.restype = ctypes.c_char_p
seen = {
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "stack": stack,
    "main": [__name__, __file__, sorted(vars(sys.modules["__main__"])), __spec__ is None],
    "flags": [repr(sys.flags), sys.dont_write_bytecode, sys.getrecursionlimit(), repr(sys.warnoptions)],
    "hooks": [type(hook).__name__ if not isinstance(hook, type) else hook.__name__ for hook in sys.meta_path],
    "cwd": os.getcwd(), "env": list(os.environ.items()), "envb": len(os.environb),
    "c": [str(C.getenv(n)) for n in (b"AUTOTUNE_TRIAL", b"AUTOTUNE_GUARD", b"AUTOTUNE_FORKS", b"TMPDIR", b"NAMED")],
    "program": in_a_program(), "handlers": {int(n): handler(n) for n in signal.valid_signals()},
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))), "wakeup": signal.set_wakeup_fd(-1),
    "status": status("Umask", "CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
                     "Cpus_allowed", "SigIgn", "SigCgt", "SigBlk", "Threads", "Uid", "Gid", "Groups"),
    "files": files(), "limits": {n: list(resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith("RLIMIT_")},
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "oom": open("/proc/self/oom_score_adj").read(),
    "group": open("/proc/self/cgroup").read(),
    "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "threads": [len(os.listdir("/proc/self/task")), [t.name for t in threading.enumerate()]],
    "streams": [stream(n) for n in ("stdin", "stdout", "stderr")], "locale": [locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding()],
    "random": random.random(), "hash": hash("a text") if os.environ.get("PYTHONHASHSEED") else None,
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()], "timer": signal.getitimer(signal.ITIMER_REAL),
    "multiprocessing": [multiprocessing.get_start_method(allow_none=True), multiprocessing.current_process().name, multiprocessing.parent_process() is None, multiprocessing.process.ORIGINAL_DIR],
    "temp": tempfile.gettempdir(), "atexit": atexit._ncallbacks(), "filters": len(warnings.filters), "faults": faulthandler.is_enabled(),
    "marks": [mark(os.getpid(), "AUTOTUNE_TRIAL"), mark(os.getpid(), "AUTOTUNE_GUARD"), mark(os.getppid(), "AUTOTUNE_GUARD"), in_a_fork()],
}
drawn = {"key": bytes(multiprocessing.current_process().authkey).hex(), "modules": modules}
with open(os.path.join(folder, "seen.json"), "w") as file:
    json.dump({"seen": seen, "drawn": drawn}, file)
print("message", flush=True)
sys.stderr.write("wrote\\n")
"""

STEPS = """
import time
from autotune import sdk
for _ in range(400):
    time.sleep(0.005)
    sdk.step(samples=4)
"""


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Callable[..., LocalRunner]]:
    """Makes runners whose trials may be forked, from a server that loads nothing but Python."""
    made: list[LocalRunner] = []

    def make(**more: Any) -> LocalRunner:
        values = {"study_dir": tmp_path / "study", "loaded": (), "space_floor_bytes": 1, "grace_s": 0.5}
        made.append(LocalRunner(**{**values, **more}))
        if more.get("loaded") and made[-1].isolation != "overlay":
            pytest.skip("no overlay can be made here")
        return made[-1]

    yield make
    for runner in made:
        servers = servers_of(runner)
        runner.close()
        for server in servers:
            wait_for(lambda server=server: not Path(f"/proc/{server}").exists())


def servers_of(runner: LocalRunner) -> list[int]:
    return [server.pid for server in runner._forks._servers.values()]


def wait_for(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def forked(assignment: Assignment) -> Assignment:
    return replace(assignment, start=StartMode.FORK)


def only(runner: LocalRunner, assignment: Assignment) -> TrialResult:
    (ended,) = runner.run(assignment)
    assert process_tree.marked(assignment.uid) == []
    assert process_tree.marked(assignment.uid, process_tree.GUARD_VARIABLE) == []
    return ended


def observed(study: Path, uid: str) -> dict[str, Any]:
    """What a trial saw, without its own name."""
    text = (study / "trials" / uid / "seen.json").read_text()
    return json.loads(text.replace(uid, "UID"))


def compared(study: Path, runner: LocalRunner, make: Callable[[str], Assignment]) -> list[dict[str, Any]]:
    """A trial that was started anew and two that were forked, as they saw themselves."""
    found = []
    for n, start in enumerate((StartMode.COLD, StartMode.FORK, StartMode.FORK)):
        uid = f"t000{n}-f{MINE}"
        ended = only(runner, replace(make(uid), start=start))
        assert ended.start is start, (ended.notes, ended.outcome)
        trial = study / "trials" / uid
        assert (trial / "seen.json").exists(), (trial / "stderr.log").read_text()
        assert (trial / "stdout.log").read_text() == "message\n"
        assert (trial / "stderr.log").read_text() == "wrote\n"
        assert (trial / "guard.log").read_text() == ""
        found.append(observed(study, uid))
    return found


@pytest.mark.parametrize("isolation", ["overlay", "redirect"])
def test_a_forked_trial_sees_what_one_sees_that_is_started_anew(
    forks: Any, assignment: Any, tmp_path: Path, isolation: str
) -> None:
    runner = forks()
    if runner.isolation != isolation == "overlay":
        pytest.skip("no overlay can be made here")
    runner._isolation = isolation
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "user"),
        "PYTHONHASHSEED": "7",
        "NAMED": "äö",
        "PYTHONPATH": str(tmp_path),
    }
    argv = ("--a", "b c", "--password", "CANARY of mine")
    cold, *others = compared(
        tmp_path / "study", runner, lambda uid: assignment(OBSERVES, uid=uid, env=env, argv=argv)
    )
    assert cold["seen"]["argv"][1:] == list(argv)
    for one in others:
        for what, value in cold["seen"].items():
            assert one["seen"][what] == value, what
        assert set(cold["drawn"]["modules"]) <= set(one["drawn"]["modules"])
        more = {
            name.partition(".")[0] for name in set(one["drawn"]["modules"]) - set(cold["drawn"]["modules"])
        }
        assert more <= sys.stdlib_module_names
    assert len({each["drawn"]["key"] for each in (cold, *others)}) == 3


def test_a_module_is_forked_alike(forks: Any, assignment: Any, tmp_path: Path, user: Path) -> None:
    (user / "package").mkdir()
    (user / "package" / "__init__.py").write_text("")
    (user / "package" / "train.py").write_text(OBSERVES)

    def make(uid: str) -> Assignment:
        made = assignment("", uid=uid, module="package.train", options=("-u", "-B"))
        return replace(made, launch=replace(made.launch, script=str(user / "package" / "train.py")))

    cold, *others = compared(tmp_path / "study", forks(), make)
    for one in others:
        assert one["seen"] == cold["seen"]


def test_where_writes_are_redirected_nothing_is_imported_before_that(
    forks: Any, assignment: Any, tmp_path: Path
) -> None:
    runner = forks(isolation="redirect")
    runner._forks = Forks(tmp_path / "study", ("colorsys",))
    ended = only(runner, forked(assignment("import sys; sys.exit(3)", uid=f"t0140-f{MINE}")))
    assert ended.start is StartMode.COLD
    assert "no overlay" in ended.notes[0]


def test_a_forked_trial_is_measured(forks: Any, assignment: Any) -> None:
    runner = forks()
    for n in range(2):
        ended = only(runner, forked(assignment(STEPS, uid=f"t001{n}-f{MINE}", max_window_s=0.5)))
        assert isinstance(ended.outcome, Measurement), ended.outcome
        assert ended.start is StartMode.FORK
        assert ended.notes == ()
    assert len(servers_of(runner)) == 1


def test_nothing_is_forked_that_was_not_requested(forks: Any, assignment: Any) -> None:
    runner = forks()
    ended = only(runner, assignment("import sys; sys.exit(3)", uid=f"t0020-f{MINE}"))
    assert ended.start is StartMode.COLD
    assert servers_of(runner) == []


def test_every_environment_has_a_server_of_its_own_and_the_last_few_are_kept(
    forks: Any, assignment: Any
) -> None:
    runner, text = forks(), "import os; os._exit(3 if os.environ.get('N') == {!r} else 4)"

    def server(n: int, value: str, **more: Any) -> int:
        made = assignment(
            text.format(value), uid=f"t003{n}-f{MINE}", env={"PATH": os.environ["PATH"], "N": value}, **more
        )
        ended = only(runner, forked(made))
        assert ended.start is StartMode.FORK
        assert isinstance(ended.outcome, Failure)
        assert "3" in ended.outcome.message, "it sees its own variables, not another trial's"
        return servers_of(runner)[-1]

    first = [server(0, "a"), server(1, "b"), server(2, "a", options=("-B",)), server(3, "a")]
    assert first[3] == first[0]
    assert len(set(first)) == 3
    assert set(servers_of(runner)) == set(first)
    more = [server(4, "c"), server(5, "d")]
    assert set(servers_of(runner)) == {first[0], first[2], *more}
    wait_for(lambda: not Path(f"/proc/{first[1]}").exists())
    again = server(6, "b")
    assert again != first[1]
    assert first[2] not in servers_of(runner), "that one was not used for longest"


def test_servers_that_are_only_kept_take_little_of_the_memory(forks: Any, assignment: Any) -> None:
    free = [1 << 40]
    runner = forks(free_memory=lambda: free[0])
    text = "import os; os._exit(3)"
    for n, value in enumerate("ab"):
        only(runner, forked(assignment(text, uid=f"t004{n}-f{MINE}", env={"PATH": "/bin", "N": value})))
    assert len(servers_of(runner)) == 2
    free[0] = 1 << 20
    only(runner, forked(assignment(text, uid=f"t0049-f{MINE}", env={"PATH": "/bin", "N": "c"})))
    assert len(servers_of(runner)) == 1


ENDS = [
    ("import os; os.kill(os.getpid(), 11)", FailureKind.CRASH_SIGNAL),
    ("import os; os.kill(os.getpid(), 9)", FailureKind.OOM_HOST),
    ("import sys; sys.exit(3)", FailureKind.CRASH_EXIT),
    ("raise MemoryError('no')", FailureKind.OOM_HOST),
    ("1 / 0", FailureKind.CRASH_EXIT),
    ("import os; os._exit(0)", FailureKind.NO_METRIC),
]


@pytest.mark.parametrize(("text", "kind"), ENDS)
def test_a_forked_trial_ends_as_any_other(forks: Any, assignment: Any, text: str, kind: FailureKind) -> None:
    ended = only(forks(), forked(assignment(text, uid=f"t0040-f{MINE}")))
    assert ended.start is StartMode.FORK
    assert isinstance(ended.outcome, Failure)
    assert ended.outcome.kind is kind


def test_the_memory_limit_holds_for_a_forked_trial(forks: Any, assignment: Any) -> None:
    text = "import time\nheld = bytearray(400 << 20)\nheld[::4096] = b'x' * len(held[::4096])\ntime.sleep(60)"
    ended = only(forks(), forked(assignment(text, uid=f"t0050-f{MINE}", memory=200 << 20)))
    assert ended.start is StartMode.FORK
    assert isinstance(ended.outcome, Failure)
    assert ended.outcome.kind is FailureKind.OOM_HOST


def test_what_a_forked_trial_leaves_behind_is_ended(forks: Any, assignment: Any) -> None:
    text = f"""
import os, signal, sys, time
def daemon(then):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            then()
            while True: time.sleep(1)
        os._exit(0)
    os.wait()
def bare():
    os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(60)", "left-{MINE}"], {{}})
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
daemon(lambda: None)
daemon(bare)
daemon(deaf)
time.sleep(0.5)
os._exit(0)
"""
    ended = only(forks(), forked(assignment(text, uid=f"t0060-f{MINE}")))
    assert ended.start is StartMode.FORK
    left = [
        p
        for p in process_tree.all_pids()
        if f"left-{MINE}".encode() in _command(p) and not process_tree.is_zombie(p)
    ]
    assert left == []


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


class Beside:
    """A run in a thread of its own, which lives on after it: the server goes with the thread that started it."""

    def __init__(self, runner: LocalRunner, assignment: Assignment) -> None:
        self.ended: list[TrialResult] = []
        self._done, self._release = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._act, args=(runner, assignment))
        self._thread.start()
        trial = runner._study_dir / "trials" / assignment.uid
        wait_for(lambda: (trial / "begun").exists() or self._done.is_set())

    def _act(self, runner: LocalRunner, assignment: Assignment) -> None:
        try:
            self.ended.extend(runner.run(assignment))
        finally:
            self._done.set()
            self._release.wait(120)

    def __enter__(self) -> Beside:  # noqa: PYI034 (typing.Self came with Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self._release.set()
        self._thread.join()

    def one(self) -> TrialResult:
        """What it ended with."""
        assert self._done.wait(30)
        (ended,) = self.ended
        return ended


SLEEPS = """
import os, time
open(os.path.join(os.path.dirname(os.environ["AUTOTUNE_PLAN"]), "begun"), "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize("victim", ["server", "keeper", "guard", "script"])
def test_whoever_is_killed_nothing_is_left_and_the_next_trial_runs(
    forks: Any, assignment: Any, victim: str
) -> None:
    runner = forks()
    uid = f"t0070-f{MINE}"
    with Beside(runner, forked(assignment(SLEEPS, uid=uid))) as beside:
        (server,) = servers_of(runner)
        keeper, guard = [
            p
            for p in process_tree.descendants(server)
            if p in process_tree.marked(uid, process_tree.GUARD_VARIABLE)
        ]
        (script,) = process_tree.marked(uid)
        pids = {"server": server, "keeper": keeper, "guard": guard, "script": script}
        os.kill(pids[victim], signal.SIGKILL)
        one = beside.one()
        assert isinstance(one.outcome, Failure)
        assert one.start is StartMode.FORK
        assert one.outcome.kind is (FailureKind.OOM_HOST if victim == "script" else FailureKind.INFRA_LOST)
        for pid in (keeper, guard, script):
            wait_for(lambda pid=pid: process_tree.is_zombie(pid))
        again = only(runner, forked(assignment(STEPS, uid=f"t0071-f{MINE}", max_window_s=0.3)))
        assert isinstance(again.outcome, Measurement), again.outcome
        assert again.start is StartMode.FORK
        assert (servers_of(runner) == [server]) is (victim != "server")


def test_a_server_that_dies_again_and_again_is_given_up(forks: Any, assignment: Any) -> None:
    runner = forks()
    starts = []
    for n in range(4):
        ended = only(runner, forked(assignment("import os; os._exit(3)", uid=f"t008{n}-f{MINE}")))
        starts.append(ended.start)
        for server in servers_of(runner):
            os.kill(server, signal.SIGKILL)
            wait_for(lambda server=server: process_tree.is_zombie(server))
    assert starts == [StartMode.FORK, StartMode.FORK, StartMode.COLD, StartMode.COLD]
    assert "the fork server has died" in ended.notes[0]


def test_a_server_goes_with_its_launcher_even_while_it_loads(tmp_path: Path, user: Path) -> None:
    (tmp_path / "loads_for_long.py").write_text("import time\ntime.sleep(60)\n")
    text = f"""
import os, sys
from pathlib import Path
from autotune.model.trial import Launch
from autotune.launch import fork_pool as forking
from autotune.launch.workspace import runtime_library as library
env = {{"PATH": os.environ["PATH"], "PYTHONPATH": {str(tmp_path)!r}}}
launch = Launch(command=(), script={str(user / "train.py")!r}, argv=(), python=sys.executable, cwd={str(user)!r}, env=env)
folder = library.make(Path({str(tmp_path)!r}) / "lib")
server = forking.ForkServer(forking._key(launch, folder, ("loads_for_long",)), Path({str(tmp_path)!r}) / "forks")
print(server.pid, flush=True)
server.await_ready(1.5, bool)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    server = int(done.stdout)
    wait_for(lambda: process_tree.is_zombie(server), 5.0)


REFUSED = {
    "threads": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "keeps threads",
    ),
    "files": ("kept = open(__file__)", "holds files open"),
    "processes": ("import subprocess\nkept = subprocess.Popen(['sleep', '60'])", "has started a process"),
    "variables": ("import os\nos.environ['TMPDIR'] = '/elsewhere'", "sets TMPDIR"),
    "errors": ("1 / 0", "ZeroDivisionError"),
    "ends": ("import os\nos.write(2, b'no licence')\nos._exit(3)", "ended while it loaded: no licence"),
    "absent": (None, "No module named"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_beside_what_a_fork_does_not_survive_trials_are_started_anew(
    forks: Any, assignment: Any, tmp_path: Path, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / "heavy_library.py").write_text(text)
    runner = forks(loaded=("heavy_library",))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    for n in range(2):
        made = assignment("import sys; sys.exit(3)", uid=f"t009{n}-f{MINE}", env=env)
        ended = only(runner, forked(made))
        assert ended.start is StartMode.COLD
        assert isinstance(ended.outcome, Failure)
        assert ended.outcome.kind is FailureKind.CRASH_EXIT
        assert words in ended.notes[0]
        assert ended.notes[0].startswith("every trial starts in a new interpreter: ")


def test_a_module_of_the_users_under_the_name_of_a_library_is_no_case_for_a_fork(
    forks: Any, assignment: Any, tmp_path: Path, user: Path
) -> None:
    place = tmp_path / "site"
    place.mkdir()
    (place / "heavy_library.py").write_text("import small_library")
    (place / "small_library.py").write_text("")
    (user / "small_library.py").write_text("")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(place)}
    runner = forks(loaded=("heavy_library",))
    ended = only(runner, forked(assignment("import os; os._exit(3)", uid=f"t0100-f{MINE}", env=env)))
    assert ended.start is StartMode.COLD
    assert str(user / "small_library.py") in ended.notes[0]


def test_what_a_library_has_set_is_set_in_a_fork_too(forks: Any, assignment: Any, tmp_path: Path) -> None:
    (tmp_path / "heavy_library.py").write_text(
        "import os\nos.environ['OF_THE_LIBRARY'] = '1'\nos.environ.pop('NAMED')"
    )
    text = """
import json, os
with open(os.path.join(os.path.dirname(os.environ["AUTOTUNE_PLAN"]), "seen.json"), "w") as file:
    json.dump({name: os.environ.get(name) for name in ("OF_THE_LIBRARY", "NAMED", "TMPDIR")}, file)
"""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path), "NAMED": "1"}
    uid = f"t0110-f{MINE}"
    assert (
        only(forks(loaded=("heavy_library",)), forked(assignment(text, uid=uid, env=env))).start
        is StartMode.FORK
    )
    seen = observed(tmp_path / "study", uid)
    assert (seen["OF_THE_LIBRARY"], seen["NAMED"]) == ("1", None)
    assert seen["TMPDIR"].endswith("UID")


def test_a_request_to_stop_ends_the_wait_for_a_server(assignment: Any, tmp_path: Path) -> None:
    (tmp_path / "heavy_library.py").write_text("import time\ntime.sleep(60)")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    forks = Forks(tmp_path / "study", ("heavy_library",), ("heavy_library",))
    requested: list[float] = []

    def stopped() -> bool:
        requested.append(time.monotonic())
        return len(requested) > 3

    launch = assignment("", env=env).launch
    found = forks.server(launch, runtime_library.make(tmp_path / "lib"), within_s=30.0, stopped=stopped)
    assert found == "the search was stopped"
    assert forks._servers == {}
    assert requested[-1] - requested[0] < 10


def test_a_server_that_takes_too_long_is_given_up(assignment: Any, tmp_path: Path) -> None:
    (tmp_path / "heavy_library.py").write_text("import time\ntime.sleep(60)")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    forks = Forks(tmp_path / "study", ("heavy_library",), ("heavy_library",))

    launch, folder = assignment("", env=env).launch, runtime_library.make(tmp_path / "lib")
    for _ in range(2):
        found = forks.server(launch, folder, within_s=0.5, stopped=bool)
        assert "was not ready" in str(found)
    assert not (tmp_path / "study" / "forks").exists() or not list((tmp_path / "study" / "forks").iterdir())


def test_what_refuses_in_every_environment_is_not_requested_in_the_next(
    assignment: Any, tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    (tmp_path / "heavy_library.py").write_text(
        f"open({str(tried)!r}, 'a').write('1'); raise ImportError('no')"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    forks = Forks(tmp_path / "study", ("heavy_library",), ("heavy_library",))
    folder = runtime_library.make(tmp_path / "lib")
    for n in range(4):
        launch = assignment("", env={**env, "N": str(n)}).launch
        found = forks.server(launch, folder, within_s=30.0, stopped=bool)
        assert "no" in str(found)
    assert tried.read_text() == "1" * fork_pool.MOST_REFUSALS


def test_trials_that_compile_have_a_server_of_their_own_or_the_plain_one(
    assignment: Any, tmp_path: Path
) -> None:
    (tmp_path / "compiler.py").write_text("raise ImportError('no compiler here')")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    forks = Forks(tmp_path / "study", ("colorsys",), ("colorsys", "compiler"))

    launch, folder = assignment("", env=env).launch, runtime_library.make(tmp_path / "lib")
    change = Change(knob="compile_mode", value="default", delivered="default", spelling=Patch())
    try:
        found = forks.server(replace(launch, changes=(change,)), folder, within_s=30.0, stopped=bool)
        assert isinstance(found, fork_pool.ForkServer), found
        assert found.key.preload == ("colorsys",)
        assert forks.server(launch, folder, within_s=30.0, stopped=bool) is found
    finally:
        forks.close()


def test_the_first_that_compiles_takes_the_server_that_is_there_and_the_next_has_one_with_the_compiler(
    assignment: Any, tmp_path: Path
) -> None:
    (tmp_path / "compiler.py").write_text("")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    forks = Forks(tmp_path / "study", ("colorsys",), ("colorsys", "compiler"))
    folder = runtime_library.make(tmp_path / "lib")
    change = Change(knob="compile_mode", value="default", delivered="default", spelling=Patch())

    def preload(**variables: str) -> tuple[str, ...]:
        launch = replace(assignment("", env=env | variables).launch, changes=(change,))
        found = forks.server(launch, folder, within_s=30.0, stopped=bool)
        assert isinstance(found, fork_pool.ForkServer), found
        return found.key.preload

    try:
        plain = forks.server(assignment("", env=env).launch, folder, within_s=30.0, stopped=bool)
        assert isinstance(plain, fork_pool.ForkServer), plain
        assert [preload() for _ in range(3)] == [("colorsys",)] + 2 * [("colorsys", "compiler")]
        # Where no server is there anyway, it may as well be the better one.
        assert preload(N="1") == ("colorsys", "compiler")
    finally:
        forks.close()


TORCH = """
import hashlib, json, os, sys, threading
before = sorted(name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names)
import torch
import numpy
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
torch.manual_seed(3)
x = torch.randn(64, 64)
y = (x @ x).sum()
ys = numpy.random.rand(3)
seen = {
    "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "drawn": [float(x.double().sum()), float(y), ys.tolist()],
    "default": [str(torch.get_default_dtype()), torch.backends.mkldnn.is_available(), torch.cuda.is_initialized()],
    "openmp": torch.__config__.parallel_info().split("OMP_NUM_THREADS")[0][:400],
    "file": torch.__file__,
    "blas": [t for t in [float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum())]],
}
with open(os.path.join(os.path.dirname(os.environ["AUTOTUNE_PLAN"]), "seen.json"), "w") as file:
    json.dump({"seen": seen, "modules": sorted(sys.modules)}, file)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_trial_forked_from_torch_computes_as_one_that_imports_it(
    forks: Any, assignment: Any, tmp_path: Path
) -> None:
    runner, found, seconds = forks(loaded=fork_pool.LOADED), [], []
    for n, start in enumerate((StartMode.COLD, StartMode.FORK, StartMode.FORK)):
        uid = f"t012{n}-f{MINE}"
        ended = only(runner, replace(assignment(TORCH, uid=uid, setup_s=100, deadline_s=110), start=start))
        assert ended.start is start, ended.notes
        seconds.append(ended.seconds)
        found.append(observed(tmp_path / "study", uid))
    cold, *others = found
    for one in others:
        assert one["seen"] == cold["seen"]
        more = {m.partition(".")[0] for m in set(one["modules"]) - set(cold["modules"])}
        assert more <= sys.stdlib_module_names
        assert set(cold["modules"]) <= set(one["modules"])
    assert seconds[2] < seconds[0], "the last one had nothing to import"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trial_that_compiles_is_forked_from_a_server_with_the_compiler(
    forks: Any, assignment: Any, tmp_path: Path
) -> None:
    text = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4000):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
"""
    change = Change(knob="compile_mode", value="default", delivered="default", spelling=Patch())
    uid = f"t0130-f{MINE}"
    made = assignment(text, uid=uid, setup_s=200, deadline_s=240, max_window_s=0.5)
    made = replace(made, launch=replace(made.launch, changes=(change,)))
    ended = only(forks(loaded=fork_pool.LOADED), forked(made))
    assert ended.start is StartMode.FORK, ended.notes
    assert isinstance(ended.outcome, Measurement), ended.outcome

"""What every kind of fault shares: counting, forked children with a time limit, processes, trees of files."""

import contextlib
import hashlib
import json
import os
import random
import select
import shutil
import signal
import stat
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.launch.guard import process_tree
from autotune.launch.workspace import isolation
from autotune.launch.workspace.folders import temporary_folder
from autotune.model.config import Config
from autotune.model.trial import Assignment, Fidelity, Launch, Segment

TRIALS = Path(__file__).resolve().parents[1] / "trials"
Case = Mapping[str, Any]


@dataclass(kw_only=True)
class Count:
    """What became of the faults of one case.

    `survived` are those after which everything promised held; `lost` are finished trials or
    acknowledged events that were gone; `duplicated` are those that were there, or were run, twice;
    `survivors` are processes left over.
    """

    injected: int = 0
    survived: int = 0
    lost: int = 0
    duplicated: int = 0
    survivors: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def is_clean(self) -> bool:
        """Nothing promised was broken."""
        return (
            self.survived == self.injected > 0
            and not self.lost
            and not self.duplicated
            and not self.survivors
        )


def added(counts: list[Count]) -> Count:
    """The sum; facts are left out."""
    total = Count()
    for one in counts:
        for name in ("injected", "survived", "lost", "duplicated", "survivors", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        total.notes += one.notes
    return total


def dice(*parts: object) -> random.Random:
    """Random numbers that follow from the name of a case alone."""
    return random.Random("/".join(str(part) for part in parts))


class Child:
    """A forked copy of this process that runs one function and then ends.

    Forking spares the seconds that imports take; what the function changes is gone with the child.

    Args:
        action: Its result, as JSON, is the child's answer.
        log: What it prints goes there.
    """

    def __init__(self, action: Callable[[], Any], log: Path) -> None:
        self._read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; a child of ours calls none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.close(self._read)
                code = _act(action, log, write)
            finally:
                os._exit(code)
        os.close(write)
        self._message = b""
        self.status: int | None = None

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                self._take()
        return self.status is not None

    def _take(self) -> None:
        while select.select([self._read], [], [], 0)[0] and (data := os.read(self._read, 1 << 16)):
            self._message += data

    def wait(self, limit_s: float) -> bool:
        """Whether it ended in time."""
        until = time.monotonic() + limit_s
        pause = 0.002
        while not self.poll():
            self._take()
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        return True

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; nothing where it has ended."""
        if not self.poll():
            os.kill(self.pid, number)

    def close(self) -> None:
        """End it, if it has not ended, and let go of its answer's pipe."""
        self.kill()
        while not self.poll():
            time.sleep(0.005)
        with contextlib.suppress(OSError):
            os.close(self._read)

    def __enter__(self) -> "Child":  # noqa: PYI034 (typing.Self came with Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def answer(self) -> Any:
        """What the function returned; None where it did not come so far."""
        with contextlib.suppress(ValueError):
            return json.loads(self._message)
        return None

    @property
    def signal(self) -> int:
        """The signal that ended it, 0 for none."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else 0


def _act(action: Callable[[], Any], log: Path, write: int) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        data = json.dumps(action()).encode()
    except BaseException:  # noqa: BLE001 (printed, and the child ends)
        os.write(2, traceback.format_exc().encode())
        return 71
    while data:
        data = data[os.write(write, data) :]
    return 0


def carrying(token: str) -> list[int]:
    """Living processes of one trial: by their mark, their guard's mark, or the name on their command line."""
    marks = {
        f"{name}={token}".encode() for name in (process_tree.TRIAL_VARIABLE, process_tree.GUARD_VARIABLE)
    }
    found = []
    for pid in process_tree.all_pids():
        if pid == os.getpid():
            continue
        place = Path("/proc", str(pid))
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            variables = set((place / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if (token.encode() in words or marks & variables) and not process_tree.is_zombie(pid):
            found.append(pid)
    return found


def gone_after(token: str, limit_s: float, probe_s: float = 0.02) -> tuple[float, list[int]]:
    """Seconds until no process carries the token, and those that still do at the limit."""
    begun = time.monotonic()
    while left := carrying(token):
        if time.monotonic() - begun > limit_s:
            break
        time.sleep(probe_s)
    return time.monotonic() - begun, left


def end_all(token: str) -> None:
    """Kill what a case has left, so that it does not burden the next one."""
    for _ in range(100):
        left = carrying(token)
        if not left:
            return
        process_tree.send(left, signal.SIGKILL)
        time.sleep(0.02)


def until(condition: Callable[[], Any], limit_s: float) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def tree_hash(folder: Path) -> str:
    """One digest over names, kinds, permissions, times of change and contents below a folder."""
    digest = hashlib.sha256()
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        facts = f"{path.relative_to(folder)}\0{status.st_mode}\0{status.st_mtime_ns}\0{status.st_nlink}\0"
        digest.update(facts.encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(os.fsencode(path.readlink()))
        elif stat.S_ISREG(status.st_mode):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def users_tree(folder: Path) -> Path:
    """A home with a project in it, as it might belong to somebody; made anew where it is missing."""
    project = folder / "home" / "project"
    if not project.exists():
        (project / "runs").mkdir(parents=True)
        # Without it, a repository that this folder happens to lie in would be the project.
        (project / ".git").mkdir()
        (project / "train.py").write_text("print('this is never run')\n")
        (project / "ckpt").write_bytes(b"weights of last week" * 50)
        (project / "runs" / "log.csv").write_text("step,loss\n1,2.5\n")
        (project.parent / "x").write_text("a file beside the project\n")
        (project / "latest").symlink_to("runs/log.csv")
    return project


def assignment(
    project: Path, uid: str, *, setup_s: float = 30.0, deadline_s: float = 60.0, memory: int = 0
) -> Assignment:
    """A trial of this project, without any change."""
    launch = Launch(
        command=(sys.executable, str(project / "train.py")),
        script=str(project / "train.py"),
        argv=(),
        python=sys.executable,
        cwd=str(project),
        env={"PATH": os.environ["PATH"], "HOME": str(project.parent)},
    )
    fidelity = Fidelity(
        min_window_s=0.01,
        max_window_s=5.0,
        min_steps=3,
        target_width=0.05,
        setup_s=setup_s,
        deadline_s=deadline_s,
    )
    segment = Segment(trial=0, config=Config(), fidelity=fidelity)
    return Assignment(
        uid=uid, study_id="faults", attempt=1, launch=launch, segments=(segment,), memory_limit_bytes=memory
    )


def training(folder: Path, uid: str, *, window_s: float = 0.2) -> Assignment:
    """A trial of a small training by PyTorch, the script in a project of its own."""
    project = folder / "training"
    if not project.exists():
        (project / ".git").mkdir(parents=True)
        shutil.copy(TRIALS / "small.py", project / "train.py")
    made = assignment(project, uid, setup_s=120.0, deadline_s=180.0)
    (segment,) = made.segments
    fidelity = replace(segment.fidelity, min_window_s=window_s, max_window_s=2 * window_s, min_steps=5)
    launch = replace(made.launch, env={**made.launch.env, "OMP_NUM_THREADS": "1"})
    return replace(made, launch=launch, segments=(replace(segment, fidelity=fidelity),))


@contextlib.contextmanager
def closing_all(*descriptors: int) -> Iterator[None]:
    """Close descriptors at the end."""
    try:
        yield
    finally:
        for each in descriptors:
            os.close(each)


@contextlib.contextmanager
def trial_left_clean(uid: str) -> Iterator[Path]:
    """The trial's temporary folder; with its processes it is gone afterwards, whatever happened."""
    temporary = temporary_folder(uid)
    try:
        yield temporary
    finally:
        end_all(uid)
        isolation.remove(temporary)

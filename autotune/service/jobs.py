"""Where searches run: as processes of this machine, or as jobs of a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from autotune.service.job import BEGAN, ENDED, GRACE_S, LOCK, LOG, PLAN, STOP
from autotune.store.journal import is_locked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class JobState(Enum):
    """What is known of a job."""

    UNKNOWN = "unknown"
    """No job of that id was started."""
    PENDING = "pending"
    """The cluster has it and has not begun it."""
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """It was started and is gone without an exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What a job was seen to be; the exit code where it has ended, and the cluster's words where it waits."""

    state: JobState
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job to start.

    Args:
        id: ``autotune-<search>-<epoch>``; starting the same id twice starts one job.
        command: Words.
        cwd: Folder it runs in.
        env: Variables beside those that every job gets.
        gpus: Whole GPUs that it needs.
        image: Container image of its processes; empty for the nodes' own environment.
    """

    id: str
    command: Sequence[str]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    gpus: int = 0
    image: str = ""


class Jobs(ABC):
    """Starts, stops and observes jobs. Every method may be repeated after a crash."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Start a job, if none of its id was started.

        Raises:
            BackendError: The cluster cannot be reached.
        """

    @abstractmethod
    def seen(self, job_id: str) -> JobStatus:
        """Return what a job is.

        Raises:
            BackendError: The cluster cannot be reached.
        """

    @abstractmethod
    def stop(self, job_id: str) -> None:
        """Ask a job to end with the best so far, and end it after `GRACE_S`; harmless when repeated."""

    @abstractmethod
    def output(self, job_id: str, offset: int, limit: int) -> bytes:
        """Return a part of a job's output."""


PASSED: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
)
"""Variables of the service that a job gets: none that may hold a secret."""


class ProcessJobs(Jobs):
    """Jobs as processes of this machine, which outlive the service.

    A job has a folder. Its supervisor (`autotune.service.job`) holds a lock in it while it lives and writes
    the exit code last. So any service can read from the folder what a job is, however often it was killed.

    Args:
        folder: For the folders of jobs.
        python: Interpreter of the supervisors.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._folder, self._python = folder, python
        self._children = set[int]()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _reap(self) -> None:
        """Let supervisors go that have ended; those of an earlier service have another parent."""
        for pid in list(self._children):
            try:
                done, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done = pid
            if done:
                self._children.discard(pid)

    def start(self, job: Job) -> None:
        place = self._folder / job.id
        place.mkdir(exist_ok=True, mode=0o700)
        plan = place / PLAN
        if not plan.exists():
            part = place / f"{PLAN}.part"
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as stream:
                json.dump({"command": list(job.command), "cwd": job.cwd}, stream)
            part.replace(plan)
        if (place / BEGAN).exists() or _is_locked(place):
            return
        env = {name: value for name, value in os.environ.items() if name in PASSED} | dict(job.env)
        # Of two supervisors that start at once the lock lets one go on.
        nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        words = [self._python, "-m", "autotune.service.job", str(place)]
        self._children.add(os.posix_spawn(self._python, words, env, file_actions=nothing, setsid=True))

    def seen(self, job_id: str) -> JobStatus:
        self._reap()
        place = self._folder / job_id
        is_alive = _is_locked(place)
        try:
            return JobStatus(state=JobState.ENDED, exit_code=int((place / ENDED).read_text()))
        except (OSError, ValueError):
            pass
        if is_alive:
            return JobStatus(state=JobState.RUNNING)
        return JobStatus(state=JobState.LOST if (place / BEGAN).exists() else JobState.UNKNOWN)

    def stop(self, job_id: str) -> None:
        _ask_to_stop(self._folder / job_id)

    def output(self, job_id: str, offset: int, limit: int) -> bytes:
        return _part(self._folder / job_id / LOG, offset, limit)


def _ask_to_stop(place: Path) -> float:
    """Leave the file on which the supervisor of a job ends it; returns its age in seconds."""
    if not place.is_dir():
        return 0.0
    path = place / STOP
    # Its time is that of the first request: a touch would renew it.
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
    return max(0.0, time.time() - path.stat().st_mtime)


def _is_locked(place: Path) -> bool:
    """Return whether the supervisor of a job lives."""
    return is_locked(place, LOCK)


def _part(path: Path, offset: int, limit: int) -> bytes:
    """Return a part of a file; empty where it does not exist yet."""
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(limit)
    except OSError:
        return b""


class RayJobs(Jobs):
    """Jobs of a Ray cluster, by the HTTP interface of its head (``/api/jobs/``).

    Args:
        address: ``http://head:8265``.
        client: An `httpx.Client` with the cluster's token, if it has one.
        results: Folder on shared storage in which a job leaves its exit code: Ray's status says only whether
            it was 0.
        python: Interpreter with autotune on the nodes.
    """

    def __init__(self, address: str, client: Any, results: Path, python: str = sys.executable) -> None:
        self._base, self._client, self._results = address.rstrip("/"), client, results
        self._python = python
        results.mkdir(parents=True, exist_ok=True, mode=0o700)

    def start(self, job: Job) -> None:
        place = self._results / job.id
        place.mkdir(exist_ok=True, mode=0o700)
        inner = {"command": list(job.command), "cwd": job.cwd}
        (place / PLAN).write_text(json.dumps(inner), encoding="utf-8")
        body = {
            "entrypoint": shlex.join([self._python, "-m", "autotune.service.job", str(place)]),
            "submission_id": job.id,
            "entrypoint_num_cpus": 0,
            "runtime_env": {
                "env_vars": dict(job.env),
                **({"image_uri": job.image} if job.image else {}),
            },
            "metadata": {"job": job.id},
        }
        # Ray answers 500 for an id that exists, so only what it knows afterwards counts.
        answer = self._asked("POST", "/api/jobs/", json=body)
        if answer.status_code != 200 and not self._status(job.id)[0]:
            from autotune.errors import RayUnavailable

            raise RayUnavailable(f"the Ray cluster refused job {job.id}: {answer.text.splitlines()[0][:200]}")

    def seen(self, job_id: str) -> JobStatus:
        try:
            return JobStatus(
                state=JobState.ENDED, exit_code=int((self._results / job_id / ENDED).read_text())
            )
        except (OSError, ValueError):
            pass
        status, message = self._status(job_id)
        began = (self._results / job_id / BEGAN).exists()
        if not status:
            # A head that was restarted has forgotten its jobs; the driver of one may live on a node.
            if _is_locked(self._results / job_id):
                return JobStatus(state=JobState.RUNNING)
            return JobStatus(state=JobState.LOST if began else JobState.UNKNOWN)
        if status in ("PENDING", "RUNNING"):
            if began:
                return JobStatus(state=JobState.RUNNING)
            return JobStatus(state=JobState.PENDING, message=message if status == "PENDING" else "")
        return JobStatus(state=JobState.LOST, message=message)

    def stop(self, job_id: str) -> None:
        began = (self._results / job_id / BEGAN).exists()
        # Ray kills a job 3 s after its signal, too early for the best so far: only where the file is ignored.
        if not began or _ask_to_stop(self._results / job_id) > 2 * GRACE_S:
            self._asked("POST", f"/api/jobs/{job_id}/stop")

    def output(self, job_id: str, offset: int, limit: int) -> bytes:
        return _part(self._results / job_id / LOG, offset, limit)

    def _status(self, job_id: str) -> tuple[str, str]:
        """Return the status of a job and Ray's words for it; empty where Ray knows none of that id.

        Raises:
            RayUnavailable: Ray answers with an error of its own.
        """
        answer = self._asked("GET", f"/api/jobs/{job_id}")
        if answer.status_code == 404:
            return "", ""
        if answer.status_code != 200:
            from autotune.errors import RayUnavailable

            raise RayUnavailable(f"the Ray cluster at {self._base} answers {answer.status_code}")
        found = answer.json()
        return str(found["status"]), str(found.get("message") or "")[:500]

    def _asked(self, method: str, path: str, **more: Any) -> Any:
        import httpx

        from autotune.errors import RayUnavailable

        try:
            return self._client.request(method, self._base + path, timeout=10.0, **more)
        except httpx.HTTPError as error:
            raise RayUnavailable(
                f"the Ray cluster at {self._base} does not answer: {type(error).__name__}",
                hint="check --address; it is the address of the dashboard, http://HEAD:8265",
            ) from error

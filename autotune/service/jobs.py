"""Backends for searches: processes of this machine, or jobs of a Ray cluster."""

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
from autotune.store.study_lock import is_locked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class JobState(Enum):
    """State of a job."""

    UNKNOWN = "unknown"
    """No job of that id was started."""
    PENDING = "pending"
    """The cluster has accepted it but not started it."""
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """Started, but gone without an exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Observed state of a job, with the exit code if it has ended and the cluster's message if it waits."""

    state: JobState
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job to start.

    Args:
        id: ``autotune-<search>-<epoch>``; repeated starts with the same id start one job.
        command: Words of the command.
        cwd: Working directory.
        env: Variables in addition to those of every job.
        gpus: Number of whole GPUs.
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
        """Return the status of a job.

        Raises:
            BackendError: The cluster cannot be reached.
        """

    @abstractmethod
    def stop(self, job_id: str) -> None:
        """Request a job to end with the best so far, and end it after `GRACE_S`; repeats have no effect."""

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
"""Variables of the service that a job gets; none may hold a secret."""


class ProcessJobs(Jobs):
    """Jobs as processes of this machine, which outlive the service.

    A job has a folder. Its supervisor (`autotune.service.job`) holds a lock in it while it lives and writes
    the exit code last. Any service can therefore read the state of a job, however often it was killed.

    Args:
        folder: Parent of the jobs' folders.
        python: Interpreter of the supervisors.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._folder, self._python = folder, python
        self._children = set[int]()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _reap(self) -> None:
        """Reap ended supervisors; those of an earlier service have another parent."""
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
        # Of two supervisors that start at once, the lock lets only one continue.
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
    """Create the file that requests a stop from a job's supervisor, and return its age in seconds."""
    if not place.is_dir():
        return 0.0
    path = place / STOP
    # The file has the time of the first request, which a touch would renew.
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
    return max(0.0, time.time() - path.stat().st_mtime)


def _is_locked(place: Path) -> bool:
    """Return whether the supervisor of a job is alive."""
    return is_locked(place, LOCK)


def _part(path: Path, offset: int, limit: int) -> bytes:
    """Return a part of a file; empty if it does not exist yet."""
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
        results: Folder on shared storage for jobs' exit codes: Ray's status shows only whether the code was
            0.
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
        # Ray returns 500 for an existing id, so only the resulting status counts.
        answer = self._request("POST", "/api/jobs/", json=body)
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
            # A restarted head has lost its jobs, but the driver of one may be alive on a node.
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
        # Ray kills a job 3 s after its signal, too early for the best so far: used only if the file is
        # ignored.
        if not began or _ask_to_stop(self._results / job_id) > 2 * GRACE_S:
            self._request("POST", f"/api/jobs/{job_id}/stop")

    def output(self, job_id: str, offset: int, limit: int) -> bytes:
        return _part(self._results / job_id / LOG, offset, limit)

    def _status(self, job_id: str) -> tuple[str, str]:
        """Return the status of a job and Ray's message; empty if Ray has no job of that id.

        Raises:
            RayUnavailable: Ray returns an error of its own.
        """
        answer = self._request("GET", f"/api/jobs/{job_id}")
        if answer.status_code == 404:
            return "", ""
        if answer.status_code != 200:
            from autotune.errors import RayUnavailable

            raise RayUnavailable(f"the Ray cluster at {self._base} answers {answer.status_code}")
        found = answer.json()
        return str(found["status"]), str(found.get("message") or "")[:500]

    def _request(self, method: str, path: str, **more: Any) -> Any:
        import httpx

        from autotune.errors import RayUnavailable

        try:
            return self._client.request(method, self._base + path, timeout=10.0, **more)
        except httpx.HTTPError as error:
            raise RayUnavailable(
                f"the Ray cluster at {self._base} does not answer: {type(error).__name__}",
                hint="check --address; it is the address of the dashboard, http://HEAD:8265",
            ) from error

"""Jobs that run nothing, and requests for them."""

from autotune.service.jobs import Job, Jobs, JobState, JobStatus
from autotune.service.store import Submission


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self):
        self.now = 1_790_000_000.0

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        self.now += seconds


class FakeJobs(Jobs):
    """Keeps what was started; a test says how each went."""

    def __init__(self):
        self.started: list[Job] = []
        self.states: dict[str, JobStatus] = {}
        self.stops: list[str] = []
        self.failing: Exception | None = None

    def start(self, job):
        if self.failing:
            raise self.failing
        if job.id not in self.states:
            self.started.append(job)
            self.states[job.id] = JobStatus(state=JobState.RUNNING)

    def seen(self, job_id):
        if self.failing:
            raise self.failing
        return self.states.get(job_id, JobStatus(state=JobState.UNKNOWN))

    def stop(self, job_id):
        self.stops.append(job_id)

    def output(self, job_id, offset, limit):
        return b"trial 0\ntrial 1\n"[offset : offset + limit]

    def end(self, search_id, code, *, epoch=1):
        self.states[f"autotune-{search_id}-{epoch}"] = JobStatus(state=JobState.ENDED, exit_code=code)

    def lose(self, search_id, *, epoch=1):
        self.states[f"autotune-{search_id}-{epoch}"] = JobStatus(state=JobState.LOST)


def submission(key="key-00001", **changes):
    given = {
        "project": "default",
        "user": "ann",
        "idempotency_key": key,
        "request": {"command": ["python", "train.py"], "options": {}},
        "bundle": "0" * 64,
        "title": "train.py",
        "budget_s": 600.0,
        **changes,
    }
    return Submission(**given)

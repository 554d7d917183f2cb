"""Jobs as processes of this machine: started once, observed by anyone, outliving the service."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from autotune.service.jobs import BEGAN, Job, JobState, ProcessJobs

WAIT_S = 20.0


def until(check):
    end = time.monotonic() + WAIT_S
    while not (found := check()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


@pytest.fixture
def jobs(tmp_path):
    return ProcessJobs(tmp_path / "jobs")


def job(code, name="autotune-x-1", **more):
    return Job(id=name, command=[sys.executable, "-c", code], cwd="/", **more)


def seen(jobs, state, name="autotune-x-1"):
    return until(lambda: found if (found := jobs.seen(name)).state is state else None)


def test_a_job_runs_and_leaves_code_and_output(jobs):
    assert jobs.seen("autotune-x-1").state is JobState.UNKNOWN
    jobs.start(job("print('hello'); raise SystemExit(8)"))
    assert seen(jobs, JobState.ENDED).exit_code == 8
    assert jobs.output("autotune-x-1", 0, 100) == b"hello\n"
    assert jobs.output("autotune-x-1", 2, 2) == b"ll"


def test_starting_it_again_and_again_runs_it_once(jobs, tmp_path):
    code = f"import os, time; open({str(tmp_path / 'runs')!r}, 'a').write('x'); time.sleep(0.5)"
    for _ in range(5):
        jobs.start(job(code))
    seen(jobs, JobState.ENDED)
    jobs.start(job(code))
    time.sleep(0.3)
    assert (tmp_path / "runs").read_text() == "x"


def test_a_job_that_is_stopped_before_its_supervisor_has_begun_does_not_run(jobs, tmp_path):
    folder = tmp_path / "jobs" / "autotune-x-1"
    folder.mkdir()
    jobs.stop("autotune-x-1")
    assert jobs.seen("autotune-x-1").state is JobState.UNKNOWN
    jobs.start(job(f"open({str(tmp_path / 'runs')!r}, 'w')"))
    assert seen(jobs, JobState.ENDED).exit_code == 128 + signal.SIGTERM
    assert not (tmp_path / "runs").exists()


def test_another_service_sees_the_same(jobs, tmp_path):
    jobs.start(job("import time; time.sleep(30)"))
    seen(jobs, JobState.RUNNING)
    other = ProcessJobs(tmp_path / "jobs")
    assert other.seen("autotune-x-1").state is JobState.RUNNING
    began = tmp_path / "jobs" / "autotune-x-1" / BEGAN
    until(began.exists)
    other.stop("autotune-x-1")
    assert seen(jobs, JobState.ENDED).exit_code == 128 + signal.SIGTERM


def test_a_job_whose_supervisor_is_killed_is_lost_and_its_process_ends(jobs, tmp_path):
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    jobs.start(job(code))
    pid = int(until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text()))
    supervisor = int((tmp_path / "jobs" / "autotune-x-1" / BEGAN).read_text())
    os.kill(supervisor, signal.SIGKILL)
    seen(jobs, JobState.LOST)

    def gone():
        try:
            return "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]
        except OSError:
            return True

    until(gone)


def test_a_job_gets_no_secret_of_the_service(jobs, monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    jobs.start(job("import os, json; print(json.dumps(dict(os.environ)))", env={"MINE": "1"}))
    seen(jobs, JobState.ENDED)
    env = json.loads(jobs.output("autotune-x-1", 0, 100_000))
    assert env["MINE"] == "1"
    assert "DATABASE_PASSWORD" not in env


def test_what_a_job_leaves_behind_does_not_hold_it_open(jobs):
    child = "import time; time.sleep(5)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); print('done')"
    jobs.start(job(code))
    assert seen(jobs, JobState.ENDED).exit_code == 0


def test_a_command_that_does_not_exist_ends_with_a_message(jobs):
    jobs.start(Job(id="autotune-x-1", command=["/nothing/here"], cwd="/"))
    assert seen(jobs, JobState.ENDED).exit_code == 70
    assert b"could not be started" in jobs.output("autotune-x-1", 0, 1000)

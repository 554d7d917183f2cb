"""Jobs of a Ray cluster: what its HTTP interface answers, and a real cluster whose nodes come and go."""

import contextlib
import fcntl
import json
import sys
import time
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "service"))
import ray_nodes

from autotune.errors import RayUnavailable
from autotune.service.job import BEGAN, ENDED, GRACE_S, LOCK, STOP
from autotune.service.jobs import Job, JobState, RayJobs

ID = "autotune-X-1"


@pytest.fixture
def ray(tmp_path):
    """Jobs over an interface that answers as a test says; `requested` lists its requests."""

    class Ray:
        def __init__(self):
            self.answers = {("GET", f"/api/jobs/{ID}"): (404, {})}
            self.requested = []

        def answer(self, request):
            self.requested.append((request.method, request.url.path))
            found = self.answers[request.method, request.url.path]
            if isinstance(found, Exception):
                raise found
            return httpx.Response(found[0], json=found[1])

    ray = Ray()
    with httpx.Client(transport=httpx.MockTransport(ray.answer)) as client:
        ray.jobs = RayJobs("http://head:8265/", client, tmp_path / "jobs")
        ray.folder = tmp_path / "jobs" / ID
        yield ray


def status(ray, word, message=""):
    ray.answers["GET", f"/api/jobs/{ID}"] = (200, {"status": word, "message": message})


def test_a_job_takes_no_cpu_of_its_own_and_runs_under_the_supervisor(ray):
    bodies = []
    ray.answer = None
    client = httpx.Client(
        transport=httpx.MockTransport(
            lambda request: bodies.append(json.loads(request.content)) or httpx.Response(200, json={})
        )
    )
    jobs = RayJobs("http://head:8265", client, ray.folder.parent, python="/opt/python")
    jobs.start(Job(id=ID, command=["a", "b c"], cwd="/code", env={"X": "1"}, image="docker://team/x"))
    assert bodies[0]["submission_id"] == ID
    assert bodies[0]["entrypoint"] == f"/opt/python -m autotune.service.job {ray.folder}"
    assert bodies[0]["entrypoint_num_cpus"] == 0
    assert bodies[0]["runtime_env"] == {"env_vars": {"X": "1"}, "image_uri": "docker://team/x"}
    assert json.loads((ray.folder / "job.json").read_text()) == {"command": ["a", "b c"], "cwd": "/code"}


def test_a_job_that_ray_has_already_is_started_and_a_refused_one_is_named(ray):
    ray.answers["POST", "/api/jobs/"] = (500, "exists")
    status(ray, "RUNNING")
    ray.jobs.start(Job(id=ID, command=["a"], cwd="/"))
    ray.answers["GET", f"/api/jobs/{ID}"] = (404, {})
    with pytest.raises(RayUnavailable, match=f"refused job {ID}"):
        ray.jobs.start(Job(id=ID, command=["a"], cwd="/"))


@pytest.mark.parametrize(
    ("word", "has_begun", "state"),
    [
        ("", False, JobState.UNKNOWN),
        ("", True, JobState.LOST),
        ("PENDING", False, JobState.PENDING),
        ("RUNNING", False, JobState.PENDING),
        ("RUNNING", True, JobState.RUNNING),
        ("STOPPED", True, JobState.LOST),
        ("FAILED", False, JobState.LOST),
    ],
)
def test_what_ray_and_the_jobs_folder_show_gives_its_state(ray, word, has_begun, state):
    ray.folder.mkdir()
    if has_begun:
        (ray.folder / BEGAN).write_text("1")
    if word:
        status(ray, word, "no node has 8 GPUs")
    found = ray.jobs.seen(ID)
    assert found.state is state
    assert bool(found.message) == (word in ("PENDING", "STOPPED", "FAILED"))
    (ray.folder / ENDED).write_text("8")
    assert (ray.jobs.seen(ID).state, ray.jobs.seen(ID).exit_code) == (JobState.ENDED, 8)


def test_a_job_that_a_new_head_does_not_know_and_that_lives_is_running(ray):
    ray.folder.mkdir()
    (ray.folder / BEGAN).write_text("1")
    with (ray.folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ray.jobs.seen(ID).state is JobState.RUNNING
    assert ray.jobs.seen(ID).state is JobState.LOST


@pytest.mark.parametrize("found", [httpx.ConnectError("no"), (502, {}), httpx.ReadTimeout("slow")])
def test_a_cluster_that_does_not_answer_is_named_with_what_to_check(ray, found):
    ray.answers["GET", f"/api/jobs/{ID}"] = found
    with pytest.raises(RayUnavailable, match="http://head:8265"):
        ray.jobs.seen(ID)


def test_a_stop_goes_by_file_first_and_by_ray_where_that_is_ignored(ray):
    import os

    ray.answers["POST", f"/api/jobs/{ID}/stop"] = (200, {})
    ray.folder.mkdir()
    ray.jobs.stop(ID)
    assert ray.requested == [("POST", f"/api/jobs/{ID}/stop")], "nothing runs that could read the file"
    (ray.folder / BEGAN).write_text("1")
    ray.requested.clear()
    ray.jobs.stop(ID)
    assert (ray.requested, (ray.folder / STOP).exists()) == ([], True)
    past_s = time.time() - 3 * GRACE_S
    os.utime(ray.folder / STOP, (past_s, past_s))
    ray.jobs.stop(ID)
    assert ray.requested == [("POST", f"/api/jobs/{ID}/stop")]


# -- a real cluster ---------------------------------------------------------------------------------

ON_RAY = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def marked(test):
    for mark in ON_RAY:
        test = mark(test)
    return test


@pytest.fixture
def cluster():
    if ray_nodes.ray_command() is None:
        pytest.skip("the Ray of this environment has no Jobs server: pip install 'ray[default]'")
    found = ray_nodes.Cluster()
    found.start_head(cpus=0)
    yield found
    found.close()


@pytest.fixture
def http():
    with httpx.Client() as found:
        yield found


def until(check, wait_s=120.0):
    end = time.monotonic() + wait_s
    while not (found := check()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.5)
    return found


def reach(jobs, state):
    def there():
        with contextlib.suppress(RayUnavailable):
            found = jobs.seen(ID)
            return found if found.state is state else None

    return until(there)


@marked
def test_a_real_cluster_runs_a_job_once_stops_it_and_forgets_it_with_its_head(cluster, http, tmp_path):
    jobs = RayJobs(cluster.address, http, tmp_path / "jobs")
    runs = tmp_path / "runs"
    code = f"open({str(runs)!r}, 'a').write('x'); import time; time.sleep(300)"
    for _ in range(2):
        jobs.start(Job(id=ID, command=[sys.executable, "-c", code], cwd="/"))
    reach(jobs, JobState.RUNNING)
    until(runs.exists)
    cluster.kill(cluster.head)
    with pytest.raises(RayUnavailable, match="does not answer"):
        jobs.seen(ID)
    cluster.start_head(cpus=0)
    reach(jobs, JobState.LOST)
    assert runs.read_text() == "x"
    again = Job(id=ID.replace("-1", "-2"), command=[sys.executable, "-c", code], cwd="/")
    jobs.start(again)
    until(lambda: jobs.seen(again.id).state is JobState.RUNNING)
    until(lambda: runs.read_text() == "xx")
    jobs.stop(again.id)
    ended = until(lambda: found if (found := jobs.seen(again.id)).exit_code is not None else None)
    assert ended.exit_code == 143


@marked
def test_a_search_whose_resources_never_come_fails_with_what_it_needs(cluster, tmp_path):
    from stand import FINAL, Stand

    words = ["--address", cluster.address, "--ray-address", f"127.0.0.1:{cluster.port}"]
    with Stand(tmp_path, *words, on_ray=True) as stand:
        ended = stand.reach(stand.submit(trials=3).id, *FINAL)
    assert ended["state"] == "failed"
    assert "no trial could start within 60 s: it needs 1 CPU, free are none" in ended["reason"]

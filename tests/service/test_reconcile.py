"""Every state, every thing that can be seen of a job, and a service that is killed between any two steps."""

import json

import pytest
from service_fakes import submission

from autotune.errors import RayUnavailable
from autotune.service import reconcile
from autotune.service.jobs import JobState, JobStatus
from autotune.service.progress import result_of
from autotune.service.reconcile import MOST_LOSSES, SILENT_S, Reconciler
from autotune.service.states import SearchState


@pytest.fixture
def submit(database):
    def call(number=1, **changes):
        return database.submit(submission(key=f"key-{number:05d}", **changes))[0].id

    return call


def states(database):
    return {row.id: row.state for row in database.searches()}


def test_a_search_starts_runs_and_ends(database, jobs, reconciler, submit):
    one = submit()
    reconciler.tick()
    assert [job.id for job in jobs.started] == [f"autotune-{one}-1"]
    command = jobs.started[0].command
    assert command[1:4] == ["-m", "autotune", "search"]
    assert command[-3:] == ["--", "python", "train.py"]
    assert states(database)[one] == "starting"
    reconciler.tick()
    assert states(database)[one] == "running"
    jobs.end(one, 0)
    reconciler.tick()
    row = database.search(one)
    assert (row.state, row.reason, row.exit_code) == ("succeeded", "faster: a gain is confirmed", 0)


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, "succeeded"), (1, "succeeded"), (8, "succeeded"), (3, "failed"), (4, "failed"), (99, "failed")],
)
def test_the_exit_code_gives_state_and_reason(database, jobs, reconciler, submit, code, state):
    one = submit()
    reconciler.tick()
    jobs.end(one, code)
    reconciler.tick()
    row = database.search(one)
    assert row.state == state
    assert row.reason


def test_a_service_that_was_killed_before_the_start_starts_the_job_once(database, jobs, reconciler, submit):
    one = submit()
    database.move(one, SearchState.QUEUED, SearchState.STARTING, "x")
    reconciler.tick()
    reconciler.tick()
    assert len(jobs.started) == 1
    assert states(database)[one] == "running"


def test_a_service_that_was_killed_behind_the_start_adopts_the_job(database, jobs, reconciler, submit):
    one = submit()
    reconciler.tick()
    database.move(one, SearchState.STARTING, SearchState.RUNNING, "x")
    jobs.end(one, 1)
    reconciler.tick()
    assert states(database)[one] == "succeeded"
    assert len(jobs.started) == 1


def test_a_lost_job_is_resumed_in_a_new_life_and_given_up_at_last(database, jobs, reconciler, submit):
    one = submit()
    for epoch in range(1, MOST_LOSSES + 2):
        reconciler.tick()
        jobs.lose(one, epoch=epoch)
        reconciler.tick()
    row = database.search(one)
    assert (row.state, row.epoch) == ("failed", MOST_LOSSES + 1)
    assert [job.id for job in jobs.started] == [f"autotune-{one}-{n}" for n in range(1, MOST_LOSSES + 2)]
    assert "lost" in row.reason


def test_a_search_stopped_by_the_cluster_is_resumed(database, jobs, reconciler, submit):
    one = submit()
    reconciler.tick()
    jobs.end(one, 75)
    reconciler.tick()
    assert database.search(one).epoch == 2, "it was started again at once"


def test_cancelling_keeps_the_best_so_far(database, jobs, reconciler, submit):
    one = submit()
    reconciler.tick()
    reconciler.tick()
    database.move(one, SearchState.RUNNING, SearchState.CANCELLING, "cancelled by ann")
    reconciler.tick()
    assert jobs.stops == [f"autotune-{one}-1"]
    jobs.end(one, 75)
    reconciler.tick()
    row = database.search(one)
    assert (row.state, row.reason) == ("cancelled", "cancelled, with the best so far")


def test_a_search_cancelled_before_its_job_has_begun_stops_the_job_that_may_still_begin(
    database, jobs, reconciler, submit
):
    one = submit()
    reconciler.tick()
    del jobs.states[f"autotune-{one}-1"]
    database.move(one, SearchState.STARTING, SearchState.CANCELLING, "cancelled by ann")
    reconciler.tick()
    assert jobs.stops == [f"autotune-{one}-1"]
    assert states(database)[one] == "cancelled"


def test_a_search_that_ends_while_it_is_cancelled_keeps_its_answer(database, jobs, reconciler, submit):
    one = submit()
    reconciler.tick()
    database.move(one, SearchState.STARTING, SearchState.CANCELLING, "x")
    jobs.end(one, 0)
    reconciler.tick()
    assert states(database)[one] == "succeeded"


def test_a_preempted_search_gives_way_and_resumes(database, jobs, reconciler, submit):
    low = [submit(n, priority=10, is_preemptible=True) for n in (1, 2)]
    reconciler.tick()
    reconciler.tick()
    high = submit(3, priority=90)
    reconciler.tick()
    victim = next(one for one in low if states(database)[one] == "preempting")
    reconciler.tick()
    assert jobs.stops[-1] == f"autotune-{victim}-1"
    jobs.end(victim, 75)
    reconciler.tick()
    assert states(database)[high] == "starting"
    assert states(database)[victim] == "queued"
    reconciler.tick()
    jobs.end(high, 0)
    reconciler.tick()
    assert database.search(victim).epoch == 2
    assert jobs.started[-1].id == f"autotune-{victim}-2"


def test_a_cluster_that_is_away_changes_nothing(database, jobs, reconciler, submit):
    one = submit()
    reconciler.tick()
    reconciler.tick()
    jobs.failing = RayUnavailable("the head is away")
    with pytest.raises(RayUnavailable):
        reconciler.tick()
    assert states(database)[one] == "running"
    jobs.failing = None
    jobs.end(one, 0)
    reconciler.tick()
    assert states(database)[one] == "succeeded"


def test_queued_searches_carry_position_and_reason(database, jobs, reconciler, submit):
    found = [submit(n) for n in (1, 2, 3, 4)]
    reconciler.tick()
    assert database.search(found[2]).reason == "position 1: 2 of 2 slots in use"
    assert database.search(found[3]).reason == "position 2: 1 search ahead; 2 of 2 slots in use"


def test_an_option_that_clients_may_not_set_fails_the_search_with_its_name(
    database, jobs, reconciler, submit
):
    one = submit(request={"command": ["python", "x.py"], "options": {"address": "evil"}})
    reconciler.tick()
    row = database.search(one)
    assert (row.state, jobs.started) == ("failed", [])
    assert "--address" in row.reason


def test_a_journal_that_exists_is_resumed(database, jobs, reconciler, place, submit, monkeypatch):
    from journaled import journaled

    one = submit()
    monkeypatch.setenv("AUTOTUNE_HOME", str(place.home(one)))
    folder = journaled(place.search(one) / "code" / "train.py", label="x", stopped="signal")
    reconciler.tick()
    command = jobs.started[0].command
    assert command[1:5] == ["-m", "autotune", "resume", str(folder)]
    assert "--" not in command


def test_the_answer_of_an_ended_search_comes_from_its_journal_and_is_registered(
    database, jobs, reconciler, place, submit, monkeypatch
):
    from journaled import journaled

    one = submit()
    reconciler.tick()
    monkeypatch.setenv("AUTOTUNE_HOME", str(place.home(one)))
    journaled(place.search(one) / "code" / "train.py", label="x")
    place.best(one).write_text("schema: x\n")
    jobs.end(one, 0)
    reconciler.tick()
    row = database.search(one)
    assert (row.answer["outcome"], row.answer["config"]) == ("faster", "num_workers=4")
    assert row.answer["speedup"] > 1.0
    assert row.answer["interval"][0] > 1.0
    found = result_of(place.home(one))
    registered = database.best_config("default", found.script_sha256, found.hardware)
    assert registered.yaml == "schema: x\n"
    assert database.fleet()["searches_succeeded"] == 1


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_trials_that_a_lost_driver_did_not_report_are_read_from_its_journal(
    database, jobs, reconciler, submit, monkeypatch, is_cancelled
):
    trial = {"number": 1, "attempt": 1}
    monkeypatch.setattr(reconcile, "unsent_trials", lambda _home: [(7, trial)])
    one = submit()
    reconciler.tick()
    reconciler.tick()
    if is_cancelled:
        database.move(one, SearchState.RUNNING, SearchState.CANCELLING, "cancelled by ann")
    jobs.lose(one, epoch=1)
    reconciler.tick()
    assert states(database)[one] == ("cancelled" if is_cancelled else "starting")
    found = [(event.study_seq, event.data["trial"]) for event in database.events(one, kind="trial")]
    assert found == [(7, trial)]


def test_a_driver_that_falls_silent_is_stopped_and_its_search_resumes(database, jobs, place, submit):
    seconds = [0.0]
    reconciler = Reconciler(
        database, jobs, place, capacity=2, prepare=lambda row: None, options={}, environ={},
        now=lambda: seconds[0],
    )  # fmt: skip
    one = submit()
    reconciler.tick()
    reconciler.tick()
    database.report(one, epoch=1, facts={"trials": 1})
    reconciler.tick()
    seconds[0] += SILENT_S - 1
    reconciler.tick()
    assert jobs.stops == []
    seconds[0] += 2
    reconciler.tick()
    assert jobs.stops == [f"autotune-{one}-1"]
    assert "sent nothing for 10 min" in database.search(one).reason
    jobs.end(one, 137)
    reconciler.tick()
    assert (database.search(one).epoch, states(database)[one]) == (2, "starting")


def test_a_driver_that_never_reports_is_left_alone(database, jobs, place, submit):
    seconds = [0.0]
    reconciler = Reconciler(
        database, jobs, place, capacity=2, prepare=lambda row: None, options={}, environ={},
        now=lambda: seconds[0],
    )  # fmt: skip
    one = submit()
    for _ in range(3):
        reconciler.tick()
        seconds[0] += 2 * SILENT_S
    assert (jobs.stops, states(database)[one]) == ([], "running")


def test_a_job_that_the_cluster_holds_back_says_why(database, jobs, reconciler, submit):
    one = submit()
    reconciler.tick()
    jobs.states[f"autotune-{one}-1"] = JobStatus(state=JobState.PENDING, message="no node has 8 GPUs")
    reconciler.tick()
    row = database.search(one)
    assert (row.state, row.reason) == ("starting", "waits for the cluster: no node has 8 GPUs")


def test_the_report_file_follows_the_service_and_its_token_ends_with_the_search(
    database, jobs, reconciler, place, submit
):
    reconciler.reports.url = "http://127.0.0.1:1"
    one = submit()
    reconciler.tick()
    path = place.report(one)
    assert jobs.started[0].env["AUTOTUNE_SERVICE_REPORT"] == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    first = json.loads(path.read_text())
    assert first["url"] == f"http://127.0.0.1:1/api/v1/searches/{one}"
    assert database.identity(first["token"]).scope == "report"
    reconciler.tick()
    assert json.loads(path.read_text()) == first, "nothing is written twice"
    reconciler.reports.url = "http://127.0.0.1:2"
    reconciler.tick()
    second = json.loads(path.read_text())
    assert "127.0.0.1:2" in second["url"]
    jobs.end(one, 1)
    reconciler.tick()
    assert database.identity(first["token"]) is None
    assert database.identity(second["token"]) is None


def test_a_webhook_waits_for_running_and_the_end(database, jobs, reconciler, submit):
    one = submit(webhook="https://hooks.example/x")
    reconciler.tick()
    reconciler.tick()
    jobs.end(one, 1)
    reconciler.tick()
    assert [row.body["state"] for row in database.due_webhooks()] == ["running", "succeeded"]

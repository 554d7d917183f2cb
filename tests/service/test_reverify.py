"""Configurations are measured again, and one that no longer holds is marked stale."""

import pytest
from service_fakes import submission

from autotune.service import reconcile
from autotune.service.progress import Result
from autotune.service.reverify import queue_changed, queue_due
from autotune.service.states import SearchState


def result(verdict="faster", *, versions="torch 2.6", devices="cpu, H100"):
    return Result(
        summary={"verdict": verdict, "outcome": verdict},
        is_faster=verdict == "faster",
        script_sha256="a" * 64,
        hardware="b" * 32,
        speedup=1.5,
        devices=devices,
        versions=versions,
    )


@pytest.fixture
def found(database, jobs, reconciler, place, monkeypatch):
    """A search that has ended with a registered configuration; returns its id."""
    one, _ = database.submit(submission())
    reconciler.tick()
    place.search(one.id).mkdir(parents=True, exist_ok=True)
    place.best(one.id).write_text("schema: x\n")
    monkeypatch.setattr(reconcile, "result_of", lambda home: result())
    jobs.end(one.id, 0)
    reconciler.tick()
    assert database.best_config("default", "a" * 64, "b" * 32).search_id == one.id
    return one.id


def verified(database, jobs, reconciler, monkeypatch, verdict, code, **more):
    """Run the verification that waits, with this outcome; returns its row."""
    (row,) = [row for row in database.searches() if row.request.get("verify") and row.state == "queued"]
    reconciler.tick()
    monkeypatch.setattr(reconcile, "verified_of", lambda home: result(verdict, **more))
    jobs.end(row.id, code)
    reconciler.tick()
    return database.search(row.id)


def test_what_was_measured_long_ago_is_queued_once(database, found, clock):
    assert queue_due(database, older_than_s=3600, now_s=clock.now) == 0
    clock.pass_(3601)
    assert queue_due(database, older_than_s=3600, now_s=clock.now) == 1
    assert queue_due(database, older_than_s=3600, now_s=clock.now) == 0
    row = next(row for row in database.searches() if row.request.get("verify"))
    assert (row.request["verify"], row.priority, row.is_preemptible) == (found, 10, 1)


def test_its_job_verifies_the_first_best_yaml_with_the_same_command(
    database, found, clock, jobs, reconciler, place
):
    clock.pass_(3601)
    queue_due(database, older_than_s=3600, now_s=clock.now)
    reconciler.tick()
    command = jobs.started[-1].command
    assert command[1:5] == ["-m", "autotune", "verify", str(place.best(found))]
    assert command[-3:] == ["--", "python", "train.py"]


@pytest.mark.parametrize(
    ("verdict", "code", "is_stale"),
    [("faster", 0, False), ("no_difference", 1, True), ("slower", 7, True), ("failed", 1, False)],
)
def test_a_configuration_that_no_longer_holds_is_stale_and_not_applied(
    database, found, clock, jobs, reconciler, monkeypatch, verdict, code, is_stale
):
    clock.pass_(3601)
    queue_due(database, older_than_s=3600, now_s=clock.now)
    row = verified(database, jobs, reconciler, monkeypatch, verdict, code)
    assert row.state == SearchState.SUCCEEDED.value
    assert ("stale" in row.reason) == (code != 0)
    registered = database.best_config("default", "a" * 64, "b" * 32)
    assert (registered is None) == is_stale


def test_other_software_on_the_same_devices_queues_a_verification(database, found):
    assert queue_changed(database, "default", result(versions="torch 2.6")) == 0
    assert queue_changed(database, "default", result(versions="torch 2.7", devices="cpu, A100")) == 0
    assert queue_changed(database, "default", result(versions="torch 2.7")) == 1
    assert queue_changed(database, "default", result(versions="torch 2.7")) == 0


def test_a_search_that_ends_on_updated_software_has_earlier_findings_verified(
    database, found, jobs, reconciler, monkeypatch
):
    other, _ = database.submit(submission(key="key-00002"))
    reconciler.tick()
    monkeypatch.setattr(reconcile, "result_of", lambda home: result("nothing", versions="torch 2.7"))
    jobs.end(other.id, 1)
    reconciler.tick()
    assert [row.request.get("verify") for row in database.searches()].count(found) == 1


def test_a_verification_is_not_verified_itself(database, found, clock, jobs, reconciler, monkeypatch):
    clock.pass_(3601)
    queue_due(database, older_than_s=3600, now_s=clock.now)
    verified(database, jobs, reconciler, monkeypatch, "faster", 0)
    clock.pass_(3601)
    assert queue_due(database, older_than_s=3600, now_s=clock.now) == 1, "of the search alone"

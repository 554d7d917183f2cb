"""The database: one conformance suite on SQLite and on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from service_fakes import submission

from autotune.errors import StoreError, UsageError
from autotune.service.queue import Limits
from autotune.service.states import SearchState
from autotune.service.store import LEASE_S, Conflict, Database


def test_migrating_is_harmless_when_repeated(database):
    database.migrate()
    assert set(database.limits()) == {"default"}


def test_a_key_submits_once_whatever_happens(database):
    first, is_new = database.submit(submission())
    again, is_again_new = database.submit(submission())
    assert (is_new, is_again_new, again.id) == (True, False, first.id)
    with pytest.raises(Conflict, match="used for another request"):
        database.submit(submission(budget_s=60.0))
    other, is_new = database.submit(submission(user="bob"))
    assert is_new
    assert other.id != first.id


def test_the_same_key_from_many_threads_is_one_search(database):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: database.submit(submission())[0].id, range(16)))
    assert len(set(found)) == 1
    assert len(database.searches()) == 1


def test_a_search_of_an_unknown_project_is_refused(database):
    with pytest.raises(UsageError, match="no project"):
        database.submit(submission(project="nothing"))


def test_a_move_needs_the_state_that_was_seen(database):
    row, _ = database.submit(submission())
    assert database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "starting")
    assert not database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "starting"), (
        "somebody was faster"
    )
    found = database.search(row.id)
    assert (found.state, found.epoch) == ("starting", 1)
    with pytest.raises(Conflict):
        database.move(row.id, SearchState.STARTING, SearchState.CANCELLED, "not a move")


def test_of_many_that_move_a_search_one_does(database):
    row, _ = database.submit(submission())
    with ThreadPoolExecutor(8) as pool:
        moved = list(
            pool.map(lambda _: database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x"), range(8))
        )
    assert sum(moved) == 1
    assert database.search(row.id).epoch == 1


def test_time_is_counted_while_a_search_holds_capacity(database, clock):
    row, _ = database.submit(submission(gpus=2))
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x")
    clock.pass_(100)
    assert database.used_s() == {("default", "ann"): 200.0}
    database.move(row.id, SearchState.STARTING, SearchState.QUEUED, "lost")
    clock.pass_(50)
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x")
    clock.pass_(10)
    database.move(row.id, SearchState.STARTING, SearchState.SUCCEEDED, "done")
    assert database.search(row.id).used_s == pytest.approx(110.0)
    clock.pass_(48 * 3600)
    assert database.used_s() == {}


def test_every_change_is_an_event_and_events_are_read_from_anywhere_on(database):
    row, _ = database.submit(submission())
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "a")
    database.note(row.id, "progress", {"trials": 3}, answer={"trials": 3})
    events = database.events(row.id)
    assert [event.kind for event in events] == ["queued", "starting", "progress"]
    assert [event.kind for event in database.events(row.id, after=events[0].seq)] == ["starting", "progress"]
    assert database.search(row.id).answer == {"trials": 3}


def test_pages_of_searches_follow_a_cursor(database):
    made = [database.submit(submission(key=f"key-{n:05d}"))[0].id for n in range(5)]
    first = [row.id for row in database.searches(limit=2)]
    rest = [row.id for row in database.searches(limit=10, before=first[-1])]
    assert [*first, *rest] == made[::-1]


def test_a_token_is_stored_as_a_digest_and_expires(database, clock):
    token = database.create_token(user="ann", scope="read", expires_s=60)
    assert database.identity(token).user == "ann"
    assert not database.identity(token).allows("run")
    assert database.identity(token + "x") is None
    assert token not in str(database.tokens())
    clock.pass_(61)
    assert database.identity(token) is None


def test_a_revoked_token_is_void(database):
    token = database.create_token(user="ann")
    assert database.revoke_token(database.identity(token).token_id)
    assert database.identity(token) is None
    assert not database.revoke_token("nothing")


@pytest.mark.parametrize("given", [{"scope": "root"}, {"project": "nothing"}])
def test_a_token_needs_a_scope_and_a_project_that_exist(database, given):
    with pytest.raises(UsageError):
        database.create_token(user="ann", **given)


def test_quotas_are_stored(database):
    database.set_project("vision", Limits(weight=2.0, max_gpus=4))
    database.set_project("vision", Limits(weight=3.0))
    assert database.limits()["vision"] == Limits(weight=3.0)


def test_one_service_drives_a_database_until_its_lease_ends(database, clock):
    assert database.take_lease("a")
    assert database.take_lease("a")
    assert not database.take_lease("b")
    clock.pass_(LEASE_S + 1)
    assert database.take_lease("b")
    database.drop_lease("b")
    assert database.take_lease("a")


def test_the_registry_has_the_newest_configuration_of_a_script_on_a_machine(database, clock):
    for n, speedup in enumerate((1.5, 1.8)):
        row, _ = database.submit(submission(key=f"key-{n:05d}"))
        database.register(row, script_sha256="a" * 64, hardware="cpu", speedup=speedup, yaml=f"n: {n}")
        clock.pass_(1)
    assert database.best_config("default", "a" * 64, "cpu").yaml == "n: 1"
    assert database.best_config("default", "a" * 64, "gpu") is None
    assert database.best_config("other", "a" * 64, "cpu") is None


def test_the_fleet_report_counts_what_was_spent_and_saved(database, clock):
    row, _ = database.submit(submission(gpus=2))
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x")
    clock.pass_(3600)
    database.move(row.id, SearchState.STARTING, SearchState.SUCCEEDED, "done")
    database.register(row, script_sha256="a" * 64, hardware="gpu", speedup=1.5, yaml="")
    database.note_applied(row.id, "ann", "run-00001", 7200.0)
    found = database.fleet()
    assert found["tuning_slot_hours"] == pytest.approx(2.0)
    assert found["saved_slot_hours"] == pytest.approx(0.5 * 2 * 2)
    assert found["searches_succeeded"] == 1
    assert database.fleet("other")["tuning_slot_hours"] == 0


def test_old_searches_are_forgotten_and_running_ones_never(database, clock):
    done, _ = database.submit(submission(key="key-00001"))
    kept, _ = database.submit(submission(key="key-00002"))
    database.move(done.id, SearchState.QUEUED, SearchState.CANCELLED, "x")
    clock.pass_(100)
    assert database.forget(50) == [done.id]
    assert [row.id for row in database.searches()] == [kept.id]


def test_a_database_that_is_away_is_named(tmp_path):
    pytest.importorskip("psycopg")
    away = Database(f"postgresql+psycopg://a@/x?host={tmp_path}")
    with pytest.raises(StoreError, match="cannot be reached"):
        away.migrate()

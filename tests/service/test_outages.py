"""What the service depends on is away, full, old, new or hostile: a clear error, and nothing is lost."""

import hashlib
import os
import threading
from types import SimpleNamespace

import httpx
import pytest
import sqlalchemy as sa
from live_service import listening
from service_fakes import submission
from small_disks import small_disk  # noqa: F401 (a fixture)

from autotune.errors import RayUnavailable, StoreError, UsageError
from autotune.service import serve
from autotune.service.app import create_app
from autotune.service.bundles import Bundles
from autotune.service.client import Client
from autotune.service.packing import Packed, pack
from autotune.service.reconcile import Reconciler
from autotune.service.serve import Service, ServiceSettings
from autotune.service.states import SearchState
from autotune.service.store import LEASE_S, Database


@pytest.fixture
def served(database, bundles, jobs, place, reconciler):
    """The service on a port, and a client of an administrator that does not repeat what fails."""
    token = database.create_token(user="ann", scope="admin")
    with listening(create_app(database, bundles, jobs, place, reconciler, capacity=2)) as url:
        client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"})
        yield SimpleNamespace(url=url, token=token, get=client.get, post=client.post, put=client.put)
        client.close()


@pytest.fixture
def away(database):
    """Makes the database unreachable, and reachable again."""
    is_away = []

    def refuse(*_args):
        if is_away:
            raise database.engine.dialect.loaded_dbapi.OperationalError("connection refused")

    sa.event.listen(database.engine, "do_connect", refuse)

    def switch(*, to):
        is_away[:] = [True] if to else []
        database.engine.dispose()

    return switch


def round_of(reconciler):
    """One round of the reconciler's thread."""
    reconciler.stop()
    thread = threading.Thread(target=reconciler.run)
    reconciler._stopping.clear()
    reconciler._wake.set()
    tick = reconciler.tick

    def once():
        try:
            tick()
        finally:
            reconciler.stop()

    reconciler.tick = once
    thread.start()
    thread.join(30)
    reconciler.tick = tick


def test_a_database_that_is_gone_is_named_and_searches_go_on_when_it_is_back(
    served, database, jobs, reconciler, away
):
    row, _ = database.submit(submission())
    away(to=True)
    for path in ("/api/v1/searches", "/", "/readyz"):
        answer = served.get(path)
        assert (answer.status_code, answer.json()["title"]) == (
            503, "the service's database does not answer; try again",
        )  # fmt: skip
    assert served.get("/healthz").status_code == 200
    round_of(reconciler)
    assert reconciler.trouble == "the service's database does not answer"
    away(to=False)
    round_of(reconciler)
    assert reconciler.trouble == ""
    assert [job.id for job in jobs.started] == [f"autotune-{row.id}-1"]
    assert served.get("/readyz").status_code == 200


def test_a_cluster_that_is_gone_is_shown_on_the_page_and_to_probes(served, database, jobs, reconciler):
    row, _ = database.submit(submission())
    jobs.failing = RayUnavailable("the Ray cluster at http://head:8265 does not answer: ConnectError")
    round_of(reconciler)
    assert served.get("/readyz").json()["status"].startswith("the Ray cluster at http://head:8265")
    assert "does not answer" in served.get("/", headers={"accept": "text/html"}).text
    assert served.get(f"/api/v1/searches/{row.id}").json()["state"] == "starting"
    jobs.failing = None
    round_of(reconciler)
    round_of(reconciler)
    assert served.get(f"/api/v1/searches/{row.id}").json()["state"] == "running"
    assert len(jobs.started) == 1


def test_a_full_disk_refuses_an_upload_with_its_reason_and_leaves_nothing(
    served, small_disk, bundles, monkeypatch, tmp_path  # noqa: F811
):  # fmt: skip
    (tmp_path / "weights.bin").write_bytes(os.urandom(300_000))
    data, sha256 = pack(Packed(root=tmp_path, files=("weights.bin",), bytes=300_000))
    full = small_disk("full", 1 << 20, free_bytes=8192)
    monkeypatch.setattr(bundles, "_folder", full)
    answer = served.put(f"/api/v1/bundles/{sha256}", content=data)
    assert answer.status_code == 503
    assert "storage cannot be used" in answer.json()["title"]
    assert [path.name for path in full.iterdir()] == ["filler"]


def test_a_disk_that_is_full_when_a_search_starts_delays_that_search_and_no_other(database, jobs, place):
    full = []

    def prepare(row):
        if row.id in full:
            raise OSError(28, os.strerror(28))

    one, two = (database.submit(submission(key=f"key-{n:05d}"))[0].id for n in (1, 2))
    full.append(one)
    reconciler = Reconciler(database, jobs, place, capacity=2, prepare=prepare, options={}, environ={})
    for _ in range(2):
        round_of(reconciler)
    assert "storage cannot be used" in reconciler.trouble
    assert (database.search(one).state, database.search(two).state) == ("starting", "running")
    assert "cannot be started yet: the service's storage" in database.search(one).reason
    full.clear()
    round_of(reconciler)
    assert [job.id for job in jobs.started] == [f"autotune-{two}-1", f"autotune-{one}-1"]
    assert reconciler.trouble == ""


def test_a_clock_that_jumps_gives_no_negative_use_and_ends_no_search(database, clock, jobs, reconciler):
    one = database.submit(submission())[0].id
    reconciler.tick()
    for jump in (-7200, 90_000):
        clock.pass_(jump)
        reconciler.tick()
        assert database.search(one).state == "running"
        assert all(seconds >= 0 for seconds in database.used_s().values())
    clock.pass_(-95_000)
    jobs.end(one, 0)
    reconciler.tick()
    row = database.search(one)
    assert (row.state, row.used_s) == ("succeeded", 0.0)


def test_a_lease_of_a_dead_service_whose_clock_was_ahead_is_taken_after_it_was_watched(database, clock):
    clock.pass_(10 * LEASE_S)
    assert database.take_lease("dead")
    clock.pass_(-10 * LEASE_S)
    watched = database.lease()
    assert not database.take_lease("new")
    assert database.take_lease("new", dead=watched)
    assert database.lease()[0] == "new"


def test_a_second_service_on_one_database_refuses_and_the_first_keeps_it(tmp_path, monkeypatch):
    settings = ServiceSettings(root=tmp_path / "data")
    first = Service(settings)
    now = [0.0]

    def later():
        """Ten seconds pass at each look, in which the first service renews its lease."""
        now[0] += 10.0
        first.database.take_lease(first._owner)
        return now[0]

    monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=later, sleep=lambda _s: None))
    with pytest.raises(StoreError, match="another service drives this database") as refused:
        Service(settings)
    assert "one service per database" in refused.value.hint
    assert first.database.lease()[0] == first._owner


def test_a_database_of_a_newer_service_is_refused_with_what_to_do(database):
    with database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = 'v9999'"))
    with pytest.raises(StoreError, match="of another version") as refused:
        database.migrate()
    assert refused.value.hint == "start the newer autotune"


def test_a_database_that_cannot_be_reached_at_the_start_is_named_without_its_password(tmp_path):
    pytest.importorskip("psycopg")
    away = Database("postgresql+psycopg://autotune:hunter2secret@127.0.0.1:1/autotune")
    with pytest.raises(StoreError, match="cannot be reached") as refused:
        away.migrate()
    assert "hunter2secret" not in f"{refused.value} {refused.value.hint}"


def test_a_client_that_is_newer_than_the_service_is_refused_with_what_to_do(served, monkeypatch):
    assert Client(served.url, served.token).searches() == []
    monkeypatch.setattr("autotune.service.client.PROTOCOL", 99)
    with pytest.raises(UsageError, match=r"newer than the service.*update the service"):
        Client(served.url, served.token).searches()


def test_a_huge_bundle_is_refused_before_it_is_read(served, monkeypatch):
    monkeypatch.setattr("autotune.service.auth.MOST_BYTES", 1000)
    data = b"x" * 5000
    answer = served.put(f"/api/v1/bundles/{hashlib.sha256(data).hexdigest()}", content=data)
    assert (answer.status_code, "larger than 1000 bytes" in answer.json()["title"]) == (413, True)

    def endless():
        while True:
            yield b"x" * 4096

    with pytest.raises(httpx.HTTPError):
        served.put(f"/api/v1/bundles/{'0' * 64}", content=endless()).raise_for_status()


def test_a_bundle_that_has_gone_fails_its_search_with_what_to_do(database, jobs, place, tmp_path):
    stored = Bundles(tmp_path / "bundles")
    one = database.submit(submission())[0].id
    reconciler = Reconciler(
        database, jobs, place, capacity=1, options={}, environ={},
        prepare=lambda row: stored.unpack(row.bundle, place.code(row.id)),
    )  # fmt: skip
    reconciler.tick()
    row = database.search(one)
    assert (row.state, jobs.started) == (SearchState.FAILED.value, [])
    assert "is not on the service any more" in row.reason


def test_a_search_with_a_secret_in_its_command_is_refused_and_kept_nowhere(served, database):
    body = {"command": ["python", "train.py", "--api-key", "hunter2secret"], "budget_s": 600}
    answer = served.post("/api/v1/searches", json=body, headers={"idempotency-key": "key-00001"})
    assert (answer.status_code, "holds a secret" in answer.json()["title"]) == (422, True)
    assert "hunter2secret" not in answer.text
    assert database.searches() == []

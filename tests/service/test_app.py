"""The HTTP interface: deny by default, objects of other projects invisible, every call repeatable."""

import hashlib
import json
from types import SimpleNamespace

import httpx
import pytest
from service_fakes import submission

from autotune.service.app import create_app
from autotune.service.auth import COOKIE, PUBLIC, Policy
from autotune.service.packing import Packed, pack
from autotune.service.states import SearchState

POLICY = Policy(hosts=frozenset({"service"}), proxy_header="X-Forwarded-User", proxy_secret="proof")
SUBMIT = {"command": ["python", "train.py"], "budget_s": 600}


@pytest.fixture
def app(database, bundles, jobs, place, reconciler):
    return create_app(
        database, bundles, jobs, place, reconciler, policy=POLICY, capacity=2, price_per_hour=2.0
    )


@pytest.fixture
def call(app):
    """Makes a request; `token` may be None."""
    import anyio

    def request(method, path, *, token=None, **more):
        headers = {"host": "service", **more.pop("headers", {})}
        if token:
            headers["authorization"] = f"Bearer {token}"

        async def go():
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                return await client.request(method, path, headers=headers, **more)

        return anyio.run(go)

    return request


@pytest.fixture
def tokens(database):
    from autotune.service.queue import Limits

    database.set_project("other", Limits())
    return SimpleNamespace(
        read=database.create_token(user="ann", scope="read"),
        run=database.create_token(user="ann", scope="run"),
        admin=database.create_token(user="root", scope="admin"),
        other=database.create_token(user="bob", project="other", scope="run"),
    )


@pytest.fixture
def bundle(bundles, tmp_path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    data, sha256 = pack(Packed(root=tmp_path, files=("train.py",), bytes=17))
    bundles.put(sha256, data)
    return sha256


def routes(app):
    """Every route with its methods; path parameters filled."""
    for route in app._app.routes:
        path = route.path.replace("{search_id}", "X").replace("{sha256}", "0" * 64).replace("{token_id}", "X")
        for method in sorted(route.methods or ()):
            yield method, path.replace("{name}", "x")


def test_every_route_and_every_unknown_path_needs_a_token_but_healthz(app, call):
    found = list(routes(app))
    assert len(found) > 30
    answered = set()
    for method, path in [*found, *((m, "/nothing/here") for m in ("GET", "POST", "PUT", "DELETE", "PATCH"))]:
        for token in (None, "att_wrong"):
            answer = call(method, path, token=token)
            if answer.status_code != 401:
                answered.add((method, path, answer.status_code))
    assert answered == {("GET", "/healthz", 200), ("GET", "/login", 200), ("POST", "/login", 401)} - {
        ("POST", "/login", 401)
    }
    assert frozenset({"/healthz"}) == PUBLIC


def test_mutating_calls_need_scope_run_and_administration_scope_admin(app, call, tokens):
    for method, path in routes(app):
        if path in ("/healthz", "/login", "/logout"):
            continue
        is_admin = path.startswith(("/api/v1/tokens", "/api/v1/projects", "/api/v1/audit", "/admin"))
        if is_admin:
            assert call(method, path, token=tokens.run).status_code == 403, (method, path)
        if is_admin or method not in ("GET", "HEAD"):
            assert call(method, path, token=tokens.read).status_code == 403, (method, path)


@pytest.mark.parametrize("header", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_foreign_hosts_and_origins_are_refused(call, tokens, header):
    assert call("GET", "/api/v1/me", token=tokens.run, headers=header).status_code in (403, 421)


def test_a_user_named_by_the_proxy_counts_only_with_its_proof(call):
    named = {"x-forwarded-user": "eve"}
    assert call("GET", "/api/v1/me", headers=named).status_code == 401
    assert call("GET", "/api/v1/me", headers={**named, "x-autotune-proxy-secret": "wrong"}).status_code == 401
    answer = call("GET", "/api/v1/me", headers={**named, "x-autotune-proxy-secret": "proof"})
    assert answer.json()["user"] == "eve"


def test_submitting_twice_with_a_key_is_one_search(call, tokens, bundle):
    headers = {"idempotency-key": "key-00001"}
    body = {**SUBMIT, "bundle": bundle}
    first = call("POST", "/api/v1/searches", token=tokens.run, json=body, headers=headers)
    again = call("POST", "/api/v1/searches", token=tokens.run, json=body, headers=headers)
    other = call("POST", "/api/v1/searches", token=tokens.run, json={**body, "budget_s": 60}, headers=headers)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["reason"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"bundle": ""}, 422),
        ({"bundle": "1" * 64}, 422),
        ({"bundle": "", "path": "/etc"}, 422),
        ({"command": []}, 422),
        ({"budget_s": 1}, 422),
        ({"priority": 1000}, 422),
        ({"surprise": 1}, 422),
        ({"options": {"address": "x"}}, 422),
        ({"options": {"out": "/etc/passwd"}}, 422),
        ({"max_cost": 0.01}, 422),
        ({"command": ["x" * (2 * 1024 * 1024)]}, 413),
    ],
)
def test_what_cannot_be_carried_out_is_refused_with_a_reason(call, tokens, bundle, change, status):
    body = {**SUBMIT, "bundle": bundle, **change}
    answer = call(
        "POST", "/api/v1/searches", token=tokens.run, json=body, headers={"idempotency-key": "key-00001"}
    )
    assert answer.status_code == status
    assert answer.json()


def test_a_submit_without_a_key_is_refused(call, tokens, bundle):
    assert (
        call("POST", "/api/v1/searches", token=tokens.run, json={**SUBMIT, "bundle": bundle}).status_code
        == 422
    )


def test_searches_of_other_projects_do_not_exist(call, tokens, database):
    row, _ = database.submit(submission())
    for path in ("", "/best.yaml", "/log", "/events", "/report.html"):
        assert call("GET", f"/api/v1/searches/{row.id}{path}", token=tokens.other).status_code == 404
    assert call("POST", f"/api/v1/searches/{row.id}/cancel", token=tokens.other).status_code == 404
    assert call("GET", f"/searches/{row.id}", token=tokens.other).status_code == 404
    assert call("GET", "/api/v1/searches", token=tokens.other).json()["searches"] == []
    assert call("GET", f"/api/v1/searches/{row.id}", token=tokens.admin).status_code == 200


def test_a_token_of_one_search_sees_that_one_alone(call, tokens, database, bundle):
    mine, _ = database.submit(submission())
    other, _ = database.submit(submission(key="key-00002"))
    token = database.create_token(user="ann", scope="run", search_id=mine.id)
    assert call("GET", f"/api/v1/searches/{mine.id}", token=token).status_code == 200
    assert call("GET", f"/api/v1/searches/{other.id}", token=token).status_code == 403
    assert [one["id"] for one in call("GET", "/api/v1/searches", token=token).json()["searches"]] == [mine.id]
    answer = call(
        "POST", "/api/v1/searches", token=token, json={**SUBMIT, "bundle": bundle},
        headers={"idempotency-key": "key-00003"},
    )  # fmt: skip
    assert answer.status_code == 403


@pytest.fixture
def running(database):
    """A search that runs, and the token of its driver."""
    row, _ = database.submit(submission())
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x")
    database.move(row.id, SearchState.STARTING, SearchState.RUNNING, "x")
    return row.id, database.create_token(user="ann", scope="report", search_id=row.id)


def fact(op="trial_ended", **more):
    body = {"protocol": 1, "epoch": 1, "op": op, "facts": {"trials": 1, "headline": "so far 1.2x"}}
    return {**body, **({"seq": 3, "trial": {"number": 0}} if op == "trial_ended" else {}), **more}


def test_what_a_driver_sends_twice_is_recorded_once(call, tokens, database, running):
    one, token = running
    path = f"/api/v1/searches/{one}"
    for body in (fact("heartbeat"), fact(), fact(), fact(seq=4, trial={"number": 1})):
        assert call("POST", f"{path}/facts", token=token, json=body).status_code == 202
    found = call("GET", f"{path}/trials", token=tokens.read).json()
    assert [trial["number"] for trial in found["trials"]] == [0, 1]
    row = call("GET", path, token=tokens.read).json()
    assert row["answer"]["headline"] == "so far 1.2x"
    assert row["heartbeat_s"]
    assert row["deadline_s"] > row["since_s"]
    assert database.search(one).heartbeat == 4


def test_facts_of_an_earlier_life_and_of_a_newer_autotune_are_refused_with_the_reason(call, running):
    one, token = running
    old = call("POST", f"/api/v1/searches/{one}/facts", token=token, json=fact(epoch=0))
    assert (old.status_code, "life 0" in old.json()["title"]) == (409, True)
    newer = call("POST", f"/api/v1/searches/{one}/facts", token=token, json=fact(protocol=99))
    assert (newer.status_code, "update the service" in newer.text) == (422, True)


def test_a_drivers_token_opens_nothing_but_its_facts(app, call, tokens, database, running):
    one, token = running
    other, _ = database.submit(submission(key="key-00002"))
    assert call("POST", f"/api/v1/searches/{other.id}/facts", token=token, json=fact()).status_code == 403
    for mine in (tokens.run, tokens.admin):
        assert call("POST", f"/api/v1/searches/{one}/facts", token=mine, json=fact()).status_code == 403
    for method, path in routes(app):
        if path not in ("/healthz", "/login"):
            assert call(
                method, path.replace("/X", f"/{one}"), token=token
            ).status_code == 403 or path.endswith("/facts"), (method, path)


def test_cancelling_is_repeatable_and_a_search_that_ended_says_so(call, tokens, database):
    row, _ = database.submit(submission())
    for _ in range(2):
        answer = call("POST", f"/api/v1/searches/{row.id}/cancel", token=tokens.run)
        assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    done, _ = database.submit(submission(key="key-00002"))
    database.move(done.id, SearchState.QUEUED, SearchState.STARTING, "x")
    database.move(done.id, SearchState.STARTING, SearchState.SUCCEEDED, "x")
    assert call("POST", f"/api/v1/searches/{done.id}/cancel", token=tokens.run).status_code == 409


def test_a_search_that_ended_is_resumed_with_a_further_budget(call, tokens, database):
    row, _ = database.submit(submission())
    path = f"/api/v1/searches/{row.id}/resume"
    assert call("POST", path, token=tokens.run, json={"budget_s": 600}).status_code == 409
    database.move(row.id, SearchState.QUEUED, SearchState.CANCELLED, "x")
    answer = call("POST", path, token=tokens.run, json={"budget_s": 600})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")


def test_the_log_is_read_in_parts(call, tokens, database):
    row, _ = database.submit(submission())
    path = f"/api/v1/searches/{row.id}/log"
    first = call("GET", path, token=tokens.read, params={"limit": 8})
    assert (first.text, first.headers["x-next-offset"]) == ("trial 0\n", "8")
    assert call("GET", path, token=tokens.read, params={"offset": 8}).text == "trial 1\n"
    assert call("GET", path, token=tokens.read, params={"offset": -1}).status_code == 422


def test_followers_get_every_event_once_from_where_they_were(call, tokens, database):
    row, _ = database.submit(submission())
    database.note(row.id, "progress", {"trials": 1})
    database.move(row.id, SearchState.QUEUED, SearchState.CANCELLED, "x")
    path = f"/api/v1/searches/{row.id}/events"
    text = call("GET", path, token=tokens.read).text
    kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert kinds == ["queued", "progress", "cancelled", "end"]
    ids = [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")]
    rest = call("GET", path, token=tokens.read, headers={"last-event-id": ids[0]}).text
    assert "event: queued" not in rest
    assert "event: progress" in rest


def test_a_bundle_has_to_be_what_its_name_says(call, tokens, tmp_path):
    (tmp_path / "a.py").write_text("1\n")
    data, sha256 = pack(Packed(root=tmp_path, files=("a.py",), bytes=2))
    path = f"/api/v1/bundles/{sha256}"
    assert call("HEAD", path, token=tokens.run).status_code == 404
    assert call("PUT", path, token=tokens.run, content=data + b"x").status_code == 422
    assert call("PUT", path, token=tokens.run, content=data).status_code == 201
    assert call("HEAD", path, token=tokens.run).status_code == 200
    junk = b"no archive"
    assert (
        call(
            "PUT", f"/api/v1/bundles/{hashlib.sha256(junk).hexdigest()}", token=tokens.run, content=junk
        ).status_code
        == 422
    )
    assert call("PUT", "/api/v1/bundles/..%2f..%2fx", token=tokens.run, content=data).status_code in (
        404,
        422,
    )


def test_an_administrator_makes_tokens_and_projects_and_each_call_is_audited(call, tokens, database):
    assert call("PUT", "/api/v1/projects/vision", token=tokens.admin, json={"max_gpus": 2}).status_code == 200
    made = call(
        "POST", "/api/v1/tokens", token=tokens.admin, json={"user": "eve", "project": "vision"}
    ).json()["token"]
    assert call("GET", "/api/v1/me", token=made).json() | {"version": ""} == {
        "user": "eve", "project": "vision", "scope": "run", "version": "",
    }  # fmt: skip
    text = call("GET", "/api/v1/tokens", token=tokens.admin).text
    assert made not in text
    assert "sha256" not in text
    audited = call("GET", "/api/v1/audit", token=tokens.admin).json()["audit"]
    assert [(row["method"], row["status"]) for row in audited[:2]] == [("POST", 201), ("PUT", 200)]
    assert call("PUT", "/api/v1/projects/..", token=tokens.admin, json={}).status_code in (404, 422)


def test_metrics_and_estimate_and_fleet_answer(call, tokens, database):
    database.submit(submission())
    assert 'autotune_searches{state="queued"} 1.0' in call("GET", "/metrics", token=tokens.read).text
    body = {"budget_s": 600, "gpus": 4}
    found = call("POST", "/api/v1/estimate", token=tokens.run, json=body).json()
    assert (found["cost"], found["speedup"]) == (pytest.approx(600 / 3600 * 4 * 2.0), None)
    assert call("GET", "/api/v1/fleet", token=tokens.read).json()["searches_queued"] == 1


# -- the page ---------------------------------------------------------------------------------------


def cookies(token):
    return {"cookie": f"{COOKIE}={token}"}


def test_a_browser_without_a_session_is_sent_to_the_login(call):
    answer = call("GET", "/", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


def test_signing_in_sets_a_cookie_that_scripts_and_other_sites_cannot_use(call, tokens):
    answer = call("POST", "/login", content=f"token={tokens.run}")
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert call("POST", "/login", content="token=wrong").status_code == 401


def test_pages_show_state_reason_and_result_and_escape_what_users_wrote(call, tokens, database):
    row, _ = database.submit(submission(title="<script>alert(1)</script>"))
    text = call("GET", "/", headers=cookies(tokens.run)).text
    assert "&lt;script&gt;" in text
    assert "<script>alert" not in text
    assert "waits for its turn" in text
    one = call("GET", f"/searches/{row.id}", headers=cookies(tokens.run))
    assert "python train.py" in one.text
    assert "default-src 'none'" in one.headers["content-security-policy"]
    assert call("GET", "/fleet", headers=cookies(tokens.run)).status_code == 200
    assert call("GET", "/admin", headers=cookies(tokens.admin)).status_code == 200
    assert call("GET", "/admin", headers=cookies(tokens.run)).status_code == 403


def test_a_form_of_another_site_changes_nothing(call, tokens, database):
    row, _ = database.submit(submission())
    path = f"/searches/{row.id}/cancel"
    assert call("POST", path, headers=cookies(tokens.run)).status_code == 403
    page = call("GET", f"/searches/{row.id}", headers=cookies(tokens.run)).text
    csrf = page.split('name="csrf" value="')[1].split('"')[0]
    assert call("POST", path, headers=cookies(tokens.run), content=f"csrf={csrf}").status_code == 303
    assert database.search(row.id).state == "cancelled"
    assert call("POST", f"/api/v1/searches/{row.id}/cancel", headers=cookies(tokens.run)).status_code == 401


def test_the_schema_is_the_committed_one(app):
    from pathlib import Path

    path = Path(__file__).parents[2] / "docs" / "schemas" / "service.openapi.json"
    made = app._app.openapi()
    made["info"].pop("version")
    import os

    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    assert json.loads(path.read_text()) == json.loads(json.dumps(made))

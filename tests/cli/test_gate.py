"""Who is let through to the pages of `autotune ui`: every request is refused but those with the cookie."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.gate import COOKIE, CookieGate, Keys, peer_account

KEYS = Keys(place="place", cookie="cookie-1", codes=("code-1", "code-2"), report_codes=("code-2",))
WITH_COOKIE = {"cookie": f"{COOKIE}=cookie-1"}


class Behind:
    """The application behind the gate; notes what reaches it."""

    def __init__(self) -> None:
        self.reached: list[tuple[str, str, bytes]] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self.reached.append(("lifespan", "", b""))
            return
        self.reached.append((scope["method"], scope["path"], scope["raw_path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"MLflow"})


class Visit:
    """A gate and the requests to it."""

    def __init__(self, *, account: int | None = None, report: Path | None = None) -> None:
        self.behind = Behind()
        holder = os.geteuid() if account is None else account
        self.gate = CookieGate(self.behind, KEYS, report=report, peer=lambda _: holder)

    def ask(
        self,
        path: str,
        method: str = "GET",
        *,
        host: str = "127.0.0.1:5000",
        kind: str = "http",
        **headers: str,
    ) -> tuple[int, dict[str, str]]:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        rows = [(b"host", host.encode())] if host else []
        rows += [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": kind, "method": method, "path": path, "raw_path": path.encode(), "headers": rows}
        asyncio.run(self.gate(scope, receive, send))
        if kind != "http":
            return sent[0].get("code", 0), {}
        reported = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return sent[0]["status"], reported


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    [
        *("/", "/health", "/version", "/graphql", "/ajax-api/2.0/mlflow/runs/create", "/place", "/place/"),
        *(
            "/place/ajax-api/2.0/mlflow/runs/create",
            "/place/code-3",
            "/place/code-1/",
            "/code-1",
            "/place//code-1",
        ),
        *("/place/../place/code-1", "//place/code-1"),
    ],
)
def test_without_the_cookie_nothing_is_reached_by_any_method(path: str, method: str) -> None:
    visit = Visit()
    assert visit.ask(path, method)[0] == 403
    assert visit.ask(path, method, cookie=f"{COOKIE}=wrong; {COOKIE}=")[0] == 403
    assert visit.behind.reached == []


def test_with_the_cookie_a_request_reaches_the_application_below_its_place() -> None:
    visit = Visit()
    assert visit.ask("/place/ajax-api/2.0/x", "POST", **WITH_COOKIE)[0] == 200
    assert visit.ask("/place/", cookie=f"other=1; {COOKIE}=cookie-1; last")[0] == 200
    assert visit.ask("/", **WITH_COOKIE)[0] == 403, "a cookie counts only where it is sent"
    assert visit.behind.reached == [
        ("POST", "/ajax-api/2.0/x", b"/ajax-api/2.0/x"),
        ("GET", "/", b"/"),
    ]


def test_a_link_gives_the_cookie_to_one_browser_and_leads_to_the_page() -> None:
    visit = Visit()
    status, reported = visit.ask("/place/code-1")
    assert (status, reported["location"]) == (303, "/place/")
    name_and_value, *properties = reported["set-cookie"].split("; ")
    assert name_and_value == f"{COOKIE}=cookie-1"
    assert set(properties) == {"Path=/place/", "HttpOnly", "SameSite=Lax"}
    assert visit.ask("/place/code-1")[0] == 403, "a link that another account reads later is worth nothing"
    assert visit.ask("/place/code-1", **WITH_COOKIE)[0] == 303, "the same browser may click on it again"
    assert visit.ask("/place/code-2")[0] == 303, "each link is one of its own"
    assert visit.behind.reached == []


@pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS"])
def test_a_look_at_a_link_does_not_use_it_up(method: str) -> None:
    visit = Visit()
    assert visit.ask("/place/code-1", method)[0] == 403
    assert visit.ask("/place/code-1")[0] == 303


def test_a_link_that_another_account_reads_first_is_refused_to_it_and_kept_for_its_user() -> None:
    visit = Visit(account=os.geteuid() + 1000)
    assert visit.ask("/place/code-1")[0] == 403
    visit.gate._peer = lambda _: None
    assert visit.ask("/place/code-1")[0] == 403, "an end that the kernel does not list is nobody's"
    visit.gate._peer = lambda _: 0
    assert visit.ask("/place/code-1")[0] == 303, "root forwards ports"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1:5000", 200), ("localhost:5001", 200), ("localhost", 200), ("[::1]:1", 200)),
        *(("", 403), ("evil.example", 403), ("127.0.0.1.evil.example:5000", 403), ("10.0.0.1:5000", 403)),
        *(("localhost:5000:1", 403), ("evil@localhost:5000", 403)),
    ],
)
def test_only_names_of_this_machine_are_answered(host: str, status: int) -> None:
    assert Visit().ask("/place/", host=host, **WITH_COOKIE)[0] == status


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        *(("http://127.0.0.1:5000", 200), ("http://127.0.0.1:6666", 403), ("http://localhost:5000", 403)),
        *(("null", 403), ("https://127.0.0.1:5000", 403), ("http://evil.example", 403)),
    ],
)
def test_a_page_of_another_server_of_this_machine_is_refused_in_the_users_own_browser(
    method: str, origin: str, status: int
) -> None:
    assert Visit().ask("/place/", method, origin=origin, **WITH_COOKIE)[0] == status


def test_the_start_of_the_application_is_passed_on_and_a_websocket_is_not() -> None:
    visit = Visit()
    asyncio.run(visit.gate({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert visit.behind.reached == [("lifespan", "", b"")]
    assert visit.ask("/place/", kind="websocket", **WITH_COOKIE)[0] == 1008
    assert len(visit.behind.reached) == 1


def test_secrets_are_new_with_every_start_and_survive_the_way_to_the_server() -> None:
    one, two = Keys.new(1, 2), Keys.new(1, 2)
    assert Keys.from_text(one.text()) == one
    secrets = [one.place, two.place, one.cookie, two.cookie, *one.codes, *two.codes]
    assert len(set(secrets)) == 10
    assert min(map(len, secrets)) >= 12, "72 bits and more"
    assert one.link(2) == f"/{one.place}/{one.codes[2]}"


def test_the_account_of_a_connection_is_found_while_it_lasts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        scope = {"client": client.getsockname(), "server": server.getsockname()}
        assert peer_account(scope) == os.geteuid()
        client.close()
        assert peer_account(scope) is None, "one that was closed is listed as root's"
    assert peer_account({"client": None, "server": ("::1", 5000)}) is None


def test_a_link_to_the_report_leads_there_and_only_the_cookie_opens_it(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<h1>2.15x</h1>", encoding="utf-8")
    visit = Visit(report=tmp_path / "page")
    assert visit.ask("/place/report.html")[0] == 403
    assert visit.ask("/place/code-2")[1]["location"] == "/place/report.html"
    assert visit.ask("/place/code-1")[1]["location"] == "/place/"
    status, headers = visit.ask("/place/report.html", **WITH_COOKIE)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert visit.behind.reached == []


def test_without_a_report_its_address_is_one_of_mlflow(tmp_path: Path) -> None:
    visit = Visit()
    visit.ask("/place/report.html", **WITH_COOKIE)
    assert visit.behind.reached == [("GET", "/report.html", b"/report.html")]

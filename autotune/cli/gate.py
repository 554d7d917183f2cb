"""Access to the pages of `autotune ui`: an ASGI application around MLflow's that refuses by default.

A port of 127.0.0.1 is open to every account of the machine, and MLflow lets every client write files, so
each request needs the cookie of this start. A browser gets it from a link that works once.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
from dataclasses import asdict, dataclass
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Send = Callable[[dict[str, Any]], Awaitable[None]]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

COOKIE = "autotune_ui"
REPORT = "report.html"
"""Path of the report below the place; MLflow has no such page."""
_HERE = re.compile(rb"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
_CONNECTIONS = Path("/proc/net/tcp")
_ESTABLISHED = "01"
"""`TCP_ESTABLISHED` of Linux's `include/net/tcp_states.h`; closed ones are listed as root's."""
_REFUSED = (
    "This page is open to browsers of the account that runs `autotune ui`, after one of its links.\n"
    "Each link works once. For new ones start `autotune ui` again.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Secrets of one start of the server.

    Args:
        place: First part of every path. Browsers send a cookie to every port of a host, hence to servers of
            other accounts as well, but only below the cookie's own path.
        cookie: Value of the cookie.
        codes: One per link.
        report_codes: Those of them whose link leads to the report instead of MLflow's pages.
    """

    place: str
    cookie: str
    codes: tuple[str, ...]
    report_codes: tuple[str, ...] = ()

    @classmethod
    def new(cls, reports: int, links: int) -> Keys:
        """Return fresh secrets for so many links to the report, and then to MLflow's pages."""
        codes = tuple(secrets.token_urlsafe(16) for _ in range(reports + links))
        return cls(
            place=secrets.token_urlsafe(9),
            cookie=secrets.token_urlsafe(32),
            codes=codes,
            report_codes=codes[:reports],
        )

    @classmethod
    def from_text(cls, text: str) -> Keys:
        """Return what `text` was made from."""
        data = json.loads(text)
        return cls(
            place=data["place"],
            cookie=data["cookie"],
            codes=tuple(data["codes"]),
            report_codes=tuple(data["report_codes"]),
        )

    def text(self) -> str:
        """Return them in one line, for the environment of the server's process."""
        return json.dumps(asdict(self))

    def link(self, number: int) -> str:
        """Return the path of a link; what follows a ``#`` in an address is kept by browsers."""
        return f"/{self.place}/{self.codes[number]}"


class CookieGate:
    """An ASGI application that passes on requests with the cookie of this start and refuses all others.

    Args:
        app: The protected application.
        keys: Secrets of this start.
        report: The study's report, a page without outside parts; None if there is none.
        peer: Account at the other end of a connection; for tests.
    """

    def __init__(
        self,
        app: App,
        keys: Keys,
        *,
        report: Path | None = None,
        peer: Callable[[Mapping[str, Any]], int | None] | None = None,
    ) -> None:
        self._app = app
        self._report = report
        self._keys = keys
        self._unused = set(keys.codes)
        self._peer = peer or peer_account

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            # A WebSocket. MLflow's pages use none.
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        prefix = f"/{self._keys.place}/"
        path, raw = str(scope["path"]), bytes(scope.get("raw_path") or b"")
        if not (_is_from_here(scope) and path.startswith(prefix) and raw.startswith(prefix.encode())):
            await _refuse(send)
            return
        rest = path[len(prefix) :].encode()
        code = next((one for one in self._keys.codes if compare_digest(one.encode(), rest)), "")
        if self._has_cookie(scope):
            if code:
                await self._let_in(send, code)
            elif self._report is not None and rest == REPORT.encode():
                text = self._report.read_text(encoding="utf-8")
                await _respond(send, 200, text, content_type="text/html; charset=utf-8")
            else:
                inner = {"path": path[len(prefix) - 1 :], "raw_path": raw[len(prefix) - 1 :]}
                await self._app({**scope, **inner}, receive, send)
        elif code in self._unused and scope["method"] == "GET" and self._is_own(scope):
            self._unused.discard(code)
            await self._let_in(send, code)
        else:
            await _refuse(send)

    def _has_cookie(self, scope: Mapping[str, Any]) -> bool:
        wanted = f"{COOKIE}={self._keys.cookie}".encode()
        pairs = b";".join(_headers(scope, b"cookie")).split(b";")
        return any(compare_digest(pair.strip(), wanted) for pair in pairs)

    def _is_own(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the client is a process of this account, or of root, which forwards ports.

        The address of a browser's start page is in its command line, which every account can read.
        """
        account = self._peer(scope)
        if account is None:
            return not _CONNECTIONS.exists()
        return account in (os.geteuid(), 0)

    async def _let_in(self, send: Send, code: str) -> None:
        place = f"/{self._keys.place}/"
        there = place + REPORT if code in self._keys.report_codes else place
        # Lax and not Strict: the way here begins in a terminal or another page.
        cookie = f"{COOKIE}={self._keys.cookie}; Path={place}; HttpOnly; SameSite=Lax"
        await _respond(send, 303, "", location=there, set_cookie=cookie)


def peer_account(scope: Mapping[str, Any]) -> int | None:
    """Return the user id that owns the client's end of a connection within this machine, None if unknown."""
    try:
        ends = [_as_listed(*scope[end]) for end in ("client", "server")]
        for row in _CONNECTIONS.read_text(encoding="ascii").splitlines()[1:]:
            fields = row.split()
            if fields[1:4] == [*ends, _ESTABLISHED]:
                return int(fields[7])
    except (OSError, TypeError, ValueError):
        pass
    return None


def _as_listed(host: str, port: int) -> str:
    """Return an address as ``/proc/net/tcp`` lists it: the kernel's integer in this machine's order."""
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"


def _is_from_here(scope: Mapping[str, Any]) -> bool:
    """Return whether the host is one of this machine, and the request is from no page of another server.

    MLflow's own check accepts every port of this machine as its own.
    """
    hosts, origins = _headers(scope, b"host"), _headers(scope, b"origin")
    if len(hosts) != 1 or _HERE.fullmatch(hosts[0]) is None:
        return False
    return all(origin == b"http://" + hosts[0] for origin in origins)


def _headers(scope: Mapping[str, Any], name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name]


async def _refuse(send: Send) -> None:
    await _respond(send, 403, _REFUSED)


async def _respond(send: Send, status: int, text: str, **more: str) -> None:
    fixed = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in {**fixed, **more}.items()]
    headers.append((b"content-length", str(len(text.encode())).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})

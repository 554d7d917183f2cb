"""Outermost layer of the application: only ``/healthz`` is available without a token.

Deny by default, before routing: a request without a valid token gets 401 whether or not its path exists. Host
names are checked against DNS rebinding, foreign origins are refused, bodies are bounded.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError

from autotune.service.packing import MOST_BYTES
from autotune.service.store import REPORT, TOKEN_FORM, Identity
from autotune.store.outbox import PROTOCOL

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from autotune.service.store import Database

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PUBLIC: Final = frozenset({"/healthz"})
PROTOCOL_HEADER: Final = "x-autotune-protocol"
"""Header in which a client names its protocol version; without it, the client is a browser or curl."""
COOKIE: Final = "autotune_session"
MOST_BODY: Final = 1024 * 1024
"""Largest body of a request in bytes, except for uploads of bundles."""
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SCOPE_OF_ADMIN: Final = ("/api/v1/tokens", "/api/v1/projects", "/api/v1/audit", "/admin")
PROXY: Final = "proxy"
"""Placeholder for a token's id, for users named by a trusted proxy."""
LOGIN: Final = "/login"
"""Path of the page that takes a token; it has no other content and needs no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Access policy of the service.

    Args:
        hosts: Host names (without port) that the service accepts.
        proxy_header: Header in which a trusted proxy names the user, ``X-Forwarded-User``; empty for none.
        proxy_secret: Value of ``X-Autotune-Proxy-Secret`` that proves it is that proxy.
        proxy_project: Project of users named by the proxy.
    """

    hosts: frozenset[str] = field(default_factory=lambda: frozenset({"localhost", "127.0.0.1", "[::1]"}))
    proxy_header: str = ""
    proxy_secret: str = ""
    proxy_project: str = "default"


class TokenGate:
    """ASGI middleware that lets a request through, with its `Identity` in ``scope["state"]["identity"]``."""

    def __init__(self, app: Any, database: Database, policy: Policy) -> None:
        self._app, self._database, self._policy = app, database, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        path, method = str(scope["path"]), str(scope["method"])
        problem = self._refused(headers, path, method)
        if problem is not None:
            await _answer(send, *problem)
            return
        if path in PUBLIC:
            await self._app(scope, receive, send)
            return
        try:
            identity, by_cookie = await asyncio.to_thread(self._identity, headers)
        except SQLAlchemyError as error:
            log.warning("the database does not answer: %s", type(error).__name__)
            await _answer(send, 503, "the service's database does not answer; try again")
            return
        if identity is None and path == LOGIN:
            await self._app(scope, _bounded(receive, MOST_BODY), send)
            return
        if identity is None:
            is_page = (
                "text/html" in headers.get("accept", "") and method == "GET" and not path.startswith("/api/")
            )
            await (_to_login(send) if is_page else _answer(send, 401, "a valid token is required"))
            return
        if by_cookie and method not in SAFE and path.startswith("/api/"):
            await _answer(send, 401, "the API takes a bearer token, not the cookie of the page")
            return
        if (problem := _outside(identity, path)) is not None:
            await _answer(send, 403, problem)
            return
        is_admin = path.startswith(_SCOPE_OF_ADMIN) or (method == "DELETE" and path == "/api/v1/searches")
        if is_admin and not identity.allows("admin"):
            await _answer(send, 403, "this needs a token of scope admin")
            return
        if method not in SAFE and not (identity.allows("run") or identity.scope == REPORT):
            await _answer(send, 403, "this needs a token of scope run")
            return
        scope.setdefault("state", {})["identity"] = identity
        limit = MOST_BYTES + 1 if path.startswith("/api/v1/bundles/") else MOST_BODY
        await self._app(scope, _bounded(receive, limit), self._audited(send, identity, method, path))

    def _refused(self, headers: dict[str, str], path: str, method: str) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if _name(host) not in self._policy.hosts:
            return 421, "the service does not answer under this host name; --allow-host adds one"
        origin = headers.get("origin", "")
        if origin and origin != "null" and urlsplit(origin).netloc != host:
            return 403, "requests from other origins are refused"
        if origin == "null" and method not in SAFE:
            return 403, "requests from other origins are refused"
        spoken = headers.get(PROTOCOL_HEADER, "")
        if spoken.isdigit() and int(spoken) > PROTOCOL:
            return 426, f"the client is newer than the service (protocol {spoken}); update the service"
        length = headers.get("content-length", "0")
        limit = MOST_BYTES if path.startswith("/api/v1/bundles/") else MOST_BODY
        if not length.isdigit() or int(length) > limit:
            return 413, f"the body is larger than {limit} bytes"
        return None

    def _identity(self, headers: dict[str, str]) -> tuple[Identity | None, bool]:
        """Return the identity of a request, and whether its token came in the page's cookie."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            return self._database.identity(token.strip()), False
        policy = self._policy
        if policy.proxy_header and (user := headers.get(policy.proxy_header.lower(), "")):
            given = headers.get("x-autotune-proxy-secret", "")
            if policy.proxy_secret and hmac.compare_digest(given, policy.proxy_secret):
                return Identity(
                    token_id=PROXY, user=user[:128], project=policy.proxy_project, scope="run"
                ), False
            return None, False
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return None, False
        return (self._database.identity(cookie.value), True) if cookie is not None else (None, False)

    def _audited(self, send: Send, identity: Identity, method: str, path: str) -> Send:
        if method in SAFE:
            return send

        async def audited(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status = int(message["status"])
                shown = TOKEN_FORM.sub("<redacted>", path)
                await asyncio.to_thread(self._database.audit, identity, method, shown, status)
            await send(message)

        return audited


def _outside(identity: Identity, path: str) -> str | None:
    """Return why a token that is bound to one search may not use a path; None if it may."""
    is_facts = path.startswith("/api/v1/searches/") and path.endswith("/facts")
    if identity.scope == REPORT or is_facts:
        mine = f"/api/v1/searches/{identity.search_id}/facts"
        is_mine = identity.scope == REPORT and path == mine
        return None if is_mine else "only the driver of a search sends its facts, and nothing else"
    if not identity.search_id or path in ("/", "/api/v1/me", "/api/v1/searches", "/logout"):
        return None
    mine = (f"/api/v1/searches/{identity.search_id}", f"/searches/{identity.search_id}", "/static")
    is_mine = any(path == one or path.startswith(f"{one}/") for one in mine)
    return None if is_mine else "the token is for one search only"


def _name(host: str) -> str:
    """Return a Host header without its port."""
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and ":" in host else host


def _bounded(receive: Receive, limit: int) -> Receive:
    """Return a receiver that ends a body which is longer than declared."""
    left = limit

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal left
        message = await receive()
        if message["type"] == "http.request":
            left -= len(message.get("body", b""))
            if left < 0:
                return {"type": "http.disconnect"}
        return message

    return bounded


async def _answer(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"title": detail, "status": status}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _to_login(send: Send) -> None:
    await send({"type": "http.response.start", "status": 303, "headers": [(b"location", LOGIN.encode())]})
    await send({"type": "http.response.body", "body": b""})

"""The web page: queue, searches, one search live, fleet, administration; nothing is fetched elsewhere.

Its forms carry a token against forgery that is derived from the session: the cookie alone would be sent by
any site's form.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qs

from fastapi import Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, select_autoescape

from autotune.report.view.summary import duration_text
from autotune.service.auth import COOKIE, LOGIN
from autotune.service.requests import BundleParts, Who, With, cancelled, shown, visible
from autotune.service.states import FINAL, SearchState

if TYPE_CHECKING:
    from fastapi import FastAPI

_HERE: Final = Path(__file__).parent
_STYLE: Final = (_HERE / "static" / "style.css").read_text(encoding="utf-8")
_SCRIPT: Final = (_HERE / "static" / "follow.js").read_text(encoding="utf-8")
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
SESSION_S: Final = 12 * 3600


def _csrf(request: Request) -> str:
    """Return what the forms of this session carry; empty without a session."""
    session = request.cookies.get(COOKIE, "")
    return hmac.new(session.encode(), b"form", hashlib.sha256).hexdigest() if session else ""


async def checked_form(request: Request) -> dict[str, str]:
    """Return the fields of a form of this page.

    Raises:
        HTTPException: 403 where it did not come from this page.
    """
    form = {
        name: values[0] for name, values in parse_qs((await request.body()).decode(errors="replace")).items()
    }
    expected = _csrf(request)
    if not expected or not hmac.compare_digest(form.get("csrf", ""), expected):
        raise HTTPException(403, "the form did not come from this page; load it again")
    return form


Form = Annotated[dict[str, str], Depends(checked_form)]


def _ago(seconds: float) -> str:
    return f"{duration_text(max(0.0, time.time() - seconds))} ago"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def add(app: FastAPI) -> None:
    """Add the pages to the application."""
    environment = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape())
    environment.filters["ago"] = _ago
    environment.filters["duration"] = duration_text
    environment.filters["when"] = _when

    def page(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        who = request.scope.get("state", {}).get("identity")
        text = environment.get_template(name).render(
            who=who, csrf=_csrf(request), path=request.url.path, **values
        )
        return HTMLResponse(text, status_code=status, headers=_HEADERS)

    @app.get(LOGIN)
    def login_form(request: Request) -> HTMLResponse:
        return page(request, "login.html", problem="")

    @app.post(LOGIN)
    async def login(request: Request) -> Response:
        form = parse_qs((await request.body()).decode(errors="replace"))
        token = form.get("token", [""])[0].strip()
        parts: BundleParts = request.app.state.parts
        if parts.database.identity(token) is None:
            return page(request, "login.html", status=401, problem="This token is not valid, or has expired.")
        answer = RedirectResponse("/", status_code=303)
        is_secure = request.url.scheme == "https"
        answer.set_cookie(
            COOKIE, token, max_age=SESSION_S, httponly=True, samesite="strict", secure=is_secure
        )
        return answer

    @app.post("/logout")
    async def logout(_checked: Form) -> Response:
        answer = RedirectResponse(LOGIN, status_code=303)
        answer.delete_cookie(COOKIE)
        return answer

    @app.get("/static/style.css")
    def style() -> Response:
        return Response(_STYLE, media_type="text/css")

    @app.get("/static/follow.js")
    def script() -> Response:
        return Response(_SCRIPT, media_type="text/javascript")

    @app.get("/")
    def index(request: Request, who: Who, parts: With) -> HTMLResponse:
        project = "" if who.allows("admin") else who.project
        rows = [
            row
            for row in parts.database.searches(project=project, limit=200)
            if not who.search_id or row.id == who.search_id
        ]
        active = [row for row in rows if SearchState(row.state) not in FINAL]
        done = [row for row in rows if SearchState(row.state) in FINAL]
        used = sum(max(1, row.gpus) for row in active if SearchState(row.state).has_job)
        return page(
            request,
            "index.html",
            active=active,
            done=done,
            used=used,
            capacity=parts.capacity,
            trouble=parts.reconciler.trouble,
        )

    @app.get("/searches/{search_id}")
    def one(search_id: str, request: Request, who: Who, parts: With) -> HTMLResponse:
        row = visible(parts, who, search_id)
        has_report = any(parts.place.home(row.id).glob("studies/*/report.html"))
        events = parts.database.events(row.id, limit=500)
        return page(
            request,
            "search.html",
            search=shown(row),
            is_final=SearchState(row.state) in FINAL,
            events=events,
            last=events[-1].seq if events else 0,
            has_best=parts.place.best(row.id).is_file(),
            has_report=has_report,
        )

    @app.post("/searches/{search_id}/cancel")
    async def cancel(search_id: str, who: Who, parts: With, _checked: Form) -> Response:
        cancelled(parts, visible(parts, who, search_id), who.user)
        return RedirectResponse(f"/searches/{search_id}", status_code=303)

    @app.get("/fleet")
    def fleet(request: Request, who: Who, parts: With) -> HTMLResponse:
        figures = parts.database.fleet("" if who.allows("admin") else who.project)
        return page(request, "fleet.html", figures=figures)

    @app.get("/admin")
    def admin(request: Request, parts: With) -> HTMLResponse:
        return page(
            request,
            "admin.html",
            tokens=parts.database.tokens(),
            projects=parts.database.limits(),
            audit=parts.database.audit_rows(50),
        )

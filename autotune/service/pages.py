"""Web pages: queue, searches, one search live, fleet, administration; nothing is fetched elsewhere.

Forms carry a token against forgery that is derived from the session: browsers send the cookie with any site's
form.
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
from pydantic import ValidationError

from autotune.errors import UsageError
from autotune.report.view.summary import duration_text
from autotune.service.auth import COOKIE, LOGIN
from autotune.service.requests import (
    BundleParts,
    ProjectRequest,
    TokenRequest,
    Who,
    With,
    cancelled,
    save_project,
    shown,
    visible,
)
from autotune.service.states import FINAL, SearchState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI

_HERE: Final = Path(__file__).parent
_STYLE: Final = (_HERE / "static" / "style.css").read_text(encoding="utf-8")
_SCRIPT: Final = (_HERE / "static" / "follow.js").read_text(encoding="utf-8")
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    # With no-referrer a browser sends these forms with the origin "null", which the gate refuses.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
SESSION_S: Final = 12 * 3600
MOST_EVENTS: Final = 2000
"""Events of a search that its page shows at first; later ones follow as a live stream."""


def _csrf(request: Request) -> str:
    """Return the anti-forgery token for forms of a signed-in browser; empty without its cookie."""
    session = request.cookies.get(COOKIE, "")
    return hmac.new(session.encode(), b"form", hashlib.sha256).hexdigest() if session else ""


async def checked_form(request: Request) -> dict[str, str]:
    """Return the fields of a form of this page.

    Raises:
        HTTPException: 403 if it did not come from this page.
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


def _gain(facts: Mapping[str, Any]) -> str:
    """Return a gain with its interval and configuration; empty without a measurement."""
    if not facts.get("speedup"):
        return ""
    return f"{_result(facts)} {facts.get('config', '')}"


def _result(trial: Mapping[str, Any]) -> str:
    """Return a trial's result: its gain with its interval, or its failure."""
    if trial.get("failure"):
        return f"{trial['failure']}: {trial['message']}" if trial.get("message") else trial["failure"]
    if not trial.get("speedup"):
        return "measured"
    ends = ["∞" if end is None else f"{end:.2f}" for end in trial.get("interval", ())]
    return f"{trial['speedup']:.2f}x" + (f" [{', '.join(ends)}]" if ends else "")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def add(app: FastAPI) -> None:
    """Add the pages to the application."""
    environment = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape())
    environment.filters["ago"] = _ago
    environment.filters["duration"] = duration_text
    environment.filters["when"] = _when
    environment.filters["gain"] = _gain
    environment.filters["result"] = _result

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
        events = parts.database.events(row.id, limit=MOST_EVENTS)
        return page(
            request,
            "search.html",
            search=shown(row),
            is_final=SearchState(row.state) in FINAL,
            events=[event for event in events if event.kind != "trial"],
            trials=[event.data["trial"] for event in events if event.kind == "trial"],
            mlflow=parts.mlflow,
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
        project = "" if who.allows("admin") else who.project
        scripts = parts.database.fleet_scripts(project)
        return page(request, "fleet.html", figures=parts.database.fleet(project), scripts=scripts)

    def admin_page(request: Request, parts: BundleParts, status: int = 200, **values: Any) -> HTMLResponse:
        return page(
            request,
            "admin.html",
            status,
            tokens=parts.database.tokens(),
            projects=parts.database.limits(),
            audit=parts.database.audit_rows(50),
            **values,
        )

    @app.get("/admin")
    def admin(request: Request, parts: With) -> HTMLResponse:
        return admin_page(request, parts)

    @app.post("/admin/tokens")
    async def create_token(request: Request, parts: With, form: Form) -> HTMLResponse:
        try:
            wanted = TokenRequest(
                user=form.get("user", ""),
                project=form.get("project", ""),
                scope=form.get("scope", ""),
                expires_s=float(form.get("days", "")) * 24 * 3600,
            )
            token = parts.database.create_token(**wanted.model_dump())
        except (ValueError, UsageError) as error:
            return admin_page(request, parts, 422, problem=_words(error))
        return admin_page(request, parts, made={"user": wanted.user, "token": token})

    @app.post("/admin/tokens/{token_id}/revoke")
    async def revoke(token_id: str, parts: With, _checked: Form) -> Response:
        parts.database.revoke_token(token_id)
        return RedirectResponse("/admin", status_code=303)

    @app.post("/admin/projects")
    async def set_project(request: Request, parts: With, form: Form) -> Response:
        given = {name: value for name, value in form.items() if name not in ("csrf", "name") and value}
        try:
            save_project(parts, form.get("name", ""), ProjectRequest.model_validate(given))
        except (ValueError, UsageError) as error:
            return admin_page(request, parts, 422, problem=_words(error))
        return RedirectResponse("/admin", status_code=303)


def _words(error: Exception) -> str:
    """Return an error of a form as text."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return error.message if isinstance(error, UsageError) else str(error)

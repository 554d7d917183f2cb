"""HTTP interface: JSON below ``/api/v1``, pages elsewhere; `auth.Gate` protects every route."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from autotune.driver.spec import version
from autotune.errors import AutotuneError, UsageError
from autotune.service import pages
from autotune.service.archive import archive_of
from autotune.service.auth import Policy, TokenGate
from autotune.service.command import checked_options
from autotune.service.estimate import estimate
from autotune.service.reconcile import job_id, trouble_of
from autotune.service.requests import (
    BundleParts,
    ProjectRequest,
    Strict,
    TokenRequest,
    Who,
    With,
    cancelled,
    save_project,
    shown,
    visible,
)
from autotune.service.retention import forget
from autotune.service.reverify import request_of
from autotune.service.states import FINAL, SearchState
from autotune.service.store import Conflict, Submission
from autotune.store.outbox import PROTOCOL
from autotune.text.redact import redact, redact_data

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from autotune.service.bundles import Bundles
    from autotune.service.jobs import Jobs
    from autotune.service.reconcile import Place, Reconciler
    from autotune.service.store import Database

log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_KEEPALIVE_S: Final = 15.0
VERIFY_WINDOW_S: Final = 600
"""Seconds within which repeated requests to verify one search count as one."""
MOST_LOG: Final = 256 * 1024


class SearchRequest(Strict):
    """The search that ``autotune submit`` sends."""

    command: list[str] = Field(min_length=1, max_length=1000)
    options: dict[str, Any] = Field(default_factory=dict)
    budget_s: float = Field(ge=20, le=30 * 24 * 3600)
    bundle: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    path: str = ""
    title: str = Field(default="", max_length=200)
    priority: int = Field(default=50, ge=0, le=100)
    preemptible: bool = False
    gpus: int = Field(default=0, ge=0, le=1024)
    max_cost: float | None = Field(default=None, gt=0)
    image: str = Field(default="", max_length=500)
    webhook: str = Field(default="", max_length=2000)
    commit: str = Field(default="", max_length=64)
    dirty: bool = False


class EstimateRequest(Strict):
    """A search that might be submitted."""

    budget_s: float = Field(ge=20, le=30 * 24 * 3600)
    gpus: int = Field(default=0, ge=0, le=1024)


class ResumeRequest(Strict):
    """A further budget."""

    budget_s: float = Field(ge=20, le=30 * 24 * 3600)


class FactsRequest(BaseModel):
    """Facts that the driver of a search sends (`driver.sinks.service_sink`)."""

    protocol: int
    epoch: int = Field(ge=0)
    op: str = Field(pattern="^(heartbeat|study_began|trial_ended|study_ended)$")
    facts: dict[str, Any]
    seq: int | None = Field(default=None, ge=1)
    trial: dict[str, Any] | None = None


class AppliedRequest(Strict):
    """Run time so far of a training with a configuration of the service; repeated during one run."""

    run: str = Field(pattern=r"^[0-9A-Za-z]{8,64}$")
    seconds: float = Field(ge=0, le=365 * 24 * 3600)


def create_app(
    database: Database,
    bundles: Bundles,
    jobs: Jobs,
    place: Place,
    reconciler: Reconciler,
    *,
    policy: Policy | None = None,
    capacity: int = 1,
    price_per_hour: float | None = None,
    roots: tuple[str, ...] = (),
    images: tuple[str, ...] = (),
    mlflow: str = "",
) -> Any:
    """Return the ASGI application.

    Args:
        database: Database of the service.
        bundles: Uploaded code.
        jobs: Backend that runs searches.
        place: Location of their files.
        reconciler: Moves searches between states in a separate thread.
        policy: Access policy.
        capacity: Slots of the cluster, for the page and the estimate.
        price_per_hour: Price of one slot; needed for price caps.
        roots: Folders on shared storage below which a search may run without a bundle.
        images: Patterns of container images that a search may name.
        mlflow: Address of the tracking server, to which the pages link; empty for none.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        yield

    app = FastAPI(
        title="autotune", version=version() or "0", lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.parts = BundleParts(
        database=database,
        bundles=bundles,
        jobs=jobs,
        place=place,
        reconciler=reconciler,
        capacity=capacity,
        price_per_hour=price_per_hour,
        roots=roots,
        images=images,
        mlflow=mlflow,
    )
    app.add_exception_handler(AutotuneError, _problem)
    app.add_exception_handler(HTTPException, _problem)
    app.add_exception_handler(RequestValidationError, _problem)
    app.add_exception_handler(SQLAlchemyError, _problem)
    app.add_exception_handler(OSError, _problem)
    _routes(app)
    pages.add(app)
    return TokenGate(app, database, policy or Policy())


def _routes(app: FastAPI) -> None:
    app.get("/healthz")(lambda: {"status": "ok"})

    @app.get("/readyz")
    def readyz(parts: With) -> Response:
        parts.database.searches(limit=1)
        trouble = parts.reconciler.trouble
        return JSONResponse({"status": trouble or "ok"}, status_code=503 if trouble else 200)

    @app.get("/metrics")
    def metrics(parts: With) -> PlainTextResponse:
        from autotune.service.metrics import metrics_text

        return PlainTextResponse(metrics_text(parts.database, parts.capacity))

    @app.get("/api/v1/me")
    def me(who: Who) -> dict[str, Any]:
        return {"user": who.user, "project": who.project, "scope": who.scope, "version": version()}

    @app.head("/api/v1/bundles/{sha256}")
    def has_bundle(sha256: str, parts: With) -> Response:
        return Response(status_code=200 if parts.bundles.has(sha256) else 404)

    @app.put("/api/v1/bundles/{sha256}", status_code=201)
    async def put_bundle(sha256: str, request: Request, parts: With) -> dict[str, str]:
        data = await request.body()
        await asyncio.to_thread(parts.bundles.put, sha256, data)
        return {"sha256": sha256}

    @app.post("/api/v1/searches", status_code=201)
    def submit(
        body: SearchRequest,
        who: Who,
        parts: With,
        response: Response,
        idempotency_key: Annotated[str, Header(min_length=8, max_length=200)],
    ) -> dict[str, Any]:
        if who.search_id:
            raise HTTPException(403, "a token of one search cannot submit another")
        checked_options(body.options)
        _check_secrets(body)
        _check_code(body, parts)
        _check_price(body, parts)
        given = Submission(
            project=who.project,
            user=who.user,
            idempotency_key=idempotency_key,
            request=body.model_dump(include={"command", "options", "path", "commit", "dirty", "image"}),
            bundle=body.bundle,
            title=redact(body.title or " ".join(body.command), {}, free=True)[:200],
            budget_s=body.budget_s,
            priority=body.priority,
            gpus=body.gpus,
            is_preemptible=body.preemptible,
            webhook=body.webhook,
        )
        row, is_new = parts.database.submit(given)
        response.status_code = 201 if is_new else 200
        parts.reconciler.poke()
        return shown(row)

    @app.get("/api/v1/searches")
    def listed(
        who: Who,
        parts: With,
        state: SearchState | None = None,
        before: str = "",
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> dict[str, Any]:
        project = "" if who.allows("admin") else who.project
        rows = parts.database.searches(
            project=project, states=[state] if state else [], before=before, limit=limit
        )
        rows = [row for row in rows if not who.search_id or row.id == who.search_id]
        return {"searches": [shown(row) for row in rows], "before": rows[-1].id if len(rows) == limit else ""}

    @app.get("/api/v1/searches/{search_id}")
    def one(search_id: str, who: Who, parts: With) -> dict[str, Any]:
        return shown(visible(parts, who, search_id))

    @app.post("/api/v1/searches/{search_id}/cancel", status_code=202)
    def cancel(search_id: str, who: Who, parts: With) -> dict[str, Any]:
        return shown(cancelled(parts, visible(parts, who, search_id), who.user))

    @app.post("/api/v1/searches/{search_id}/resume", status_code=202)
    def resume(search_id: str, body: ResumeRequest, who: Who, parts: With) -> dict[str, Any]:
        row = visible(parts, who, search_id)
        state = SearchState(row.state)
        if state not in FINAL:
            raise Conflict(f"the search is {state.value}; only one that has ended can be resumed")
        reason = f"resumed by {who.user}"
        budget_s = row.used_s + body.budget_s
        if not parts.database.move(
            row.id, state, SearchState.QUEUED, reason, budget_s=budget_s, ended_s=None, losses=0
        ):
            raise Conflict("the search changed meanwhile", hint="read its state again: autotune status")
        parts.reconciler.poke()
        return shown(parts.database.search(search_id))

    @app.post("/api/v1/searches/{search_id}/verify", status_code=201)
    def verify(search_id: str, who: Who, parts: With, response: Response) -> dict[str, Any]:
        row = visible(parts, who, search_id)
        if not parts.place.best(row.id).is_file():
            raise Conflict("the search has no configuration to verify")
        cause = f"requested-{int(time.time()) // VERIFY_WINDOW_S}"
        made, is_new = parts.database.submit(request_of(row, cause=cause, user=who.user))
        response.status_code = 201 if is_new else 200
        parts.reconciler.poke()
        return shown(made)

    @app.delete("/api/v1/searches")
    def forget_old(older_than_s: Annotated[float, Query(gt=0)], parts: With) -> dict[str, Any]:
        return {"deleted": forget(parts.database, parts.place, older_than_s)}

    @app.get("/api/v1/searches/{search_id}/best.yaml")
    def best(search_id: str, who: Who, parts: With) -> PlainTextResponse:
        row = visible(parts, who, search_id)
        path = parts.place.best(row.id)
        if not path.is_file():
            raise HTTPException(404, "the search has no best.yaml yet")
        return PlainTextResponse(path.read_text(encoding="utf-8"), media_type="application/yaml")

    @app.get("/api/v1/searches/{search_id}/report.html")
    def report(search_id: str, who: Who, parts: With) -> Response:
        row = visible(parts, who, search_id)
        found = sorted(parts.place.home(row.id).glob("studies/*/report.html"))
        if not found:
            raise HTTPException(404, "the search has no report yet")
        # The report's own policy allows its inline script; nothing is ever fetched.
        headers = {
            "content-security-policy": "sandbox allow-scripts allow-popups",
            "x-content-type-options": "nosniff",
        }
        return Response(found[-1].read_bytes(), media_type="text/html", headers=headers)

    @app.get("/api/v1/searches/{search_id}/study.tar.gz")
    def study(search_id: str, who: Who, parts: With) -> Response:
        row = visible(parts, who, search_id)
        if SearchState(row.state) not in FINAL:
            raise Conflict(
                f"the search is {row.state}: its study can be read once it has ended",
                hint=f"autotune logs -f {row.id}",
            )
        data = archive_of(parts.place.home(row.id), parts.place.best(row.id))
        if data is None:
            raise HTTPException(404, "the search ended before it had a study")
        return Response(data, media_type="application/gzip")

    @app.get("/api/v1/searches/{search_id}/log")
    def log(
        search_id: str,
        who: Who,
        parts: With,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_LOG)] = MOST_LOG,
    ) -> Response:
        row = visible(parts, who, search_id)
        data = parts.jobs.output(job_id(row), offset, limit)
        headers = {"x-next-offset": str(offset + len(data)), "x-content-type-options": "nosniff"}
        return Response(data, media_type="text/plain; charset=utf-8", headers=headers)

    @app.get("/api/v1/searches/{search_id}/events")
    def followed(
        search_id: str,
        request: Request,
        who: Who,
        parts: With,
        last_event_id: Annotated[str, Header()] = "0",
    ) -> StreamingResponse:
        row = visible(parts, who, search_id)
        after = int(last_event_id) if last_event_id.isdigit() else 0
        return StreamingResponse(_stream(request, parts, row.id, after), media_type="text/event-stream")

    @app.post("/api/v1/searches/{search_id}/applied", status_code=202)
    def applied(search_id: str, body: AppliedRequest, who: Who, parts: With) -> dict[str, str]:
        row = visible(parts, who, search_id)
        parts.database.note_applied(row.id, who.user, body.run, body.seconds)
        return {"status": "recorded"}

    @app.post("/api/v1/searches/{search_id}/facts", status_code=202)
    def facts(search_id: str, body: FactsRequest, parts: With) -> dict[str, str]:
        if body.protocol > PROTOCOL:
            raise HTTPException(
                422, f"the search runs a newer autotune (protocol {body.protocol}); update the service"
            )
        kind = {"trial_ended": "trial", "heartbeat": ""}.get(body.op, "progress")
        data = {**body.facts, **({"trial": body.trial} if body.trial else {})}
        parts.database.report(
            search_id, epoch=body.epoch, facts=body.facts, kind=kind, study_seq=body.seq, data=data
        )
        return {"status": "recorded"}

    @app.get("/api/v1/searches/{search_id}/trials")
    def trials(
        search_id: str,
        who: Who,
        parts: With,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> dict[str, Any]:
        row = visible(parts, who, search_id)
        rows = parts.database.events(row.id, after, limit, kind="trial")
        found = [{"seq": one.seq, "at_s": one.at_s, **one.data["trial"]} for one in rows]
        return {"trials": found, "after": rows[-1].seq if len(rows) == limit else 0}

    @app.get("/api/v1/configs")
    def registered(
        who: Who,
        parts: With,
        script_sha256: Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")],
        hardware: Annotated[str, Query(pattern=r"^[0-9a-f]{1,64}$")],
    ) -> dict[str, Any]:
        row = parts.database.best_config(who.project, script_sha256, hardware)
        if row is None:
            raise HTTPException(404, "no configuration is registered for this script on this hardware")
        return {"search": row.search_id, "speedup": row.speedup, "created_s": row.created_s, "yaml": row.yaml}

    @app.post("/api/v1/estimate")
    def estimated(body: EstimateRequest, who: Who, parts: With) -> dict[str, Any]:
        return estimate(parts.database, who.project, body.budget_s, max(1, body.gpus), parts.price_per_hour)

    @app.get("/api/v1/fleet")
    def fleet(who: Who, parts: With) -> dict[str, Any]:
        project = "" if who.allows("admin") else who.project
        return {**parts.database.fleet(project), "scripts": parts.database.fleet_scripts(project)}

    @app.get("/api/v1/tokens")
    def tokens(parts: With) -> dict[str, Any]:
        return {"tokens": parts.database.tokens()}

    @app.post("/api/v1/tokens", status_code=201)
    def create_token(body: TokenRequest, parts: With) -> dict[str, str]:
        token = parts.database.create_token(
            user=body.user, project=body.project, scope=body.scope, expires_s=body.expires_s, note=body.note
        )
        return {"token": token}

    @app.delete("/api/v1/tokens/{token_id}", status_code=204)
    def revoke(token_id: str, parts: With) -> Response:
        if not parts.database.revoke_token(token_id):
            raise HTTPException(404, "there is no token of that id")
        return Response(status_code=204)

    @app.get("/api/v1/projects")
    def projects(parts: With) -> dict[str, Any]:
        from dataclasses import asdict

        return {"projects": {name: asdict(limits) for name, limits in parts.database.limits().items()}}

    @app.put("/api/v1/projects/{name}")
    def set_project(name: str, body: ProjectRequest, parts: With) -> dict[str, str]:
        save_project(parts, name, body)
        return {"name": name}

    @app.get("/api/v1/audit")
    def audit(parts: With) -> dict[str, Any]:
        return {"audit": parts.database.audit_rows()}


def _check_secrets(body: SearchRequest) -> None:
    """Refuse a command that holds a secret, as the project can read it and the database keeps it.

    Raises:
        UsageError: A word or an option is a secret by its name or its form.
    """
    given = [body.command, body.options]
    if redact_data(given, {}) != given:
        raise UsageError(
            "the command or an option holds a secret, which everyone in the project could read",
            hint="let the script read it from a file or a variable of the cluster's nodes",
        )


def _check_code(body: SearchRequest, parts: BundleParts) -> None:
    """Refuse a search whose code is missing.

    Raises:
        HTTPException: 422 with the reason.
    """
    from pathlib import Path

    if bool(body.bundle) == bool(body.path):
        raise HTTPException(422, "name the code by either bundle or path")
    if body.bundle and not parts.bundles.has(body.bundle):
        raise HTTPException(422, "the bundle was not uploaded")
    if body.image and not any(fnmatchcase(body.image, one) for one in parts.images):
        raise HTTPException(422, "the container image is not one that the service allows (--allow-image)")
    if body.path:
        path = Path(body.path).resolve()
        if not any(path.is_relative_to(Path(root).resolve()) for root in parts.roots):
            raise HTTPException(422, "the path is not below a folder that the service allows (--code-root)")
        if not path.is_dir():
            raise HTTPException(422, "the path is no folder on the service's storage")


def _check_price(body: SearchRequest, parts: BundleParts) -> None:
    if body.max_cost is None:
        return
    if parts.price_per_hour is None:
        raise HTTPException(422, "the service has no price (--price-per-hour), so it cannot keep a price cap")
    cost = body.budget_s / 3600 * parts.price_per_hour * max(1, body.gpus)
    if cost > body.max_cost:
        raise HTTPException(422, f"the budget costs up to {cost:.2f}, more than --max-cost {body.max_cost:g}")


async def _stream(request: Request, parts: BundleParts, search_id: str, after: int) -> AsyncGenerator[str]:
    """Yield events in stored order, each with its sequence number, until the search has ended."""
    sent_s = time.monotonic()
    while not await request.is_disconnected():
        rows = await asyncio.to_thread(parts.database.events, search_id, after)
        for row in rows:
            after = row.seq
            data = json.dumps({"kind": row.kind, "at_s": row.at_s, **row.data}, ensure_ascii=False)
            yield f"id: {row.seq}\nevent: {row.kind}\ndata: {data}\n\n"
            sent_s = time.monotonic()
        if not rows:
            search = await asyncio.to_thread(parts.database.search, search_id)
            if search is None or SearchState(search.state) in FINAL:
                yield "event: end\ndata: {}\n\n"
                return
            if time.monotonic() - sent_s > _KEEPALIVE_S:
                yield ": still here\n\n"
                sent_s = time.monotonic()
            await asyncio.sleep(_POLL_S)


async def _problem(_request: Request, error: Exception) -> Response:
    """Return any error as a problem document (RFC 9457)."""
    title, hint = "internal error of the service; see its log", ""
    status = 500
    match error:
        case HTTPException():
            title, status = str(error.detail), error.status_code
        case RequestValidationError():
            first = error.errors()[0]
            title, status = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}", 422
        case AutotuneError():
            title, hint = error.message, error.hint
            status = (
                409 if isinstance(error, Conflict) else {2: 422, 5: 503, 6: 503}.get(error.exit_code, 500)
            )
        case SQLAlchemyError():
            log.warning("the database does not answer: %s", error)
            title, status = "the service's database does not answer; try again", 503
        case OSError():
            log.warning("the storage cannot be used: %s", error)
            title, status = trouble_of(error), 503
        case _:
            log.error("a request failed", exc_info=error)
    body = {"title": title, "status": status, "hint": hint}
    return JSONResponse(body, status_code=status, media_type="application/problem+json")

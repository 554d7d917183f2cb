"""Dependencies of every route: the identity, the parts of the application, and the named search."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from autotune.errors import UsageError
from autotune.service.queue import Limits
from autotune.service.states import MOVES, WITH_JOB, SearchState
from autotune.service.store import Conflict, Identity
from autotune.store.paths import is_label


class Strict(BaseModel):
    """Request body in which an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class TokenRequest(Strict):
    """A token to create; `expires_s` in seconds from now."""

    user: str = Field(min_length=1, max_length=128)
    project: str = "default"
    scope: str = "run"
    expires_s: float | None = Field(default=None, gt=0)
    note: str = ""


class ProjectRequest(Strict):
    """Quotas; null for no limit."""

    weight: float = Field(default=1.0, gt=0)
    max_running: int | None = Field(default=None, ge=0)
    max_running_per_user: int | None = Field(default=None, ge=0)
    max_gpus: int | None = Field(default=None, ge=0)
    max_slot_s_per_day: float | None = Field(default=None, ge=0)


class BundleParts(BaseModel):
    """Parts of the application."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    database: Any
    bundles: Any
    jobs: Any
    place: Any
    reconciler: Any
    capacity: int
    price_per_hour: float | None = None
    roots: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    mlflow: str = ""


def identity_of(request: Request) -> Identity:
    """Return the identity of a request, as set by the gate."""
    return request.scope["state"]["identity"]


def parts_of(request: Request) -> BundleParts:
    """Return the application's parts."""
    return request.app.state.parts


Who = Annotated[Identity, Depends(identity_of)]
With = Annotated[BundleParts, Depends(parts_of)]


def visible(parts: BundleParts, who: Identity, search_id: str) -> Any:
    """Return a search that the identity may see.

    Raises:
        HTTPException: 404 if there is none, or it is of another project, without distinction.
    """
    row = parts.database.search(search_id)
    is_mine = row is not None and (row.project == who.project or who.allows("admin"))
    if not is_mine or (who.search_id and who.search_id != search_id):
        raise HTTPException(404, "there is no such search")
    return row


def shown(row: Any) -> dict[str, Any]:
    """Return a search in the format of the API."""
    return {
        "id": row.id,
        "title": row.title,
        "project": row.project,
        "user": row.user,
        "state": row.state,
        "reason": row.reason,
        "since_s": row.since_s,
        "created_s": row.created_s,
        "started_s": row.started_s,
        "ended_s": row.ended_s,
        "priority": row.priority,
        "preemptible": bool(row.is_preemptible),
        "gpus": row.gpus,
        "budget_s": row.budget_s,
        "used_s": row.used_s,
        "epoch": row.epoch,
        "heartbeat_s": row.heartbeat_s,
        "deadline_s": _deadline_s(row),
        "exit_code": row.exit_code,
        "answer": row.answer,
        "command": row.request["command"],
        "commit": row.request.get("commit", ""),
    }


def _deadline_s(row: Any) -> float | None:
    """Return when the budget of a running search ends, in seconds since the epoch; None for others."""
    if SearchState(row.state) not in WITH_JOB:
        return None
    return row.since_s + max(0.0, row.budget_s - row.used_s)


def cancelled(parts: BundleParts, row: Any, user: str) -> Any:
    """Cancel a search and return its row; repeats have no effect.

    Raises:
        Conflict: It has already ended by itself.
    """
    for _ in range(5):
        state = SearchState(row.state)
        if state in (SearchState.CANCELLING, SearchState.CANCELLED):
            break
        to = SearchState.CANCELLED if state is SearchState.QUEUED else SearchState.CANCELLING
        if to not in MOVES[state]:
            raise Conflict(f"the search has ended: it is {state.value}")
        if parts.database.move(row.id, state, to, f"cancelled by {user}"):
            break
        row = parts.database.search(row.id)
    parts.reconciler.poke()
    return parts.database.search(row.id)


def save_project(parts: BundleParts, name: str, quotas: ProjectRequest) -> None:
    """Create a project or change its quotas.

    Raises:
        UsageError: The name is not valid for a project.
    """
    if not is_label(name) or len(name) > 64:
        raise UsageError("a project's name has letters, digits, dots, dashes and underscores")
    parts.database.set_project(name, Limits(**quotas.model_dump()))

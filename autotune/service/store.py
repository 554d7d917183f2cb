"""Database of the service: searches and their states, tokens, quotas, events. SQLite or PostgreSQL."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, OperationalError

from autotune.errors import StoreError, UsageError
from autotune.service import tables as t
from autotune.service.queue import SHARE_S, Limits
from autotune.service.states import FINAL, MOVES, WITH_JOB, SearchState
from autotune.store.paths import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from sqlalchemy.engine import Connection, Engine, Row

SCOPES: Final = ("read", "run", "admin")
"""Scopes of tokens; each includes the ones before it."""
REPORT: Final = "report"
"""Scope of a driver's token, which permits sending the facts of its search only."""
TOKEN_FORM: Final = re.compile(r"att_[\w-]{20,}")
"""Format of a token; one that was put into a path must not reach the audit log."""
DEFAULT_PROJECT: Final = "default"
LEASE_S: Final = 30.0
"""Seconds without renewal after which a service's lease counts as dead."""


class Conflict(UsageError):
    """Reused idempotency key with another request, or a transition that the state does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity behind a request.

    Args:
        token_id: Id of the token; ``proxy`` for a user named by a trusted proxy.
        scope: One of `SCOPES`.
        search_id: The only search that the token may access; empty for all of its project.
    """

    token_id: str
    user: str
    project: str
    scope: str
    search_id: str = ""

    def allows(self, scope: str) -> bool:
        """Return whether the scope includes another one."""
        return self.scope in SCOPES and SCOPES.index(self.scope) >= SCOPES.index(scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submitted search.

    Args:
        request: The command and the options of ``autotune search``, as the client sent them.
        bundle: SHA-256 of the code bundle; empty if the code is on shared storage.
    """

    project: str
    user: str
    idempotency_key: str
    request: Mapping[str, Any]
    bundle: str
    title: str
    budget_s: float
    priority: int = 50
    gpus: int = 0
    is_preemptible: bool = False
    webhook: str = ""

    def digest(self) -> str:
        """Return the digest by which a repeated request is recognised."""
        parts = [self.request, self.bundle, self.budget_s, self.priority, self.gpus]
        parts += [self.is_preemptible, self.webhook]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Database:
    """All reads and writes of the service; each public method is one transaction.

    Args:
        url: SQLAlchemy address: ``sqlite:////path/service.db`` or ``postgresql+psycopg://...``.
        wall: Clock, in seconds since the epoch.
    """

    def __init__(self, url: str, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self.engine = _engine(url)

    def migrate(self) -> None:
        """Migrate the tables to the newest version; repeats have no effect.

        Raises:
            StoreError: The database cannot be reached, or is of a newer version.
        """
        from alembic import command
        from alembic.config import Config
        from alembic.util.exc import CommandError

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        try:
            with self.engine.begin() as connection:
                if self.engine.dialect.name == "postgresql":
                    # Two services that start at once migrate one after the other.
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(7283946)"))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(
                f"the service's database is of another version: {error}", hint="start the newer autotune"
            ) from error
        except OperationalError as error:
            raise StoreError(
                f"the service's database cannot be reached: {str(error.orig).splitlines()[0]}",
                hint="check --database",
            ) from error
        with self._write() as connection:
            _insert_or_ignore(connection, t.projects, {"name": DEFAULT_PROJECT, "weight": 1.0})

    @contextmanager
    def _write(self) -> Generator[Connection]:
        with self.engine.begin() as connection:
            if self.engine.dialect.name == "sqlite":
                # One writer at a time from the first statement on, so that its reads are not stale at its
                # writes.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    # -- one service per database -------------------------------------------------------------------

    def lease(self) -> tuple[str, float] | None:
        """Return the owner of the lease and its end by that service's clock; None without a lease."""
        with self.engine.connect() as connection:
            row = connection.execute(sa.select(t.lease)).first()
        return None if row is None else (row.owner, row.until_s)

    def take_lease(self, owner: str, *, dead: tuple[str, float] | None = None) -> bool:
        """Take or renew the lease of this database; return False if another service holds it.

        Args:
            owner: This service.
            dead: A lease that was observed without renewal, which is taken over whatever the clocks show.
        """
        now = self._wall()
        with self._write() as connection:
            row = connection.execute(sa.select(t.lease)).first()
            if row is None:
                connection.execute(t.lease.insert().values(id=1, owner=owner, until_s=now + LEASE_S))
                return True
            if row.owner != owner and row.until_s > now and (row.owner, row.until_s) != dead:
                return False
            connection.execute(t.lease.update().values(owner=owner, until_s=now + LEASE_S))
            return True

    def drop_lease(self, owner: str) -> None:
        """Release the lease."""
        with self._write() as connection:
            connection.execute(t.lease.delete().where(t.lease.c.owner == owner))

    # -- tokens and projects ------------------------------------------------------------------------

    def create_token(
        self,
        *,
        user: str,
        project: str = DEFAULT_PROJECT,
        scope: str = "run",
        expires_s: float | None = None,
        search_id: str = "",
        note: str = "",
    ) -> str:
        """Create a token and return it; only its digest is stored.

        Args:
            user: Owner of the token.
            project: Project that it may access.
            scope: One of `SCOPES`.
            expires_s: Seconds from now; None for no end.
            search_id: The only search that it may access; empty for all of the project.
            note: Note for administrators.

        Raises:
            UsageError: The scope or the project does not exist.
        """
        if scope not in SCOPES and not (scope == REPORT and search_id):
            raise UsageError(f'there is no scope "{scope}"', hint=f"one of: {', '.join(SCOPES)}")
        token = f"att_{secrets.token_urlsafe(32)}"
        now = self._wall()
        values = {
            "id": new_id(),
            "sha256": _digest(token),
            "user": user,
            "project": project,
            "scope": scope,
            "search_id": search_id or None,
            "created_s": now,
            "expires_s": None if expires_s is None else now + expires_s,
            "note": note[:200],
        }
        with self._write() as connection:
            if (
                connection.execute(sa.select(t.projects.c.name).where(t.projects.c.name == project)).first()
                is None
            ):
                raise UsageError(
                    f'there is no project "{project}"', hint="an admin creates it: autotune admin project"
                )
            connection.execute(t.tokens.insert().values(values))
        return token

    def identity(self, token: str) -> Identity | None:
        """Return the identity of a token; None for an unknown or expired one."""
        digest = _digest(token)
        with self.engine.connect() as connection:
            row = connection.execute(sa.select(t.tokens).where(t.tokens.c.sha256 == digest)).first()
        if row is None or not hmac.compare_digest(row.sha256, digest):
            return None
        now = self._wall()
        if row.expires_s is not None and row.expires_s <= now:
            return None
        if row.last_used_s is None or now - row.last_used_s > 60:
            with self._write() as connection:
                connection.execute(t.tokens.update().where(t.tokens.c.id == row.id).values(last_used_s=now))
        return Identity(
            token_id=row.id,
            user=row.user,
            project=row.project,
            scope=row.scope,
            search_id=row.search_id or "",
        )

    def tokens(self) -> list[dict[str, Any]]:
        """Return all tokens without their secrets."""
        columns = [c for c in t.tokens.c if c.name != "sha256"]
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(*columns).order_by(t.tokens.c.id))
            return [dict(row) for row in rows.mappings()]

    def revoke_reports(self, search_id: str) -> None:
        """Delete the tokens of a search's drivers."""
        chosen = sa.and_(t.tokens.c.search_id == search_id, t.tokens.c.scope == REPORT)
        with self._write() as connection:
            connection.execute(t.tokens.delete().where(chosen))

    def revoke_token(self, token_id: str) -> bool:
        """Delete a token; return False if there is none of that id."""
        with self._write() as connection:
            return connection.execute(t.tokens.delete().where(t.tokens.c.id == token_id)).rowcount > 0

    def set_project(self, name: str, limits: Limits) -> None:
        """Create a project or change its quotas."""
        values = {
            "weight": limits.weight,
            "max_running": limits.max_running,
            "max_running_per_user": limits.max_running_per_user,
            "max_gpus": limits.max_gpus,
            "max_slot_s_per_day": limits.max_slot_s_per_day,
        }
        with self._write() as connection:
            done = connection.execute(t.projects.update().where(t.projects.c.name == name).values(values))
            if not done.rowcount:
                connection.execute(t.projects.insert().values(name=name, **values))

    def limits(self) -> dict[str, Limits]:
        """Return the quotas of every project."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(t.projects))
            return {
                row.name: Limits(
                    weight=row.weight,
                    max_running=row.max_running,
                    max_running_per_user=row.max_running_per_user,
                    max_gpus=row.max_gpus,
                    max_slot_s_per_day=row.max_slot_s_per_day,
                )
                for row in rows
            }

    # -- searches -----------------------------------------------------------------------------------

    def submit(self, given: Submission) -> tuple[Row[Any], bool]:
        """Queue a search.

        Returns:
            The row, and whether it is new: the same key with the same request returns the first search again.

        Raises:
            Conflict: The same key was used for another request.
        """
        now, search_id = self._wall(), new_id()
        values = {
            "id": search_id,
            "project": given.project,
            "user": given.user,
            "idempotency_key": given.idempotency_key,
            "request": dict(given.request),
            "request_sha256": given.digest(),
            "bundle": given.bundle,
            "title": given.title[:200],
            "priority": given.priority,
            "is_preemptible": int(given.is_preemptible),
            "gpus": given.gpus,
            "budget_s": given.budget_s,
            "state": SearchState.QUEUED.value,
            "reason": "waits for its turn",
            "since_s": now,
            "created_s": now,
            "webhook": given.webhook,
        }
        try:
            with self._write() as connection:
                connection.execute(t.searches.insert().values(values))
                _event(
                    connection, search_id, now, "queued", {"title": given.title, "reason": values["reason"]}
                )
                return _row(connection, search_id), True
        except IntegrityError as error:
            found = self._same_key(given)
            if found is None:
                raise UsageError(f'there is no project "{given.project}"') from error
            if found.request_sha256 != given.digest():
                raise Conflict(
                    f"the idempotency key was used for another request (search {found.id})",
                    hint="use a new key for a new search",
                ) from error
            return found, False

    def _same_key(self, given: Submission) -> Row[Any] | None:
        chosen = sa.select(t.searches).where(
            t.searches.c.project == given.project,
            t.searches.c.user == given.user,
            t.searches.c.idempotency_key == given.idempotency_key,
        )
        with self.engine.connect() as connection:
            return connection.execute(chosen).first()

    def search(self, search_id: str) -> Row[Any] | None:
        """Return a search; None if there is none of that id."""
        with self.engine.connect() as connection:
            return connection.execute(sa.select(t.searches).where(t.searches.c.id == search_id)).first()

    def searches(
        self, *, project: str = "", states: Sequence[SearchState] = (), before: str = "", limit: int = 100
    ) -> list[Row[Any]]:
        """Return searches, newest first.

        Args:
            project: Only searches of this project; empty for all.
            states: Only searches in one of these states; empty for all.
            before: Only searches older than this id: the cursor of the next page.
            limit: Maximum number of searches.
        """
        chosen = sa.select(t.searches).order_by(t.searches.c.id.desc()).limit(limit)
        if project:
            chosen = chosen.where(t.searches.c.project == project)
        if states:
            chosen = chosen.where(t.searches.c.state.in_([state.value for state in states]))
        if before:
            chosen = chosen.where(t.searches.c.id < before)
        with self.engine.connect() as connection:
            return list(connection.execute(chosen))

    def move(self, search_id: str, seen: SearchState, to: SearchState, reason: str, **values: Any) -> bool:
        """Move a search from an observed state to another one.

        Args:
            search_id: Id of the search.
            seen: State observed by the caller.
            to: Next state.
            reason: Reason in words.
            values: Further columns to set.

        Returns:
            False if the search is in another state by now; nothing is changed then.

        Raises:
            Conflict: There is no such transition.
        """
        if to not in MOVES[seen]:
            raise Conflict(f"a search that is {seen.value} cannot become {to.value}")
        now = self._wall()
        with self._write() as connection:
            row = _row(connection, search_id)
            if row.state != seen.value:
                return False
            changes: dict[str, Any] = {"state": to.value, "reason": reason, "since_s": now, **values}
            if to is SearchState.STARTING:
                changes |= {"epoch": row.epoch + 1, "started_s": row.started_s or now, "heartbeat": 0}
                self._open_usage(connection, row, row.epoch + 1, now)
            if to is SearchState.QUEUED or to in FINAL:
                changes["used_s"] = row.used_s + self._close_usage(connection, row, now)
            if to in FINAL:
                changes["ended_s"] = now
            done = connection.execute(
                t.searches.update()
                .where(t.searches.c.id == search_id, t.searches.c.state == seen.value)
                .values(changes)
            )
            if not done.rowcount:
                return False
            _event(connection, search_id, now, to.value, {"reason": reason})
            if row.webhook and (to in FINAL or to is SearchState.RUNNING):
                body = {"search": search_id, "title": row.title, "state": to.value, "reason": reason}
                body["text"] = f"autotune search {row.title}: {to.value} ({reason})"
                connection.execute(
                    t.webhooks.insert().values(search_id=search_id, url=row.webhook, body=body, next_s=now)
                )
            return True

    def explain(self, search_id: str, reason: str, *, state: SearchState = SearchState.QUEUED) -> None:
        """Change the reason of a search that is in this state."""
        with self._write() as connection:
            connection.execute(
                t.searches.update()
                .where(
                    t.searches.c.id == search_id,
                    t.searches.c.state == state.value,
                    t.searches.c.reason != reason,
                )
                .values(reason=reason)
            )

    def note(self, search_id: str, kind: str, data: Mapping[str, Any], **values: Any) -> None:
        """Append an event, and set columns of the search."""
        with self._write() as connection:
            if values:
                connection.execute(t.searches.update().where(t.searches.c.id == search_id).values(values))
            _event(connection, search_id, self._wall(), kind, data)

    def report(
        self,
        search_id: str,
        *,
        epoch: int,
        facts: Mapping[str, Any],
        kind: str = "",
        study_seq: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Store data of a driver: a heartbeat, and an event unless its number was received before.

        Raises:
            Conflict: It is from an earlier life of the search.
        """
        now = self._wall()
        with self._write() as connection:
            row = _row(connection, search_id)
            if row.epoch != epoch:
                raise Conflict(f"the facts are of life {epoch} of the search, and this is life {row.epoch}")
            if SearchState(row.state) in WITH_JOB:
                values = {"heartbeat": row.heartbeat + 1, "heartbeat_s": now, "answer": dict(facts)}
                connection.execute(t.searches.update().where(t.searches.c.id == search_id).values(values))
            if kind:
                event = {"search_id": search_id, "at_s": now, "kind": kind, "data": dict(data or facts)}
                _insert_or_ignore(connection, t.events, {**event, "study_seq": study_seq})

    def events(self, search_id: str, after: int = 0, limit: int = 200, *, kind: str = "") -> list[Row[Any]]:
        """Return events of a search after a sequence number, oldest first; of one kind, or of all."""
        chosen = (
            sa.select(t.events)
            .where(t.events.c.search_id == search_id, t.events.c.seq > after)
            .order_by(t.events.c.seq)
            .limit(limit)
        )
        if kind:
            chosen = chosen.where(t.events.c.kind == kind)
        with self.engine.connect() as connection:
            return list(connection.execute(chosen))

    def used_s(self) -> dict[tuple[str, str], float]:
        """Return the slot-seconds used in the last 24 hours by (project, user)."""
        now = self._wall()
        since = now - SHARE_S
        used: dict[tuple[str, str], float] = {}
        chosen = sa.select(t.usage).where(sa.or_(t.usage.c.ended_s.is_(None), t.usage.c.ended_s > since))
        with self.engine.connect() as connection:
            for row in connection.execute(chosen):
                seconds = max(0.0, (row.ended_s or now) - max(row.began_s, since)) * row.slots
                used[row.project, row.user] = used.get((row.project, row.user), 0.0) + seconds
        return used

    def _open_usage(self, connection: Connection, row: Row[Any], epoch: int, now: float) -> None:
        values = {"project": row.project, "user": row.user, "slots": max(1, row.gpus), "began_s": now}
        connection.execute(t.usage.insert().values(search_id=row.id, epoch=epoch, **values))

    def _close_usage(self, connection: Connection, row: Row[Any], now: float) -> float:
        """Close the open use of a search and return its seconds."""
        open_one = sa.and_(t.usage.c.search_id == row.id, t.usage.c.ended_s.is_(None))
        began = connection.execute(sa.select(t.usage.c.began_s).where(open_one)).scalar()
        connection.execute(t.usage.update().where(open_one).values(ended_s=now))
        return 0.0 if began is None else max(0.0, now - began)

    # -- results ------------------------------------------------------------------------------------

    def register(
        self,
        row: Row[Any],
        *,
        script_sha256: str,
        hardware: str,
        speedup: float,
        yaml: str,
        devices: str = "",
        versions: str = "",
    ) -> None:
        """Register a confirmed configuration; repeats have no effect."""
        values = {
            "project": row.project,
            "script_sha256": script_sha256,
            "hardware": hardware,
            "speedup": speedup,
            "created_s": self._wall(),
            "measured_s": self._wall(),
            "devices": devices,
            "versions": versions,
            "yaml": yaml,
        }
        with self._write() as connection:
            connection.execute(t.configs.delete().where(t.configs.c.search_id == row.id))
            connection.execute(t.configs.insert().values(search_id=row.id, **values))

    def measured_again(self, search_id: str, *, is_stale: bool, versions: str) -> None:
        """Record the verification of a configuration, and whether it is still faster."""
        values = {"measured_s": self._wall(), "is_stale": int(is_stale), "versions": versions}
        with self._write() as connection:
            connection.execute(t.configs.update().where(t.configs.c.search_id == search_id).values(values))

    def configs_measured_before(self, before_s: float) -> list[Row[Any]]:
        """Return configurations that are not stale and were last measured before `before_s`."""
        return self._rows(
            sa.select(t.configs).where(t.configs.c.is_stale == 0, t.configs.c.measured_s < before_s)
        )

    def configs_of_devices(self, project: str, devices: str) -> list[Row[Any]]:
        """Return configurations of a project that are not stale and were measured on these devices."""
        mine = sa.and_(t.configs.c.project == project, t.configs.c.devices == devices)
        return self._rows(sa.select(t.configs).where(mine, t.configs.c.is_stale == 0))

    def bundles(self) -> set[str]:
        """Return the digests of the bundles that searches use."""
        return {row.bundle for row in self._rows(sa.select(t.searches.c.bundle).distinct())}

    def best_config(self, project: str, script_sha256: str, hardware: str) -> Row[Any] | None:
        """Return the newest configuration for a script and a hardware key that is not stale; else None."""
        chosen = (
            sa.select(t.configs)
            .where(
                t.configs.c.project == project,
                t.configs.c.script_sha256 == script_sha256,
                t.configs.c.hardware == hardware,
                t.configs.c.is_stale == 0,
            )
            .order_by(t.configs.c.created_s.desc())
        )
        with self.engine.connect() as connection:
            return connection.execute(chosen).first()

    def note_applied(self, search_id: str, user: str, run: str, seconds: float) -> None:
        """Record how long a training run has used a configuration so far."""
        values = {"at_s": self._wall(), "seconds": seconds}
        mine = sa.and_(t.applied.c.search_id == search_id, t.applied.c.run == run)
        with self._write() as connection:
            given = {"search_id": search_id, "run": run, "user": user, **values}
            _insert_or_ignore(connection, t.applied, given)
            later = sa.and_(mine, t.applied.c.seconds < seconds)
            connection.execute(t.applied.update().where(later).values(values))

    def fleet(self, project: str = "") -> dict[str, float]:
        """Return the costs and savings of tuning: hours, and counts of searches.

        A training that ran for T with a configuration that is S times as fast would have taken S * T: (S - 1)
        * T is saved.
        """
        searches, configs, applied = t.searches, t.configs, t.applied
        of = searches.c.project == project if project else sa.true()
        with self.engine.connect() as connection:
            spent = connection.execute(
                sa.select(
                    sa.func.coalesce(
                        sa.func.sum(
                            searches.c.used_s * sa.case((searches.c.gpus > 0, searches.c.gpus), else_=1)
                        ),
                        0.0,
                    )
                ).where(of)
            ).scalar_one()
            saved = connection.execute(
                sa.select(
                    sa.func.coalesce(
                        sa.func.sum(
                            (configs.c.speedup - 1.0)
                            * applied.c.seconds
                            * sa.case((searches.c.gpus > 0, searches.c.gpus), else_=1)
                        ),
                        0.0,
                    )
                )
                .select_from(
                    applied.join(configs, configs.c.search_id == applied.c.search_id).join(
                        searches, searches.c.id == applied.c.search_id
                    )
                )
                .where(of)
            ).scalar_one()
            counts = dict(
                connection.execute(
                    sa.select(searches.c.state, sa.func.count()).where(of).group_by(searches.c.state)
                ).all()
            )
        return {
            "tuning_slot_hours": spent / 3600,
            "saved_slot_hours": saved / 3600,
            **{f"searches_{state.value}": counts.get(state.value, 0) for state in SearchState},
        }

    def fleet_scripts(self, project: str = "", limit: int = 20) -> list[dict[str, Any]]:
        """Return the searches with the largest confirmed gains, and each script's bottleneck."""
        chosen = sa.select(t.searches, t.configs.c.speedup, t.configs.c.is_stale).join(
            t.configs, t.configs.c.search_id == t.searches.c.id
        )
        if project:
            chosen = chosen.where(t.searches.c.project == project)
        hours = dict(
            self._rows(
                sa.select(t.applied.c.search_id, sa.func.sum(t.applied.c.seconds) / 3600).group_by(
                    t.applied.c.search_id
                )
            )
        )
        rows = self._rows(chosen.order_by(t.configs.c.speedup.desc()).limit(limit))
        return [
            {
                "search": row.id,
                "title": row.title,
                "project": row.project,
                "speedup": row.speedup,
                "stale": bool(row.is_stale),
                "applied_hours": float(hours.get(row.id, 0.0)),
                "held_back": (row.answer or {}).get("held_back", []),
            }
            for row in rows
        ]

    def _rows(self, chosen: Any) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(chosen).all())

    # -- webhooks and audit -------------------------------------------------------------------------

    def due_webhooks(self, limit: int = 20) -> list[Row[Any]]:
        """Return webhooks that are due."""
        chosen = (
            sa.select(t.webhooks)
            .where(t.webhooks.c.state == "waiting", t.webhooks.c.next_s <= self._wall())
            .order_by(t.webhooks.c.seq)
            .limit(limit)
        )
        with self.engine.connect() as connection:
            return list(connection.execute(chosen))

    def webhook_done(self, seq: int, *, ok: bool, attempts: int, retry_s: float | None) -> None:
        """Record the result of sending; `retry_s` None ends the attempts."""
        state = "sent" if ok else ("waiting" if retry_s is not None else "failed")
        values = {"state": state, "attempts": attempts, "next_s": self._wall() + (retry_s or 0.0)}
        with self._write() as connection:
            connection.execute(t.webhooks.update().where(t.webhooks.c.seq == seq).values(values))

    def audit(self, identity: Identity, method: str, path: str, status: int) -> None:
        """Record a mutating call."""
        values = {"at_s": self._wall(), "token_id": identity.token_id, "user": identity.user}
        with self._write() as connection:
            connection.execute(
                t.audit.insert().values(method=method, path=path[:500], status=status, **values)
            )

    def audit_rows(self, limit: int = 200) -> list[dict[str, Any]]:
        """Return the newest audit rows."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(t.audit).order_by(t.audit.c.seq.desc()).limit(limit))
            return [dict(row) for row in rows.mappings()]

    def forget(self, older_than_s: float) -> list[str]:
        """Delete final searches that ended this long ago, with their events, and return their ids."""
        before = self._wall() - older_than_s
        with self._write() as connection:
            chosen = sa.select(t.searches.c.id).where(
                t.searches.c.state.in_([state.value for state in FINAL]), t.searches.c.ended_s < before
            )
            ids = [row.id for row in connection.execute(chosen)]
            for table in (t.events, t.usage, t.webhooks, t.applied, t.configs, t.tokens):
                connection.execute(table.delete().where(table.c.search_id.in_(ids)))
            connection.execute(t.searches.delete().where(t.searches.c.id.in_(ids)))
        return ids


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_pre_ping=True)
    path = sa.engine.make_url(url).database
    if path and path != ":memory:":
        folder = Path(path).parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite gives its WAL the permissions of the database file.
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    engine = sa.create_engine(url, connect_args={"timeout": 30.0})

    def settings(connection: Any, _record: Any) -> None:
        # SQLAlchemy's recipe for transactions with explicit begins.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")

    event.listen(engine, "connect", settings)

    return engine


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _row(connection: Connection, search_id: str) -> Row[Any]:
    chosen = sa.select(t.searches).where(t.searches.c.id == search_id)
    if connection.dialect.name == "postgresql":
        chosen = chosen.with_for_update()
    row = connection.execute(chosen).first()
    if row is None:
        raise UsageError(f"there is no search {search_id}")
    return row


def _event(connection: Connection, search_id: str, at_s: float, kind: str, data: Mapping[str, Any]) -> None:
    connection.execute(t.events.insert().values(search_id=search_id, at_s=at_s, kind=kind, data=dict(data)))


def _insert_or_ignore(connection: Connection, table: sa.Table, values: Mapping[str, Any]) -> None:
    from sqlalchemy.dialects import postgresql, sqlite

    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
    connection.execute(insert.values(dict(values)).on_conflict_do_nothing())

"""Tables of the service's database: equal to the result of the newest migration.

Columns that end in ``_s`` are moments, in seconds since 1970, except the durations `budget_s` and `used_s`.
``is_*`` is 0 or 1. A ``String(26)`` is an id.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

projects = Table(
    "projects",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("weight", Float, nullable=False, default=1.0),
    Column("max_running", Integer, nullable=True),
    Column("max_running_per_user", Integer, nullable=True),
    Column("max_gpus", Integer, nullable=True),
    Column("max_slot_s_per_day", Float, nullable=True),
)
"""Teams, their shares and limits; None is no limit. A slot is one GPU, or a search without."""

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(26), primary_key=True),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("user", String(128), nullable=False),
    Column("project", String(64), ForeignKey("projects.name"), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("search_id", String(26), nullable=True),
    Column("created_s", Float, nullable=False),
    Column("expires_s", Float, nullable=True),
    Column("last_used_s", Float, nullable=True),
    Column("note", String(200), nullable=False, default=""),
)
"""Credentials by their SHA-256. `search_id`: the only search that a token may access, if any."""

searches = Table(
    "searches",
    metadata,
    Column("id", String(26), primary_key=True),
    Column("project", String(64), ForeignKey("projects.name"), nullable=False),
    Column("user", String(128), nullable=False),
    Column("idempotency_key", String(200), nullable=False),
    Column("request", JSON, nullable=False),
    Column("request_sha256", String(64), nullable=False),
    Column("bundle", String(64), nullable=False),
    Column("title", String(200), nullable=False),
    Column("priority", Integer, nullable=False, default=50),
    Column("is_preemptible", Integer, nullable=False, default=0),
    Column("gpus", Integer, nullable=False, default=0),
    Column("budget_s", Float, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("since_s", Float, nullable=False),
    Column("created_s", Float, nullable=False),
    Column("started_s", Float, nullable=True),
    Column("ended_s", Float, nullable=True),
    Column("epoch", Integer, nullable=False, default=0),
    Column("losses", Integer, nullable=False, default=0),
    Column("used_s", Float, nullable=False, default=0.0),
    Column("exit_code", Integer, nullable=True),
    Column("answer", JSON, nullable=True),
    Column("heartbeat", Integer, nullable=False, default=0),
    Column("heartbeat_s", Float, nullable=True),
    Column("webhook", Text, nullable=False, default=""),
    UniqueConstraint("project", "user", "idempotency_key"),
    Index("searches_by_state", "state"),
)
"""Submitted searches.

`bundle` is the SHA-256 of the code. `state` is a `SearchState`, and `since_s` the moment of its last change.
`epoch` counts starts: reports of an earlier one are refused. `losses` counts lost jobs. `used_s` is the
time of all starts that have ended. `answer` holds the latest facts of the driver, at the end the summary.
`heartbeat` counts those of the present start.
"""

events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("search_id", String(26), ForeignKey("searches.id"), nullable=False),
    Column("at_s", Float, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("data", JSON, nullable=False),
    Column("study_seq", Integer, nullable=True),
    UniqueConstraint("search_id", "study_seq"),
    Index("events_by_search", "search_id", "seq"),
)
"""History of searches. `study_seq` numbers those of the driver, so that a repeated report adds nothing."""

usage = Table(
    "usage",
    metadata,
    Column("search_id", String(26), ForeignKey("searches.id"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("project", String(64), nullable=False),
    Column("user", String(128), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("began_s", Float, nullable=False),
    Column("ended_s", Float, nullable=True),
)
"""Time that each start of a search used, for quotas and reports."""

webhooks = Table(
    "webhooks",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("search_id", String(26), ForeignKey("searches.id"), nullable=False),
    Column("url", Text, nullable=False),
    Column("body", JSON, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_s", Float, nullable=False),
    Column("state", String(16), nullable=False, default="waiting"),
)
"""Messages to send, each with its next attempt. `state`: waiting, sent or failed."""

configs = Table(
    "configs",
    metadata,
    Column("search_id", String(26), ForeignKey("searches.id"), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("script_sha256", String(64), nullable=False),
    Column("hardware", String(64), nullable=False),
    Column("speedup", Float, nullable=False),
    Column("created_s", Float, nullable=False),
    Column("measured_s", Float, nullable=False),
    Column("devices", String(300), nullable=False, default=""),
    Column("versions", String(300), nullable=False, default=""),
    Column("is_stale", Integer, nullable=False, default=0),
    Column("yaml", Text, nullable=False),
    Index("configs_by_script", "project", "script_sha256", "hardware"),
)
"""Confirmed configurations, one per search.

`hardware` is a key that only equal machines share, `devices` and `versions` are for people. `speedup` is the
ratio to the unchanged script. `measured_s` is the moment of the last verification.
"""

applied = Table(
    "applied",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("search_id", String(26), ForeignKey("searches.id"), nullable=False),
    Column("run", String(64), nullable=False),
    Column("user", String(128), nullable=False),
    Column("at_s", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    UniqueConstraint("search_id", "run"),
)
"""Trainings with a registered configuration: the last report of each, and the seconds trained so far."""

audit = Table(
    "audit",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("at_s", Float, nullable=False),
    Column("token_id", String(26), nullable=False),
    Column("user", String(128), nullable=False),
    Column("method", String(8), nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
)
"""Requests. `token_id` is ``proxy`` for users that a trusted proxy names, so it is no foreign key."""

lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("until_s", Float, nullable=False),
)
"""One row: the service process that owns this database, and when its lease ends by its own clock."""

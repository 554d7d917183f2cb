"""Repeated verification of registered configurations: on request, by age, and after software changes.

A verification is a queued search whose command is ``autotune verify`` on the best.yaml of another one, over
the same code. A configuration that is no longer faster is marked stale and no longer applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autotune.service.states import SearchState
from autotune.service.store import Submission

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.service.progress import Result
    from autotune.service.store import Database

BUDGET_S: Final = 600.0
"""Seconds for an automatic verification: the default of ``autotune verify``."""
PRIORITY: Final = 10
"""Priority below that of searches, as no user waits for a verification."""

ENDINGS: Final = {
    0: (SearchState.SUCCEEDED, "verified: it is still faster"),
    1: (SearchState.SUCCEEDED, "verified: no difference was shown; the configuration is marked stale"),
    7: (
        SearchState.SUCCEEDED,
        "verified: it is slower or its loss is worse; the configuration is marked stale",
    ),
}
"""Final state and reason by exit code of ``autotune verify``; other codes are those of a search."""


def request_of(row: Any, *, cause: str, budget_s: float = BUDGET_S, user: str = "") -> Submission:
    """Return the verification of a search as a submission.

    Args:
        row: Row of the search whose configuration is measured again.
        cause: Part of the idempotency key: one verification per cause.
        budget_s: Wall time in seconds.
        user: User who requested it; the search's owner if it is automatic.
    """
    return Submission(
        project=row.project,
        user=user or row.user,
        idempotency_key=f"verify-{row.id}-{cause}"[:200],
        request={**row.request, "options": {}, "verify": row.id},
        bundle=row.bundle,
        title=f"verify: {row.title}"[:200],
        budget_s=budget_s,
        priority=PRIORITY,
        gpus=row.gpus,
        is_preemptible=True,
    )


def command_of(row: Any, best: Path, python: str) -> list[str]:
    """Return the words of a verification's job.

    Args:
        row: Row of the verification.
        best: Path of the best.yaml to verify.
        python: Interpreter with autotune where the job runs.
    """
    left_s = max(20.0, row.budget_s - row.used_s)
    words = [python, "-m", "autotune", "verify", str(best), "--budget", f"{left_s:.0f}s", "--quiet"]
    return [*words, "--", *[str(word) for word in row.request["command"]]]


def queue_due(database: Database, *, older_than_s: float, now_s: float) -> int:
    """Queue a verification of every configuration last measured this long ago, and return their number."""
    count = 0
    for row in database.configs_measured_before(now_s - older_than_s):
        count += _queue(database, row.search_id, f"age-{row.measured_s:.0f}")
    return count


def queue_changed(database: Database, project: str, here: Result) -> int:
    """Queue a verification of every configuration of these devices that was measured with other software."""
    count = 0
    for row in database.configs_of_devices(project, here.devices):
        if row.versions != here.versions:
            count += _queue(database, row.search_id, f"software-{here.versions}")
    return count


def _queue(database: Database, search_id: str, cause: str) -> bool:
    row = database.search(search_id)
    return (
        row is not None and not row.request.get("verify") and database.submit(request_of(row, cause=cause))[1]
    )

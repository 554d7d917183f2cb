"""Report file of a search: the address of the service, and a token of that search alone."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from autotune.service.store import REPORT, Database

if TYPE_CHECKING:
    from pathlib import Path

LIFE_S: Final = 7 * 24 * 3600.0
"""Lifetime of a token beyond the budget, in seconds: a search may wait for the machine."""


class Reports:
    """Writes report files.

    Args:
        database: Database of the service; holds the tokens' digests.
        url: Address of the service for jobs; empty until it listens.
    """

    def __init__(self, database: Database, url: str = "") -> None:
        self._database, self.url = database, url

    def ensure(self, row: Any, path: Path) -> None:
        """Write the file of a search's current life, unless it is correct already.

        A restarted service may have another address: a running search reads the file again.
        """
        url = f"{self.url}/api/v1/searches/{row.id}"
        if not self.url or _is_right(path, url, row.epoch):
            return
        token = self._database.create_token(
            user=row.user,
            project=row.project,
            scope=REPORT,
            search_id=row.id,
            expires_s=row.budget_s + LIFE_S,
            note="driver of the search",
        )
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump({"url": url, "token": token, "epoch": row.epoch}, stream)
        part.replace(path)


def _is_right(path: Path, url: str, epoch: int) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return (found["url"], found["epoch"]) == (url, epoch)
    except (OSError, ValueError, KeyError, TypeError):
        return False

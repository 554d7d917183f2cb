"""Signed webhooks on start and end of a search, retried with growing pauses."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.service.store import Database

MOST_ATTEMPTS: Final = 8
FIRST_RETRY_S: Final = 5.0
"""Seconds, doubled at each attempt: the last one comes after about 20 minutes."""
SIGNATURE: Final = "x-autotune-signature"


class Sender:
    """Sends the webhooks that are due in the database.

    Args:
        database: Database of the service.
        hosts: Hosts that may be called. Users name addresses, so the service must not give them access to its
            network.
        secret: Key of the signature; empty sends none.
    """

    def __init__(self, database: Database, hosts: Sequence[str], secret: str) -> None:
        self._database, self._hosts, self._secret = database, frozenset(hosts), secret

    def send_due(self) -> int:
        """Send the webhooks that are due; returns how many were delivered."""
        import httpx

        sent = 0
        for row in self._database.due_webhooks():
            attempts = row.attempts + 1
            if not self.allows(row.url):
                self._database.webhook_done(row.seq, ok=False, attempts=attempts, retry_s=None)
                continue
            body = json.dumps(row.body, sort_keys=True).encode()
            headers = {"content-type": "application/json", "x-autotune-delivery": str(row.seq)}
            if self._secret:
                headers[SIGNATURE] = signature(self._secret, body)
            try:
                answer = httpx.post(
                    row.url, content=body, headers=headers, timeout=10.0, follow_redirects=False
                )
                ok = answer.is_success
            except httpx.HTTPError:
                ok = False
            retry_s = None if ok or attempts >= MOST_ATTEMPTS else FIRST_RETRY_S * 2 ** (attempts - 1)
            self._database.webhook_done(row.seq, ok=ok, attempts=attempts, retry_s=retry_s)
            sent += ok
        return sent

    def allows(self, url: str) -> bool:
        """Return whether an address may be called."""
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and parts.hostname in self._hosts and "@" not in parts.netloc


def signature(secret: str, body: bytes) -> str:
    """Return ``sha256=...``, by which a receiver verifies that a body comes from the service."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()

"""Client of the service: ``autotune.Client(url).submit(["python", "train.py"], budget="2h")``."""

from __future__ import annotations

import json
import os
import secrets
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BackendError, StoreError, UsageError
from autotune.service.packing import Packed, pack, packing_list
from autotune.store.outbox import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SERVER, TOKEN = "AUTOTUNE_SERVER", "AUTOTUNE_TOKEN"
LOCAL: Final = "http://127.0.0.1:8650"
_RETRIES: Final = 4


class ServiceError(BackendError):
    """The service cannot be reached, or refuses a request."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A search on the service."""

    client: Client
    id: str

    def status(self) -> dict[str, Any]:
        """Return the service's record of the search: ``state``, ``reason``, ``answer``, ..."""
        return self.client.request("GET", f"/api/v1/searches/{self.id}")

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the search once it has ended.

        Raises:
            TimeoutError: The search takes longer than that.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.status()
            if found["state"] in ("succeeded", "failed", "cancelled"):
                return found
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(
                    f"search {self.id} is {found['state']} after {timeout_s:g} s: {found['reason']}"
                )
            time.sleep(1.0)

    @property
    def best(self) -> str:
        """Return the text of best.yaml."""
        return self.client.text(f"/api/v1/searches/{self.id}/best.yaml")

    def cancel(self) -> dict[str, Any]:
        """Cancel it; the best so far is kept."""
        return self.client.request("POST", f"/api/v1/searches/{self.id}/cancel")

    def resume(self, budget_s: float) -> dict[str, Any]:
        """Continue it with a further budget."""
        return self.client.request("POST", f"/api/v1/searches/{self.id}/resume", json={"budget_s": budget_s})

    def verify(self) -> Handle:
        """Queue a verification of its configuration."""
        return Handle(self.client, self.client.request("POST", f"/api/v1/searches/{self.id}/verify")["id"])

    def trials(self) -> list[dict[str, Any]]:
        """Return its trials so far."""
        return self.client.request("GET", f"/api/v1/searches/{self.id}/trials", params={"limit": 500})[
            "trials"
        ]

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """Yield the output of the search, piece by piece; with `follow` until it has ended."""
        offset = 0
        while True:
            answer = self.client.raw("GET", f"/api/v1/searches/{self.id}/log", params={"offset": offset})
            offset = int(answer.headers["x-next-offset"])
            if answer.content:
                yield answer.content.decode(errors="replace")
                continue
            if not follow or self.status()["state"] in ("succeeded", "failed", "cancelled"):
                return
            time.sleep(1.0)

    def events(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield events until the search has ended; a lost connection is resumed at its position."""
        while True:
            ended = False
            try:
                for seq, kind, data in self.client.stream(f"/api/v1/searches/{self.id}/events", after):
                    if kind == "end":
                        ended = True
                        break
                    after = seq
                    yield {"seq": seq, **data}
            except ServiceError:
                time.sleep(1.0)
            if ended:
                return


class Client:
    """Connection to a service.

    Args:
        url: Address of the service; else the variable ``AUTOTUNE_SERVER``, else the local service.
        token: Token; else the variable ``AUTOTUNE_TOKEN``, else the one written by a local service.

    Raises:
        UsageError: No token is available.
    """

    def __init__(self, url: str = "", token: str = "") -> None:
        import httpx

        self.url = (url or os.environ.get(SERVER, "") or LOCAL).rstrip("/")
        token = token or os.environ.get(TOKEN, "") or _local_token(self.url)
        if not token:
            raise UsageError(
                "no token for the service", hint=f"set {TOKEN}, or start a local one: autotune serve"
            )
        self._http = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}", "x-autotune-protocol": str(PROTOCOL)},
            timeout=30.0,
            follow_redirects=False,
        )
        weakref.finalize(self, self._http.close)

    def submit(
        self,
        command: Sequence[str],
        *,
        budget: str | float = "1h",
        root: str | Path = ".",
        options: Mapping[str, Any] | None = None,
        idempotency_key: str = "",
        packed: Packed | None = None,
        **request: Any,
    ) -> Handle:
        """Send the code and queue a search.

        Args:
            command: Training command, run below `root`: ``["python", "train.py", "--lr", "1e-3"]``.
            budget: Wall time: ``"2h"``, or seconds.
            root: Folder whose code is sent.
            options: Options of ``autotune search``: ``{"knob": ["precision"]}``.
            idempotency_key: Key under which repeated submissions queue one search; random if empty.
            packed: Result of `packing_list`, if available.
            request: ``priority``, ``gpus``, ``preemptible``, ``title``, ``webhook``, ``max_cost``;
                ``path`` in place of sending code.

        Raises:
            ServiceError, UsageError: The service or the code is not suitable.
        """
        from autotune.driver.spec import budget_s

        body: dict[str, Any] = {
            "command": list(command),
            "options": dict(options or {}),
            "budget_s": budget_s(budget if isinstance(budget, str) else f"{budget:f}s"),
            **request,
        }
        if not body.get("path"):
            packed = packed or packing_list(Path(root).resolve())
            _check_script(command, packed)
            data, sha256 = pack(packed)
            if self.raw("HEAD", f"/api/v1/bundles/{sha256}", allow=(200, 404)).status_code == 404:
                self.raw("PUT", f"/api/v1/bundles/{sha256}", content=data)
            body |= {"bundle": sha256, "commit": packed.commit, "dirty": packed.is_dirty}
        key = idempotency_key or secrets.token_hex(16)
        found = self.request("POST", "/api/v1/searches", json=body, headers={"idempotency-key": key})
        return Handle(self, found["id"])

    def estimate(self, *, budget: str | float = "1h", gpus: int = 0) -> dict[str, Any]:
        """Return the expected gain, the searches ahead and the price of a search; nothing is run."""
        from autotune.driver.spec import budget_s

        seconds = budget_s(budget if isinstance(budget, str) else f"{budget:f}s")
        return self.request("POST", "/api/v1/estimate", json={"budget_s": seconds, "gpus": gpus})

    def search(self, search_id: str) -> Handle:
        """Return a handle of a search."""
        return Handle(self, search_id)

    def searches(self, *, limit: int = 20) -> list[dict[str, Any]]:
        """Return searches, newest first."""
        return self.request("GET", "/api/v1/searches", params={"limit": limit})["searches"]

    def request(self, method: str, path: str, **more: Any) -> Any:
        """Return the JSON of a response.

        Raises:
            ServiceError, UsageError, StoreError: The service reports an error.
        """
        answer = self.raw(method, path, **more)
        return answer.json() if answer.content else None

    def text(self, path: str) -> str:
        """Return the text of a response."""
        return self.raw("GET", path).text

    def raw(self, method: str, path: str, *, allow: tuple[int, ...] = (), **more: Any) -> Any:
        """Return a response; repeats the idempotent call if the service does not respond."""
        import httpx

        for attempt in range(_RETRIES):
            try:
                answer = self._http.request(method, path, **more)
            except httpx.TransportError as error:
                if attempt + 1 == _RETRIES:
                    raise ServiceError(
                        f"the service at {self.url} does not answer: {type(error).__name__}",
                        hint=f"is it running? autotune serve; another address: {SERVER}",
                    ) from error
                time.sleep(0.5 * 2**attempt)
                continue
            if answer.is_success or answer.status_code in allow:
                return answer
            if answer.status_code == 503 and attempt + 1 < _RETRIES:
                time.sleep(0.5 * 2**attempt)
                continue
            raise _error(answer)
        raise AssertionError

    def stream(self, path: str, after: int) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield server-sent events: sequence number, kind, data."""
        import httpx

        seq, kind = after, ""
        try:
            with self._http.stream(
                "GET", path, headers={"last-event-id": str(after)}, timeout=60.0
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _error(answer)
                for line in answer.iter_lines():
                    name, _, value = line.partition(": ")
                    if name == "id":
                        seq = int(value)
                    elif name == "event":
                        kind = value
                    elif name == "data":
                        yield seq, kind, json.loads(value)
        except httpx.TransportError as error:
            raise ServiceError(f"the connection to {self.url} was lost") from error


def _check_script(command: Sequence[str], packed: Packed) -> None:
    """Refuse to send code without the script of the command.

    Raises:
        UsageError: The first word with the name of a script is not among the files.
    """
    script = next((word for word in command if word.endswith(".py")), "")
    if script and not Path(script).is_absolute() and os.path.normpath(script) not in packed.files:
        why = (
            "git ignores it; send it with --include" if (packed.root / script).is_file() else "there is none"
        )
        raise UsageError(
            f"{script} is not among the files to send from {packed.root}: {why}",
            hint="autotune submit --dry-run lists them",
        )


def _error(answer: Any) -> Exception:
    try:
        body = answer.json()
    except ValueError:
        body = {}
    title = body.get("title") or body.get("detail") or f"the service answered {answer.status_code}"
    title = title if isinstance(title, str) else json.dumps(title)
    hint = body.get("hint", "")
    if answer.status_code == 401:
        return ServiceError(title, hint=f"set {TOKEN} to a valid token")
    if answer.status_code == 404:
        return StoreError(title, hint=hint)
    if answer.status_code in (403, 409, 413, 422, 426):
        return UsageError(title, hint=hint)
    return ServiceError(title, hint=hint)


def _local_token(url: str) -> str:
    """Return the token written by a local service for its own user; empty for another address."""
    from autotune.store.paths import home

    if not url.startswith(("http://127.0.0.1:", "http://localhost:")):
        return ""
    try:
        return (home() / "service" / "token").read_text(encoding="utf-8").strip()
    except OSError:
        return ""

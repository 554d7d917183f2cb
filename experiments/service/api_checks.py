"""Sends generated requests to every route of a real service (schemathesis), with a token of each scope.

schemathesis brings dependencies of its own: name its command in ``SCHEMATHESIS``, such as one of a virtual
environment. Nothing may end with a status of 500 or above.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from stand import ROOT, Stand

NAME = "api"
TITLE = "generated requests to every route"
MOST_S = 120
"""Of one case."""
SCHEMA = ROOT / "docs" / "schemas" / "service.openapi.json"


def command() -> str | None:
    """Return the schemathesis command; None where there is none."""
    named = os.environ.get("SCHEMATHESIS", "schemathesis")
    return shutil.which(named)


def cases() -> list[str]:
    """Return the scopes."""
    return ["admin", "run", "read"]


def run(case: str, folder: Path) -> dict[str, Any]:
    """Send requests with a token of one scope; returns how many there were."""
    schemathesis = command()
    if schemathesis is None:
        raise FileNotFoundError("schemathesis is not installed; name its command in SCHEMATHESIS")
    with Stand(folder, "--price-per-hour", "2") as stand:
        stand.submit(key="generated-requests", trials=3)
        body = {"user": "ann", "scope": case}
        token = stand.client.request("POST", "/api/v1/tokens", json=body)["token"]
        words = ["run", str(SCHEMA), "--url", stand.url, "-H", f"Authorization: Bearer {token}"]
        words += ["--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing"]
        words += ["--max-examples", "30", "--max-time", str(MOST_S), "--seed", "1", "--continue-on-failure"]
        # Endless by design, and the tokens in use must stay.
        words += ["--exclude-path", "/api/v1/searches/{search_id}/events", "--exclude-path", "/logout"]
        done = subprocess.run(
            [schemathesis, *words],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
            timeout=2 * MOST_S,
        )
        is_alive = stand.process is not None and stand.process.poll() is None
        stand.client.request("GET", "/api/v1/me")
        log = (stand.folder / "serve.log").read_text(encoding="utf-8")
    found = re.search(r"(\d+) generated", done.stdout)
    faults = [] if is_alive else ["the service has ended"]
    if done.returncode or not found:
        faults.append(done.stdout[-3000:] + done.stderr[-500:])
    if "Traceback" in log:
        faults.append("the service logged an error: " + log[-1000:])
    return {"faults": faults, "requests": int(found[1]) if found else 0}

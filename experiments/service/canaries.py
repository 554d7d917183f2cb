"""Puts secrets into every place that meets the service, and looks for them in what it keeps and shows.

One search on a real service; its script prints a secret. Searched are answers of the interface, pages, the
database, logs, and every file of the service but the two that hold a token on purpose, which only its user
can read.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from stand import FINAL, ROOT, Stand

from autotune.errors import UsageError
from autotune.service.client import Client
from autotune.service.packing import packing_list

NAME = "canaries"
TITLE = "secrets in places that meet the service"
PLACES = (
    "proxy secret", "webhook secret", "Ray token", "other variable of the service", "database password",
    ".env file", "key file", "argument of the command", "password in an address", "option of the search",
    "title", "token in a path", "session cookie", "printed by the script", "token of a user",
)  # fmt: skip
HOLD_TOKENS = ("token", "report.json")
"""Files of mode 0600: the administrator's token, and that by which a search reports."""


def cases() -> list[str]:
    """Return the one case."""
    return ["everywhere"]


def sample() -> list[str]:
    """Return what CI runs."""
    return cases()


def run(_case: str, folder: Path) -> dict[str, Any]:
    """Plant, search, and return every hit as a fault."""
    planted = {place: f"hf_{secrets.token_hex(16)}" for place in PLACES}
    variables = {
        "AUTOTUNE_PROXY_SECRET": planted["proxy secret"],
        "AUTOTUNE_WEBHOOK_SECRET": planted["webhook secret"],
        "RAY_AUTH_TOKEN": planted["Ray token"],
        "WANDB_API_KEY": planted["other variable of the service"],
    }
    faults, texts = [], dict[str, bytes]()
    url = f"postgresql+psycopg://autotune:{planted['database password']}@127.0.0.1:1/autotune"
    refused = subprocess.run(
        [sys.executable, "-m", "autotune", "serve", "--port", "0", "--data", str(folder / "none")],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "AUTOTUNE_SERVICE_DATABASE": url,
             "AUTOTUNE_HOME": str(folder / "none")},
        capture_output=True, check=False,
    )  # fmt: skip
    texts["a database that is away"] = refused.stdout + refused.stderr
    if b"cannot be reached" not in texts["a database that is away"]:
        faults.append("a database that is away gives no clear message")
    with Stand(folder, is_fake=False, environ=variables) as stand:
        code = folder / "code"
        (code / ".env").write_text(f"TOKEN={planted['.env file']}\n")
        (code / "server.key").write_text(planted["key file"])
        printed = planted["printed by the script"]
        (code / "train.py").write_text(
            f"print({printed[:9]!r} + {printed[9:]!r}, flush=True)\nraise SystemExit(3)\n"
        )
        packed = packing_list(code)
        for place, words in {
            "argument of the command": ["--api-key", planted["argument of the command"]],
            "password in an address": [f"--data=https://ann:{planted['password in an address']}@host/x"],
        }.items():
            try:
                stand.client.submit(["python", "train.py", *words], packed=packed)
                faults.append(f"{place}: it was accepted")
            except UsageError as error:
                texts[f"refusal: {place}"] = str(error).encode()
        try:
            options = {"mlflow-tag": f"password={planted['option of the search']}"}
            stand.client.submit(["python", "train.py"], packed=packed, options=options)
            faults.append("option of the search: it was accepted")
        except UsageError as error:
            texts["refusal: option"] = str(error).encode()
        token = stand.client.request("POST", "/api/v1/tokens", json={"user": "ann"})["token"]
        planted["token of a user"] = token
        ann = Client(stand.url, token)
        search = ann.submit(
            ["python", "train.py"], budget="60s", packed=packed, title=f"mine {planted['title']}"
        ).id
        in_path = f"att_{planted['token in a path']}"
        ann.raw("POST", f"/api/v1/searches/{in_path}/cancel", allow=(404,))
        planted["token in a path"] = in_path
        cookie = {"cookie": f"autotune_session={token}", "authorization": ""}
        stand.reach(search, *FINAL)
        planted["session cookie"] = token
        for path in (
            "/", f"/searches/{search}", "/fleet", "/admin", "/metrics", "/api/v1/searches", "/api/v1/tokens",
            "/api/v1/audit", "/api/v1/projects", "/api/v1/fleet", f"/api/v1/searches/{search}",
            f"/api/v1/searches/{search}/log", f"/api/v1/searches/{search}/trials",
            f"/api/v1/searches/{search}/events", f"/api/v1/searches/{search}/study.tar.gz",
        ):  # fmt: skip
            texts[path] = stand.client.raw("GET", path, allow=(404,)).content
        texts["page of a user"] = ann.raw("GET", "/", headers=cookie, allow=(401, 303)).content
        state = stand.state(search)
    for path in stand.data.rglob("*"):
        if path.is_file() and path.name not in HOLD_TOKENS and "code" not in path.parts:
            texts[str(path.relative_to(stand.data))] = path.read_bytes()
    texts["log of the service"] = (folder / "serve.log").read_bytes()
    faults += [
        f"{place}: in {where}"
        for place, secret in planted.items()
        for where, text in texts.items()
        if secret.encode() in text
    ]
    faults += [f"{p.name} can be read by others" for name in HOLD_TOKENS for p in stand.data.rglob(name)
               if p.stat().st_mode & 0o077]  # fmt: skip
    if state["state"] != "failed":
        faults.append(f"the search is {state['state']}: {state['reason']}")
    return {"faults": faults, "places": len(planted), "texts": len(texts)}

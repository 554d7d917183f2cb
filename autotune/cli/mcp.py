"""A server of the Model Context Protocol over standard input and output, for coding agents.

Each tool is one call of the service's API with the token of the environment: an agent can do what its token
can, and nothing else. JSON-RPC 2.0, a message a line (modelcontextprotocol.io, revision 2025-06-18).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from autotune.errors import AutotuneError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.service.client import Client

VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions of the protocol that this server speaks; the newest first."""
_SEARCH: Final = {"search": {"type": "string", "description": "Id of a search."}}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: what it is for, its arguments as a JSON schema, those that are required, and its call."""

    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    call: Callable[[Client, dict[str, Any]], Any]

    def schema(self, name: str) -> dict[str, Any]:
        """Return the tool as ``tools/list`` gives it."""
        arguments = {"type": "object", "properties": dict(self.properties), "required": list(self.required)}
        return {
            "name": name,
            "description": self.description,
            "inputSchema": {**arguments, "additionalProperties": False},
        }


def _submit(client: Client, given: dict[str, Any]) -> Any:
    more = {name: given[name] for name in ("gpus", "priority", "preemptible", "title") if name in given}
    handle = client.submit(
        given["command"],
        budget=given.get("budget", "1h"),
        root=given["folder"],
        options=given.get("options", {}),
        idempotency_key=given.get("idempotency_key", ""),
        **more,
    )
    return handle.status()


TOOLS: Final = {
    "submit_search": Tool(
        "Queue a search for the fastest training configuration of an unmodified PyTorch script. Sends the "
        "files of the folder that git would keep, without files that may hold secrets. Returns the search.",
        {
            "command": {
                "type": "array",
                "items": {"type": "string"},
                "description": 'Such as ["python", "train.py"].',
            },
            "folder": {"type": "string", "description": "Folder on this machine that holds the code."},
            "budget": {"type": "string", "description": "Wall time, such as 30m or 2h; default 1h."},
            "gpus": {"type": "integer", "minimum": 0},
            "priority": {"type": "integer", "minimum": 0, "maximum": 100},
            "preemptible": {"type": "boolean"},
            "title": {"type": "string"},
            "options": {
                "type": "object",
                "description": 'Options of `autotune search`: {"knob": ["precision"]}.',
            },
            "idempotency_key": {"type": "string", "description": "Repeating a key queues nothing."},
        },
        ("command", "folder"),
        _submit,
    ),
    "estimate_search": Tool(
        "Estimate the gain, the price and the searches ahead before submitting; nothing is run.",
        {"budget": {"type": "string"}, "gpus": {"type": "integer", "minimum": 0}},
        (),
        lambda client, given: client.estimate(budget=given.get("budget", "1h"), gpus=given.get("gpus", 0)),
    ),
    "list_searches": Tool(
        "List searches, newest first, with state, reason and answer.",
        {"limit": {"type": "integer", "minimum": 1, "maximum": 500}},
        (),
        lambda client, given: client.searches(limit=given.get("limit", 20)),
    ),
    "get_search": Tool(
        "Get one search: state, reason, progress, and the answer with its confidence interval.",
        _SEARCH,
        ("search",),
        lambda client, given: client.search(given["search"]).status(),
    ),
    "get_trials": Tool(
        "List the trials of a search: configuration, speed-up or failure.",
        _SEARCH,
        ("search",),
        lambda client, given: client.search(given["search"]).trials(),
    ),
    "get_best": Tool(
        "Get best.yaml of a search, for `autotune apply`.",
        _SEARCH,
        ("search",),
        lambda client, given: client.search(given["search"]).best,
    ),
    "verify_search": Tool(
        "Queue a new measurement of the configuration that a search found, in fresh pairs with the script.",
        _SEARCH,
        ("search",),
        lambda client, given: client.search(given["search"]).verify().status(),
    ),
    "cancel_search": Tool(
        "Cancel a search; the best so far is kept.",
        _SEARCH,
        ("search",),
        lambda client, given: client.search(given["search"]).cancel(),
    ),
}


def serve(client: Client, source: IO[str], to: IO[str]) -> None:
    """Answer requests until the input ends."""
    for line in source:
        if not line.strip():
            continue
        answer = _answered(client, line)
        if answer is not None:
            to.write(json.dumps({"jsonrpc": "2.0", **answer}) + "\n")
            to.flush()


def _answered(client: Client, line: str) -> dict[str, Any] | None:
    try:
        request = json.loads(line)
        method, key = request["method"], request.get("id")
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"id": None, "error": {"code": -32700, "message": "this is no JSON-RPC request"}}
    given = request.get("params") or {}
    if key is None:  # a notification
        return None
    match method:
        case "initialize":
            wanted = given.get("protocolVersion")
            result: Any = {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "autotune", "version": _version()},
            }
        case "ping":
            result = {}
        case "tools/list":
            result = {"tools": [tool.schema(name) for name, tool in TOOLS.items()]}
        case "tools/call":
            if given.get("name") not in TOOLS:
                return {
                    "id": key,
                    "error": {"code": -32602, "message": f"there is no tool {given.get('name')!a}"},
                }
            result = _called(client, TOOLS[given["name"]], given.get("arguments") or {})
        case _:
            return {"id": key, "error": {"code": -32601, "message": f"there is no method {method!a}"}}
    return {"id": key, "result": result}


def _called(client: Client, tool: Tool, given: dict[str, Any]) -> dict[str, Any]:
    """Call a tool; an `AutotuneError` becomes a result that the agent can read and act on."""
    try:
        if unknown := sorted(set(given) - set(tool.properties)):
            raise UsageError(f"unknown arguments: {', '.join(unknown)}")
        if missing := [name for name in tool.required if name not in given]:
            raise UsageError(f"missing arguments: {', '.join(missing)}")
        found = tool.call(client, given)
        text = found if isinstance(found, str) else json.dumps(found, indent=1)
        return {"content": [{"type": "text", "text": text}], "isError": False}
    except (AutotuneError, TypeError, ValueError) as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}


def _version() -> str:
    from autotune.driver.spec import version

    return version() or "0"

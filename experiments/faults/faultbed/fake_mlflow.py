"""A tracking server that keeps runs in memory, speaks the part of MLflow's REST interface that is used,
and fails in eight ways when it is set to.

A fake: what it answers was checked against MLflow's client alone. Artifacts go to a local folder, as with
a server whose artifact root is a shared disk.
"""

import json
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODES = ("refused", "error 500", "delay", "half answer", "reset", "drip", "full disk", "comes back")


class FakeMlflow:
    """The server, its store, and its illness.

    Args:
        artifacts: Folder for artifacts.
        mode: One of `MODES`.
        after: So many requests are answered well before it falls ill.
        delay_s: How long it is silent in the mode ``delay``.
    """

    def __init__(self, artifacts: Path, mode: str, *, after: int, delay_s: float) -> None:
        self.mode = mode
        self.experiments: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.requests = 0
        self.failed = 0
        self._after = after
        self._delay_s = delay_s
        self._artifacts = artifacts
        self._healthy = False
        self._lock = threading.Lock()
        self._server: Any = None
        # Taken now, so that the address is known before anything is served.
        self._socket = socket.create_server(("127.0.0.1", 0), reuse_port=False)
        self.port = self._socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serve; in the mode ``refused`` with nothing answered before, do not even listen."""
        if self.mode == "refused" and self._after == 0:
            self._socket.close()
            return
        self._serve(self._socket)

    def _serve(self, listening: socket.socket) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler(), bind_and_activate=False)
        server.socket.close()
        server.socket = listening
        server.daemon_threads = True
        server.block_on_close = False
        server.handle_error = lambda *_: None
        self._server = server
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Close the door."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def heal(self) -> None:
        """From now on everything is answered."""
        self._healthy = True
        if self._server is None:
            self._serve(socket.create_server(("127.0.0.1", self.port)))

    def is_ill(self) -> bool:
        """Whether this request is one that fails; counts it."""
        with self._lock:
            self.requests += 1
            ill = not self._healthy and self.requests > self._after
            # It comes back by itself after some failures.
            if self.mode == "comes back" and self.failed >= 3:
                ill = False
            self.failed += ill
            return ill

    # -- answers ------------------------------------------------------------------------------

    def answer(self, path: str, data: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body for one request."""
        name = path.rsplit("/mlflow/", 1)[-1]
        action: Callable[[dict[str, Any]], Any] | None = getattr(
            self, "_" + name.replace("/", "_").replace("-", "_"), None
        )
        if action is None:
            return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": path}
        with self._lock:
            try:
                return 200, action(data) or {}
            except KeyError as missing:
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": f"no {missing}"}

    def _experiments_search(self, _data: dict[str, Any]) -> Any:
        return {"experiments": list(self.experiments.values())}

    def _experiments_get_by_name(self, data: dict[str, Any]) -> Any:
        name = data["experiment_name"]
        found = next((e for e in self.experiments.values() if e["name"] == name), None)
        if found is None:
            raise KeyError(name)
        return {"experiment": found}

    def _experiments_get(self, data: dict[str, Any]) -> Any:
        return {"experiment": self.experiments[str(data["experiment_id"])]}

    def _experiments_create(self, data: dict[str, Any]) -> Any:
        key = str(len(self.experiments) + 1)
        self.experiments[key] = {
            "experiment_id": key,
            "name": data["name"],
            "artifact_location": self._artifacts.as_uri(),
            "lifecycle_stage": "active",
            "tags": list(data.get("tags", [])),
        }
        return {"experiment_id": key}

    def _experiments_set_experiment_tag(self, data: dict[str, Any]) -> Any:
        tags = self.experiments[str(data["experiment_id"])]["tags"]
        tags[:] = [t for t in tags if t["key"] != data["key"]]
        tags.append({"key": data["key"], "value": data.get("value", "")})

    def _runs_create(self, data: dict[str, Any]) -> Any:
        key = f"{len(self.runs) + 1:032x}"
        self.runs[key] = {
            "info": {
                "run_id": key,
                "run_uuid": key,
                "run_name": data.get("run_name", ""),
                "experiment_id": str(data["experiment_id"]),
                "status": "RUNNING",
                "start_time": data.get("start_time", 0),
                "artifact_uri": (self._artifacts / key).as_uri(),
                "lifecycle_stage": "active",
            },
            "metrics": {},
            "params": {},
            "tags": {t["key"]: t["value"] for t in data.get("tags", [])},
        }
        return {"run": self._shown(key)}

    def _shown(self, key: str) -> dict[str, Any]:
        run = self.runs[key]
        latest = {name: points[-1] for name, points in run["metrics"].items()}
        return {
            "info": run["info"],
            "data": {
                "metrics": list(latest.values()),
                "params": [{"key": k, "value": v} for k, v in run["params"].items()],
                "tags": [{"key": k, "value": v} for k, v in run["tags"].items()],
            },
        }

    def _runs_get(self, data: dict[str, Any]) -> Any:
        return {"run": self._shown(data.get("run_id") or data["run_uuid"])}

    def _runs_update(self, data: dict[str, Any]) -> Any:
        info = self.runs[data["run_id"]]["info"]
        info.update({k: data[k] for k in ("status", "end_time", "run_name") if k in data})
        return {"run_info": info}

    def _runs_search(self, data: dict[str, Any]) -> Any:
        wanted = [part.split("=") for part in data.get("filter", "").split(" and ") if "=" in part]
        pairs = [(k.strip().removeprefix("tags.").strip("`"), v.strip().strip("'")) for k, v in wanted]
        found = [
            self._shown(key)
            for key, run in self.runs.items()
            if all(run["tags"].get(k) == v for k, v in pairs)
            and run["info"]["experiment_id"] in [str(e) for e in data.get("experiment_ids", [])]
        ]
        return {"runs": found}

    def _runs_set_tag(self, data: dict[str, Any]) -> Any:
        self.runs[data["run_id"]]["tags"][data["key"]] = data.get("value", "")

    def _runs_log_batch(self, data: dict[str, Any]) -> Any:
        run = self.runs[data["run_id"]]
        for param in data.get("params", []):
            run["params"][param["key"]] = param.get("value", "")
        for tag in data.get("tags", []):
            run["tags"][tag["key"]] = tag.get("value", "")
        for metric in data.get("metrics", []):
            points = run["metrics"].setdefault(metric["key"], [])
            # A point that was sent before is the same point.
            if metric not in points:
                points.append(metric)

    # -- the wire -----------------------------------------------------------------------------

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                query = urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query)
                self._respond(dict(query))

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                self._respond(json.loads(self.rfile.read(size) or b"{}"))

            def _respond(self, data: dict[str, Any]) -> None:
                if outer.is_ill():
                    outer.fail(self, data)
                else:
                    self.say(*outer.answer(urllib.parse.urlsplit(self.path).path, data))

            def say(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        return Handler

    def fail(self, handler: Any, data: dict[str, Any]) -> None:
        """Answer as the mode has it."""
        path = urllib.parse.urlsplit(handler.path).path
        handler.close_connection = True
        if self.mode == "refused":
            server, self._server = self._server, None
            _reset(handler.connection)
            if server is not None:
                threading.Thread(target=lambda: (server.shutdown(), server.server_close())).start()
        elif self.mode == "delay":
            # Done, and reported too late: what arrives then is there twice if nobody looks.
            status, body = self.answer(path, data)
            time.sleep(self._delay_s)
            handler.say(status, body)
        elif self.mode == "reset":
            self.answer(path, data)
            _reset(handler.connection)
        elif self.mode in ("half answer", "drip"):
            text = json.dumps(self.answer(path, data)[1]).encode() or b"{}"
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(text)))
            handler.end_headers()
            handler.wfile.flush()
            for i in range(len(text) // 2):
                if self.mode == "drip" and self._healthy:
                    break
                handler.wfile.write(text[i : i + 1])
                handler.wfile.flush()
                time.sleep(0.3 if self.mode == "drip" else 0.0)
        elif self.mode == "full disk":
            words = "(sqlite3.OperationalError) database or disk is full"
            handler.say(500, {"error_code": "INTERNAL_ERROR", "message": words})
        else:
            handler.say(500, {"error_code": "INTERNAL_ERROR", "message": "the server is ill"})


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()

"""A real Ray cluster of this machine: a head with its Jobs server, and nodes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

ENV = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
START_S = 120.0


def ray_command() -> str | None:
    """Return the ``ray`` command whose installation has a Jobs server (``ray[default]``), or None.

    ``RAY_COMMAND`` names that of another environment, with the same versions of Python and Ray.
    """
    if named := os.environ.get("RAY_COMMAND"):
        return named
    return str(Path(sys.executable).with_name("ray")) if importlib.util.find_spec("aiohttp_cors") else None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


class Cluster:
    """Starts and kills nodes; `close` ends what is left, and nothing else on the machine."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
        self.port, self.dashboard = free_port(), free_port()
        self.head: subprocess.Popen[bytes] | None = None
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._heads = 0

    @property
    def address(self) -> str:
        """Of the Jobs server."""
        return f"http://127.0.0.1:{self.dashboard}"

    def start_head(self, *, cpus: int = 2, gpus: int = 0) -> None:
        self._heads += 1
        words = ["--head", f"--port={self.port}", "--dashboard-host=127.0.0.1", "--include-dashboard=true"]
        words += [f"--dashboard-port={self.dashboard}", f"--temp-dir={self._folder.name}/{self._heads}"]
        # Paths of Ray's sockets are limited to 107 bytes.
        words += [f"--dashboard-agent-listen-port={free_port()}"]
        self.head = self._start(words, cpus, gpus)
        end = time.monotonic() + START_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.address}/api/jobs/", timeout=5).status_code == 200:
                    return
            assert time.monotonic() < end, "the Jobs server did not come up"
            assert self.head.poll() is None, Path(self._folder.name, "log").read_text()[-2000:]
            time.sleep(0.5)

    def add_node(self, *, cpus: int = 2, gpus: int = 0) -> subprocess.Popen[bytes]:
        words = [f"--address=127.0.0.1:{self.port}", f"--dashboard-agent-listen-port={free_port()}"]
        node = self._start([*words], cpus, gpus)
        self.nodes.append(node)
        return node

    def alive(self) -> int:
        """How many nodes the head counts as alive."""
        found = httpx.get(f"{self.address}/nodes?view=summary", timeout=10).json()["data"]["summary"]
        return sum(node["raylet"].get("state") == "ALIVE" for node in found)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL a node with all that it started."""
        found = psutil.Process(process.pid)
        for one in [*found.children(recursive=True), found]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in [*self.nodes, self.head]:
            if process is not None and process.poll() is None:
                self.kill(process)
        self._folder.cleanup()

    def _start(self, words: list[str], cpus: int, gpus: int) -> subprocess.Popen[bytes]:
        ray = ray_command()
        if ray is None:
            raise FileNotFoundError(
                "the Ray of this environment has no Jobs server: pip install 'ray[default]'"
            )
        with Path(self._folder.name, "log").open("a") as log:
            return subprocess.Popen(
                [ray, "start", *words, f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--block",
                 "--disable-usage-stats", "--object-store-memory=80000000"],
                env={**os.environ, **ENV}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

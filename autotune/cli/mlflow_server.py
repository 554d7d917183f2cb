"""MLflow's server for the duration of `autotune ui`."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from typing import TYPE_CHECKING

from autotune.cli.mlflow_app import KEYS, REPORT, STORE
from autotune.errors import BackendError
from autotune.text.redact import redact

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from types import FrameType

    from autotune.cli.gate import Keys

SERVER_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""Variables of the server: no telemetry, and no workers for jobs of the GenAI pages."""

START_TIMEOUT_S = 180.0
"""Longest wait for the first answer; 75 s were seen at a load average of 18."""

WORKER_EXIT_S = 2.0
"""Time for the server's workers to exit by themselves after the server."""

HOST = "127.0.0.1"
_ERROR_LINES = 8
_ERROR_LINE_CHARACTERS = 300


class Server:
    """MLflow's server as a child of this process.

    Args:
        process: The running process; its stderr is a pipe.
        port: Port on which it listens.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._port = port
        self._output: deque[str] = deque(maxlen=_ERROR_LINES)
        self._reader = threading.Thread(target=self._read, name="autotune-ui", daemon=True)
        self._reader.start()

    @property
    def address(self) -> str:
        """Address of the server, without a slash at the end."""
        return f"http://{HOST}:{self._port}"

    def wait_until_ready(self) -> None:
        """Return once pages can be opened.

        Raises:
            BackendError: The server exited, or did not answer within `START_TIMEOUT_S`.
        """
        # Past the user's proxy, as the request goes to this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        until_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until_s:
            if self._process.poll() is not None:
                raise self._error(_exited(self._process.returncode))
            try:
                with opener.open(self.address, timeout=5):
                    return
            except urllib.error.HTTPError:
                # It is up: it refuses this request, which has no key.
                return
            except (OSError, http.client.HTTPException):
                time.sleep(0.3)
        raise self._error(
            f"did not answer within {START_TIMEOUT_S:.0f} s",
            hint="the machine may be busy; try again: autotune ui",
        )

    def wait(self) -> None:
        """Wait for the server to exit.

        Raises:
            BackendError: It exited with an error.
        """
        if code := self._process.wait():
            raise self._error(_exited(code))

    def end(self) -> None:
        """End the server and its workers; a repeat does no harm."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(10)
        # Workers complete their request after the server has exited.
        until_s = time.monotonic() + WORKER_EXIT_S
        while self._has_workers() and time.monotonic() < until_s:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(1)

    def _has_workers(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _read(self) -> None:
        """Keep the last lines of stderr; the server would block on a full pipe without a reader."""
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                if text := line.decode("utf-8", errors="replace").rstrip():
                    self._output.append(text)

    def _error(
        self, problem: str, *, hint: str = "for the report without MLflow: autotune report"
    ) -> BackendError:
        if self._process.poll() is not None:
            self._reader.join(1)
        # As one text: the name of a secret may be in the line before it.
        lines_shown = redact("\n".join([*self._output]), free=True).splitlines()
        if not lines_shown:
            return BackendError(f"MLflow's server {problem}", hint=hint)
        lines = "".join(f"\n  {line[:_ERROR_LINE_CHARACTERS]}" for line in lines_shown)
        return BackendError(f"MLflow's server {problem}; its last lines:{lines}", hint=hint)


@contextlib.contextmanager
def serving(uri: str, port: int, keys: Keys, report: Path | None = None) -> Generator[Server]:
    """Run MLflow's server during the block, for this account on this machine only.

    SIGTERM and SIGHUP raise KeyboardInterrupt in the block, as Ctrl-C does.

    Args:
        uri: Address of the MLflow store.
        port: Port to listen on; 0 for any free one.
        keys: Secrets that a browser needs.
        report: The study's report, served with MLflow's pages.

    Raises:
        BackendError: The port is not available.
    """
    # Bound here and passed on, as another account could take a port that is only probed.
    with _interrupted_by_signals(), _listening(port) as listener:
        descriptor = listener.fileno()
        # In a session of its own, so that Ctrl-C and SIGHUP reach this process alone, which then ends it.
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.cli.mlflow_app", str(descriptor)],
            # The user's own settings take precedence.
            env={**SERVER_DEFAULTS, **os.environ, STORE: uri, KEYS: keys.text(), REPORT: str(report or "")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(descriptor,),
        )
        server = Server(process, listener.getsockname()[1])
        # This copy is closed, so that the port closes as the server exits.
        listener.close()
        try:
            yield server
        finally:
            server.end()


def _exited(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


def _listening(port: int) -> socket.socket:
    """Return a socket that listens on the port, or on a free one for 0."""
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        message = f"port {port} is not available: {error.strerror}"
        raise BackendError(
            message, hint="choose another with --port, or leave it out for a free one"
        ) from error


@contextlib.contextmanager
def _interrupted_by_signals() -> Generator[None]:
    """Raise KeyboardInterrupt once for SIGTERM and SIGHUP; ignored signals (`nohup`) stay ignored."""
    signals = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in signals}
    handled = {number for number in signals if before[number] is not signal.SIG_IGN}

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        # The kernel and the shell both signal a closed terminal; the second must not interrupt the cleanup.
        for number in handled:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in handled:
            # A handler that was set in C reads as None, and cannot be restored.
            signal.signal(number, before[number] or signal.SIG_DFL)

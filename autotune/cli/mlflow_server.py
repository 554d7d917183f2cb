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

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""No telemetry, and none of the background workers that only serve jobs of the GenAI pages."""

START_S = 180.0
"""MLflow's server took 75 s to answer on a machine with a load of 18."""

WORKERS_S = 2.0
"""So long what the server has started may end by itself once it has."""

HOST = "127.0.0.1"
_LAST_LINES = 8
_LINE_CHARACTERS = 300


class Server:
    """MLflow's server as a child of this process.

    Args:
        process: Just started, its stderr a pipe.
        port: On which it listens.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._port = port
        self._output: deque[str] = deque(maxlen=_LAST_LINES)
        self._reader = threading.Thread(target=self._read, name="autotune-ui", daemon=True)
        self._reader.start()

    @property
    def address(self) -> str:
        """Address of the start page, without a slash at the end."""
        return f"http://{HOST}:{self._port}"

    def wait_until_it_answers(self) -> None:
        """Return once pages can be opened.

        Raises:
            BackendError: It has ended, or has not answered for long.
        """
        # To this machine itself; the user's proxy would answer in its place.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise self._error(f"ended with code {self._process.returncode}")
            try:
                with opener.open(self.address, timeout=5):
                    return
            except urllib.error.HTTPError:
                # It refuses, because this request has no key.
                return
            except (OSError, http.client.HTTPException):
                time.sleep(0.3)
        raise self._error(f"did not answer within {START_S:.0f} s", hint="try again: autotune ui")

    def wait_until_it_ends(self) -> None:
        """Return when it has ended in order.

        Raises:
            BackendError: It has not.
        """
        if code := self._process.wait():
            raise self._error(f"ended with code {code}")

    def end(self) -> None:
        """End it with all its processes; a repeat does nothing."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(10)
        # Its workers may outlive it for as long as a request takes, and longer.
        until_s = time.monotonic() + WORKERS_S
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
        """Store the last lines of its error output; a full pipe without a reader would block it."""
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                if text := line.decode("utf-8", errors="replace").rstrip():
                    self._output.append(text)

    def _error(self, what: str, *, hint: str = "the same without MLflow: autotune report") -> BackendError:
        if self._process.poll() is not None:
            self._reader.join(1)
        # As one text: the line before a secret may identify it.
        lines_shown = redact("\n".join([*self._output]), free=True).splitlines()
        if not lines_shown:
            return BackendError(f"MLflow's server {what}", hint=hint)
        lines = "".join(f"\n  {line[:_LINE_CHARACTERS]}" for line in lines_shown)
        return BackendError(f"MLflow's server {what}; its last lines:{lines}", hint=hint)


@contextlib.contextmanager
def serving(uri: str, port: int, keys: Keys, report: Path | None = None) -> Generator[Server]:
    """Run MLflow's server of a store during the block, for this account on this machine only.

    Within it a scheduler's signal and the closing of the terminal come as Ctrl-C does.

    Args:
        uri: Of the store.
        port: 0 takes a free one.
        keys: Secrets that a browser needs.
        report: The study's report, served with MLflow's pages.

    Raises:
        BackendError: The port is not available.
    """
    # Bound from here on: between a probe and a later start another account could take the port.
    with _interrupted_by_signals(), _listening(port) as listener:
        descriptor = listener.fileno()
        # In its own session neither Ctrl-C nor the terminal's end reaches it: this process ends it.
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.cli.mlflow_app", str(descriptor)],
            env={**QUIET, **os.environ, STORE: uri, KEYS: keys.text(), REPORT: str(report or "")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(descriptor,),
        )
        server = Server(process, listener.getsockname()[1])
        # Where the server ends, its port is closed.
        listener.close()
        try:
            yield server
        finally:
            server.end()


def _listening(port: int) -> socket.socket:
    """Return a socket that listens on the port, or on a free one for 0."""
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        message = f"port {port} cannot be had: {error.strerror}"
        raise BackendError(message, hint="choose another; without --port a free one is taken") from error


@contextlib.contextmanager
def _interrupted_by_signals() -> Generator[None]:
    """Raise KeyboardInterrupt once for SIGTERM and SIGHUP; a signal that `nohup` ignores stays ignored."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    heard = {number for number in numbers if before[number] is not signal.SIG_IGN}

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        # The kernel and the shell both signal a closed terminal; the second signal must not interrupt the
        # end.
        for number in heard:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in heard:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in heard:
            # None if it was set in C, which cannot be restored here.
            signal.signal(number, before[number] or signal.SIG_DFL)

"""Runs training processes as forks of one process that has imported PyTorch, which takes seconds to import.

A fork differs from a new process in what was imported before it, and in variables that libraries read when
they are loaded. Tests of either use a new process: `run(..., cold=True)` or `run(..., env=...)`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_S = 120.0
MESSAGE_BYTES = 1 << 20
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Environment at collection. What a test, or a library that it imports, sets later concerns no other test."""


class Preloaded:
    """A process with PyTorch and the training side of autotune loaded, which runs one fork at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=ENVIRON,
            )
        self._channel = ours
        self._channel.settimeout(START_S)
        atexit.register(self.close)

    def lives(self) -> bool:
        """Whether the process can still fork."""
        return self._process.poll() is None

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python COMMAND``: a script or ``-m MODULE``, with its arguments.

        Raises:
            subprocess.TimeoutExpired: It did not end in time; it was killed.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            request = {"command": list(command), "env": dict(env), "cwd": str(cwd)}
            socket.send_fds(self._channel, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
            self._channel.settimeout(START_S)
            pid = json.loads(self._channel.recv(MESSAGE_BYTES))
            self._channel.settimeout(timeout_s)
            try:
                code = json.loads(self._channel.recv(MESSAGE_BYTES))
            except TimeoutError:
                os.kill(pid, 9)
                self._channel.settimeout(START_S)
                self._channel.recv(MESSAGE_BYTES)
                raise subprocess.TimeoutExpired(list(command), timeout_s) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return subprocess.CompletedProcess(list(command), code, *texts)

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._process.wait()


@functools.cache
def preloaded() -> Preloaded:
    """Return this test process's preloaded process; it is started by the first call."""
    return Preloaded()


def serve(channel: socket.socket) -> list[str]:
    """Fork once per request; return in the fork, with its command, once the fork is as a new process is."""
    while True:
        data, fds, *_ = socket.recv_fds(channel, MESSAGE_BYTES, 2)
        if not data:
            os._exit(0)
        request: dict[str, Any] = json.loads(data)
        pid = os.fork()
        if not pid:
            channel.close()
            for target, fd in enumerate(fds, start=1):
                os.dup2(fd, target)
                os.close(fd)
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            random.seed()
            tempfile.tempdir = None
            gc.unfreeze()
            return request["command"]
        for fd in fds:
            os.close(fd)
        channel.send(json.dumps(pid).encode())
        channel.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def become(command: Sequence[str]) -> None:
    """Run a command in this process as ``python COMMAND`` would."""
    sys.path[0] = str(Path.cwd())
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in named if folder and folder not in sys.path]
    if command[0] != "-m":
        sys.argv = list(command)
        sys.path[0] = str(Path(command[0]).resolve().parent)
        module = types.ModuleType("__main__")
        module.__file__ = command[0]
        sys.modules["__main__"] = module
        exec(compile(Path(command[0]).read_bytes(), command[0], "exec"), module.__dict__)
    elif command[1] == "autotune.trial":
        from autotune.trial.__main__ import main

        main()
    else:
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import torch
    import torch._dynamo  # the first optimizer imports it, for as long as PyTorch itself takes
    import torch.nn.functional
    import torch.utils.data  # noqa: F401

    import autotune.trial.__main__  # noqa: F401

    gc.collect()
    gc.freeze()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))

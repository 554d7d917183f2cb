"""A real service as a process of its own, over the fake driver; killed, started again, and checked.

Every experiment beside this file uses it, and so does its sample under ``tests/service``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autotune.service.client import Client, Handle
from autotune.service.job import BEGAN
from autotune.service.packing import Packed

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FINAL = ("succeeded", "failed", "cancelled")
WAIT_S = 240.0
"""Longest wait for anything; generous, as the machine may be busy."""
SCRIPT = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""


def until(check: Callable[[], Any], what: str, *, wait_s: float = WAIT_S, pause_s: float = 0.1) -> Any:
    """Return the first true value of a check."""
    end = time.monotonic() + wait_s
    while not (found := check()):
        if time.monotonic() > end:
            raise AssertionError(f"after {wait_s:.0f} s: {what}")
        time.sleep(pause_s)
    return found


class Stand:
    """A service below a folder.

    Args:
        folder: For its data and its log.
        words: Further words of ``autotune serve``.
        run_s: Real time of a fake trial.
        on_ray: Trials run in actors of the Ray cluster that the words name.
        is_fake: Trials run nothing; otherwise searches are real.
        environ: Further variables of the service.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        run_s: float = 0.3,
        on_ray: bool = False,
        is_fake: bool = True,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder, self._words = folder, words
        self.data = folder / "data"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "train.py").write_text(SCRIPT)
        self._python = folder / "python" if is_fake else Path(sys.executable)
        fake = folder / "python"
        fake.write_text(
            "#!/bin/sh\n"
            f"export FAKE_RUN_S={run_s} FAKE_DRIVER={'ray' if on_ray else 'inline'} PYTHONPATH={ROOT}\n"
            f'if [ "$2" = autotune ]; then shift 2; '
            f'exec {sys.executable} {HERE / "fake_autotune.py"} "$@"; fi\n'
            f'exec {sys.executable} "$@"\n'
        )
        fake.chmod(0o755)
        self._environ = {
            **os.environ,
            "AUTOTUNE_HOME": str(folder / "home"),
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "disabled",
            **environ,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Stand:  # noqa: PYI034 (Self is of Python 3.11)
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self, *, crash: str = "") -> None:
        """Start the service; with `crash` it kills itself at that point (`crashing_serve.py`)."""
        log = self.folder / "serve.log"
        log.write_text("")
        start = (
            [sys.executable, str(HERE / "crashing_serve.py"), crash]
            if crash
            else [sys.executable, "-m", "autotune"]
        )
        words = [
            "serve",
            "--port",
            "0",
            "--data",
            str(self.data),
            "--python",
            str(self._python),
            *self._words,
        ]
        with log.open("a") as stream:
            self.process = subprocess.Popen(
                [*start, *words], env=self._environ, stdout=stream, stderr=stream, cwd=ROOT
            )

        def ready() -> str:
            text = log.read_text()
            assert self.process is not None
            assert self.process.poll() is None, text
            found = re.search(r"autotune service: (\S+)", text)
            return found[1] if found else ""

        self.url = until(ready, "the service did not start")
        token = (self.data / "token").read_text().strip()
        self.client = Client(self.url, token)

    def kill(self) -> None:
        """SIGKILL the service; its jobs go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the service, and every job that it has started."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
            self.process.wait()
        for pid in self.supervisors().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def submit(self, *, key: str = "", trials: int = 12, **more: Any) -> Handle:
        """Queue a search of the small script."""
        packed = Packed(root=self.folder / "code", files=("train.py",), bytes=len(SCRIPT))
        return self.client.submit(
            ["python", "train.py"],
            budget="900s",
            options={"trials": trials, "knob": ["precision", "num_workers", "compile_mode"]},
            packed=packed,
            idempotency_key=key,
            **more,
        )

    def state(self, search: str) -> dict[str, Any]:
        """Return a search; the service may be starting."""
        return self.client.search(search).status()

    def reach(self, search: str, *states: str) -> dict[str, Any]:
        """Wait until a search is in one of these states."""

        def there() -> dict[str, Any] | None:
            found = self.state(search)
            return found if found["state"] in states else None

        return until(there, f"search {search} did not become {' or '.join(states)}")

    def trials(self, search: str) -> list[tuple[int, int]]:
        """Return (number, attempt) of the trials that the journals of a search hold as ended."""
        return [row for journal in self.journals(search) for row in _ended(journal)]

    def journals(self, search: str) -> list[Path]:
        """Return the journals of a search: one, or none yet."""
        return sorted((self.data / "searches" / search / "home").glob("studies/*/journal.db"))

    def reported(self, search: str) -> list[tuple[int, int]]:
        """Return (number, attempt) of the trials that the service has."""
        found: list[tuple[int, int]] = []
        after = 0
        while True:
            page = self.client.request(
                "GET", f"/api/v1/searches/{search}/trials", params={"after": after, "limit": 500}
            )
            found += [(one["number"], one["attempt"]) for one in page["trials"]]
            if not (after := page["after"]):
                return found

    def supervisors(self) -> dict[str, int]:
        """Return job -> process id of its supervisor, for jobs that live."""
        found: dict[str, int] = {}
        for began in self.data.glob(f"jobs/*/{BEGAN}"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(began.read_text())
                if str(began.parent) in Path(f"/proc/{pid}/cmdline").read_text():
                    found[began.parent.name] = pid
        return found

    def processes(self, search: str) -> list[int]:
        """Return the processes that carry a search's id in their command or environment."""
        return list(_marked(search.lower(), search))

    def check(self, search: str) -> list[str]:
        """Return what is wrong with a search that has ended: lost, doubled, or more than one study."""
        faults: list[str] = []
        journals = self.journals(search)
        if len(journals) > 1:
            faults.append(f"{len(journals)} studies")
        ended = self.trials(search)
        if len(set(ended)) != len(ended):
            faults.append("a trial ended twice in the journal")

        def arrived() -> bool:
            return set(self.reported(search)) == set(ended)

        with contextlib.suppress(AssertionError):
            until(arrived, "facts", wait_s=10.0)
        reported = self.reported(search)
        if len(set(reported)) != len(reported):
            faults.append("a trial was reported twice")
        if missing := set(ended) - set(reported):
            faults.append(f"{len(missing)} trials were not reported: {sorted(missing)}")
        if extra := set(reported) - set(ended):
            faults.append(f"{len(extra)} reported trials are not in the journal")
        return faults


def _ended(journal: Path) -> list[tuple[int, int]]:
    with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=30)) as connection:
        rows = connection.execute("SELECT json FROM events WHERE kind = 'finished' ORDER BY seq").fetchall()
    return [(data["number"], data["attempt"]) for (text,) in rows for data in [json.loads(text)]]


def _marked(*marks: str) -> Iterator[int]:
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            if any(mark.encode() in text for mark in marks) and int(place.name) != os.getpid():
                yield int(place.name)

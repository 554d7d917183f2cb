"""Runs a script in a real process under a plan and gives back what it reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from preloaded import preloaded

from autotune.launch.ports import with_port
from autotune.model import wire
from autotune.model.change import Change
from autotune.model.config import Config
from autotune.model.distributed_launch import launch_variables, several
from autotune.model.trial import Fidelity, Segment
from autotune.protocol.events import Broke, Closed, Done, Event, ReadBack, StepRow, Steps
from autotune.protocol.lines import Reader
from autotune.protocol.plan import PLAN_VARIABLE, Plan


@dataclass
class Ran:
    """One finished process."""

    code: int
    out: str
    err: str
    events: list[Event]
    folder: Path

    def one(self, kind: type) -> Any:
        found = [e for e in self.events if isinstance(e, kind)]
        return found[-1] if found else None

    @property
    def rows(self) -> list[StepRow]:
        return [r for e in self.events if isinstance(e, Steps) for r in e.rows]

    @property
    def done(self) -> Done | None:
        return self.one(Done)

    @property
    def broke(self) -> Broke | None:
        return self.one(Broke)

    @property
    def closed(self) -> Closed | None:
        return self.one(Closed)

    @property
    def facts(self) -> Any:
        seen = self.one(ReadBack)
        return None if seen is None else seen.facts

    def reading(self, knob: str) -> Any:
        readings = (self.closed or self.broke).readings  # pyright: ignore[reportOptionalMemberAccess]
        return next(r for r in readings if r.knob == knob)

    @property
    def reported(self) -> Any:
        """What the script printed as JSON on its last line."""
        return json.loads(self.out.strip().splitlines()[-1])

    @property
    def faults(self) -> str:
        path = self.folder / "faults.log"
        return path.read_text() if path.exists() else ""


LONG = Fidelity(
    min_window_s=60.0, max_window_s=60.0, min_steps=10_000, target_width=0.01, setup_s=60.0, deadline_s=600.0
)
SHORT = Fidelity(
    min_window_s=0.15, max_window_s=0.4, min_steps=5, target_width=0.5, setup_s=60.0, deadline_s=60.0
)

PRELUDE = """
import json, os, sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset

def reported(**what):
    print(json.dumps(what)); sys.stdout.flush()

def weights(model):
    return [float(p.detach().double().sum()) for p in model.parameters()]
"""


def runner(tmp_path: Path) -> Callable[..., Ran]:
    """Run a script under a plan: `run(text, changes=..., fidelity=...)`; ``bare=True`` without us.

    ``cold=True`` starts a new interpreter in place of a fork that has PyTorch loaded.
    """
    count = 0

    def start(
        text: str,
        *,
        changes: Sequence[Change] = (),
        fidelity: Fidelity = LONG,
        seed: int = 0,
        argv: Sequence[str] = (),
        sites: Sequence[str] = (),
        bare: bool = False,
        measure: bool = True,
        env: dict[str, str] | None = None,
        batch: int = 0,
        timeout_s: float = 60,
        at: str = "train.py",
        module: str = "",
        strict: bool = False,
        own: dict[str, Any] | None = None,
        ranks: int = 1,
        cold: bool = False,
    ) -> Ran:
        nonlocal count
        count += 1
        folder = tmp_path / f"trial{count}"
        folder.mkdir()
        script = tmp_path / at
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(dedent(text))
        plan = Plan(
            nonce=f"t{count}",
            script=str(script),
            argv=tuple(argv),
            events_path=str(folder / "events.jsonl"),
            trial_dir=str(folder),
            changes=tuple(changes),
            segments=(Segment(trial=count, config=Config(), fidelity=fidelity),) if measure else (),
            seed=seed,
            measure=measure,
            sites=tuple(sites),
            status_path="" if measure else str(folder / "status.json"),
            batch=batch,
            module=module,
            strict=strict,
            own=own or {},
            ranks=ranks,
        )
        (folder / "plan.json").write_text(wire.dumps(plan))
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        if ranks > 1:
            variables = with_port({**variables, **launch_variables(several(ranks), variables)})
        variables[PLAN_VARIABLE] = str(folder / "plan.json")
        command = [str(script), *argv] if bare else ["-m", "autotune.trial"]
        # Libraries read their variables when they are loaded.
        if cold or env or ranks > 1 or not preloaded().lives():
            ended = subprocess.run(
                [sys.executable, *command],
                env=variables,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        else:
            ended = preloaded().run(command, env=variables, cwd=tmp_path, timeout_s=timeout_s)
        events = list(Reader(folder / "events.jsonl", plan.nonce).read())
        return Ran(ended.returncode, ended.stdout, ended.stderr, events, folder)

    return start

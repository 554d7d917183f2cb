"""Searches and verifications by the real command and the real driver, over a runner without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.clock import SimulatedClock
from autotune.driver import fixed_study, host_memory, scaling, tune, verification
from autotune.inspection import host
from autotune.launch.fake import FakeRunner, World
from autotune.launch.runner import TrialResult
from autotune.model.trial import Assignment, Failure, FailureKind

Change = Callable[[TrialResult, Assignment], TrialResult]

CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16")
"""Of the machine that all of these searches believe to be on."""


class NoSync:
    """In place of the thread that sends to MLflow."""

    def __init__(self, *args: object, **more: object) -> None:
        pass

    def start(self) -> None:
        pass

    def warm_up(self, timeout_s: float) -> bool:
        return True

    def flush(self, deadline_s: float) -> int:
        return 0

    def links(self) -> dict[str, str]:
        return {}


class NoWall:
    def __init__(self, **more: object) -> None:
        pass

    def start(self) -> None:
        pass

    def disarm(self) -> None:
        pass

    def bring_forward(self, seconds: float) -> None:
        pass


def as_it_is(ended: TrialResult, assignment: Assignment) -> TrialResult:
    return ended


def on_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every machine have the same instructions: half precision may be tried where they are there."""
    here = replace(host.host_facts(), cpu_flags=CPU_FLAGS)
    for module in (host, tune, host_memory):
        monkeypatch.setattr(module, "host_facts", lambda: here)


def inline(
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    *,
    before: Callable[[int], None] = lambda number: None,
    change: Change = as_it_is,
) -> list[Assignment]:
    """From here on trials run in this world, on a clock of their own.

    Args:
        world: What happens.
        before: Called with the number of each run, before it.
        change: Makes something else of what a run ended with.

    Returns:
        What was run, as it grows.
    """
    clock, ran = SimulatedClock(), []

    class Running(FakeRunner):
        def __init__(self, **more: object) -> None:
            super().__init__(world, clock)

        def run(self, assignment: Any) -> Iterator[TrialResult]:
            ran.append(assignment)
            self.requested = False
            before(len(ran))
            if self.requested:
                failure = Failure(kind=FailureKind.KILLED_USER, message="ended by request")
                yield TrialResult(trial=assignment.trial, outcome=failure, seconds=1.0)
                return
            for ended in super().run(assignment):
                yield change(ended, assignment)

        def stop(self) -> None:
            self.requested = True
            super().stop()

    monkeypatch.setattr(tune, "Syncer", NoSync)
    monkeypatch.setattr(tune, "HardWall", NoWall)
    for module in (fixed_study, tune):
        monkeypatch.setattr(module, "LocalRunner", Running)
    for module in (fixed_study, scaling, tune, verification):
        monkeypatch.setattr(module, "SystemClock", lambda: clock)
    monkeypatch.setattr(tune.isolation, "examined", lambda *_: tune.isolation.Isolation("redirect"))
    monkeypatch.setattr("autotune.cli.outcome.head_start_s", lambda: 0.0)
    on_one_processor(monkeypatch)
    # The noise of a run hangs on its name.
    monkeypatch.setattr(
        "autotune.driver.loop.planner.secrets", SimpleNamespace(token_hex=lambda n: "0" * 2 * n)
    )
    return ran


def with_modules(files: dict[str, str], change: Change = as_it_is) -> Change:
    """Runs whose process has imported these files."""

    def changed(ended: TrialResult, assignment: Assignment) -> TrialResult:
        ended = change(ended, assignment)
        return ended if ended.facts is None else replace(ended, facts=replace(ended.facts, modules=files))

    return changed

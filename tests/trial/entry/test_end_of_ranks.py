"""What a rank does between the end of the script's function and the end of the interpreter."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from autotune.protocol.plan import Plan
from autotune.trial import __main__ as entry

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAN = Plan(nonce="n", script="train.py", argv=(), events_path="", trial_dir="", measure=False)


class Session:
    """Stands for the runtime of a rank."""

    def __init__(self, plan: Plan, events: list[str]) -> None:
        self.plan, self.events = plan, events
        self.state = types.SimpleNamespace(spawned_as=None, active=False)

    def begin(self) -> None:
        self.events.append("begin")

    def ended(self) -> None:
        self.events.append("ended")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    def pause(_s: float) -> None:
        seen.append("pause")

    def plan(_environ: Mapping[str, str]) -> Plan:
        return PLAN

    def session(plan: Plan, _channel: Any) -> Session:
        return Session(plan, seen)

    monkeypatch.setattr(entry.time, "sleep", pause)
    monkeypatch.setattr(entry, "TrialRuntime", session)
    monkeypatch.setattr(entry, "load_plan", plan)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return seen


def test_a_spawned_rank_lets_gloo_threads_release_their_objects(events: list[str]) -> None:
    assert entry.run_spawned(1, 2, lambda: events.append("function") or 7) == 7
    assert events == ["begin", "function", "ended", "pause"]


def test_it_does_so_after_an_exception_as_well(events: list[str]) -> None:
    def function() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        entry.run_spawned(1, 2, function)
    assert events[-1] == "pause"


@pytest.mark.parametrize(("count", "world", "pauses"), [(1, "1", 0), (2, "1", 1), (1, "2", 1)])
def test_a_single_process_does_not_wait(
    events: list[str], monkeypatch: pytest.MonkeyPatch, count: int, world: str, pauses: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    entry.run_spawned(0, count, int)
    assert events.count("pause") == pauses

"""What a call without gradients is for, by who asks; and windows over whole rounds. Without torch."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.model.config import Config
from autotune.model.facts import RunFacts
from autotune.model.trial import Fidelity, Segment
from autotune.protocol.events import Closed
from autotune.protocol.lines import Reader
from autotune.trial.hooks.model.phase_classifier import PhaseClassifier, kind_of_name
from autotune.trial.measure.recorder import Recorder
from autotune.trial.runtime.channel import Channel
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.imports import AfterImport
from autotune.trial.runtime.memory import DeviceMemory
from autotune.trial.runtime.state import EVALUATION, ROLLOUT, RuntimeState, caller
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MS = 1_000_000


@pytest.fixture
def state(tmp_path: Path) -> RuntimeState:
    return RuntimeState(Faults(tmp_path / "faults.log"), str(tmp_path / "train.py"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("collect_rollouts", "gathers"),
        ("_collect", "gathers"),
        ("collectDataFromEnv", "gathers"),
        ("collect_metrics", ""),
        ("collect_features", ""),
        ("generate_rollout", "gathers"),
        ("make_experience", "gathers"),
        ("runEpisode", "gathers"),
        ("act", "gathers"),
        ("get_action_and_value", "gathers"),
        ("evaluate_actions", "gathers"),
        ("evaluate_policy", "judges"),
        ("test_episode", "judges"),
        ("validateOnce", "judges"),
        ("train_and_eval", ""),
        ("estimate_loss", ""),
        ("latest_activation", ""),
        ("<module>", ""),
    ],
)
def test_a_function_says_by_its_name_what_it_asks_for(name: str, kind: str) -> None:
    assert kind_of_name(name) == kind


def test_an_evaluation_inside_of_a_rollout_is_one_and_what_follows_it_is_none(state: RuntimeState) -> None:
    purposes = PhaseClassifier(state)
    purposes.trained(caller(0))
    heard: list[bool] = []

    def ask() -> None:
        heard.append(purposes.gathering(caller(0)))

    def evaluate_policy() -> None:
        ask()

    def collect_rollouts() -> None:
        ask()
        evaluate_policy()
        ask()

    ask()
    assert not purposes.gathers
    collect_rollouts()
    evaluate_policy()
    assert heard == [False, True, False, True, False]
    assert purposes.gathers


def test_what_is_around_the_training_as_well_says_nothing(state: RuntimeState) -> None:
    """Some libraries' examples are functions called ``test_ppo`` from beginning to end."""
    purposes = PhaseClassifier(state)

    def collect() -> bool:
        return purposes.gathering(caller(0))

    def test_ppo() -> list[bool]:
        first = collect()
        purposes.trained(caller(0))
        return [first, collect()]

    assert test_ppo() == [False, True]


class Inner:
    """An environment of a library inside of another one."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, action: int) -> int:
        self.steps += 1
        return action


class Outer(Inner):
    def __init__(self, inner: Inner) -> None:
        super().__init__()
        self.inner = inner

    def step(self, action: int) -> int:
        return self.inner.step(action)


@pytest.fixture
def environments(state: RuntimeState, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two classes of a library that was imported before, watched; and how often something was gathered."""
    made = {"OrderEnforcing": type("OrderEnforcing", (Inner,), {"step": Inner.step})}
    made["PassiveEnvChecker"] = type("PassiveEnvChecker", (Outer,), {"step": Outer.step})
    monkeypatch.setitem(sys.modules, "gymnasium.wrappers.common", SimpleNamespace(**made))
    purposes, hooks, undo = PhaseClassifier(state), AfterImport(), Undo()
    collected: list[int] = []
    monkeypatch.setattr(state, "collects", collected.append)
    purposes.watch(hooks, undo)
    yield SimpleNamespace(**made, purposes=purposes, collected=collected, undo=undo)
    undo.undo_all()
    hooks.remove()


def test_an_environment_that_is_stepped_counts_once_however_many_lie_around_it(environments: Any) -> None:
    environments.purposes.trained(caller(0))
    inner = environments.OrderEnforcing()
    outer = environments.PassiveEnvChecker(inner)
    assert [outer.step(action) for action in (3, 4)] == [3, 4]
    assert (inner.steps, len(environments.collected)) == (2, 2)
    assert environments.purposes.gathers


def test_where_environments_are_stepped_a_loop_without_a_telling_name_gathers(environments: Any) -> None:
    def loop() -> bool:
        return environments.purposes.gathering(caller(0))

    environments.purposes.trained(caller(0))
    assert not loop()
    environments.OrderEnforcing().step(0)
    assert loop()


def test_the_environment_of_an_evaluation_gathers_nothing(environments: Any) -> None:
    def evaluate() -> bool:
        environments.OrderEnforcing().step(0)
        return environments.purposes.gathering(caller(0))

    environments.purposes.trained(caller(0))
    assert not evaluate()
    assert environments.collected == []
    assert not environments.purposes.gathers


def test_classes_of_libraries_are_as_they_were_afterwards(environments: Any) -> None:
    environments.purposes.trained(caller(0))
    environments.undo.undo_all()
    environments.OrderEnforcing().step(0)
    assert environments.collected == []


def test_gathering_ends_an_evaluation_and_is_none(state: RuntimeState) -> None:
    state.evaluates(100, by_loader=True)
    assert state.evaluates_loader
    state.collects(250)
    assert (state.mark, state.evaluates_loader) == (EVALUATION | ROLLOUT, False)
    assert state.take_aside_ns() == 150
    state.mark = 0
    state.collects(300)
    assert (state.mark, state.take_aside_ns()) == (ROLLOUT, 0)


# Windows


class OverError(Exception):
    """The process has ended."""


def nothing(*_: object) -> None:
    return


def windowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: RuntimeState, *, steps: int, max_s: float
) -> Closed:
    """What a process measures whose rounds are a rollout of 300 ms and so many steps of 20 ms."""
    now = SimpleNamespace(ns=1000 * MS)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now.ns)

    def ended(_code: int) -> None:
        raise OverError

    monkeypatch.setattr(os, "_exit", ended)
    fidelity = Fidelity(
        min_window_s=2.0, max_window_s=max_s, min_steps=5, target_width=1e-6, setup_s=60.0, deadline_s=600.0
    )
    recorder: Any = Recorder(
        state,
        Channel(tmp_path / "events.jsonl", "n"),
        Segment(trial=0, config=Config(), fidelity=fidelity),
        DeviceMemory(),
        readings=tuple,
        facts=RunFacts,
        settled=nothing,
        settle_root=lambda _: True,
    )
    recorder.sources.loader = SimpleNamespace(
        train=None, ready=nothing, queue_batches=lambda: 3, observed=nothing
    )

    def train() -> None:
        while now.ns < 10**12:
            for step in range(steps):
                now.ns += (20 if step else 320) * MS
                state.steps += 1
                state.samples_total += 8
                recorder.step((now.ns, 0, 8, -1.0, 0, 0 if step else ROLLOUT, 0), None, 0)

    with pytest.raises(OverError):
        train()
    (closed,) = [e for e in Reader(tmp_path / "events.jsonl", "n").read() if isinstance(e, Closed)]
    return closed


def test_a_window_holds_whole_rounds_of_a_rollout_and_steps_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: RuntimeState
) -> None:
    closed = windowed(tmp_path, monkeypatch, state, steps=30, max_s=4.2)
    assert closed.ended == "limit"
    assert closed.counters["opened_at_step"] % 30 == 1, "the first one after a rollout ends before it opens"
    assert closed.counters["window_steps"] == 150, "five rounds of 0.9 s are the first that take 4.2 s"


def test_rounds_that_last_far_longer_than_a_window_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: RuntimeState
) -> None:
    closed = windowed(tmp_path, monkeypatch, state, steps=5000, max_s=4.0)
    assert closed.ended == "limit"
    assert 6.0 <= (closed.end_ns - closed.begin_ns) / 1e9 < 6.1

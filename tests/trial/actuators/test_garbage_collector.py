"""Python's garbage collector in the rhythm of steps."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from trial_kit import PRELUDE

from autotune.trial.actuators import garbage_collector
from autotune.trial.actuators.garbage_collector import Collector
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.state import RuntimeState
from autotune.trial.runtime.undo import Undo


def is_frozen() -> bool:
    return gc.get_freeze_count() > 1_000  # Python 3.12 counts its immortal objects as well


class World:
    def __init__(self, monkeypatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(garbage_collector.time, "monotonic", lambda: self.now_s)
        self.undo = Undo()
        self.state = RuntimeState(Faults(None), "/somewhere/train.py")
        self.collector = Collector(self.state, self.undo)
        self.counts: Counter[int] = Counter()
        self.frozen: list[bool] = []

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.state.steps += 1
            for reported in tuple(self.state.at_step):
                reported()

    def collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self.counts[info["generation"]] += 1
            self.frozen.append(is_frozen())


@pytest.fixture
def world(monkeypatch):
    before = gc.get_threshold(), is_frozen(), gc.isenabled()
    made = World(monkeypatch)
    gc.callbacks.append(made.collected)
    yield made
    gc.callbacks.remove(made.collected)
    made.undo.undo_all()
    assert (gc.get_threshold(), is_frozen(), gc.isenabled()) == before
    assert made.state.at_step == []


@pytest.mark.thorough
def test_nothing_happens_before_the_first_steps(world) -> None:
    world.collector.set("boundary")
    assert world.collector.observed() == "auto"
    world.steps(1)
    assert (world.collector.observed(), is_frozen()) == ("auto", False)
    world.steps(1)
    assert world.collector.observed() == "boundary"


@pytest.mark.thorough
def test_freezing_leaves_automatic_collection_alone(world) -> None:
    world.collector.set("freeze")
    world.steps(50)
    assert world.collector.observed() == "freeze"
    assert is_frozen()
    assert world.counts[2] >= 1


@pytest.mark.slow  # hundreds of whole collections, of all that the test run holds
def test_every_generation_has_its_rhythm(world) -> None:
    world.collector.set("boundary")
    world.steps(2)
    world.counts.clear()
    world.steps(400)
    assert world.counts == {0: 400 - 40 - 2, 1: 40, 2: 2}


@pytest.mark.thorough
def test_what_was_frozen_is_looked_at_again_after_a_while(world) -> None:
    world.collector.set("freeze")
    world.steps(2)
    world.frozen.clear()
    world.steps(300)
    assert all(world.frozen)
    world.now_s += 61
    world.steps(1)
    assert not world.frozen[-1]
    assert is_frozen()


def test_a_script_with_a_rhythm_of_its_own_is_read_as_such(world) -> None:
    kept = gc.get_threshold()
    gc.disable()
    assert world.collector.observed() == "own"
    gc.enable()
    gc.set_threshold(12_345)
    assert world.collector.observed() == "own"
    gc.set_threshold(*kept)
    gc.freeze()
    assert world.collector.observed() == "freeze"
    gc.unfreeze()
    assert world.collector.observed() == "auto"


@pytest.mark.thorough
def test_a_threshold_that_somebody_else_has_set_meanwhile_stays(world) -> None:
    world.collector.set("boundary")
    world.steps(3)
    kept = gc.get_threshold()
    gc.set_threshold(9_999)
    world.collector.release()
    assert gc.get_threshold()[0] == 9_999
    gc.set_threshold(*world.collector._own)
    assert kept[0] == garbage_collector._OBJECTS


@pytest.mark.parametrize(("frozen", "mode"), [(0, "auto"), (375, "auto"), (5_000, "freeze")])
def test_what_python_3_12_itself_has_frozen_is_not_read_as_ours(world, monkeypatch, frozen, mode) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(garbage_collector.gc, "get_freeze_count", lambda: frozen)
        assert world.collector.observed() == mode


GARBAGE = """
class Node: pass
kept = [Node() for _ in range(300_000)]
for node in kept: node.this = [node]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(400):
    waste = []
    for _ in range({made}):
        node = Node()
        node.this = node
        waste.append(node)
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.003)
"""


@pytest.mark.torch
@pytest.mark.parametrize(("made", "low", "high"), [(0, 0.0, 0.02), (3000, 0.03, 1.0)])
def test_how_much_of_the_time_garbage_is_looked_for_is_known(run, made, low, high) -> None:
    ran = run(PRELUDE + "import time\n" + GARBAGE.format(made=made))
    assert not ran.faults
    assert low <= ran.facts.collecting_frac <= high

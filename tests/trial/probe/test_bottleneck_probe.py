"""What a probe finds out in a real process, and the parts it is made of."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.answer.bottleneck import PREFIX
from autotune.protocol.plan import PROFILE_TRACE
from autotune.trial.probe.cached_batches import Cached, Replay
from autotune.trial.probe.loader_drain import drain
from autotune.trial.probe.step_phases import Phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trial_kit import Ran

PROBE = replace(SHORT, probe="why")


# Draining


class Clock:
    """Moves on by what taking a batch takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def batches(self, count: int, each_s: float) -> Iterator[int]:
        for number in range(count):
            self.now += each_s
            yield number


def test_a_loader_alone_is_timed_without_what_lay_ready() -> None:
    clock = Clock()

    def prefilled() -> Iterator[int]:
        yield from clock.batches(4, 0.0)
        yield from clock.batches(1000, 0.01)

    found = drain(prefilled(), lambda: None, stale=6, seconds=0.5, clock=clock)
    assert found.batch_s == pytest.approx(0.01)
    assert found.starts_s == ()


def test_the_start_of_an_epoch_is_kept_apart_from_its_batches() -> None:
    clock = Clock()

    def epoch() -> Iterator[int]:
        clock.now += 0.2  # workers start
        yield from clock.batches(5, 0.01)

    found = drain(clock.batches(3, 0.01), epoch, stale=0, seconds=0.1, clock=clock)
    assert found.batch_s == pytest.approx(0.01)
    assert found.starts_s[0] == pytest.approx(0.21)


def test_a_loader_that_is_gone_yields_no_figure() -> None:
    assert drain(None, lambda: None, stale=0, seconds=0.1, clock=Clock()).batch_s is None
    assert drain(iter([1]), lambda: None, stale=0, seconds=0.1, clock=Clock()).batch_s is None


# Cached batches


class Tensor:
    """As much of one as is looked at."""

    shape = (2,)

    def __init__(self, name: str) -> None:
        self.name, self._version = name, 0

    def clone(self) -> Tensor:
        return Tensor(f"copy of {self.name}")


def test_a_batch_is_given_out_as_it_was_fetched() -> None:
    x, y = Tensor("x"), Tensor("y")
    cached = Cached({"x": x, "rest": [y, "text"]})
    first = cached.fresh()
    assert first.pop("x") is x
    x._version += 1  # the script wrote into it
    second = cached.fresh()
    assert second["x"].name == "copy of copy of x"
    assert second["rest"][0] is y


def test_iterators_repeat_their_next_batch_until_the_replay_ends() -> None:
    class Base:
        def __init__(self) -> None:
            self.count = 0

        def __next__(self) -> int:
            self.count += 1
            return self.count

    class Child(Base):
        pass

    trains = [True]
    replay = Replay(Base, trains=lambda: trains[0])
    one, other = Child(), Child()
    assert next(one) == 1
    replay.begin()
    assert [next(one), next(one), next(one), next(other), next(other)] == [2, 2, 2, 1, 1]
    assert replay.served == 3
    trains[0] = False
    assert next(one) == 3, "an evaluation gets its own data"
    replay.end()
    assert next(one) == 4


# Phases


def test_time_is_booked_where_the_thread_was() -> None:
    phases = Phases()
    moments = iter(
        [(0, 0, 0), (10, 10, 0), (30, 30, 0), (35, 35, 0), (75, 75, 0), (80, 80, 0), (180, 85, 15)]
    )
    phases._now = lambda: next(moments)  # type: ignore[method-assign]
    phases.begin()
    phases.enter("forward")
    phases.leave("loss")
    phases.enter("backward")
    phases.leave()
    phases.enter("optimizer")
    phases.leave()
    phases.close()
    assert dict(phases.spent_ns) == {"host": 15, "forward": 20, "loss": 5, "backward": 40, "optimizer": 85}
    assert phases.blocked_ns["optimizer"] == 80
    assert phases.blocked_ns["backward"] == 0


# In a real process

SLEEPS = """
import time
class Slow(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i):
        time.sleep({load_s})
        return torch.ones(64), torch.tensor(i % 2)
loader = DataLoader(Slow(), batch_size=8)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10):
    for x, y in loader:
        x = x.mul_(2.0)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep({sleep_s})
        loss.item()
"""


def figures(ran: Ran) -> dict[str, float]:
    assert ran.closed is not None, ran.err
    assert "probe" not in ran.faults
    return {k.removeprefix(PREFIX): v for k, v in ran.closed.counters.items() if k.startswith(PREFIX)}


@pytest.mark.torch
@pytest.mark.slow
def test_a_probe_of_a_real_script_reports_input_phases_and_operations_apart(run: Callable[..., Ran]) -> None:
    ran = run(PRELUDE + SLEEPS.format(load_s=0.002, sleep_s=0.004), fidelity=PROBE)
    found = figures(ran)
    assert found["drain_step_s"] >= 0.016
    assert 0.004 <= found["replay_step_s"] < 0.016, "no sample is loaded, and the loop still sleeps"
    assert found["blocked_host_s"] >= 0.003
    assert found["ops"] > 20
    # Two layers on 8 samples of 64: forward 2 x 8 x (64 x 64 + 64 x 2), backward twice that but for the
    # first layer's input.
    forward = 2 * 8 * (64 * 64 + 64 * 2)
    assert found["flops"] == pytest.approx(3 * forward - 2 * 8 * 64 * 64)
    assert found["reads"] == 1, "its own, not that by which we know the loss"
    assert found["peak_flops_per_s"] > 1e8
    for phase in ("forward", "loss", "backward", "optimizer", "host"):
        assert found[f"phase_{phase}_s"] > 0
    assert ran.done is not None
    assert ran.done.why == "measured"


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_without_a_probe_holds_none_of_it(run: Callable[..., Ran]) -> None:
    assert figures(run(PRELUDE + SLEEPS.format(load_s=0.0, sleep_s=0.002), fidelity=SHORT)) == {}


@pytest.mark.torch
@pytest.mark.slow
def test_a_profile_opens_as_a_trace_and_names_operators(run: Callable[..., Ran]) -> None:
    ran = run(PRELUDE + SLEEPS.format(load_s=0.0, sleep_s=0.001), fidelity=replace(SHORT, probe="profile"))
    assert figures(ran)["ops"] > 20
    trace = json.loads(gzip.decompress((ran.folder / PROFILE_TRACE).read_bytes()))
    assert any("addmm" in str(event.get("name")) for event in trace["traceEvents"])
    assert "addmm" in (ran.folder / "profile.txt").read_text()
    assert not (ran.folder / "profile.json.part").exists()


def test_a_trace_has_a_name_that_tensorboard_looks_for() -> None:
    """As torch_tb_profiler 0.4.3 has it (`consts.WORKER_PATTERN`); others are no runs for it."""
    assert re.fullmatch(r"(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?", PROFILE_TRACE)

"""One process measures many configs: what is switched, what is taken back, and how a visit ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.knobs.registry import builtin
from autotune.model.config import Config
from autotune.model.live import Visit
from autotune.protocol.events import Closed
from autotune.testing.knobs import FakePatches
from autotune.trial.actuators.visit import Visiting
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from trial_kit import Ran

WATCHED = (
    PRELUDE
    + """
import gc
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
        self.half = False
    def forward(self, x):
        self.half = torch.is_autocast_enabled("cpu")
        return self.layers(x)

torch.manual_seed(3)
model = Net()
train = DataLoader(TensorDataset(torch.randn(256, 16), torch.randn(256, 1)), batch_size=16)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
most = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9
done, last, losses = 0, None, open("losses.txt", "w")
while done < most:
    for x, y in train:
        opt.zero_grad(set_to_none=False)
        empty = all(p.grad is None for p in model.parameters())
        loss = F.mse_loss(model(x), y)
        loss.backward()
        state = [torch.get_num_threads(), model.half, empty, gc.get_freeze_count() > 2000]
        if done and state != last:
            told(state=state)
            last = state
        losses.write(loss.item().hex() + "\\n")
        losses.flush()
        opt.step()
        done += 1
        if done == most:
            break
"""
)
SWITCHES: tuple[dict[str, Any], ...] = (
    {"gc_control": "freeze"},
    {"set_to_none": True},
    {"threads": 2},
    {"precision": "bf16"},
)
VISIT = Visit(configs=tuple(map(Config, SWITCHES)), window_s=0.15, limit_s=40.0)
OWN = [1, False, False, False]
ENDS_ONCE_MEASURED = """
        events = os.path.join(os.path.dirname(os.environ["AUTOTUNE_PLAN"]), "events.jsonl")
        most = done + 1 if '"Closed"' in open(events).read() else most
"""


def closed(ran: Ran) -> list[Closed]:
    return [event for event in ran.events if isinstance(event, Closed)]


@pytest.mark.torch
def test_a_process_measures_what_it_can_be_switched_to_and_is_itself_again_in_between(
    run: Callable[..., Ran],
) -> None:
    ran = run(WATCHED, fidelity=SHORT, visit=VISIT)
    assert ran.faults == ""
    assert ran.done is not None, ran.err
    assert ran.done.why == "measured"
    own, *parts = closed(ran)
    assert (own.part, [p.part for p in parts]) == (0, [1, 2, 3, 4, 5, 6])
    assert own.loss
    assert not any(part.loss for part in parts)
    shown = [{r.knob: r.found for r in part.readings} for part in parts]
    assert shown == [*SWITCHES[:2], {}, *SWITCHES[2:], {}]
    assert all(r.status == "applied" for part in parts for r in part.readings)
    # Every window lies behind the one before, and holds steps.
    edges = [edge for each in (own, *parts) for edge in (each.begin_ns, each.end_ns)]
    assert edges == sorted(edges)
    stamps = [row.t_ns for row in ran.rows]
    assert all(sum(p.begin_ns < t <= p.end_ns for t in stamps) >= 3 for p in (own, *parts))

    states = [json.loads(line)["state"] for line in ran.out.splitlines()]
    seen = [state for state in states if state != OWN]
    frozen, empty = [1, False, False, True], [1, False, True, False]
    wide, half = [2, False, False, False], [1, True, False, False]
    assert seen == [frozen, empty, wide, half]
    assert states[0] == states[-1] == OWN

    # What changes no arithmetic leaves the weights as they are, while it is on and after it.
    exact = sum(t <= parts[2].end_ns for t in stamps)
    losses = (ran.folder.parent / "losses.txt").read_text().splitlines()[:exact]
    run(WATCHED, bare=True, argv=(str(exact),))
    assert (ran.folder.parent / "losses.txt").read_text().splitlines() == losses


@pytest.mark.torch
def test_a_script_that_ends_in_the_middle_ends_the_visit_quietly(run: Callable[..., Ran]) -> None:
    text = WATCHED.replace("        opt.step()\n", "        opt.step()\n" + ENDS_ONCE_MEASURED)
    ran = run(text, fidelity=SHORT, visit=VISIT)
    assert ran.faults == ""
    assert ran.done is not None, ran.err
    assert (ran.done.why, ran.code) == ("script_end", 0)
    assert [each.part for each in closed(ran)] == [0]


ATTENDS = (
    PRELUDE
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(16, 16), nn.Linear(16, 1)
    def forward(self, x):
        h = self.into(x).view(-1, 1, 4, 4)
        return self.out(F.scaled_dot_product_attention(h, h, h).reshape(-1, 16))

torch.manual_seed(3)
model = Net()
train = DataLoader(TensorDataset(torch.randn(256, 16), torch.randn(256, 1)), batch_size=16)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
last = None
while True:
    for x, y in train:
        opt.zero_grad()
        with torch.profiler.profile() as seen:
            loss = F.mse_loss(model(x), y)
        loss.backward()
        names = {e.name for e in seen.events()}
        kernel = "math" if "aten::_scaled_dot_product_attention_math" in names else "other"
        if kernel != last:
            told(kernel=kernel)
            last = kernel
        opt.step()
"""
)


@pytest.mark.torch
@pytest.mark.slow  # every step is profiled, to see the kernel that was called
def test_the_kernel_of_attention_is_another_one_meanwhile(run: Callable[..., Ran]) -> None:
    visit = Visit(configs=(Config({"attention_backend": "math"}),), window_s=0.15, limit_s=40.0)
    ran = run(ATTENDS, fidelity=SHORT, visit=visit)
    assert ran.faults == ""
    _own, segment, anchor = closed(ran)
    assert [(r.knob, r.found, r.status) for r in segment.readings] == [
        ("attention_backend", "math", "applied")
    ]
    assert anchor.readings == ()
    assert [json.loads(line)["kernel"] for line in ran.out.splitlines()] == ["other", "math", "other"]


class Process:
    """As much of one as a visit needs."""

    def __init__(self) -> None:
        self.patches: Any = FakePatches()

    def visiting(self, *configs: dict[str, Any], limit_s: float = 10.0, **own: Any) -> Visiting:
        state = State(Faults(None), "/somewhere/train.py")
        visit = Visit(configs=tuple(map(Config, configs)), window_s=1.0, limit_s=limit_s)
        return Visiting(visit, Config(own), builtin(), self.patches, state)


def test_every_switch_is_taken_back_before_the_next_one() -> None:
    process = Process()
    visiting = process.visiting({"threads": 1, "gc_control": "freeze"}, {"threads": 2})
    before = process.patches.state()
    assert visiting.part == 0
    assert visiting.forward(0)
    assert (process.patches.threads, process.patches.collector.observed()) == (1, "freeze")
    assert {r.knob: (r.found, r.status) for r in visiting.readings()} == {
        "threads": (1, "applied"),
        "gc_control": ("freeze", "applied"),
    }
    assert visiting.forward(1)
    assert (process.patches.threads, process.patches.collector.observed()) == (2, "auto")
    assert visiting.forward(2)
    assert (visiting.part, process.patches.state(), visiting.readings()) == (3, before, ())
    assert not visiting.forward(3)


def test_only_what_differs_from_the_processs_own_config_is_switched() -> None:
    visiting = Process().visiting({"threads": 1, "num_workers": 2}, num_workers=2)
    assert visiting.forward(0)
    assert [r.knob for r in visiting.readings()] == ["threads"]


@pytest.mark.parametrize("config", [{"num_workers": 2}, {"threads": 1, "batch_size": 8}])
def test_what_cannot_be_switched_fails_its_part_and_ends_the_visit(config: dict[str, Any]) -> None:
    process = Process()
    visiting, before = process.visiting(config, {"threads": 2}), process.patches.state()
    assert visiting.forward(0)
    bad = [r for r in visiting.readings() if r.status != "applied"]
    assert bad
    assert "cannot be switched" in bad[-1].reason
    assert visiting.has_failed
    assert not visiting.forward(1)
    assert process.patches.state() == before


def test_a_reading_that_differs_fails_the_part() -> None:
    process = Process()
    visiting = process.visiting({"threads": 1}, {"threads": 2})
    assert visiting.forward(0)
    process.patches.threads = 3
    (reading,) = visiting.readings()
    assert (reading.status, reading.reason) == ("refused", "Asked for 1, found 3.")
    assert not visiting.forward(1)


def test_a_visit_keeps_to_its_time() -> None:
    visiting = Process().visiting({"threads": 1}, {"threads": 2}, limit_s=2.0)
    assert visiting.forward(5)
    assert not visiting.is_late(2 * 10**9)
    assert visiting.is_late(2 * 10**9 + 6)
    assert not visiting.forward(2 * 10**9 + 6)


def test_where_the_way_back_fails_nothing_more_is_measured() -> None:
    process = Process()
    visiting = process.visiting({"threads": 1}, {"threads": 2})
    assert visiting.forward(0)

    def refuses(count: int) -> None:
        raise RuntimeError(count)

    process.patches.torch.set_num_threads = refuses
    assert not visiting.forward(1)


def test_a_part_is_measured_as_long_as_the_visit_says() -> None:
    fidelity = Process().visiting({"threads": 1}).fidelity(SHORT, evaluation_counts=True)
    assert (fidelity.min_window_s, fidelity.max_window_s) == (1.0, 2.0)
    assert fidelity.evaluation_counts is True
    assert (fidelity.loss_samples, fidelity.dominated_below) == (0, 0.0)

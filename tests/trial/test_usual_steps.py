"""The short way through our hooks, which most steps of a run take, tells what the long one tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from trial_kit import PRELUDE, Ran

from autotune.core.change import Change, Patch

pytestmark = pytest.mark.torch

COLLECTION = 8

WATCHED = """
import sys
import time
from autotune.trial import loader, optimizer, recorder, root, steps

taken = {}

def watch(cls, name, key):
    original = getattr(cls, name)
    taken[key] = 0
    def asked(this, *args):
        usual = "long" not in sys.argv and original(this, *args)
        taken[key] += bool(usual)
        return usual
    setattr(cls, name, asked)

watch(loader.Loader, "_is_usual", "fetch")
watch(root.RootCall, "_is_usual", "call")
watch(optimizer.Optimizer, "_is_plain", "backward")
watch(optimizer.Optimizer, "_is_usual", "step")
watch(steps.Boundary, "_is_usual", "boundary")
watch(recorder.Recorder, "_is_usual", "row")

losses = []
record = recorder.Recorder.step

def step(this, row, loss, batches):
    time.sleep(0.002)  # long enough for a window to open
    losses.append(float(losses_of(loss)))
    record(this, row, loss, batches)

def losses_of(loss):
    return loss if isinstance(loss, float) else sum(value * factor for value, factor in loss)

recorder.Recorder.step = step
"""

EPOCHS = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.999 ** step)
data = TensorDataset(torch.randn(1606, 8), torch.randint(0, 2, (1606,)))
train = DataLoader(data, batch_size=16, shuffle=True)
val = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=16)
for epoch in range(7):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        for x, y in val:
            model(x)
    for x, y in val:
        model(x)
told(weights=weights(model), taken=taken, losses=losses)
"""

OWN_BATCHES = """
torch.manual_seed(0)
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 2)
    def forward(self, x, mask):
        return self.head(self.inner(x) * mask)
model = Pair()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(4096, 8)
for step in range(700):
    optimizer.zero_grad()
    for part in range(2):
        rows = 12 if step % 50 == 49 else 16
        x = data[torch.randint(0, 4096, (rows,))]
        (model(x, torch.ones(rows, 1)).square().mean() / 2).backward()
    optimizer.step()
    if step == 350:
        optimizer.param_groups[0]["lr"] = 0.02
told(weights=weights(model), taken=taken, losses=losses)
"""

STREAM = """
torch.manual_seed(0)
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for i in range(5000):
            yield {"x": torch.full((8,), i / 5000), "y": torch.tensor(i % 2)}
model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
done = 0
for epoch in range(3):
    for batch in DataLoader(Stream(), batch_size=16):
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if epoch == 1 and done % 97 == 0:
            break
told(weights=weights(model), taken=taken, losses=losses)
"""

BF16 = Change(knob="precision", value="bf16", spelling=Patch())
COLLECTED = Change(knob="gc_control", value="boundary", spelling=Patch())


def rows(ran: Ran) -> list[tuple[Any, ...]]:
    """What of every step does not depend on how fast it was."""
    return [(row.samples, row.mark & ~COLLECTION, row.aside_ns > 0) for row in ran.rows]


def known(ran: Ran) -> Any:
    """What the run told of the script, without times."""
    facts = replace(ran.facts, collecting_frac=None)
    if facts.loader is None:
        return facts
    return replace(facts, loader=replace(facts.loader, fetch_s=None, fetch_cpu_frac=None))


@pytest.mark.parametrize(
    ("script", "changes", "fetches"),
    [
        pytest.param(EPOCHS, (), True, id="epochs"),
        pytest.param(EPOCHS, (BF16, COLLECTED), True, id="epochs in bf16, collected by hand"),
        pytest.param(OWN_BATCHES, (), False, id="batches of its own, two passes a step"),
        pytest.param(STREAM, (), True, id="a stream, epochs broken off"),
    ],
)
def test_both_ways_tell_the_same(
    run: Callable[..., Ran], script: str, changes: tuple[Change, ...], fetches: bool
) -> None:
    short, long = (
        run(PRELUDE + WATCHED + script, changes=changes, argv=("--way", way)) for way in ("short", "long")
    )
    for ran in (short, long):
        assert not ran.faults
        assert ran.code == 0, ran.err
    assert not any(long.told["taken"].values())
    taken = {key: count for key, count in short.told["taken"].items() if fetches or key != "fetch"}
    assert min(taken.values()) > len(short.rows) // 4, f"{taken} of {len(short.rows)} steps"
    assert rows(short) == rows(long)
    assert len(short.told["losses"]) == len(short.rows)
    assert short.told["losses"] == pytest.approx(long.told["losses"])
    assert short.told["weights"] == long.told["weights"]
    assert known(short) == known(long)
    waits = [sum(row.wait_ns for row in ran.rows) for ran in (short, long)]
    assert all(waits) == fetches

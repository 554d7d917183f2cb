"""The short way through our hooks, which most steps of a run take, reports what the long one reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from trial_kit import PRELUDE, Ran

from autotune.model.change import Change, Patch

pytestmark = pytest.mark.torch

COLLECTION = 8

WATCHED = """
import gc
import sys
import time
from autotune.trial.records import steady_steps as calm
from autotune.trial.hooks.data import loader
from autotune.trial.hooks.step import optimizer
from autotune.trial.measure import measured_run
from autotune.trial.hooks.model import forward_wrapper as root
from autotune.trial.measure import step_counter as boundary

taken = {}

def watch(cls, name, key):
    original = getattr(cls, name)
    taken[key] = 0
    def requested(this, *args):
        usual = "long" not in sys.argv and original(this, *args)
        taken[key] += bool(usual)
        return usual
    setattr(cls, name, requested)

# Either most steps are noted alone, or they take the short way through each hook, or the long one.
if "calm" not in sys.argv:
    calm.SteadySteps.begin = lambda this, boundary, **more: None
counts_noted = calm.SteadySteps.leave
taken["noted"] = 0

def leave(this):
    taken["noted"] += len(this.rows)
    counts_noted(this)

calm.SteadySteps.leave = leave

watch(loader.Loader, "_is_usual", "fetch")
watch(root.ForwardWrapper, "_is_usual", "call")
watch(optimizer.Optimizer, "_is_plain", "backward")
watch(optimizer.Optimizer, "_is_usual", "step")
watch(boundary.StepCounter, "_is_usual", "boundary")
watch(measured_run.MeasuredRun, "_is_usual", "row")

losses = []
record = measured_run.MeasuredRun.step

def step(this, row, loss, batches):
    losses.append(float(losses_of(loss)))
    record(this, row, loss, batches)

record_noted = measured_run.MeasuredRun.calm_steps

def steps(this, rows, noted, samples_total):
    losses.extend(noted)
    record_noted(this, rows, noted, samples_total)

def losses_of(loss):
    return loss if isinstance(loss, float) else sum(value * factor for value, factor in loss)

measured_run.MeasuredRun.step = step
measured_run.MeasuredRun.calm_steps = steps

reported_at_once = reported

def reported(**what):
    for one in gc.get_objects():
        if type(one) is calm.SteadySteps:
            one.leave()  # what is noted is counted
    reported_at_once(**what)

def pause():
    time.sleep(0.001)  # long enough for a window to open
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
        pause()
    model.eval()
    with torch.no_grad():
        for x, y in val:
            model(x)
    for x, y in val:
        model(x)
reported(weights=weights(model), taken=taken, losses=losses)
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
    pause()
    if step == 350:
        optimizer.param_groups[0]["lr"] = 0.02
reported(weights=weights(model), taken=taken, losses=losses)
"""

ONE_PASS = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = torch.randn(4096, 8)
for step in range(700):
    x = data[torch.randint(0, 4096, (12 if step % 50 == 49 else 16,))]
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    loss /= 2  # for a log
    pause()
    if step % 30 != 7:
        optimizer.step()
    if step % 80 == 79:
        model.eval()
        model(x)
        model.train()
reported(weights=weights(model), taken=taken, losses=losses)
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
        pause()
        done += 1
        if epoch == 1 and done % 97 == 0:
            break
reported(weights=weights(model), taken=taken, losses=losses)
"""

ODD = """
torch.manual_seed(0)
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 800
    def __getitem__(self, i):
        if i == 777:
            raise KeyError("no such file")
        return torch.full((8,), i / 800), torch.tensor(i % 2)
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
    def forward(self, x):
        return self.layer(x)
model, other = Head(), nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
second = torch.optim.SGD(other.parameters(), lr=1e-3)
data = Broken()
train = DataLoader(data, batch_size=4, shuffle=True)
held = torch.randn(12, 8)
done = 0
for epoch in range(6):
    batches = iter(train)
    while True:
        try:
            x, y = next(batches)
        except StopIteration:
            break
        except KeyError:
            continue
        done += 1
        if epoch == 2 and done % 41 == 0:
            continue  # a batch that nothing is done with
        if done % 37 == 0:
            model(x)  # called twice
        if done % 53 == 0:
            with torch.no_grad():
                model(held)
        out = model(x)
        if done % 59 == 0:
            continue  # called, and no pass
        loss = F.cross_entropy(out, y)
        if done % 61 == 0:
            F.cross_entropy(model(x), y).backward()
        loss.backward()
        if done % 43 == 0:
            optimizer.zero_grad()
            continue  # a pass, and no step
        if done % 67 == 0:
            other(out.detach()).sum().backward()
            second.step()
        if done == 1150:
            optimizer.step(lambda: loss)
        elif done % 73 == 0:
            torch.autograd.backward(model(x).sum())
            optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad()
        pause()
        if done % 97 == 0:
            try:
                model(x[:, :3])
            except RuntimeError:
                pass
        if done % 101 == 0 and os.fork() == 0:
            for x, y in train:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                break
            os._exit(0)
    if epoch == 3:
        train = DataLoader(data, batch_size=8, shuffle=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
reported(weights=weights(model), taken=taken, losses=losses)
"""

FROM_INSIDE = """
torch.manual_seed(0)
class Inner(Dataset):
    def __len__(self):
        return 512
    def __getitem__(self, i):
        return torch.full((8,), i / 512), torch.tensor(i % 2)
class Chunks(torch.utils.data.IterableDataset):
    # Reads chunks by a loader of its own, and now and then asks the model that is trained.
    def __iter__(self):
        count = 0
        for chunk in range(21):
            for x, y in DataLoader(Inner(), batch_size=128, shuffle=True):
                for sample in zip(x, y):
                    count += 1
                    if count % 1000 == 999:
                        with torch.no_grad():
                            model(sample[0][None])
                    yield *sample, count
def collate(samples):
    kept = [(x, y) for x, y, i in samples if i % 450 != 7]  # broken ones are left out
    if any(i % 3001 == 3000 for _, _, i in samples):
        return None
    return tuple(map(torch.stack, zip(*kept)))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(DataLoader(Chunks(), batch_size=16, collate_fn=collate))
done = 0
for batch in batches:
    if batch is None:
        continue
    x, y = batch
    count = len(x)
    x = F.pad(x, (0, 0, 0, 16 - count))  # the model sees one shape alone
    loss = F.cross_entropy(model(x)[:count], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pause()
    done += 1
    if done % 120 == 119:
        with torch.no_grad():
            for _ in range(3):
                batch = next(batches)
                model(batch[0])
reported(weights=weights(model), taken=taken, losses=losses)
"""

BESIDES = """
import weakref
from autotune.trial.hooks.step.optimizer import Optimizer
torch.manual_seed(0)
class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = big = torch.zeros(10)
        alive.append(weakref.ref(big))
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        return gradient
alive, held = [], 0
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ours = next(o for o in gc.get_objects() if type(o) is Optimizer)
scaler = torch.amp.GradScaler("cpu", enabled=False)
data = torch.randn(4096, 8)
other = torch.zeros(3, 8)
for step in range(900):
    if step > 230 and step % 20 == 7:
        optimizer.param_groups[0]["lr"] *= 0.999  # now and then, no schedule by steps
    ours.part_begins()  # as a framework does at the beginning of each part
    x = data[torch.randint(0, 4096, (16,))]
    scaler.scale(Keep.apply(model(x)).square().mean()).backward()
    held += alive[-1]() is not None
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    pause()
    if step in (600, 700):
        torch.export.export(model, (x,))
reported(weights=weights(model), taken=taken, losses=losses, held=held, zeroes_first=ours.zeroes_first)
"""

HANDLER = """
import random, signal
torch.manual_seed(0)
random.seed(1)
requested = 0
def handler(*_):
    global requested
    requested += 1
    model.eval()
    with torch.no_grad():
        model(other)
    model.train()
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0003, 0.003))
signal.signal(signal.SIGALRM, handler)
other = torch.zeros(3, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = torch.randn(4096, 8)
for step in range(12000):
    if step > 2000 and step % 400 == 300:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
    if step % 400 == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
    loss = model(data[:16]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
signal.setitimer(signal.ITIMER_REAL, 0)
reported(taken=taken, losses=losses, requested=requested)
"""

NAN = """
torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(4096, 8)
for step in range(900):
    loss = model(data[torch.randint(0, 4096, (16,))]).square().mean()
    if step >= 500:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pause()
"""

BF16 = Change(knob="precision", value="bf16", spelling=Patch())
COLLECTED = Change(knob="gc_control", value="boundary", spelling=Patch())


def rows(ran: Ran) -> list[tuple[Any, ...]]:
    """What of every step does not depend on how fast it was."""
    return [(row.samples, row.mark & ~COLLECTION, row.aside_ns > 0) for row in ran.rows]


def known(ran: Ran) -> Any:
    """The reports of the script, without times."""
    facts = replace(ran.facts, collecting_frac=None)
    if facts.loader is None:
        return facts
    return replace(facts, loader=replace(facts.loader, fetch_s=None, fetch_cpu_frac=None))


def looked_at(run: Callable[..., Ran], script: str, changes: tuple[Change, ...], way: str) -> Ran:
    ran = run(PRELUDE + WATCHED + script, changes=changes, argv=("--way", way))
    assert not ran.faults
    assert ran.code == 0, ran.err
    return ran


def the_same(ran: Ran, long: Ran, *, fetches: bool) -> bool:
    assert rows(ran) == rows(long)
    assert len(ran.reported["losses"]) == len(long.rows)
    assert ran.reported["losses"] == pytest.approx(long.reported["losses"])
    assert ran.reported["weights"] == long.reported["weights"]
    assert known(ran) == known(long)
    return (sum(row.wait_ns for row in ran.rows) > 0) == fetches


@pytest.mark.parametrize(
    ("script", "changes", "fetches", "ways"),
    [
        pytest.param(EPOCHS, (), True, ("calm", "short"), id="epochs"),
        pytest.param(EPOCHS, (BF16,), True, ("calm",), id="epochs in bf16"),
        pytest.param(EPOCHS, (BF16, COLLECTED), True, ("short",), id="epochs in bf16, collected by hand"),
        pytest.param(OWN_BATCHES, (), False, ("short",), id="batches of its own, two passes a step"),
        pytest.param(ONE_PASS, (), False, ("calm",), id="batches of its own"),
        pytest.param(ODD, (), True, ("calm",), id="all that a loop may do besides"),
        pytest.param(FROM_INSIDE, (), True, ("calm",), id="data that asks the model"),
        pytest.param(BESIDES, (), False, ("calm",), id="frameworks and exports beside it"),
        pytest.param(STREAM, (), True, ("calm", "short"), id="a stream, epochs broken off"),
    ],
)
def test_every_way_reports_the_same(
    run: Callable[..., Ran], script: str, changes: tuple[Change, ...], fetches: bool, ways: tuple[str, ...]
) -> None:
    long = looked_at(run, script, changes, "long")
    assert not any(long.reported["taken"].values())
    for way in ways:
        ran = looked_at(run, script, changes, way)
        assert the_same(ran, long, fetches=fetches)
        taken = ran.reported["taken"]
        noted = taken.pop("noted")
        if way == "calm":
            assert noted > len(long.rows) // 4, f"{noted} of {len(long.rows)} steps"
        else:
            assert noted == 0
            usual = [count for key, count in taken.items() if fetches or key != "fetch"]
            assert min(usual) > len(long.rows) // 4, f"{taken} of {len(long.rows)} steps"
        assert ran.reported.get("held", 0) == long.reported.get("held", 0)
        assert ran.reported.get("zeroes_first") == long.reported.get("zeroes_first")


def test_a_handler_that_asks_the_model_anywhere_costs_no_step(run: Callable[..., Ran]) -> None:
    ran = looked_at(run, HANDLER, (), "calm")
    assert ran.reported["requested"] > 100
    assert ran.reported["taken"]["noted"] > 1000
    assert len(ran.rows) == len(ran.reported["losses"]) == 12000


def test_steps_before_a_loss_that_is_no_number_are_reported(run: Callable[..., Ran]) -> None:
    long, noted = (run(PRELUDE + WATCHED + NAN, argv=("--way", way)) for way in ("long", "calm"))
    for ran in (long, noted):
        assert ran.broke is not None
        assert (ran.broke.kind, ran.broke.steps) == ("diverged", 502)
    assert rows(noted) == rows(long)
    assert len(noted.rows) >= 500

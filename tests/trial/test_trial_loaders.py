"""Loaders as scripts build and use them, and which of their time is an evaluation's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Keyword

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


def keyword(name: str, value: Any) -> Change:
    return Change(knob=name, value=value, spelling=Keyword("torch.utils.data.DataLoader", name))


INLINE = (
    PRELUDE
    + """
class Configured(Dataset):
    def __init__(self):
        self.config = {"n": 16}
    def __getattr__(self, name):
        if name.startswith("__") or name == "config":
            raise AttributeError(name)
        return self.config[name]
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return torch.full((4,), float(i)), torch.ones(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = Configured()
for epoch in range(8):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
reported(end=True)
"""
)


def test_a_loader_that_nobody_holds_and_a_dataset_that_answers_with_key_errors_are_seen(
    run: Callable[..., Any],
) -> None:
    ran = run(INLINE)
    assert ran.faults == ""
    assert [row.samples for row in ran.rows] == [8] * 16
    loader = ran.facts.loader
    assert (loader.batch_size, loader.num_workers, loader.length, loader.dataset_length) == (8, 0, 2, 16)
    assert (loader.kind, loader.persistent_workers, loader.mp_context) == ("map", False, "fork")
    assert (ran.facts.values["batch_size"], ran.facts.values["num_workers"]) == (8, 0)
    # The order of short epochs is drawn in the first fetch of each, which is not the dataset's doing.
    assert loader.shuffles
    assert not loader.random


UNEVEN = (
    PRELUDE
    + """
import time
from torch.utils.data import IterableDataset, get_worker_info
class Shards(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for i in range(160 if worker is None or worker.id == 0 else 0):
            time.sleep(0.01)
            yield torch.randn(4), torch.randn(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for x, y in DataLoader(Shards(), batch_size=8, num_workers=1):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
reported(end=True)
"""
)


def test_workers_that_have_nothing_left_to_read_were_started_all_the_same(run: Callable[..., Any]) -> None:
    ran = run(UNEVEN, changes=[keyword("num_workers", 3)])
    assert ran.broke is None
    assert ran.done is not None
    assert ran.faults == ""
    assert ran.facts.values["num_workers"] == 3


EPOCHS = (
    PRELUDE
    + """
import time
class Numbers(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return torch.randn(4), torch.randn(1)
def begin(_worker):
    time.sleep(0.3)
validation = DataLoader(Numbers(16), batch_size=4, num_workers=1, worker_init_fn=begin)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
spans = []
for epoch in range(12):
    training = DataLoader(Numbers(24), batch_size=4, num_workers=1, worker_init_fn=begin)
    for x, y in training:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    since = time.perf_counter()
    model.eval()
    for x, y in validation:
        # As in PyTorch's tutorial on transfer learning: gradients are off around the model alone.
        with torch.set_grad_enabled(False):
            model(x)
    spans.append(time.perf_counter() - since)
    model.train()
for step in range(6):
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(2, 4))
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
reported(spans=spans)
"""
)


def test_the_start_of_a_loader_belongs_to_what_it_is_for_and_collecting_is_training(
    run: Callable[..., Any],
) -> None:
    ran = run(EPOCHS)
    assert ran.faults == ""
    evaluated = [(n, row.aside_ns / 1e9) for n, row in enumerate(ran.rows) if row.mark & 1]
    assert [n for n, _ in evaluated] == list(range(6, 73, 6))
    # A training loader that is built anew starts as one that is kept does.
    assert [n for n, row in enumerate(ran.rows) if row.mark & 16] == list(range(6, 67, 6))
    # The validation loader starts inside the evaluation, the training loader that is built anew after it.
    for (_, aside_s), span_s in zip(evaluated, ran.reported["spans"], strict=True):
        assert aside_s == pytest.approx(span_s, abs=0.15)
    assert all(row.aside_ns == 0 for row in ran.rows[73:])


BUCKETS = (
    PRELUDE
    + """
class AtOnce:
    def __init__(self):
        self.batches = [list(range(i, i + 4)) for i in range(0, 32, 4)]
    def __iter__(self):
        random.shuffle(self.batches)
        return iter(self.batches)
class Lazy(AtOnce):
    def __iter__(self):
        random.shuffle(self.batches)
        yield from self.batches
import random
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(12):
    for x, y in LOADER:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
reported(end=True)
"""
)


@pytest.mark.parametrize(
    ("loader", "eager"),
    [
        ("DataLoader(data, batch_sampler=AtOnce())", True),
        ("DataLoader(data, batch_sampler=AtOnce(), num_workers=1)", True),
        ("DataLoader(data, batch_sampler=Lazy())", False),
        ("DataLoader(data, batch_sampler=[[0, 1], [2, 3]])", False),
        # Torch's own batches ask the sampler behind them once, at the first batch.
        ("DataLoader(data, batch_size=4, sampler=[3, 1, 2, 0])", False),
        ("DataLoader(data, batch_size=4, shuffle=True)", False),
    ],
)
def test_an_order_that_is_settled_before_the_first_batch_is_reported(
    run: Callable[..., Any], loader: str, eager: bool
) -> None:
    ran = run(BUCKETS.replace("LOADER", loader))
    assert ran.faults == ""
    assert ran.facts.loader.eager_order is eager


@pytest.mark.parametrize(
    ("loader", "rebuilt"),
    [
        ("DataLoader(data, batch_size=8)", True),
        ("DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)", True),
        ("known", False),
        ("folds[epoch // 6]", False),
    ],
)
def test_a_loader_that_is_built_for_every_pass_is_reported(
    run: Callable[..., Any], loader: str, rebuilt: bool
) -> None:
    made = "known = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)\n"
    made += "folds = [DataLoader(data, batch_size=8) for _ in range(2)]\nfor epoch"
    ran = run(BUCKETS.replace("for epoch", made, 1).replace("LOADER", loader))
    assert ran.faults == ""
    assert ran.facts.loader.rebuilt is rebuilt

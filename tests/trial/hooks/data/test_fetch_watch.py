"""State that fetches change: what is a fact of the loader, and that training is as it would be by itself."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Keyword
from autotune.model.facts import FetchState
from autotune.trial.hooks.data.fetch_watch import FetchWatch
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

KINDS = (
    PRELUDE
    + """
import functools
import random
import numpy as np
np.zeros(64 * 4, np.float32).tofile("rows")
rows = np.memmap("rows", np.float32, mode="c", shape=(64, 4))
rows += 1
@functools.lru_cache(maxsize=8)
def read(i):
    return torch.full((4,), float(i))
def init(worker):
    data.rng = np.random.default_rng(torch.initial_seed() % 2**32)
RNG = np.random.default_rng(5)
class Data(Dataset):
    passes = 0
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.seen, self.made, self.calls = [], {}, 0
        self.later = None
    def __len__(self):
        return 64
    def __getitem__(self, i):
        x = torch.full((4,), float(i))
        kind = sys.argv[1]
        if kind in ("own", "seeded"):
            x = x + float(self.rng.random())
        elif kind == "global_name":
            x = x + float(RNG.random())
        elif kind == "global_draws":
            x = x + torch.rand(4) + random.random() + float(np.random.rand())
        elif kind == "list":
            x = x + 0.01 * len(self.seen)
            self.seen.append(i)
        elif kind == "cache":
            if i not in self.made:
                self.made[i] = x * 2
            x = self.made[i] + torch.rand(4)
        elif kind in ("words", "numbered_words"):
            for word in "abcd":
                if word not in self.made:
                    self.made[word] = len(self.made) if kind == "numbered_words" else ord(word) / 100
            x = x + self.made["abcd"[i % 4]]
        elif kind == "noisy_cache":
            if i not in self.made:
                self.made[i] = x + random.random()
            x = self.made[i]
        elif kind == "mapped":
            rows[i] *= 0.9
            x = x + torch.tensor(rows[i])
        elif kind == "entropy":
            x = x + float(np.random.default_rng().random())
        elif kind == "noisy_lru":
            x = self.drawn_once(i)
        elif kind == "lru":
            x = read(i) + self.doubled(i % 5)
        elif kind == "last_used":
            x = self.made.pop(i, None)
            x = torch.full((4,), float(i)) if x is None else x
            self.made[i] = x
            if len(self.made) > 4:
                self.made.pop(next(iter(self.made)))
        elif kind == "last_drawn":
            self.calls = random.random()
            x = x + self.calls
        elif kind == "slow_counter":
            self.calls += 1
            x = x + self.calls // 60
        elif kind == "counter":
            self.calls += 1
        elif kind == "lazy":
            if self.later is None:
                self.later = {"table": torch.arange(64.0)}
            x = x + self.later["table"][i]
        return x, torch.ones(1)
    @functools.lru_cache(maxsize=None)
    def drawn_once(self, i):
        return torch.rand(4) + i
    @functools.cache
    def doubled(self, i):
        return 2.0 * i
class Collate:
    made = 0
    def __call__(self, items):
        if sys.argv[1] == "collate":
            self.made += 1
        x = torch.stack([a for a, _ in items]) + self.made
        return x, torch.stack([b for _, b in items])
torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
workers = int(sys.argv[2])
data = Data()
loader = DataLoader(data, batch_size=4, num_workers=workers, collate_fn=Collate(),
                    worker_init_fn=init if sys.argv[1] == "seeded" else None)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
sums = []
for epoch in range(3):
    for x, y in loader:
        sums.append(float(x.double().sum()))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
reported(sums=sums, weights=weights(model))
"""
)
SURE = {
    "own": "your dataset draws from its own generator (rng) at train.py:",
    "global_name": "your dataset draws from its own generator (RNG) at train.py:",
    "list": "your dataset collects what it has fetched (seen) at train.py:",
    "slow_counter": "your dataset changes what it holds (calls) at train.py:",
    "noisy_cache": "your dataset collects what it has fetched (made) at train.py:",
    "mapped": "your dataset returns another sample when it reads an index again",
    "noisy_lru": "your dataset collects what it has fetched (drawn_once) at train.py:",
    "collate": "your collate function changes what it holds (made) at train.py:",
}


MASKS = (
    PRELUDE
    + """
class Data(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((4,), float(i))
def masked(items):
    x = torch.stack(items)
    return x * torch.bernoulli(torch.full(x.shape, 0.5)) if sys.argv[1] == "masks" else x
loader = DataLoader(Data(), batch_size=4, num_workers=2, collate_fn=masked)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
for x in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
)


def test_what_was_found_of_a_dataset_is_forgotten_with_it() -> None:
    class Data:
        pass

    state: Any = SimpleNamespace(active=True)
    watch, data = FetchWatch(state, Undo()), Data()
    watch.pass_begins(SimpleNamespace(dataset=data, worker_init_fn=None, num_workers=0))
    watch.report(id(data), FetchState(what="your dataset counts", by="dataset", sure=True), [])
    assert watch.state_of(data) is not None
    key = id(data)
    del data
    gc.collect()
    assert key not in watch.found


def test_no_fetch_is_watched_once_the_window_is_open() -> None:
    class Fetcher:
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def fetch(self, index: int) -> int:
            return index

    kinds = type("Kinds", (), {"Map": 0})
    kinds.create_fetcher = staticmethod(lambda kind, dataset, *given: Fetcher(dataset))
    faults = SimpleNamespace(off=set(), note=lambda *given: pytest.fail(str(given)))
    state: Any = SimpleNamespace(active=True, faults=faults)
    watch = FetchWatch(state, Undo())
    watch.is_on = True
    watch.install(torch, SimpleNamespace(_DatasetKind=kinds))
    before = kinds.create_fetcher(0, [1, 2], True, None, False)
    assert "fetch" in vars(before)
    watch.is_measuring = True
    assert before.fetch(1) == 1
    assert "fetch" not in vars(before)
    assert "fetch" not in vars(kinds.create_fetcher(0, [1, 2], True, None, False))


@pytest.mark.parametrize(("kind", "draws"), [("masks", True), ("plain", False)])
def test_workers_report_that_a_collate_function_draws(
    run: Callable[..., Any], kind: str, draws: bool
) -> None:
    ran = run(MASKS, argv=[kind])
    assert ran.faults == ""
    assert ran.facts.loader.random is draws


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["own", "plain"])
def test_fetches_of_workers_that_are_not_forked_are_made_in_a_child(
    run: Callable[..., Any], kind: str
) -> None:
    started = KINDS.replace("num_workers=workers,", "num_workers=workers, multiprocessing_context='spawn',")
    head, loop = started.split("sums = []")
    loop = "sums = []" + loop.replace("range(3)", "range(1)")
    body = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in loop.splitlines())
    ran = run(head + body, argv=[kind, "1"], timeout_s=150)
    assert ran.faults == ""
    held = ran.facts.loader.fetch_state
    assert (held is not None and held.what.startswith(SURE["own"])) is (kind == "own")


@pytest.mark.parametrize("kind", SURE)
def test_samples_that_depend_on_earlier_fetches_are_a_fact_with_its_place(
    run: Callable[..., Any], kind: str
) -> None:
    bare, ran = run(KINDS, argv=[kind, "0"], bare=True), run(KINDS, argv=[kind, "0"])
    assert ran.faults == ""
    held = ran.facts.loader.fetch_state
    assert held.what.startswith(SURE[kind])
    assert held.sure
    assert held.by == ("collate_fn" if kind == "collate" else "dataset")
    assert ran.reported == bare.reported


@pytest.mark.parametrize(
    "kind", ["global_draws", "cache", "lru", "words", "last_used", "last_drawn", "lazy", "none"]
)
def test_caches_and_the_generators_that_workers_get_seeded_are_none(
    run: Callable[..., Any], kind: str
) -> None:
    bare, ran = run(KINDS, argv=[kind, "0"], bare=True), run(KINDS, argv=[kind, "0"])
    assert ran.faults == ""
    assert ran.facts.loader.fetch_state is None
    assert ran.reported == bare.reported


def test_the_systems_entropy_is_no_state(run: Callable[..., Any]) -> None:
    assert run(KINDS, argv=["entropy", "0"]).facts.loader.fetch_state is None


def test_a_count_that_no_sample_was_seen_to_depend_on_is_not_sure(run: Callable[..., Any]) -> None:
    held = run(KINDS, argv=["counter", "0"]).facts.loader.fetch_state
    assert (held.what.partition(" at ")[0], held.sure) == (
        "your dataset changes what it holds (calls)",
        False,
    )


def test_a_cache_of_another_kind_than_the_samples_that_numbers_what_it_meets_is_not_sure(
    run: Callable[..., Any],
) -> None:
    held = run(KINDS, argv=["numbered_words", "0"]).facts.loader.fetch_state
    assert held is None or not held.sure


def test_workers_report_what_their_fetches_change(run: Callable[..., Any]) -> None:
    ran = run(KINDS, argv=["own", "2"])
    assert ran.faults == ""
    held = ran.facts.loader.fetch_state
    assert held.what.startswith(SURE["own"])
    assert not held.apart
    assert run(KINDS, argv=["cache", "2"]).facts.loader.fetch_state is None


def test_workers_that_seed_a_generator_each_for_itself_are_distinguished(run: Callable[..., Any]) -> None:
    assert run(KINDS, argv=["seeded", "2"]).facts.loader.fetch_state.apart
    ran = run(KINDS, argv=["seeded", "0"])
    assert ran.facts.loader.fetch_state.apart, "as two that were begun to find out"
    assert ran.reported == run(KINDS, argv=["seeded", "0"], bare=True).reported


def keyword(name: str, value: Any) -> Change:
    return Change(knob=name, value=value, spelling=Keyword("torch.utils.data.DataLoader", name))


def test_the_samples_of_a_pure_cache_are_the_same_with_workers(run: Callable[..., Any]) -> None:
    """Judged from outside of what decides it: sums of all batches, and the parameters at the end."""
    script = KINDS.replace("self.made[i] + torch.rand(4)", "self.made[i]")
    bare = run(script, argv=["cache", "0"], bare=True)
    found = run(script, argv=["cache", "0"])
    assert found.facts.loader.fetch_state is None
    for changes in (
        [keyword("num_workers", 2)],
        [keyword("num_workers", 2), keyword("persistent_workers", True)],
    ):
        ran = run(script, argv=["cache", "0"], changes=changes, measure=False)
        assert ran.reported == bare.reported


def test_samples_of_a_counting_dataset_are_others_with_workers(run: Callable[..., Any]) -> None:
    """The check above can fail: workers of the script's own change the samples."""
    bare = run(KINDS, argv=["list", "0"], bare=True)
    assert run(KINDS, argv=["list", "2"], bare=True).reported["sums"] != bare.reported["sums"]


def test_workers_that_would_change_the_samples_are_withdrawn_under_apply(run: Callable[..., Any]) -> None:
    bare = run(KINDS, argv=["list", "0"], bare=True)
    ran = run(KINDS, argv=["list", "0"], changes=[keyword("num_workers", 2)], measure=False)
    assert ran.reported == bare.reported
    assert "collects what it has fetched (seen)" in ran.err


EAGER = (
    PRELUDE
    + """
class Growing:
    def __init__(self):
        self.epoch = 0
    def __len__(self):
        return 16
    def __iter__(self):
        self.epoch += 1
        return iter([[i % (2 * self.epoch), i] for i in range(16)])
class Lazy(Growing):
    def __iter__(self):
        self.epoch += 1
        yield from [[i % (2 * self.epoch), i] for i in range(16)]
data = TensorDataset(torch.arange(64.0)[:, None], torch.ones(64, 1))
loader = DataLoader(data, batch_sampler=Growing() if sys.argv[1] == "eager" else Lazy())
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
reported(end=True)
"""
)


def test_a_sampler_that_counts_its_passes_is_requested_twice_by_workers(run: Callable[..., Any]) -> None:
    held = run(EAGER, argv=["eager"]).facts.loader.fetch_state
    assert (held.by, held.sure) == ("sampler", True)
    assert held.what.startswith("your sampler changes what it holds (epoch) at train.py:")
    assert run(EAGER, argv=["lazy"]).facts.loader.fetch_state is None


CURSORS = (
    PRELUDE
    + """
class Order(torch.utils.data.Sampler):
    def __init__(self, data):
        self.data, self.at = data, 0
    def __len__(self):
        return 64
    def __iter__(self):
        for i in range(64):
            self.at = self.at + 1 if sys.argv[1] == "cursor" else 5
            yield (self.at + i) % 64
class Data(Dataset):
    def __init__(self):
        self.kept = {}
    def __len__(self):
        return 64
    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = torch.full((1,), float(i))
        return self.kept[i]
data = Data()
loader = DataLoader(data, batch_size=4, sampler=Order(data))
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
for epoch in range(3):
    for x in loader:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
reported(end=True)
"""
)


@pytest.mark.parametrize(
    ("kind", "what"), [("cursor", "your sampler changes what it holds (at)"), ("plain", "")]
)
def test_a_sampler_whose_state_moves_as_indices_are_drawn_is_a_fact(
    run: Callable[..., Any], kind: str, what: str
) -> None:
    ran = run(CURSORS, argv=[kind])
    assert ran.faults == ""
    held = ran.facts.loader.fetch_state
    assert (held is None) is (not what)
    if held is not None:
        assert (held.by, held.sure, held.what.startswith(what)) == ("indices", True, True)


STREAM = (
    PRELUDE
    + """
import random
from torch.utils.data import IterableDataset, get_worker_info
kind = sys.argv[1]
class Stream(IterableDataset):
    def __init__(self):
        self.at, self.pos, self.buffer, self.rng = 0, 0, [], random.Random(0)
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        if kind == "resets":
            self.pos = 0
        order = list(range(33))
        if kind == "draws":
            self.rng.shuffle(order)
        last = 33 // step * step if kind == "drops" else 33
        for k in range(first, last, step):
            if kind in ("resets", "cursor"):
                self.pos += 1
            yield torch.full((1,), float(order[k] + self.at + (self.pos - 1 if kind == "cursor" else 0)))
            if kind == "endless" and k == 31:
                while True:
                    yield torch.zeros(1)
        if kind == "goes on":
            self.at += 32
        elif kind == "collects":
            self.buffer.append(1)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
loader = DataLoader(Stream(), batch_size=4)
for epoch in range(3):
    for n, x in enumerate(loader):
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
        if n == 20:
            break
reported(end=True)
"""
)


@pytest.mark.parametrize(
    ("kind", "what", "sure"),
    [
        ("goes on", "your dataset changes what it holds (at) at train.py:", True),
        ("cursor", "your dataset changes what it holds (pos) at train.py:", True),
        ("draws", "your dataset draws from its own generator (rng) at train.py:", True),
        ("collects", "your dataset collects what it has fetched (buffer) at train.py:", False),
        ("resets", "", False),
        ("begins anew", "", False),
        ("endless", "", False),
    ],
)
def test_a_stream_whose_passes_depend_on_those_before_is_a_fact(
    run: Callable[..., Any], kind: str, what: str, sure: bool
) -> None:
    ran = run(STREAM, argv=[kind])
    assert ran.faults == ""
    held = ran.facts.loader.fetch_state
    assert (held is None) is (not what), held
    if held is not None:
        assert (held.sure, held.what.startswith(what)) == (sure, True), held


def test_the_samples_of_a_pass_are_counted_with_and_without_workers(run: Callable[..., Any]) -> None:
    shares = [run(STREAM, argv=[kind]).facts.loader.shares for kind in ("begins anew", "drops", "endless")]
    assert shares == [(33, 17, 16), (33, 16, 16), ()]


HANDLES = (
    PRELUDE
    + """
import sqlite3, tempfile
import numpy as np
folder = tempfile.mkdtemp()
path = os.path.join(folder, "rows.bin")
np.arange(256, dtype=np.float32).tofile(path)
np.savez(os.path.join(folder, "a.npz"), x=np.arange(64))
class Reader:
    def __init__(self, kind):
        self.inner = {"nested": open(path, "rb") if kind == "file" else None}
        self.npz = np.load(os.path.join(folder, "a.npz")) if kind == "npz" else None
        self.number = os.open(path, os.O_RDONLY) if kind in ("number", "pread") else None
        self.mapped = np.memmap(path, dtype=np.float32, mode="r") if kind == "memmap" else None
        self.kind, self.lazy = kind, None
class Data(Dataset):
    def __init__(self, reader):
        self.reader = reader
    def __len__(self):
        return 64
    def __getitem__(self, i):
        reader = self.reader
        if reader.kind == "number":
            os.lseek(reader.number, 16 * i, os.SEEK_SET)
            raw = os.read(reader.number, 16)
        elif reader.kind == "pread":
            raw = os.pread(reader.number, 16, 16 * i)
        elif reader.kind == "lazy":
            reader.lazy = reader.lazy or open(path, "rb", buffering=0)
            reader.lazy.seek(16 * i)
            raw = reader.lazy.read(16)
        elif reader.kind == "memmap":
            raw = reader.mapped[4 * i : 4 * i + 4].tobytes()
        else:
            with open(path, "rb") as file:
                file.seek(16 * i)
                raw = file.read(16)
        return torch.tensor(np.frombuffer(raw, np.float32)), torch.ones(1)
torch.manual_seed(0)
loader = DataLoader(Data(Reader(sys.argv[1])), batch_size=4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.00001)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
reported(weights=weights(model))
"""
)


@pytest.mark.parametrize(
    ("kind", "handle"),
    [
        ("file", "BufferedReader"),
        ("npz", "NpzFile"),
        ("number", "file (rows.bin)"),
        ("pread", ""),
        ("lazy", ""),
        ("memmap", ""),
        ("opened for each sample", ""),
    ],
)
def test_what_forked_workers_would_share_the_position_of_is_found(
    run: Callable[..., Any], kind: str, handle: str
) -> None:
    bare, ran = run(HANDLES, argv=[kind], bare=True), run(HANDLES, argv=[kind])
    assert ran.faults == ""
    assert ran.facts.loader.shared_handle == handle
    assert ran.reported == bare.reported

"""Under `apply`: what is compared of loaders with workers, at what cost, and what is held meanwhile."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.trial.hooks.data import worker_watch
from autotune.trial.hooks.data.worker_watch import WorkerWatch
from autotune.trial.runtime.undo import Undo


class Rows:
    pass


class Data:
    level = 0.0

    def __init__(self) -> None:
        self.rows = Rows()

    def __getitem__(self, i: int) -> Any:
        return self.rows, self.level


class _BaseDataLoaderIter:
    def __init__(self) -> None:
        self._workers = [1]

    def __next__(self) -> int:
        return 0


class DataLoader:
    collate_fn = worker_init_fn = None
    num_workers, persistent_workers = 2, False

    def __init__(self) -> None:
        self.dataset = Data()

    def __iter__(self) -> Any:
        return _BaseDataLoaderIter()


class Watch:
    """Of the loader above, with a clock that moves on by `each_ns` whenever it is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_own: Any = lambda loader: False) -> None:
        self.now_ns = self.each_ns = 0
        self.reads = 0
        self.withdrawn: list[str] = []
        self.faults: list[str] = []
        monkeypatch.setattr(worker_watch, "time", SimpleNamespace(perf_counter_ns=self.read))
        faults = SimpleNamespace(note=lambda hook, error: self.faults.append(hook))
        state: Any = SimpleNamespace(here=lambda: True, faults=faults)
        watch = WorkerWatch(
            state, lambda knob, why: self.withdrawn.append(knob), has_own, refused=lambda loader: None
        )
        self.undo = Undo()
        torch = SimpleNamespace(utils=SimpleNamespace(data=SimpleNamespace(DataLoader=DataLoader)))
        watch.install(torch, self.undo)

    def read(self) -> int:
        self.reads += 1
        self.now_ns += self.each_ns
        return self.now_ns


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Watch(monkeypatch)
    yield found
    found.undo.undo_all()


def test_what_the_script_replaces_between_passes_is_not_held(watch: Watch) -> None:
    loader = DataLoader()
    it = iter(loader)
    next(it)
    old = weakref.ref(loader.dataset.rows)
    loader.dataset.rows = Rows()
    del it
    gc.collect()
    assert old() is None
    it = iter(loader)
    watch.now_ns += 2_000_000_000
    next(it)
    assert watch.withdrawn == []
    loader.dataset.rows = Rows()
    watch.now_ns += 2_000_000_000
    next(it)
    assert watch.withdrawn == ["num_workers"]


def test_comparisons_take_at_most_a_thousandth_of_a_pass(watch: Watch) -> None:
    it = iter(DataLoader())
    watch.now_ns += 2_000_000_000
    watch.each_ns = 10_000_000  # so long takes each comparison
    next(it)
    watch.each_ns, compared = 0, watch.reads
    for _ in range(9):
        watch.now_ns += 1_000_000_000
        next(it)
    assert watch.reads == compared + 9
    watch.now_ns += 1_500_000_000
    next(it)
    assert watch.reads == compared + 9 + 3


def test_an_error_of_ours_never_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, has_own=lambda loader: {}["num_workers"])
    try:
        assert next(iter(DataLoader())) == 0
        assert watch.faults == ["worker_watch"]
    finally:
        watch.undo.undo_all()

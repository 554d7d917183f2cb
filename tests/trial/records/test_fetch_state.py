"""What a fetch reads, of all that a dataset and a collate function lead to."""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any

import pytest

from autotune.trial.records.fetch_state import FetchReads

LEVEL = 0.0
SETTINGS: dict[str, Any] = {"p": 0.0}


class Noise:
    shared_by_all = 1

    def __init__(self) -> None:
        self.level, self.notes = 0.0, []

    def __call__(self, x: float) -> float:
        return x + self.level + self.shared_by_all


class Chain:
    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)

    def __call__(self, x: float) -> float:
        for step in self.steps:
            x = step(x)
        return x


class Data:
    def __init__(self, transform: Any) -> None:
        self.transform, self.best = transform, 9.0
        self.epoch = multiprocessing.Value("i", 0)

    def __getitem__(self, i: int) -> float:
        return self.helped(i) + self.epoch.value

    def helped(self, i: int) -> float:
        return self.transform(float(i))

    def note(self, loss: float) -> None:
        self.best = loss


class Subset:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, i: int) -> float:
        return self.dataset[i]


def collated(items: list[float]) -> list[float]:
    return [item * LEVEL * SETTINGS["p"] for item in items]


def scaled(items: list[float], by: Noise) -> list[float]:
    return [by(item) for item in items]


def changes(state: FetchReads, change: Any) -> str:
    before = state.snapshot()
    change()
    key = state.changed(before, state.snapshot())
    return "" if key is None else state.text(key)


def test_an_attribute_is_found_at_any_depth() -> None:
    noise = Noise()
    state = FetchReads(Subset(Data(Chain(noise))))
    assert state.reaches(noise, "level")
    assert changes(state, lambda: setattr(noise, "level", 0.5)) == "Noise.level"
    assert changes(state, lambda: None) == ""


def test_attributes_that_no_fetch_reads_do_not_count() -> None:
    noise = Noise()
    data = Data(noise)
    state = FetchReads(data)
    assert not state.reaches(data, "best")
    assert not state.reaches(noise, "notes")
    assert changes(state, lambda: (data.note(1.0), noise.notes.append(1))) == ""


def test_what_is_shared_between_processes_does_not_count() -> None:
    data = Data(Noise())
    state = FetchReads(data)
    assert not state.reaches(data.epoch, "value")

    def count() -> None:
        data.epoch.value = 3

    assert changes(state, count) == ""


def test_globals_closures_and_bound_arguments_of_functions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Noise()
    bound = FetchReads(functools.partial(scaled, by=noise))
    assert changes(bound, lambda: setattr(noise, "level", 0.1)) == "Noise.level"
    state = FetchReads(collated)
    assert state.reaches(SETTINGS, "")
    assert changes(state, lambda: monkeypatch.setitem(SETTINGS, "p", 0.2)) == "SETTINGS"
    assert changes(state, lambda: monkeypatch.setitem(globals(), "LEVEL", 0.3)) == "LEVEL"
    p = 0.0

    def masked(items: list[float]) -> list[float]:
        return [item * p for item in items]

    inner = FetchReads(masked)
    before = inner.snapshot()
    p = 0.4
    assert inner.text(inner.changed(before, inner.snapshot())) == "p"  # pyright: ignore[reportArgumentType]


def test_an_attribute_of_the_class_is_read_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    state = FetchReads(Data(Noise()))
    assert state.reaches(Noise, "shared_by_all")
    assert changes(state, lambda: monkeypatch.setattr(Noise, "shared_by_all", 2)) == "Noise.shared_by_all"


def test_objects_that_answer_with_errors_or_lead_round_in_circles_do_no_harm() -> None:
    class Odd:
        def __init__(self) -> None:
            self.me = self

        def __getitem__(self, i: int) -> Any:
            return self.me

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    odd = Odd()
    assert FetchReads(odd, None).reaches(odd, "me")


class Cached:
    def __init__(self) -> None:
        self.scale = 1.0

    @functools.lru_cache(maxsize=4)  # noqa: B019 - the pattern under test
    def __getitem__(self, i: int) -> float:
        return i * self.scale


def test_the_body_of_a_cached_method_is_read() -> None:
    cached = Cached()
    assert changes(FetchReads(cached), lambda: setattr(cached, "scale", 2.0)) == "Cached.scale"


def test_a_container_is_named_by_its_holder() -> None:
    chain = Chain(Noise())
    assert changes(FetchReads(Data(chain)), chain.steps.pop) == "Chain.steps"


@pytest.mark.torch
def test_elements_of_an_array_count_and_those_of_shared_memory_do_not() -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    noise = Noise()
    state = FetchReads(Data(noise))
    for level, found in (
        (np.zeros(5), "Noise.level"),
        (np.zeros(()), "Noise.level"),
        (np.frombuffer(bytearray(8), np.float32), ""),
        (torch.zeros(2), "Noise.level"),
        (torch.zeros(2).share_memory_(), ""),
    ):
        noise.level = level
        assert changes(state, lambda level=level: level.__setitem__(..., 1)) == found

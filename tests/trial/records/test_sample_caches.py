"""Caches of a dataset, and other containers that it reads."""

from __future__ import annotations

import random
from typing import Any

import pytest

from autotune.trial.records.sample_caches import SampleCaches

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


class Data:
    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}
        self.places: list[Any] = [None] * 32
        self.words: set[int] = set()

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> float:
        return float(i)


class Keeps(Data):
    def __getitem__(self, i: int) -> float:
        if self.places[i] is None:
            self.places[i] = 2.0 * i
        if i not in self.kept:
            self.kept[i] = self.places[i] + 1.0
        self.words.add(i % 3)
        return self.kept[i]


class Counts(Data):
    def __getitem__(self, i: int) -> float:
        self.kept[i] = self.kept.get(i, 0) + 1
        return float(i + self.kept[i])


class KeepsNoise(Data):
    def __getitem__(self, i: int) -> float:
        if i not in self.kept:
            self.kept[i] = random.random()
        return self.kept[i]


class ReadsLabels(Data):
    def __getitem__(self, i: int) -> float:
        return self.kept.get(i, float(i))


class ReadsAll(Data):
    def __getitem__(self, i: int) -> float:
        return self.kept[i]


def filled(data: Any) -> Any:
    for i in (1, 4, 9):
        data[i]
    return data


def test_what_fetches_make_again_is_a_cache() -> None:
    data = filled(Keeps())
    caches = SampleCaches(data)
    assert caches.holds(data.kept)
    assert caches.holds(data.places)
    assert caches.holds(data.words)
    assert (len(data.kept), data.kept[4]) == (3, 9.0)


def test_counts_noise_and_settings_are_none() -> None:
    counts, noise, labels, every = filled(Counts()), filled(KeepsNoise()), ReadsLabels(), ReadsAll()
    labels.kept.update({3: 0.0, 5: 5.0})
    every.kept.update(dict.fromkeys(range(32), 1.0))
    for data in (counts, noise, labels, every):
        assert not SampleCaches(data).holds(data.kept)


def test_an_empty_container_is_not_judged_yet() -> None:
    data = Keeps()
    caches = SampleCaches(data)
    assert not caches.holds(data.kept)
    filled(data)
    assert caches.holds(data.kept)
    assert not caches.holds(data)

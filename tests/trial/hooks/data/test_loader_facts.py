"""Facts about a loader as it was built."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.trial.hooks.data.loader_facts import described
from autotune.trial.hooks.data.loader_overrides import hand_back

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch]


class BatchSamplerShard(torch.utils.data.BatchSampler):  # pyright: ignore[reportUntypedBaseClass]
    """As Accelerate deals batches to processes."""

    def __init__(self, data: Any, *, split_batches: bool) -> None:
        super().__init__(torch.utils.data.SequentialSampler(data), 4, drop_last=False)
        self.split_batches = split_batches


class Endless(torch.utils.data.IterableDataset):  # pyright: ignore[reportUntypedBaseClass]
    """A stream."""

    def __iter__(self) -> Any:
        return iter(range(8))


def loader(data: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(data, **options)


def distributed(data: Any) -> Any:
    return torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)


DATA = list(range(16))


@pytest.mark.parametrize(
    ("made", "is_split"),
    [
        (lambda: loader(DATA, batch_size=4, sampler=distributed(DATA)), True),
        (
            lambda: loader(DATA, batch_sampler=torch.utils.data.BatchSampler(distributed(DATA), 4, False)),
            True,
        ),
        (lambda: loader(DATA, batch_sampler=BatchSamplerShard(DATA, split_batches=False)), True),
        (lambda: loader(DATA, batch_sampler=BatchSamplerShard(DATA, split_batches=True)), False),
        (lambda: loader(DATA, batch_size=4, shuffle=True), False),
        (lambda: loader(Endless(), batch_size=4), False),
    ],
)
def test_a_loader_that_deals_samples_to_processes_is_recognised(made: Any, is_split: bool) -> None:
    assert described(made(), torch).is_split is is_split


def test_a_loader_whose_workers_are_withdrawn_has_no_timeout_for_them() -> None:
    loader = torch.utils.data.DataLoader(list(range(4)), num_workers=2, timeout=60, persistent_workers=True)
    hand_back(loader, "num_workers", 0, torch)
    assert [int(x) for x in loader] == [0, 1, 2, 3]

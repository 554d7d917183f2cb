"""Seeds that a script sets are shifted, inside of what may be a seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.trial.runtime.seeds import Seeds
from autotune.trial.runtime.undo import Undo


class Module:
    """Whose seeds they are is all that counts."""

    def __init__(self, *names: str) -> None:
        self.given: list[Any] = []
        for name in names:
            setattr(self, name, self.given.append)


@pytest.fixture
def seeds() -> Any:
    state: Any = SimpleNamespace(active=True, faults=SimpleNamespace(note=print))
    return Seeds(3, state, Undo())


@pytest.mark.parametrize(
    ("given", "wanted"), [(0, 3), (2**32 - 1, 2), (2**32, 2**32), (-1, -1), (None, None)]
)
def test_the_last_seed_of_numpy_is_followed_by_its_first(seeds: Seeds, given: Any, wanted: Any) -> None:
    numpy: Any = Module("seed")
    seeds._numpy(numpy)
    numpy.seed(given)
    assert numpy.given == [3, wanted]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(7, 10), (-1, 2), (-(2**63), 3 - 2**63), (2**64 - 1, 2 - 2**63), (2**64, 2**64), (True, True)],
)
def test_torch_takes_negative_seeds_as_well(seeds: Seeds, given: Any, wanted: Any) -> None:
    torch: Any = Module("manual_seed")
    torch.cuda = Module("manual_seed", "manual_seed_all")
    seeds.torch(torch)
    torch.manual_seed(given)
    torch.cuda.manual_seed_all(given)
    assert (torch.given, torch.cuda.given) == ([3, wanted], [wanted])


def test_any_number_is_a_seed_of_python(seeds: Seeds) -> None:
    python: Any = Module("seed")
    seeds._shift(python, "seed", None)
    python.seed(2**80)
    assert python.given == [2**80 + 3]

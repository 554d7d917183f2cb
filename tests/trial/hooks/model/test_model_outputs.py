"""What a module returned in half precision, as the loss outside of autocast takes it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from autotune.trial.hooks.model.model_outputs import to_float32

pytestmark = pytest.mark.torch


@dataclass
class Out:
    logits: Any
    name: str = "net"
    hidden: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    logits: Any
    hidden: tuple[Any, ...] = ()


@dataclass
class Counted:
    logits: Any
    made: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made.append(1)


class Pair(NamedTuple):
    logits: Any
    size: int


@dataclass
class Mapped(OrderedDict[str, Any]):
    """As transformers has them: attributes and items are the same."""

    logits: Any = None
    loss: Any = None

    def __post_init__(self) -> None:
        for name in ("logits", "loss"):
            if getattr(self, name) is not None:
                super().__setitem__(name, getattr(self, name))

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Sealed(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("nobody writes here")


@pytest.fixture
def half() -> Any:
    torch = pytest.importorskip("torch")
    return torch.ones(2, 3, dtype=torch.bfloat16)


def turned(out: Any) -> Any:
    import torch

    return to_float32(out, torch)


def test_tensors_in_dataclasses_are_float32_and_the_rest_stays(half: Any) -> None:
    given = Out(half, hidden=[half, None])
    found = turned(given)
    assert (found.logits.dtype, found.hidden[0].dtype) == (half.float().dtype,) * 2
    assert (type(found), found.name, found.hidden[1]) == (Out, "net", None)
    assert given.logits is half
    frozen = turned(Frozen(half, hidden=(half,)))
    assert {frozen.logits.dtype, frozen.hidden[0].dtype} == {half.float().dtype}
    assert turned(Counted(half)).made == [1]


def test_a_dataclass_without_any_half_tensor_is_the_same_object(half: Any) -> None:
    given = Out(half.float(), hidden=[half.float(), {"a": (half.float(),)}])
    assert turned(given) is given
    assert turned(Out) is Out


def test_mappings_keep_what_they_are(half: Any) -> None:
    found = turned(defaultdict(list, a=half))
    assert (found["a"].dtype, found["missing"]) == (half.float().dtype, [])
    mapped = turned(Mapped(logits=half))
    assert type(mapped) is Mapped
    assert mapped.logits is mapped["logits"]
    assert (mapped.logits.dtype, mapped.loss, list(mapped)) == (half.float().dtype, None, ["logits"])
    sealed = turned(Sealed(a=half))
    assert (type(sealed), sealed["a"].dtype) == (Sealed, half.float().dtype)


def test_tuples_and_plain_containers_are_as_they_were(half: Any) -> None:
    pair = turned(Pair(half, 2))
    assert (type(pair), pair.logits.dtype, pair.size) == (Pair, half.float().dtype, 2)
    assert [t.dtype for t in turned([half, half.float()])] == [half.float().dtype] * 2

"""A run's loss takes little room in memory, and is the same to whoever reads it."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_fakes import measurement

from autotune.model.measurement import LossPoint, LossTrace, Measurement
from autotune.model.wire import dumps, from_wire, loads, to_wire

POINTS = st.lists(
    st.builds(
        LossPoint,
        samples=st.integers(0, 2**53 - 1),
        loss=st.floats(),
        t_s=st.floats(0.0, 1e9, allow_nan=False),
    ),
    min_size=1,
    max_size=6,
)
THREE = tuple(LossPoint(samples=8 * n, loss=1.0 / n, t_s=0.1 * n) for n in (1, 2, 3))


def with_loss(points: object) -> Measurement:
    whole = to_wire(measurement())
    return from_wire(Measurement, {**whole, "loss": to_wire(points)})


@given(POINTS)
def test_every_number_comes_back_as_it_was(points: list[LossPoint]) -> None:
    packed = LossTrace(points)
    assert len(packed) == len(points)
    assert [repr(p) for p in packed] == [repr(p) for p in points]
    assert all(type(p.samples) is int for p in packed)
    kept = with_loss(points)
    assert isinstance(kept.loss, LossTrace)
    assert loads(Measurement, dumps(kept)) == kept


def test_it_reads_as_a_tuple_does() -> None:
    packed = LossTrace(THREE)
    assert packed == THREE == tuple(packed)
    assert packed[-1] == THREE[-1]
    assert packed[1:] == THREE[1:]
    assert hash(packed) == hash(THREE)
    assert repr(packed) == repr(THREE)
    assert packed != THREE[:2]
    assert packed != "a loss"
    with pytest.raises(IndexError):
        packed[3]


def test_a_measurement_is_the_same_whichever_way_its_loss_was_given() -> None:
    assert with_loss(THREE) == with_loss(list(THREE)) == with_loss(LossTrace(THREE))
    assert with_loss(()).loss == ()
    assert json.loads(dumps(with_loss(THREE)))["loss"] == to_wire(THREE)


def test_what_does_not_fit_is_left_unchanged() -> None:
    far = (LossPoint(samples=2**60 + 1, loss=math.inf, t_s=1.0),)
    assert with_loss(far).loss == far


def test_a_long_trace_takes_less_than_a_third_of_its_points() -> None:
    points = tuple(LossPoint(samples=1000 + 64 * n, loss=1.0 / (1 + n), t_s=0.1 * n) for n in range(100))
    packed = LossTrace(points)
    apart = sum(
        sys.getsizeof(p) + sys.getsizeof(p.samples) + sys.getsizeof(p.loss) + sys.getsizeof(p.t_s)
        for p in points
    )
    assert 3 * sys.getsizeof(packed._numbers) < apart

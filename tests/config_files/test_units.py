"""Durations and amounts of memory."""

import pytest

from autotune.config_files.duration import duration_s
from autotune.config_files.memory import memory_bytes
from autotune.errors import InvalidBudget, UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        ("1d2h", 93600),
        ("1h 30m", 5400),
        ("7200s", 7200),
    ],
)
def test_durations(text, seconds) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7200", "has no unit"),
        ("1.5", "has no unit"),
        ("2 hours", "no duration"),
        ("-5m", "not positive"),
        ("0s", "not positive"),
        ("abc", "no duration"),
        ("", "no duration|not positive"),
        ("1e9h", "no duration"),
        ("9" * 40 + "d", "no duration"),
    ],
)
def test_what_is_no_duration(text, message) -> None:
    with pytest.raises(InvalidBudget, match=message):
        duration_s(text)


def test_a_bare_number_gets_a_hint() -> None:
    with pytest.raises(InvalidBudget) as caught:
        duration_s("7200")
    assert caught.value.hint == 'write "7200s" or "2h"'


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GiB", 6 << 30),
        ("500MB", 500_000_000),
        ("1.5 GiB", 3 << 29),
        ("2gb", 2 * 10**9),
        ("100B", 100),
        ("80%", 800),
        ("100 %", 1000),
    ],
)
def test_amounts_of_memory(text, size) -> None:
    assert memory_bytes(text, total_bytes=1000) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("6", "has no unit"),
        ("120%", "not between"),
        ("0%", "not between"),
        ("6 apples", "not a unit of memory"),
        ("-1GB", "not an amount"),
        ("0GB", "not positive"),
        ("", "not an amount"),
        ("6G", "not a unit of memory"),
    ],
)
def test_what_is_no_amount_of_memory(text, message) -> None:
    with pytest.raises(UsageError, match=message):
        memory_bytes(text, total_bytes=1000)


def test_per_cent_are_of_this_machine_where_nothing_else_is_reported() -> None:
    assert 0 < memory_bytes("50%") < memory_bytes("100%")

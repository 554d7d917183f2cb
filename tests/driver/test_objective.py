"""What a search may be for is checked before anything runs."""

from __future__ import annotations

import pytest

from autotune.driver import spec
from autotune.driver.spec import SearchOptions, objective
from autotune.errors import UsageError


def requested(name: str, **more: object) -> str:
    return objective(SearchOptions(budget="10m", objective=name, **more))


def test_speed_needs_nothing_and_cost_a_price() -> None:
    assert requested("throughput") == "throughput"
    assert requested("cost", price_per_hour=2.0) == "cost"
    with pytest.raises(UsageError, match="needs a price") as caught:
        requested("cost")
    assert "the cheapest configuration is the fastest" in (caught.value.hint or "")


def test_energy_needs_a_counter_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "The processors' energy counters may be read by root only."
    monkeypatch.setattr(spec, "_uncounted", lambda: why)
    with pytest.raises(UsageError, match=r"this machine has no energy counter\. The processors"):
        requested("energy")
    assert requested("energy", address="ray://head:10001") == "energy", "a cluster's machines have their own"
    monkeypatch.setattr(spec, "_uncounted", str)
    assert requested("energy") == "energy"


def test_what_is_no_objective_is_an_error_with_a_guess() -> None:
    with pytest.raises(UsageError) as caught:
        requested("enrgy")
    assert "energy" in (caught.value.hint or "")
    with pytest.raises(UsageError):
        requested("memory")

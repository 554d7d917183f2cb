"""Segments against fresh processes: what a file of rounds says, on rounds whose truth is known."""

from __future__ import annotations

import importlib.util
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

PLACE = Path(__file__).parents[2] / "experiments" / "live_probing" / "run.py"


@pytest.fixture(scope="module")
def probing() -> Any:
    spec = importlib.util.spec_from_file_location("live_probing_run", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["live_probing_run"] = module
    spec.loader.exec_module(module)
    return module


TRUTH = {("threads", 1): 0.8, ("threads", 2): 1.2, ("precision", "bf16"): 1.5}


def line(number: int, bias: dict[str, float], *, drop: str = "") -> dict[str, Any]:
    """A round in which knobs look faster live by these shares, on a machine of another speed each round."""
    draw = random.Random(number)
    speed = math.exp(draw.gauss(0.0, 0.2))
    fresh: list[dict[str, Any]] = [{"config": {}, "rate": 100.0 * speed, "seconds": 9.0} for _ in range(2)]
    segments: list[dict[str, Any]] = []
    for (knob, value), ratio in TRUTH.items():
        noise = math.exp(draw.gauss(0.0, 0.002))
        fresh.append({"config": {knob: value}, "rate": 100.0 * speed * ratio * noise, "seconds": 9.0})
        seen = ratio * (1.0 + bias.get(knob, 0.0))
        segments.append({"config": {knob: value}, "ratio": seen, "low": seen, "high": seen, "seconds": 2.0})
        if knob == drop:
            segments[-1] = {"config": {knob: value}, "failure": "diverged", "seconds": 2.0}
    return {"own": {}, "segments": segments, "anchors": [], "visit_s": 9.0, "fresh": fresh}


def test_a_bias_is_told_by_knob_and_an_order_for_all(probing: Any) -> None:
    told = probing.summary({"one": [line(n, {"threads": 0.1}) for n in range(4)]})["one"]
    threads, precision = told["knobs"]["threads"], told["knobs"]["precision"]
    assert threads["bias"] == pytest.approx(0.1, abs=0.01)
    assert threads["low"] < threads["bias"] < threads["high"]
    assert (threads["configs"], threads["rounds"], threads["within_bound"]) == (2, 4, 0)
    assert precision["bias"] == pytest.approx(0.0, abs=0.01)
    assert (precision["within_bound"], precision["rank_agreement"]) == (1, 1.0)
    assert threads["rank_agreement"] == 1.0
    assert told["rank_agreement"] == 1.0
    assert (told["rounds"], told["visit_s_per_segment"], told["process_s"]) == (4, 3.0, 9.0)
    assert threads["spread_live"] == 0.0
    assert 0.0 < threads["spread_fresh"] < 0.01


def test_an_order_that_is_turned_round_shows(probing: Any) -> None:
    told = probing.summary({"one": [line(n, {"threads": -0.5}) for n in range(2)]})["one"]
    assert told["knobs"]["threads"]["rank_agreement"] < 1.0
    assert told["rank_agreement"] < 1.0


def test_what_failed_makes_no_difference_and_is_counted(probing: Any) -> None:
    told = probing.summary({"one": [line(n, {}, drop="precision") for n in range(2)]})["one"]
    assert set(told["knobs"]) == {"threads"}
    assert told["failed_segments"] == 2
    assert any("2 failed" in row for row in probing.table({"one": told}))


def test_one_round_has_no_interval(probing: Any) -> None:
    found = probing.summary({"one": [line(0, {})]})["one"]["knobs"]["precision"]
    assert (found["low"], found["high"], found["spread_live"]) == (None, None, None)


def test_all_workloads_together_are_told_by_knob_with_medians(probing: Any) -> None:
    rounds = {name: [line(n + 10 * k, {"threads": 0.1}) for n in range(3)] for k, name in enumerate("ab")}
    broken = next(x for x in rounds["a"][0]["fresh"] if x["config"] == {"threads": 1})
    broken["rate"] /= 3.0
    told = probing.pooled(rounds)
    assert told["threads"]["pairs"] == 12
    assert told["threads"]["median"] == pytest.approx(0.1, abs=0.01)
    assert told["threads"]["bias"] > 0.15, "a single process that was slowed down moves the mean"
    assert told["precision"]["bias"] == pytest.approx(0.0, abs=0.01)
    assert told["threads"]["moves_live"] == pytest.approx(0.0, abs=1e-6)
    assert 0.0 < told["threads"]["moves_fresh"] < 0.01
    rows = probing.pooled_rows(told)
    assert rows[1].startswith("threads, everywhere: +")
    assert "12 pairs; two rounds differ by 0.0% live" in rows[1]
    alone = probing.pooled({"a": [line(0, {})]})["precision"]
    assert (alone["low"], alone["moves_live"]) == (None, None)
    assert "[" not in probing.pooled_rows({"precision": alone})[0]

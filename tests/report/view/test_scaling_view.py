"""The figures of `autotune scale` as cells, sentences, bars, an object and a page."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from study_fakes import study

from autotune.compare.scaling import Point, Scaling
from autotune.model.measurement import Estimate
from autotune.report.html.scaling_page import scaling_html
from autotune.report.view.scaling_view import as_object, bars, figure, number, rows, sentences


def estimate(value: float, unit: str = "samples/s", width: float = 0.02) -> Estimate:
    return Estimate(value=value, low=value * (1 - width), high=value * (1 + width), n=5, unit=unit)


def point(count: int, rate: float, **more: object) -> Point:
    efficiency = estimate(rate / count / 100.0, "ratio")
    known = {"throughput": estimate(rate), "efficiency": efficiency, "effective_batch": 32.0 * count, **more}
    return Point(processes=count, **known)  # type: ignore[arg-type]


FOUND = Scaling(
    points=(
        point(1, 100.0, peak_bytes=2**30, cost=estimate(6.94)),
        point(2, 180.0, communication_frac=0.21, straggler=1, cost=estimate(7.72)),
        point(4, 210.0, communication_frac=0.4, cost=estimate(13.2)),
    ),
    knee=2,
    is_clear=True,
    price=2.5,
    unit="samples/s",
)


def test_a_figure_has_three_digits_and_its_interval() -> None:
    assert number(1234.5) == "1,230"
    assert number(0.04512) == "0.0451"
    assert number(0.0) == "0"
    assert figure(None) == "-"
    assert figure(estimate(1234.5)) == "1,230 [1,210, 1,260]"
    assert figure(replace(estimate(5.0), low=0.0, high=math.inf)) == "5.00 [0, ?]"


def test_a_row_names_the_late_rank_and_the_memory() -> None:
    assert rows(FOUND)[0] == (
        "1", "100 [98.0, 102]", "1.0 [0.98, 1.0]", "6.94 [6.80, 7.08]", "-", "1.00 GiB"
    )  # fmt: skip
    assert rows(FOUND)[1][4:] == ("21 % (rank 1 is late)", "-")


def test_sentences_name_the_knee_and_the_two_best_numbers() -> None:
    message = sentences(FOUND)
    assert message[0] == "The knee is at 2 processes: the next step brings less than 50 % of the ideal gain."
    assert "4 processes are fastest; one process costs least per sample." in message
    assert any("effective batch is 32 with one process and 128 with 4" in text for text in message)
    assert all(len(text.split()) <= 25 for text in message)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"knee": 4}, "No knee up to 4 processes: each step brings at least 50 % of the ideal gain."),
        ({"is_clear": False}, "The intervals do not settle the knee; more rounds narrow them."),
        ({"set_aside": 1}, "One run is in no ratio: other processes used the machine meanwhile."),
        ({"set_aside": 3}, "3 runs are in no ratio: other processes used the machine meanwhile."),
        (
            {"unit": "steps/s", "knee": None},
            "Samples could not be counted, so steps are shown, without efficiency, cost and knee.",
        ),
        (
            {"points": (point(1, 100.0), point(2, 210.0))},
            "2 processes are fastest and cost least per sample.",
        ),
        (
            {"points": (point(1, 100.0), point(2, 60.0))},
            "One process is fastest and costs least per sample.",
        ),
        (
            {"points": (*FOUND.points, Point(processes=8, failure="crash: ValueError: no"))},
            "8 processes: crash: ValueError: no.",
        ),
    ],
)
def test_what_limits_the_answer_is_reported(changed: dict[str, object], text: str) -> None:
    assert text in sentences(replace(FOUND, **changed))  # type: ignore[arg-type]


def test_a_bar_is_as_long_as_its_rate_and_ends_at_the_ideal() -> None:
    lines = bars(FOUND, width=40)
    assert [line.count("█") for line in lines] == [10, 18, 21]
    assert [line.index("|") - 11 for line in lines[1:]] == [19, 39]
    assert bars(replace(FOUND, points=())) == []


def test_the_object_is_strict_json_with_every_interval() -> None:
    endless = replace(estimate(100.0), low=0.0, high=math.inf)
    found = replace(FOUND, points=(replace(FOUND.points[0], throughput=endless), *FOUND.points[1:]))
    reported = json.loads(json.dumps(as_object(found), allow_nan=False))
    assert (reported["knee"], reported["fastest"], reported["cheapest"]) == (2, 4, 1)
    assert reported["points"][0]["throughput"]["high"] is None
    assert reported["points"][1]["efficiency"]["low"] < 0.9 < reported["points"][1]["efficiency"]["high"]


def test_the_page_draws_each_number_with_its_interval_and_fetches_nothing() -> None:
    page = scaling_html(study(), FOUND, "torchrun --nproc-per-node 4 train.py")
    plot = page[page.index('id="plot"') : page.index('id="table"')]
    wide = plot[plot.rindex("<svg") :]
    assert wide.count('class="best whisker"') == 3
    assert "4 processes: 210 [206, 214]" in wide
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", page)
    kept = re.search(r'id="autotune-scaling">(.*?)</script>', page)
    assert kept is not None
    assert json.loads(kept[1]) == as_object(FOUND)


def test_a_page_without_a_measured_number_still_shows_why() -> None:
    failed = replace(FOUND, points=(Point(processes=1, failure="crash: no"),), knee=None)
    assert "One process: crash: no." in scaling_html(study(), failed, "torchrun train.py")

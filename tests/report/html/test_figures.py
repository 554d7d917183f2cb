"""Charts: axes, labels, and what they leave out."""

import itertools
import re

import pages
import pytest

from autotune.report.html import figures, svg
from autotune.report.html.markup import Column, Markup, Sorted, html, table, tag
from autotune.report.html.scatter import Dot, scatter, staircase


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.97, 2.5), (3, 12345), (-2, 2), (1e-5, 3e-5), (0, 7)])
def test_ticks_are_round_few_and_inside(low, high):
    found = svg.ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(found)}
    assert len(steps) == 1


def test_a_range_without_length_has_one_tick():
    assert svg.ticks(2.0, 2.0) == [2.0]


def ratio(value, low=None, high=None, **more):
    return figures.Ratio(label=f"row {value}", value=value, low=low, high=high, **more)


def drawn(chart):
    return pages.read(chart)


def test_an_interval_that_says_nothing_does_not_press_the_others_together():
    rows = [ratio(2.0, 1.9, 2.1), ratio(1.0, 0.01, 143.0)]
    chart = figures.ratios(rows, 760, "x", title="t", text="d", axis="")
    places = [float(c.attributes["cx"]) for c in drawn(chart).all("circle")]
    assert abs(places[0] - places[1]) > 100


def test_an_interval_is_drawn_to_its_ends_or_ends_in_an_arrow():
    rows = [ratio(2.0, 1.9, 2.1, class_="whole"), ratio(1.0, 0.9, 143.0, class_="wide")]
    chart = drawn(figures.ratios(rows, 760, "x", title="t", text="d", axis=""))

    def slopes(name):
        drawn_lines = [p for p in chart.by_class("whisker") if name in p.attributes["class"]]
        lines = [p.attributes["d"].removeprefix("M").replace("L", " ").split() for p in drawn_lines]
        return [float(line[0]) - float(line[2]) for line in lines if line[1] != line[3]]

    assert set(slopes("whole")) == {0.0}, "upright bars"
    assert sorted(set(slopes("wide"))) == [-6.0, 0.0, 6.0], "a bar on the left, an arrow on the right"


def test_the_line_at_one_is_always_there():
    chart = figures.ratios([ratio(2.0, 1.9, 2.1)], 340, "x", title="t", text="d", axis="")
    assert len(drawn(chart).by_class("one")) == 1


def test_where_labels_stand_above_their_rows_no_line_runs_through_them():
    rows = [ratio(2.0, 1.9, 2.1, note="2.00x [1.90, 2.10]"), ratio(1.0, note="in 2 pairs")]
    chart = drawn(figures.ratios(rows, svg.NARROW, "x", title="t", text="d", axis=""))
    letters = [float(t.attributes["y"]) for t in chart.by_class("halo")]
    assert len(letters) == 4
    upright = [p.attributes["d"] for p in (*chart.by_class("grid"), *chart.by_class("one"))]
    assert len(upright) > 4
    for d in upright:
        top, bottom = (float(part.split(" ")[1]) for part in d.removeprefix("M").split("L"))
        assert all(bottom < y - 9 or top > y + 1 for y in letters), d


def boxes_of(chart):
    """Where each written label lies, roughly."""
    found = []
    for text in drawn(chart).by_class("halo"):
        x, y = float(text.attributes["x"]), float(text.attributes["y"])
        wide = 6.3 * len(text.text)
        left = x - wide if text.attributes.get("text-anchor") == "end" else x
        found.append((left, y - 11, left + wide, y + 3))
    return found


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_labels_of_near_points_keep_off_each_other_and_inside(width):
    names = ("your script", "best", "safe", "fastest")
    dots = [Dot(x=1.0 + 0.001 * i, y=100 + 0.2 * i, label=n, class_="best") for i, n in enumerate(names)]
    dots += [Dot(x=3.0, y=50.0), Dot(x=0.5, y=150.0)]
    chart = scatter(dots, [], width, "x", title="t", text="d", x_title="", y_title="")
    found = boxes_of(chart)
    assert len(found) == 4
    for i, a in enumerate(found):
        assert a[0] >= 0
        assert a[2] <= width
        for b in found[i + 1 :]:
            wide = min(a[2], b[2]) - max(a[0], b[0])
            tall = min(a[3], b[3]) - max(a[1], b[1])
            assert wide <= 0 or tall <= 0


def test_a_label_at_the_right_edge_turns_inwards():
    dots = [Dot(x=0, y=0), Dot(x=9, y=5, label="your script", class_="script")]
    chart = scatter(dots, [], 340, "x", title="t", text="d", x_title="", y_title="")
    assert all(box[2] <= 340 for box in boxes_of(chart))


def test_the_stair_of_a_front_only_climbs():
    assert staircase([(3, 1), (1, 2), (2, 5), (4, 5)]) == [(1, 2), (2, 5)]


def test_the_best_so_far_only_grows():
    assert figures.steps_up([(1, 1.0), (2, 0.8), (3, 1.4), (4, 1.4)]) == [(1, 1.0), (3, 1.4)]


def test_smoothing_keeps_the_mean_and_the_ends():
    points = [(float(i), float(i % 2)) for i in range(100)]
    soft = figures.smoothed(points, share=0.2)
    assert len(soft) == 100
    assert all(0.35 < y < 0.65 for _, y in soft[10:-10])


def test_trials_that_ran_at_once_have_lanes_of_their_own():
    spans = [figures.Span(begin=b, end=b + 10, class_="refine", tip="") for b in (0, 5, 10, 20)]
    chart = figures.timeline(spans, [], 60, 760, "x", title="t", text="d")
    rows = {r.attributes["y"] for r in drawn(chart).by_class("refine")}
    assert len(rows) == 2


def test_a_figure_is_drawn_for_both_widths_under_its_own_names():
    made = svg.responsive("n", lambda w, name: svg.Svg(w, 10, name=name, title="t", text="d").done())
    tree = pages.read(made)
    assert {e.attributes["viewbox"].split()[2] for e in tree.all("svg")} == {"760", "340"}
    assert tree.by_id("n-w-t").text == tree.by_id("n-s-t").text == "t"


def test_no_coordinate_is_ever_something_else_than_a_number():
    rows = [ratio(float("nan"), float("nan"), float("inf")), ratio(1.0, 0.9, 1.1)]
    chart = figures.ratios(rows, 760, "x", title="t", text="d", axis="")
    assert not re.search(r'(?:x|y|cx|cy|d)="[^"]*(?:nan|inf)', chart)


def test_text_is_escaped_and_markup_is_not():
    assert html("<b>", Markup("<i></i>")) == "&lt;b&gt;<i></i>"
    assert tag("p", "a & b", title='"x"') == '<p title="&quot;x&quot;">a &amp; b</p>'
    assert tag("a", "x", href=None, open=True, hidden=False) == "<a open>x</a>"


def test_a_cell_may_be_ordered_by_something_else_than_it_shows():
    made = table(
        [Column(title="a"), Column(title="b", is_number=True)], [("r", Sorted("2 GiB", 2e9))], caption="c"
    )
    (cell,) = pages.read(made).all("td")
    assert cell.text == "2 GiB"
    assert float(cell.attributes["data-v"]) == 2e9
    assert cell.attributes["data-label"] == "b"

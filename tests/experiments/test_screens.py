"""The report in a real browser: nothing sticks out, nothing is too small, the answer comes first."""

import sys
from pathlib import Path

import pytest
import report_study

from autotune.answer.pick import answer
from autotune.report.html.page import report_html

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "screens"))
import browser
from devtools import Browser

CHROMIUM = browser.find()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on this machine"),
]


def written(folder, trials):
    path = folder / "report.html"
    study = report_study.made(trials)
    path.write_text(report_html(study, answer(study)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return written(tmp_path_factory.mktemp("page"), 60)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """The report of a study of more than 500 trials."""
    return written(tmp_path_factory.mktemp("long"), 480)


@pytest.mark.parametrize("width", [360, 390, 700, 1280])
def test_nothing_sticks_out_and_letters_stay_legible(page, width):
    seen = browser.look(CHROMIUM, page, width)
    assert seen["inner"] == width
    assert seen["width"] <= width
    assert seen["wide"] == []
    assert seen["small"] == []


def test_on_a_desktop_the_whole_answer_is_on_the_first_screen(page):
    seen = browser.look(CHROMIUM, page, 1280, 1000)["seen"]
    assert set(seen) >= {"h1", "interval", "chips", "tiles", "why", "run"}
    assert max(seen.values()) <= 1000


def test_on_a_phone_which_and_how_much_come_first(page):
    seen = browser.look(CHROMIUM, page, 390, 844)["seen"]
    assert seen["h1"] <= 300
    assert seen["interval"] <= 400


def test_on_a_phone_the_command_and_the_cost_are_two_screens_away_at_most(page):
    seen = browser.look(CHROMIUM, page, 390, 844)["seen"]
    assert set(seen) >= {"h1", "interval", "chips", "tiles", "why", "run"}
    assert seen["chips"] <= 844, "which configuration"
    assert seen["run"] <= 844, "what to do next"
    assert max(seen.values()) <= 2.5 * 844


def test_every_entry_of_the_list_of_sections_is_seen_on_a_desktop(page):
    with Browser(CHROMIUM, 1280, 940) as shown:
        shown.open(page.as_uri())
        shown.wait_until("location.protocol === 'file:' && document.readyState === 'complete'")
        assert shown.run("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('nav.toc ul'))")


@pytest.mark.parametrize("width", [390, 1280])
def test_five_hundred_trials_change_nothing_of_the_first_screen(page, long, width):
    few, many = browser.look(CHROMIUM, page, width), browser.look(CHROMIUM, long, width)
    assert many["width"] <= width
    assert many["wide"] == []
    assert many["small"] == []
    assert set(many["seen"]) == set(few["seen"])
    moved = {name: at - few["seen"][name] for name, at in many["seen"].items()}
    assert max(moved.values()) <= 160, moved
    assert many["height"] <= 2.5 * few["height"], "what is long is folded"


def test_the_dark_is_dark_and_heads_sort(page):
    light, dark = browser.look(CHROMIUM, page, 1280), browser.look(CHROMIUM, page, 1280, dark=True)
    assert light["ground"] == "rgb(245, 246, 248)"
    assert dark["ground"] == "rgb(14, 18, 23)"
    assert light["buttons"] > 10


def test_it_prints(page, tmp_path):
    browser.print_pdf(CHROMIUM, page, tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")

"""The report for those who see little or use no mouse: contrast as drawn, names, the keyboard alone."""

import os
import sys
from pathlib import Path

import pytest
import report_study

from autotune.answer.pick import answer
from autotune.report.html.page import report_html

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "screens"))
import browser
from devtools import FAINT, Browser

CHROMIUM = browser.find()
AXE = Path(os.environ.get("AXE_CORE", Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"))
"""`npm install axe-core`, or the path of its file in the variable AXE_CORE."""
SIZES = {"desktop": (1280, 940), "phone": (390, 844)}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on this machine"),
]

FOCUS = r"""(() => {
  const e = document.activeElement;
  if (!e || e === document.body || e === document.documentElement) return null;
  const box = e.getBoundingClientRect(), nav = document.querySelector("nav.toc");
  const below = nav.contains(e) || e.closest(".skip") ? 0 : nav.getBoundingClientRect().bottom;
  const style = getComputedStyle(e);
  return {
    at: wanted.indexOf(e),
    what: e.tagName + " " + (e.getAttribute("aria-label") || e.textContent).slice(0, 40),
    shown: box.right > 0 && box.left < innerWidth && box.bottom > below && box.top < innerHeight,
    top: box.bottom - box.top > innerHeight - below || box.top >= below - 1,
    ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    cut: (() => {
      // A ring outside of a box that cuts off what sticks out is none.
      const cutting = e.parentElement.closest(".run");
      return Boolean(cutting) && getComputedStyle(cutting).overflowY === "hidden"
        && parseFloat(style.outlineOffset) > 0;
    })(),
  };
})()"""
TABLE = "document.querySelector('table.sorts')"
OPEN = "document.querySelectorAll('details').forEach((e) => { e.open = true; })"
WANTED = r"""var all = document.querySelectorAll("a[href],button,summary,[tabindex='0']");
window.wanted = [...all].filter((e) => {
  const box = e.getBoundingClientRect();
  // What is folded away is not to be reached before it is opened.
  return box.width > 0 && box.height > 0 && e.checkVisibility({visibilityProperty: true});
});
wanted.length"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    study = report_study.made(60)
    path.write_text(report_html(study, answer(study)), encoding="utf-8")
    return path


@pytest.fixture
def shown(page, request):
    with Browser(CHROMIUM, *SIZES[request.param]) as opened:
        opened.open(page.as_uri())
        opened.wait_until("location.protocol === 'file:' && document.readyState === 'complete'")
        yield opened


ON_BOTH = pytest.mark.parametrize("shown", SIZES, indirect=True)


@ON_BOTH
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_stands_out_from_what_is_drawn_below_it(shown, dark):
    shown.prefer(dark=dark)
    shown.run(OPEN)
    found = shown.run(FAINT)
    assert found["seen"] > 300
    assert found["faint"] == []


@ON_BOTH
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm install axe-core")
def test_axe_finds_no_violation(shown, dark):
    shown.prefer(dark=dark, still=True)
    shown.run(OPEN)
    shown.run(f"{AXE.read_text(encoding='utf-8')};0")
    found = shown.run(
        "axe.run(document).then(r => ({passes: r.passes.length, violations: r.violations.map("
        "v => [v.id, v.help, v.nodes.map(n => n.html.slice(0, 120))])}))"
    )
    assert found["passes"] > 20
    assert found["violations"] == []


@ON_BOTH
def test_all_that_acts_or_shows_has_a_name_for_those_who_hear_the_page(shown):
    shown.call("Accessibility.enable")
    nodes = shown.call("Accessibility.getFullAXTree")["nodes"]
    kinds = {
        "image",
        "img",
        "button",
        "link",
        "region",
        "navigation",
        "heading",
        "table",
        "DisclosureTriangle",
    }
    nameless, met = [], set()
    for node in nodes:
        role = node.get("role", {}).get("value")
        if node.get("ignored") or role not in kinds:
            continue
        met.add(role)
        if not node.get("name", {}).get("value", "").strip():
            nameless.append(role)
    assert {"image", "button", "link", "region", "heading"} <= met | ({"image"} if "img" in met else set())
    assert nameless == []


@ON_BOTH
def test_the_keyboard_alone_reaches_everything_in_order_and_shows_where_it_is(shown):
    shown.prefer(still=True)  # else it is still scrolling when the focus is read
    shown.run(OPEN)
    count = shown.run(WANTED)
    assert count > 20
    shown.press("Tab")
    first = shown.run(FOCUS)
    assert "Skip" in first["what"] or "answer" in first["what"]
    assert first["shown"], "the link that skips comes into view"
    reached = [first]
    while len(reached) < count:
        shown.press("Tab")
        now = shown.run(FOCUS)
        assert now is not None, f"the keyboard left the page after {reached[-1]['what']}"
        reached.append(now)
    assert [row["at"] for row in reached] == list(range(count))
    for _ in range(count - 1):
        shown.press("Tab", shift=True)
        reached.append(shown.run(FOCUS))
    for bad in ("shown", "top", "ring"):
        assert [row["what"] for row in reached if not row[bad]] == [], bad
    assert [row["what"] for row in reached if row["cut"]] == []


@pytest.mark.parametrize("shown", ["desktop"], indirect=True)
def test_enter_skips_to_the_answer_unfolds_and_sorts_a_table(shown):
    shown.press("Tab")
    shown.press("Enter")
    shown.wait_until("document.activeElement.id === 'answer'")
    shown.run(f"{TABLE}.closest('details').querySelector('summary').focus()")
    shown.press("Enter")
    shown.wait_until(f"{TABLE}.closest('details').open")
    shown.run(f"{TABLE}.querySelector('thead th:nth-child(2) button').focus()")
    for way in ("ascending", "descending"):
        shown.press("Enter")
        shown.wait_until(f"{TABLE}.querySelector('thead th:nth-child(2)').ariaSort === '{way}'")

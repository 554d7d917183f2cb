"""The pages in a real Chromium, on a desktop and on a phone: what they show, live and by the keyboard."""

import sys
from pathlib import Path

import pytest
from live_service import listening
from service_fakes import FakeJobs, submission

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "screens"))
import browser
from devtools import FAINT, Browser

from autotune.service.app import create_app
from autotune.service.auth import COOKIE
from autotune.service.bundles import Bundles
from autotune.service.reconcile import Place, Reconciler
from autotune.service.states import SearchState
from autotune.service.store import Database

CHROMIUM = browser.find()
SIZES = {"desktop": (1280, 940), "phone": (390, 844)}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on this machine"),
]
ON_BOTH = pytest.mark.parametrize("shown", SIZES, indirect=True)
PAGES = ("/login", "/", "/searches/{running}", "/searches/{ended}", "/fleet", "/admin")
GAIN = {"config": "precision=bf16", "speedup": 1.57, "interval": [1.31, 1.88]}
NAMELESS = """[...document.querySelectorAll("a,button,input:not([type=hidden]),select,[tabindex='0']")]
  .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || (e.labels && e.labels.length)))
  .map((e) => e.outerHTML)"""
WANTED = """window.wanted = [...document.querySelectorAll(
  "a[href],button,input:not([type=hidden]),select,[tabindex='0']")]; wanted.length"""
FOCUS = """(() => {
  const e = document.activeElement, box = e.getBoundingClientRect(), style = getComputedStyle(e);
  return {at: wanted.indexOf(e), what: e.outerHTML.slice(0, 80),
    shown: box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight,
    ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2};
})()"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service that listens, with a search in every kind of state; its address, database and ids."""
    folder = tmp_path_factory.mktemp("service")
    database, place, jobs = Database(f"sqlite:///{folder / 'service.db'}"), Place(root=folder), FakeJobs()
    database.migrate()
    reconciler = Reconciler(
        database, jobs, place, capacity=2, prepare=lambda row: None, options={}, environ={}
    )
    app = create_app(
        database, Bundles(folder / "bundles"), jobs, place, reconciler, mlflow="http://127.0.0.1:5000"
    )
    ids = {}
    for n, name in enumerate(("running", "ended", "failed", "queued")):
        title = f"{name} --a-long-option=" + "x" * 60
        ids[name] = database.submit(submission(key=f"key-{n:05d}", title=title))[0].id
        if name != "queued":
            database.move(ids[name], SearchState.QUEUED, SearchState.STARTING, "its job is being started")
            database.move(ids[name], SearchState.STARTING, SearchState.RUNNING, "running")
            report(database, ids[name], 0)
    database.move(
        ids["ended"], SearchState.RUNNING, SearchState.SUCCEEDED, "faster: a gain is confirmed",
        answer={**GAIN, "headline": "1.57x faster [1.31, 1.88]", "trials": 9, "failed": 1,
                "outcome": "faster", "held_back": ["your script waits for data 61 % of its time"]},
    )  # fmt: skip
    place.best(ids["ended"]).parent.mkdir(parents=True)
    place.best(ids["ended"]).write_text("schema: x\n")
    database.register(
        database.search(ids["ended"]), script_sha256="0" * 64, hardware="a" * 16, speedup=1.57, yaml="x"
    )
    database.move(
        ids["failed"], SearchState.RUNNING, SearchState.FAILED, "the script fails without any change"
    )
    with listening(app) as url:
        yield url, database, ids
    database.engine.dispose()


def report(database, search, number, **more):
    trial = {"number": number, "attempt": 1, "stage": "initial", **GAIN, **more}
    facts = {"trials": number + 1, "failed": 0, "stage": "confirm", "headline": "so far 1.57x faster", **GAIN}
    database.report(
        search, epoch=1, facts=facts, kind="trial", study_seq=number + 1, data={**facts, "trial": trial}
    )


@pytest.fixture
def shown(service, request):
    """A browser of an administrator who has signed in."""
    url, database, _ = service
    token = database.create_token(user="root", scope="admin")
    cookie = {"name": COOKIE, "value": token, "url": url}
    with Browser(CHROMIUM, *SIZES[request.param], cookie=cookie) as opened:
        yield opened


def load(shown, service, path):
    url, _, ids = service
    shown.open(url + path.format(**ids))
    shown.wait_until("location.protocol === 'http:' && document.readyState === 'complete'")


@ON_BOTH
@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_the_window_has_contrast_and_names_and_reaches_nothing_else(shown, service, path):
    load(shown, service, path)
    assert shown.run("document.documentElement.scrollWidth <= innerWidth"), "it sticks out to the right"
    for dark in (False, True):
        shown.prefer(dark=dark)
        found = shown.run(FAINT)
        assert found["seen"] > (3 if path == "/login" else 15)
        assert found["faint"] == []
    assert shown.run(NAMELESS) == []
    assert shown.run("document.querySelectorAll('h1').length") == 1
    assert shown.run("document.documentElement.lang") == "en"
    assert shown.hosts == {"127.0.0.1"}


@ON_BOTH
@pytest.mark.parametrize("path", PAGES[1:])
def test_the_keyboard_reaches_everything_in_order_and_shows_where_it_is(shown, service, path):
    load(shown, service, path)
    count = shown.run(WANTED)
    assert count > 5
    reached = []
    for _ in range(count):
        shown.press("Tab")
        reached.append(shown.run(FOCUS))
    assert [row["at"] for row in reached] == list(range(count))
    for bad in ("shown", "ring"):
        assert [row["what"] for row in reached if not row[bad]] == [], bad


@ON_BOTH
def test_the_queue_shows_every_state_with_its_reason(shown, service):
    load(shown, service, "/")
    text = shown.run("document.body.innerText")
    for word in ("running", "queued", "waits for its turn", "1.57x faster", "the script fails without"):
        assert word in text


@ON_BOTH
def test_a_running_search_is_followed_without_loading_its_page_again(shown, service):
    _, database, ids = service
    load(shown, service, "/searches/{running}")
    shown.run("window.kept = true")
    before = shown.run("document.querySelectorAll('#trial-rows tr').length")
    number = max(1, before)
    report(database, ids["running"], number, failure="out of memory", speedup=None)
    shown.wait_until(f"document.querySelectorAll('#trial-rows tr').length === {before + 1}")
    assert shown.run("document.getElementById('trials').textContent") == str(number + 1)
    assert "1.57x [1.31, 1.88]" in shown.run("document.getElementById('best').textContent")
    assert "out of memory" in shown.run("document.querySelector('#trial-rows tr:last-child').textContent")
    assert shown.run("window.kept"), "the page was not loaded again"


@ON_BOTH
def test_a_result_shows_gain_interval_and_how_to_apply_it(shown, service):
    _, _, ids = service
    load(shown, service, "/searches/{ended}")
    text = shown.run("document.body.innerText")
    for word in (
        "1.57x [1.31, 1.88] precision=bf16",
        "waits for data 61 %",
        f"autotune fetch {ids['ended']}",
    ):
        assert word in text
    assert shown.run("document.querySelector('a[href=\"http://127.0.0.1:5000\"]') !== null")


@pytest.mark.parametrize("shown", ["desktop"], indirect=True)
def test_a_search_is_cancelled_and_a_token_created_and_revoked_by_keyboard(shown, service):
    _url, database, ids = service
    load(shown, service, "/searches/{queued}")
    shown.run("document.querySelector('main button').focus()")
    shown.press("Enter")
    shown.wait_until("document.body && document.body.innerText.includes('cancelled by root')")
    assert database.search(ids["queued"]).state == "cancelled"
    load(shown, service, "/admin")
    shown.run("document.querySelector('[name=user]').value = 'zoe'")
    shown.run("document.querySelector('[action=\"/admin/tokens\"] button').focus()")
    shown.press("Enter")
    shown.wait_until("document.getElementById('made') !== null")
    token = shown.run("document.getElementById('made').textContent")
    assert database.identity(token).user == "zoe"
    shown.run("document.querySelector('[aria-label=\"Revoke the token of zoe\"]').focus()")
    shown.press("Enter")
    shown.wait_until(
        "location.pathname === '/admin' && document.body && !document.body.innerText.includes('zoe')"
    )
    assert database.identity(token) is None


@pytest.mark.parametrize("shown", ["desktop"], indirect=True)
def test_a_wrong_quota_is_explained_on_the_page(shown, service):
    load(shown, service, "/admin")
    shown.run("document.querySelector('[name=name]').value = '../x'")
    shown.run("document.querySelector('[action=\"/admin/projects\"] button').focus()")
    shown.press("Enter")
    shown.wait_until("document.querySelector('[role=alert]') !== null")
    assert "letters, digits" in shown.run("document.querySelector('[role=alert]').textContent")

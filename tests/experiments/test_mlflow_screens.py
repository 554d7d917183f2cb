"""`autotune ui` in a real browser: what a person sees on the first screen, nothing scrolled or opened."""

import os
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import report_study
from journaled import journaled

from autotune.answer.pick import answer
from autotune.cli.open_study import open_study
from autotune.model.wire import to_wire
from autotune.report.mlflow import saved_views
from autotune.report.view.summary import ratio_text
from autotune.store.journal import Journal

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "screens"))
import browser
import mlflow_pages
from devtools import Browser

CHROMIUM = browser.find()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.mlflow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on this machine"),
]
WIDE, HIGH = mlflow_pages.SIZES["desktop"]


def has_views():
    """Whether the MLflow that is installed is given saved views at all."""
    try:
        return saved_views.is_tested(version("mlflow"))
    except PackageNotFoundError:
        return False


drawn = pytest.mark.skipif(not has_views(), reason="this MLflow is given no saved view: see docs/mlflow.md")


def searches():
    """Two searches of one script, the second a day later, by a journal's id."""
    plain = report_study.spec()
    first = report_study.made(
        6, salt=1, spec=replace(plain, study_id=f"{plain.study_id[:-1]}A", label="train-1120-0900")
    )
    return first, replace(report_study.made(16), created=first.created + 86_400.0)


@pytest.fixture(scope="module")
def second():
    return searches()[1]


def send(study, uri):
    """Send all trials of a study to a store, and its answer."""
    from autotune.report.mlflow.recorder import MlflowSink

    sink = MlflowSink(uri)
    for trial in study.trials:
        ended = {"wall_s": study.created + 12.0 * trial.number, "number": trial.number}
        sink.send("trial_ended", ended, replace(study, stopped=""))
    ended = {"wall_s": study.created + 600.0, "why": "finished", "best_yaml": "picks: {}\n"}
    sink.send("study_ended", ended, study, answer(study))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Page -> address and a cookie, below a server that `autotune ui` has started."""
    folder = tmp_path_factory.mktemp("ui")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    for study in searches():
        send(study, uri)
        home = folder / "home" / "studies" / study.spec.study_id
        with Journal.create(home, ballast_bytes=0) as journal:
            opened = {"spec": study.spec, "wall_s": study.created, "host": "", "pid": 1, "version": "0.1.0"}
            journal.append("opened", "opened/1", to_wire(opened))
    environment = {**os.environ, "AUTOTUNE_HOME": str(folder / "home")}
    with mlflow_pages.served(study.spec.study_id, uri, environment) as found:
        yield found


@pytest.fixture
def desktop(pages):
    with Browser(CHROMIUM, WIDE, HIGH, storage=mlflow_pages.PANEL_CLOSED, cookie=pages.cookie) as opened:
        yield opened
        assert opened.hosts == {"127.0.0.1"}, "nothing is fetched from elsewhere"


def place(seen, text):
    """Where the first visible piece with this text stands: left, top, right, bottom."""
    return next(row[1:] for row in seen if text in row[0])


def test_the_answer_page_says_which_how_much_how_to_apply_and_why(pages, desktop, second):
    best = answer(second).best
    how_much = f"{best.speedup.value:.2f}x faster [{best.speedup.low:.2f}, {best.speedup.high:.2f}]"
    desktop.open(pages["answer"])
    _, seen = desktop.wait_for(how_much, "autotune apply best.yaml", "speedup_ci_low", "Parameters")
    message = "\n".join(row[0] for row in seen)
    assert f"{ratio_text(best.speedup)} · {best.config.text()} · " in message
    top = place(seen, "Description")[3]
    heading, command = place(seen, how_much), place(seen, "autotune apply best.yaml")
    assert heading[1] < command[1] < top + 70, "the answer first, the command second, neither faded"
    assert "num_workers +" in message
    assert "Model training" in message


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The pages of a study whose journal is whole."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AUTOTUNE_HOME", str(folder))
        (folder / "train.py").write_text("")
        study = open_study(journaled(folder / "train.py")).study
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    send(study, uri)
    environment = {**os.environ, "AUTOTUNE_HOME": str(folder)}
    with mlflow_pages.served(study.spec.study_id, uri, environment) as found:
        yield study, found


@pytest.mark.parametrize("size", [(1600, 1000), (1280, 800)], ids=str)
def test_the_first_visit_shows_the_answer_and_links_to_mlflow_without_scrolling(stored, size):
    study, pages = stored
    gain = answer(study).best.speedup
    # Nothing in the browser's storage: MLflow opens its assistant's panel.
    with Browser(CHROMIUM, *size, cookie=pages.cookie) as fresh:
        fresh.open(pages["report"])
        ends = f"[{gain.low:.2f}, {gain.high:.2f}]"
        fresh.wait_for(f"{gain.value:.2f}x", ends, "num_workers", "autotune apply", "MLflow:", "answer")
        fresh.run("[...document.querySelectorAll('header a')].find(a => a.text === 'answer').click()")
        fresh.wait_for("About this run", "MLflow Assistant", f"{gain.value:.2f}x")


@drawn
def test_the_table_is_sorted_by_what_was_confirmed_with_columns_in_order(pages, desktop, second):
    best = answer(second).best
    desktop.open(pages["table"])
    _, seen = desktop.wait_for("Sort: speedup", "BEST t", "SAFE t", "baseline t00")
    message = "\n".join(row[0] for row in seen)
    assert "Error loading shared view state" not in message
    heads = ["Run Name", "speedup", "speedup_ci_low", "speedup_ci_high", "single_run_speedup"]
    heads += ["throughput_samples_s", "peak_mem_gib"]
    row = place(seen, "Run Name")[1]
    lefts = [next(r[1] for r in seen if r[0] == head and abs(r[2] - row) < 8) for head in heads]
    assert lefts == sorted(lefts), "columns stand in our order"
    tops = [place(seen, name)[1] for name in ("BEST t", "SAFE t", "baseline t00")]
    assert tops == sorted(tops), "the fastest that was confirmed is on top"
    assert f"{best.speedup.value:.2f}x faster:" in message, "the answer stands above the table"
    assert f"{len(second.trials) + 1}" in message
    matching = f"{len(second.trials) + 1}"
    assert any(r[0] == matching for r in seen), "the runs of this search alone"


@drawn
def test_a_link_leads_one_browser_to_the_page_that_it_names(pages):
    for texts in (("Sort: speedup", "BEST t"), ("Each link works once.",)):
        with Browser(CHROMIUM, WIDE, HIGH, storage=mlflow_pages.PANEL_CLOSED) as fresh:
            fresh.open(pages.links["table"])
            fresh.wait_for(*texts)


@drawn
def test_the_four_charts_are_drawn(pages, desktop):
    desktop.open(pages["charts"])
    titles = ("peak_mem_gib vs.", "Parallel Coordinates", "speedup", "best_so_far_speedup")
    _, seen = desktop.wait_for("autotune: what to pick and why", "(4)", *titles, "BEST t")
    tops = [place(seen, title)[1] for title in titles]
    assert max(tops) < HIGH
    # Marks of plotly for points, bars and lines; the parallel coordinates are a canvas of lines.
    for marks in ("path.point", ".bars path, .barlayer path", ".scatterlayer .lines path, path.js-line"):
        desktop.wait_until(f"document.querySelectorAll({marks!r}).length > 0")
    desktop.wait_until("document.querySelectorAll('canvas').length > 0")


@drawn
def test_two_searches_stand_side_by_side(pages, desktop):
    desktop.open(pages["searches"])
    _, seen = desktop.wait_for("Sort: speedup", "safe_speedup", "speedup_ci_low")
    message = [row[0] for row in seen]
    assert sum("] · precision=bf16" in text or "no gain · train" in text for text in message) == 2
    assert "2" in message, "matching runs: the searches, not their trials"


def test_the_report_renders_inside_mlflow_without_a_network(pages, desktop):
    desktop.open(pages["answer"].replace("?", "/artifacts/report.html?"))
    desktop.wait_for("report.html", "front.csv", "best.yaml", "pareto.svg", "failed")
    desktop.wait_until("document.querySelectorAll('iframe').length > 0")


def test_on_a_phone_the_title_begins_with_the_gain(pages, second):
    gain = answer(second).best.speedup
    with Browser(
        CHROMIUM, *mlflow_pages.SIZES["phone"], storage=mlflow_pages.PANEL_CLOSED, cookie=pages.cookie
    ) as phone:
        phone.open(pages["answer"])
        _, seen = phone.wait_for(f"{ratio_text(gain)} · precision=bf16", "About this run")
        assert place(seen, ratio_text(gain))[1] < 200
        assert phone.shows_whole(f"{gain.value:.2f}x")


def test_on_a_phone_the_note_with_the_command_is_below_all_that_mlflow_says(pages, second):
    """Why docs/mlflow.md sends a phone to the report: when this fails, MLflow has become better."""
    wide = mlflow_pages.SIZES["phone"][0]
    with Browser(CHROMIUM, wide, 4 * HIGH, storage=mlflow_pages.PANEL_CLOSED, cookie=pages.cookie) as phone:
        phone.open(pages["answer"])
        child = f"t{len(second.trials) - 1:02d} "
        _, seen = phone.wait_for("About this run", "autotune apply best.yaml", child)
        assert place(seen, "autotune apply best.yaml")[1] > mlflow_pages.SIZES["phone"][1]
        left, _, right, _ = place(seen, child)
        assert right - left < 60, "beside MLflow's own words there is room for a few letters only"

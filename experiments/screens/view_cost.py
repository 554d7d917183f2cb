"""Does our saved view make MLflow's page slower? The same page of the same store with the view and without.

    python experiments/screens/view_cost.py [--trials 500] [--times 9] [--out FILE]

A study of that many made-up trials is logged into a store of its own and served by `autotune ui`. One
browser opens each address in turn, its cache warm, the order turning; what counts is the time from the
beginning of the navigation to the moment at which the name of a run stands in the page. Without the view
there are two pages: `rows` is queried by its address for the same runs in the same order, so it draws as many
rows; `folded` is what MLflow shows by itself, where all trials lie folded under one row. Needs a Chromium,
as `run.py` does. Stopped, the same command goes on behind the last whole round of looks.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
import browser
import mlflow_pages
import report_study
from devtools import Browser

RESULT = Path(__file__).resolve().parent / "results" / "view_cost.json"
WATCH = r"""(() => {
  if (!location.protocol.startsWith("http")) return;
  const name = / · train · |baseline t\d\d|\bt\d\d+ /;
  const look = () => {
    if (document.body && name.test(document.body.innerText)) window.autotuneSeenMs = performance.now();
    else setTimeout(look, 25);
  };
  look();
})()"""
"""Notes when the name of a run can be read: of the study's own, or of a trial's."""
AT_MOST = 1.3


def logged(trials, folder):
    """A made study in an MLflow and a home of its own: the study, the store, the environment."""
    from autotune.answer.pick import answer
    from autotune.model.wire import to_wire
    from autotune.report.mlflow.recorder import MlflowSink
    from autotune.store.journal import Journal

    # Baselines, pairs and the ablation are some thirty of them.
    study = report_study.made(max(4, trials - 32))
    uri = f"sqlite:///{Path(folder) / 'mlflow.db'}"
    sink = MlflowSink(uri)
    for trial in study.trials:
        ended = {"wall_s": study.created + 12.0 * trial.number, "number": trial.number}
        sink.send("trial_ended", ended, replace(study, stopped=""))
    ended = {"wall_s": study.created + 6000.0, "why": "finished", "best_yaml": "picks: {}\n"}
    sink.send("study_ended", ended, study, answer(study))
    home = Path(folder) / "home" / "studies" / study.spec.study_id
    with Journal.create(home, ballast_bytes=0) as journal:
        opened = {"spec": study.spec, "wall_s": study.created, "host": "", "pid": 1, "version": "0.1.0"}
        journal.append("opened", "opened/1", to_wire(opened))
    return study, uri, {**os.environ, "AUTOTUNE_HOME": str(Path(folder) / "home")}


def without_view(address, order, condition=""):
    """The same page without the view, its order in its address: MLflow keeps the last requested one.

    Args:
        address: Of the page with the view.
        order: What it is sorted by, the greatest first. Sorted by the time of start, MLflow folds children.
        condition: Which runs; all, if empty.
    """
    head, _, query = address.partition("?")
    kept = [part for part in query.split("&") if not part.startswith("viewStateShareKey=")]
    requested = urlencode({"searchFilter": condition, "orderByKey": order, "orderByAsc": "false"})
    return f"{head}?{'&'.join(kept)}&{requested}"


def opened_ms(page, address):
    """Milliseconds from the beginning of the navigation until a run can be read."""
    page.open(address)
    page.wait_until("window.autotuneSeenMs > 0")
    return float(page.run("window.autotuneSeenMs"))


def compared(chromium, pages, state, times, found, keep):
    """Fills page -> milliseconds with the view and without, one after the other, the order turning.

    Args:
        chromium: The browser's path.
        pages: Page -> address.
        state: Of the view.
        times: How many looks at each.
        found: What an earlier call has filled.
        keep: Called after every round of looks.
    """
    size = mlflow_pages.SIZES["desktop"]
    with Browser(chromium, *size, storage=mlflow_pages.PANEL_CLOSED, cookie=pages.cookie) as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        for name in ("table", "charts"):
            arms = {
                "view": pages[name],
                "rows": without_view(pages[name], state["orderByKey"], state["searchFilter"]),
                "folded": without_view(pages[name], "attributes.start_time"),
            }
            seen = found.setdefault(name, {arm: [] for arm in arms})
            done = len(seen["folded"])
            if done >= times:
                continue
            for address in arms.values():
                opened_ms(page, address)  # fills the cache
            for turn in range(done, times):
                order = list(arms)[turn % 3 :] + list(arms)[: turn % 3]
                looks = {arm: round(opened_ms(page, arms[arm])) for arm in order}
                for arm, took in looks.items():
                    seen[arm].append(took)
                keep()


def ratio(seen, arm):
    """How many times as long it takes with the view as in that arm."""
    return statistics.median(seen["view"]) / statistics.median(seen[arm])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    chromium = browser.find()
    if chromium is None:
        raise SystemExit("no Chromium is on this machine; name one: CHROMIUM=/path/to/chrome")
    import mlflow

    from autotune.answer.pick import answer
    from autotune.report.mlflow.saved_views import view_state

    given.out.parent.mkdir(exist_ok=True)
    part = given.out.with_suffix(".part")
    requested = {"trials": given.trials, "mlflow": mlflow.__version__}
    found = {}
    if part.is_file() and (begun := json.loads(part.read_text(encoding="utf-8")))["asked"] == requested:
        found = begun["milliseconds"]

    def keep():
        part.write_text(json.dumps({"asked": requested, "milliseconds": found}), encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        study, uri, environment = logged(given.trials, folder)
        with mlflow_pages.served(study.spec.study_id, uri, environment) as pages:
            state = view_state(study, answer(study))
            compared(chromium, pages, state, given.times, found, keep)
    reported = {
        "trials": len(study.trials),
        "mlflow": mlflow.__version__,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "milliseconds": found,
        "ratio": {
            name: {arm: round(ratio(seen, arm), 3) for arm in ("rows", "folded")}
            for name, seen in found.items()
        },
        "at_most": AT_MOST,
    }
    given.out.write_text(json.dumps(reported, indent=1) + "\n", encoding="utf-8")
    part.unlink(missing_ok=True)
    for name, seen in found.items():
        medians = ", ".join(f"{arm} {statistics.median(took):.0f} ms" for arm, took in seen.items())
        print(f"{name}: {medians}")
        print(f"{name}: {ratio(seen, 'rows'):.2f} times as long as the same rows; {AT_MOST} are allowed")
        print(f"{name}: {ratio(seen, 'folded'):.2f} times as long as one row with all others folded under it")


if __name__ == "__main__":
    main()

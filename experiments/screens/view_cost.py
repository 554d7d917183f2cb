"""Does our saved view make MLflow's page slower? The same page of the same store with the view and without.

    python experiments/screens/view_cost.py [--trials 500] [--times 9] [--out FILE]

A study of that many made-up trials is logged into a store of its own and served by `autotune ui`. One
browser opens each address in turn, its cache warm, the order turning; what counts is the time from the
beginning of the navigation to the moment at which the name of a run stands in the page. Needs a Chromium,
as `run.py` does. Stopped, the same command goes on behind the last whole pair of looks.
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
    from autotune.core.pick import answer
    from autotune.core.wire import to_wire
    from autotune.report.mlflow import MlflowSink
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


def without_view(address):
    """The same page as MLflow shows it by itself."""
    head, _, query = address.partition("?")
    kept = [part for part in query.split("&") if not part.startswith("viewStateShareKey=")]
    return f"{head}?{'&'.join(kept)}"


def opened_ms(page, address):
    """Milliseconds from the beginning of the navigation until a run can be read."""
    page.open(address)
    page.wait_until("window.autotuneSeenMs > 0")
    return float(page.run("window.autotuneSeenMs"))


def compared(chromium, pages, times, found, keep):
    """Fills page -> milliseconds with the view and without, one after the other, the order turning.

    Args:
        chromium: The browser's path.
        pages: Page -> address.
        times: How many looks at each.
        found: What an earlier call has filled.
        keep: Called after every pair of looks.
    """
    size = mlflow_pages.SIZES["desktop"]
    with Browser(chromium, *size, storage=mlflow_pages.PANEL_CLOSED) as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        for name in ("table", "charts"):
            both = {"view": pages[name], "plain": without_view(pages[name])}
            seen = found.setdefault(name, {which: [] for which in both})
            done = len(seen["plain"])
            if done >= times:
                continue
            for address in both.values():
                opened_ms(page, address)  # fills the cache
            for turn in range(done, times):
                order = sorted(both, reverse=bool(turn % 2))
                pair = {which: round(opened_ms(page, both[which])) for which in order}
                for which, took in pair.items():
                    seen[which].append(took)
                keep()


def ratio(seen, figure=statistics.median):
    """How many times as long it takes with the view."""
    return figure(seen["view"]) / figure(seen["plain"])


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

    given.out.parent.mkdir(exist_ok=True)
    part = given.out.with_suffix(".part")
    asked = {"trials": given.trials, "mlflow": mlflow.__version__}
    found = {}
    if part.is_file() and (begun := json.loads(part.read_text(encoding="utf-8")))["asked"] == asked:
        found = begun["milliseconds"]

    def keep():
        part.write_text(json.dumps({"asked": asked, "milliseconds": found}), encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        study, uri, environment = logged(given.trials, folder)
        with mlflow_pages.served(study.spec.study_id, uri, environment) as pages:
            compared(chromium, pages, given.times, found, keep)
    told = {
        "trials": len(study.trials),
        "mlflow": mlflow.__version__,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "milliseconds": found,
        "ratio": {name: round(ratio(seen), 3) for name, seen in found.items()},
        "at_most": AT_MOST,
    }
    given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    part.unlink(missing_ok=True)
    for name, seen in found.items():
        medians = {which: statistics.median(values) for which, values in seen.items()}
        print(f"{name}: {medians['view']:.0f} ms with the view, {medians['plain']:.0f} ms without")
        print(f"{name}: {ratio(seen):.2f} times as long; {AT_MOST} are allowed")


if __name__ == "__main__":
    main()

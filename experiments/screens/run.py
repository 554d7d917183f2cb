"""Every picture and screen of the documentation, by one command: terminal, report, pages of MLflow.

    python experiments/screens/run.py                    # searches first: README's command, three minutes
    python experiments/screens/run.py STUDY [--only terminal|report|mlflow]

Writes docs/images and the marked blocks of docs/*.md. Needs tmux and Chromium (or its path in CHROMIUM).
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import browser
import mlflow_pages
import terminal
from devtools import Browser

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "experiments/workloads/photos_denoise.py"
SEARCH = f"autotune search --budget 3m {SCRIPT}"
SHOTS = (
    ("report-desktop", 1280, 940, False),
    ("report-dark", 1280, 940, True),
    ("report-phone", 390, 844, False),
)
"""Name, width, height, dark: what is seen first."""
LIVE_TRIALS = 25
"""Finished trials in the picture of the live view; the rest of a short search confirms."""
PAGES = ("docs/tutorial.md",)
"""With marked blocks."""
FIRST_VISIT = {"report": ("report", 1600, 1000), "report-1280": ("report", 1280, 800)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("study", nargs="?", help="name or id of a study that ended; default: search now")
    parser.add_argument("--only", choices=("terminal", "report", "mlflow"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    given = parser.parse_args()
    chromium = browser.find()
    if chromium is None or not terminal.found():
        raise SystemExit("Chromium and tmux are needed: apt-get install chromium tmux")
    given.out.mkdir(parents=True, exist_ok=True)
    if not given.study:
        # An inconclusive answer has another exit code than 0 and pictures, too.
        subprocess.run([sys.executable, "-m", *shlex.split(SEARCH)], cwd=ROOT, check=False)
    from autotune.cli.open_study import open_study
    from autotune.store.paths import find_study

    study = open_study(find_study(given.study, searches=True))
    parts = {"terminal": _terminal, "report": _report, "mlflow": _mlflow}
    for name in (given.only,) if given.only else parts:
        for path in parts[name](chromium, study, given.out):
            print(path)


def _terminal(_chromium, opened, out):
    """Screens of the commands, in the folder of the search."""
    label, folder = opened.study.spec.label, Path(opened.study.spec.cwd)
    here = folder if folder.is_dir() else ROOT
    replay = terminal.command([sys.executable, Path(__file__).with_name("live_replay.py"), label])
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    with terminal.Terminal(here, environment) as screen:
        screen.define("autotune", f"{replay} --until {LIVE_TRIALS}")
        live = screen.run(SEARCH, until=f" {LIVE_TRIALS} trials", timeout_s=60.0)
        screen.interrupt()
        screen.define("autotune", replay)
        answer = screen.run(SEARCH)
        screen.define("autotune", f'{sys.executable} -m autotune "$@"')
        shown = {
            "live": live,
            "answer": answer,
            "show": screen.run(f"autotune show {label}"),
        }
        screen.interrupt()
        shown["diff"] = screen.run(f"autotune apply best.yaml --diff -- python {SCRIPT}")
    for name, lines in shown.items():
        clean = terminal.hidden(lines, f"{here}/")
        typed, text = terminal.plain(clean[:1]).removeprefix("$ ").strip(), terminal.plain(clean[1:])
        path = out / f"terminal-{name}.svg"
        path.write_text(terminal.svg(clean, f"A terminal: {typed}"))
        yield path
        for page in PAGES:
            if terminal.write_block(ROOT / page, name, text):
                yield ROOT / page


def _report(chromium, opened, out):
    from autotune.report.html.page import report_html

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(report_html(opened.study, opened.answer), encoding="utf-8")
        for name, width, height, dark in SHOTS:
            browser.shoot(chromium, page, out / f"{name}.png", width, height, dark=dark)
            yield out / f"{name}.png"


def _mlflow(chromium, opened, out):
    """What a person sees at the first visit, and MLflow's pages with its assistant closed."""
    with tempfile.TemporaryDirectory() as folder:
        environment, uri = mlflow_pages.sent([opened.path], folder)
        with mlflow_pages.served(opened.path.name, uri, environment) as pages:
            for name, (page, *size) in FIRST_VISIT.items():
                with Browser(chromium, *size, cookie=pages.cookie) as fresh:
                    fresh.open(pages[page])
                    fresh.wait_for("autotune apply", "MLflow:")
                    fresh.shoot(out / f"first-visit-{name}.png")
                yield out / f"first-visit-{name}.png"
            yield from mlflow_pages.shoot(chromium, pages, out)


if __name__ == "__main__":
    main()

"""Pictures of a study's report, or of its pages in MLflow, at desktop and phone width, into docs/images/.

    python experiments/screens/run.py STUDY [--out FOLDER] [--hide PREFIX] [--whole]
    python experiments/screens/run.py STUDY [STUDY ...] --mlflow
    python experiments/screens/run.py STUDY [STUDY ...] --all          # both, of the last study

Needs a Chromium on the machine, or its path in the variable CHROMIUM.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import browser
import mlflow_pages

ROOT = Path(__file__).resolve().parents[2]
SHOTS = (
    ("report-desktop", 1280, 940, False),
    ("report-dark", 1280, 940, True),
    ("report-phone", 390, 844, False),
)
"""Name, width, height, dark: what is seen first."""
TALLEST = 16_000


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("study", nargs="+", help="label, id, or a report.html; several with --mlflow only")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--hide", default="", metavar="PREFIX", help="a folder that is left out of paths")
    parser.add_argument("--whole", action="store_true", help="pictures of whole pages as well")
    parser.add_argument(
        "--mlflow", action="store_true", help="of the last study's pages in an MLflow that holds them all"
    )
    parser.add_argument(
        "--all", action="store_true", help="the report of the last study and its pages in MLflow"
    )
    given = parser.parse_args()
    if len(given.study) > 1 and not (given.mlflow or given.all):
        parser.error("one study at a time, but for --mlflow and --all")
    chromium = browser.find()
    if chromium is None:
        raise SystemExit("no Chromium is on this machine; name one: CHROMIUM=/path/to/chrome")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.all:
        _report(chromium, given)
    if given.mlflow or given.all:
        from autotune.store.paths import find_study

        studies = [find_study(name) for name in given.study]
        for path in mlflow_pages.shoot(chromium, studies, given.out, hide=given.hide):
            print(path)
        return
    _report(chromium, given)


def _report(chromium, given):
    with tempfile.TemporaryDirectory() as folder:
        page, shown = Path(given.study[-1]), Path(folder) / "shown.html"
        if page.suffix != ".html":
            page = Path(folder) / "report.html"
            # As people start it: the interpreter that runs it is the one that a page leaves unnamed.
            autotune = Path(sys.executable).with_name("autotune")
            command = [str(autotune), "report", given.study[-1], "--out", str(page)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        text = page.read_text(encoding="utf-8")
        shown.write_text(text.replace(given.hide, "") if given.hide else text, encoding="utf-8")
        for name, width, height, dark in SHOTS:
            browser.shoot(chromium, shown, given.out / f"{name}.png", width, height, dark=dark)
            print(given.out / f"{name}.png")
            if given.whole:
                whole = min(TALLEST, browser.look(chromium, shown, width)["height"])
                browser.shoot(chromium, shown, given.out / f"{name}-whole.png", width, whole, dark=dark)
                print(given.out / f"{name}-whole.png")


if __name__ == "__main__":
    main()

"""Every screen in docs/images is drawn by the one command of experiments/screens."""

import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / "experiments" / "screens"
IMAGES = ROOT / "docs" / "images"
DIAGRAMS = {"loss_guard.svg", "picks.svg", "proof.svg", "search_stages.svg"}


def test_each_screen_is_drawn_by_the_one_command(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(SCREENS), *sys.path])
    spec = importlib.util.spec_from_file_location("screens_run", SCREENS / "run.py")
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    pictures = {f"{shot[0]}.png" for shot in (*run.SHOTS, *run.mlflow_pages.SHOTS)}
    pictures |= {f"first-visit-{name}.png" for name in run.FIRST_VISIT}
    pictures |= {f"terminal-{name}.svg" for name in ("live", "answer", "show", "diff")}
    assert {path.name for path in IMAGES.iterdir()} == pictures | DIAGRAMS


def test_each_picture_is_shown_by_a_page():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        n for page in pages for n in re.findall(r"images/([\w-]+\.\w+)", page.read_text(encoding="utf-8"))
    }
    assert {path.name for path in IMAGES.iterdir()} == named

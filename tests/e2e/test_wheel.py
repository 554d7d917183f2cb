"""What people install is the wheel: it has to bring everything along and work without the checkout.

The environment is new and holds the wheel alone; PyTorch and the other dependencies are looked up in the one
that runs the tests: installing them once more would take minutes and show nothing about the wheel.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.mlflow, pytest.mark.timeout(400)]


def test_the_wheel_holds_the_presets_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    presets = {path.name for path in (ROOT / "search_spaces").glob("*.yaml")}
    assert presets
    assert {Path(name).name for name in names if name.startswith("autotune/search_spaces/")} >= presets
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"autotune"}
    assert any(name.endswith("py.typed") for name in names)


def test_the_environment_runs_the_wheel_and_not_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [str(installed.with_name("python")), "-c", "import autotune; print(autotune.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert Path(where.strip()).is_relative_to(installed.parents[1])


def test_doctor_and_the_presets_work_from_a_wheel(installed: Path, tmp_path: Path, place) -> None:
    def message(*words: str) -> str:
        done = subprocess.run(
            [str(installed), *words], cwd=tmp_path, env=place.environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done
        return done.stdout

    assert "torch" in message("doctor")
    listed = message("spaces", "list")
    for path in (ROOT / "search_spaces").glob("*.yaml"):
        assert path.stem in listed


def test_a_search_from_a_wheel_gives_an_answer(gain, lasting_place) -> None:
    """What else it gave is looked at in test_search.py."""
    assert gain.exit == 0, gain
    assert gain.report["picks"]["best"]["speedup"]["low"] > 1.0
    assert (lasting_place.folder / "best.yaml").exists()

"""What people install is the wheel: it has to bring everything along and work without the checkout.

The environment is new and holds the wheel alone; PyTorch and the other dependencies are looked up in the one
that runs the tests: installing them once more would take minutes and show nothing about the wheel.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.mlflow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("autotune_training-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `autotune` of an environment into which the wheel alone was installed."""
    folder = tmp_path_factory.mktemp("empty") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # A folder named in a .pth file is searched, its own .pth files are not read: an editable autotune in the
    # environment of the tests stays unseen.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "autotune"


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
    def said(*words: str) -> str:
        done = subprocess.run(
            [str(installed), *words], cwd=tmp_path, env=place.environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done
        return done.stdout

    assert "torch" in said("doctor")
    listed = said("spaces", "list")
    for path in (ROOT / "search_spaces").glob("*.yaml"):
        assert path.stem in listed


def test_a_search_from_a_wheel_gives_an_answer(installed: Path, place) -> None:
    place.script("slow_loader.py")
    words = ["search", "--script", "slow_loader.py", "--driver", "inline", "--budget", "4m"]
    words += ["--space", "cpu", "--knob", "num_workers", "--set", "num_workers=0,2"]
    done = subprocess.run(
        [str(installed), *words],
        cwd=place.folder,
        env=place.environ,
        capture_output=True,
        text=True,
        timeout=330,
    )
    assert done.returncode == 0, done
    assert re.search(r"^best +\d\.\d\dx \[.*\] faster", done.stdout), done.stdout
    assert (place.folder / "best.yaml").exists()

"""The command as a person starts it, in a folder and with a home of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from made_studies import migrated_store

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parents[1] / "scripts"
CHECKOUT = (sys.executable, "-m", "autotune")


class Ended:
    """One finished command: exit code, both streams, wall time."""

    def __init__(self, code: int, out: str, err: str, seconds: float, folder: Path) -> None:
        self.exit, self.out, self.err, self.seconds, self.folder = code, out, err, seconds, folder

    @property
    def has_no_gain(self) -> bool:
        """A search that claims nothing: nothing is faster, or it is inconclusive on this machine."""
        return self.exit in (1, 8)

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def best(self) -> dict[str, Any]:
        return yaml.safe_load((self.folder / "best.yaml").read_text())

    def __repr__(self) -> str:
        return f"exit {self.exit} after {self.seconds:.0f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Place:
    """A user's folder, and a home that lies outside it."""

    def __init__(self, folder: Path, store: Path | None = None) -> None:
        self.folder = folder / "user"
        self.home = folder / "home"
        self.locks = folder / "locks"
        self.folder.mkdir()
        if store is not None:
            self.home.mkdir(mode=0o700)
            shutil.copy(store, self.home / "mlflow.db")

    @property
    def environ(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE_", "MLFLOW_", "RAY_", "TUNE_"))
        }
        ours = {"AUTOTUNE_HOME": str(self.home), "AUTOTUNE_LOCKS": str(self.locks)}
        return {**kept, **ours, "MLFLOW_DISABLE_TELEMETRY": "true"}

    def script(self, name: str) -> None:
        shutil.copy(SCRIPTS / name, self.folder / name)

    def run(self, *words: str, timeout_s: float = 330, program: tuple[str, ...] = CHECKOUT) -> Ended:
        began = time.monotonic()
        done = subprocess.run(
            [*program, *words],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )
        return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - began, self.folder)

    def search(self, name: str, *words: str, driver: str = "inline", budget: str = "4m") -> Ended:
        """Search on one of the small scripts; a word `--` begins the script's own arguments."""
        self.script(name)
        return self.run("search", "--script", name, "--driver", driver, "--budget", budget, *words)

    def begin(self, name: str, *words: str, driver: str = "inline") -> subprocess.Popen[str]:
        """Start a search and leave it running."""
        self.script(name)
        line = ["search", "--script", name, "--driver", driver, *words]
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", *line],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def show(self) -> dict[str, Any]:
        """The latest study by its own record."""
        shown = self.run("show", "--json")
        assert shown.exit == 0, shown
        return shown.report

    def journal(self) -> list[Any]:
        """The journal's entries, also of a search that lives."""
        from autotune.store.journal import Journal

        paths = list(self.home.glob("studies/*/journal.db"))
        if not paths:
            return []
        with Journal.read(paths[0]) as journal:
            return list(journal.entries())

    def wait_for_finished(self, at_least: int, limit_s: float = 120) -> list[int]:
        """Numbers of the finished trials, as soon as there are enough."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            reported = [entry.data["number"] for entry in self.journal() if entry.kind == "finished"]
            if len(reported) >= at_least:
                return reported
            time.sleep(0.3)
        pytest.fail(f"fewer than {at_least} finished trials after {limit_s} s")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's store after a first search: making one takes seven seconds, copying it none."""
    return migrated_store(tmp_path_factory.getbasetemp())


@pytest.fixture
def place(tmp_path: Path, store: Path) -> Place:
    return Place(tmp_path, store)


@pytest.fixture(scope="session")
def new_place(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Callable[[str], Place]:
    """Make a place for a search that several tests look at: `new_place(name)`."""
    return lambda name: Place(tmp_path_factory.mktemp(name), store)


@pytest.fixture(scope="session")
def lasting_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """For a search that several tests look at; the first of its user, who has no store of MLflow yet."""
    return Place(tmp_path_factory.mktemp("lasting"))


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def gain(installed: Path, lasting_place: Place) -> Ended:
    """A search from the wheel that finds something; loader workers help its script twofold on any machine."""
    uri = f"sqlite:///{lasting_place.home}/tracking.db"
    lasting_place.script("slow_loader.py")
    # No --trials: a busy machine needs more pairs, and those it disturbs are set aside. A short budget, as
    # such a machine uses all of it.
    words = [
        "search",
        "--script",
        "slow_loader.py",
        "--driver",
        "inline",
        "--budget",
        "100s",
        "--space",
        "cpu",
    ]
    words += ["--knob", "num_workers", "--set", "num_workers=0,2", "--tracking-uri", uri, "--json"]
    return lasting_place.run(*words, program=(str(installed),))

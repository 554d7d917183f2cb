"""A folder with a script in it, and a driver that runs nothing."""

import sys

import pytest
from cli_fakes import FakeTune

import autotune.driver
from autotune.cli.main import run


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return path


@pytest.fixture
def tune(monkeypatch):
    fake = FakeTune()
    monkeypatch.setitem(sys.modules, "autotune.driver.tune", fake)
    monkeypatch.setattr(autotune.driver, "tune", fake, raising=False)
    return fake


@pytest.fixture
def cli(capsys):
    """Runs a command line: (exit code, stdout, stderr)."""

    def call(*argv):
        code = run(list(argv))
        reported = capsys.readouterr()
        return code, reported.out, reported.err

    return call


@pytest.fixture(autouse=True)
def _nothing_active(monkeypatch):
    """Which interpreter is meant must not hang on the shell that runs the tests."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)

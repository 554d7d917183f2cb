"""Every test gets a home of its own: nothing is read from, or left in, the user's folders."""

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from accounts import another_account

from autotune.launch.devices.load_check import SAMPLE_S, LoadCheck, LoadSnapshot

SCRIPTS = Path(__file__).parent / "scripts"
WORKLOADS = Path(__file__).parents[1] / "experiments" / "workloads"
SLOW_FIRST = ("e2e", "zoo", "launch", "trial")
"""Folders whose files take minutes. Begun last, they would leave the other workers without work."""
_NUMBERS = itertools.count()


def pytest_configure(config):
    # Workers get files in the order of collection; xdist would begin with those of the most tests.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        folder = Path(__file__).parent
        items.sort(key=lambda item: item.path.relative_to(folder).parts[0] not in SLOW_FIRST)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AUTOTUNE_")]:
        monkeypatch.delenv(name)
    # Not by mktemp, which reads through all homes so far for the next number.
    home = tmp_path_factory.getbasetemp() / f"home-{next(_NUMBERS)}"
    monkeypatch.setenv("AUTOTUNE_HOME", str(home))
    # Searches of tests that run beside each other do not wait for each other.
    monkeypatch.setenv("AUTOTUNE_LOCKS", f"{home}-locks")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    # An active environment would train the scripts of tests in place of the one that runs the tests.
    for name in ("MLFLOW_TRACKING_URI", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch):
    """Searches find no load: what else runs on this machine must not show up in their output."""

    def of_machine(_environ):
        readings = (LoadSnapshot(t_s=n * SAMPLE_S) for n in itertools.count())
        return LoadCheck(read=lambda _: next(readings), sleep=lambda _: None)

    monkeypatch.setattr(LoadCheck, "of_machine", of_machine)


@pytest.fixture(scope="session")
def account():
    """A second account of this machine."""
    with another_account() as made:
        yield made


@pytest.fixture
def shared_folder():
    """A folder that every account may use, as /run/lock; those of pytest are for one account."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-shared-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def scripts() -> Path:
    """The folder of small training scripts."""
    return SCRIPTS


@pytest.fixture
def workloads() -> Path:
    """The folder of the real workloads."""
    return WORKLOADS

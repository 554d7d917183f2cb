"""A sample of the fault suite of `experiments/faults`, and every remedy taken out once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "faults"))

from crippled import crippling
from faultbed.common import Count, tree_hash, users_tree

from autotune.launch.guard import owned_resources, process_tree


@pytest.fixture(scope="session")
def common_ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where cases of the unchanged code share what they compare themselves with."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture
def injected(common_ground: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Count]:
    """Runs one case and looks at the user's files before and after it."""
    # Whatever a test without a remedy does, no other test compares itself with that.
    ground = common_ground if hasattr(request.node, "callspec") else tmp_path

    def inject(suite: ModuleType, case: Any, **more: Any) -> Count:
        place = ground / f"{suite.NAME}-{case['key']}".replace("/", "-").replace(" ", "-")
        place.mkdir(parents=True)
        home = users_tree(place).parent
        before = tree_hash(home)
        count = suite.run(case, place, **more)
        assert tree_hash(home) == before, "the user's files have changed"
        return count

    return inject


@pytest.fixture
def crippled_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets trials run under a guard of which parts are missing."""
    return crippling(tmp_path, monkeypatch)


@pytest.fixture
def unfindable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a trial is found by its mount namespace or by its guard's record."""
    monkeypatch.setattr(process_tree, "enclosed", lambda _: [])
    monkeypatch.setattr(owned_resources, "RECORD", "no-record.json")


def clean(count: Count) -> None:
    """Nothing promised was broken."""
    assert count.is_clean, count


@pytest.fixture
def is_clean() -> Callable[[Count], None]:
    return clean

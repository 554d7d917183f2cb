"""Scripts without PyTorch: each asks for what its space file declares, and its result names no place."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.config_files.presets import read_space

HERE = Path(__file__).resolve().parents[2] / "experiments" / "sdk"
_SPEC = importlib.util.spec_from_file_location("sdk_run", HERE / "run.py")
assert _SPEC is not None
assert _SPEC.loader is not None
RUN: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(RUN)
RESULTS = sorted((HERE / "results").glob("*.json"))


def requested(script: Path) -> dict[str, Any]:
    """Name -> default of every `autotune.value` in a script."""
    calls = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if ast.unparse(call.func) == "autotune.value"]
    return {ast.literal_eval(call.args[0]): ast.literal_eval(call.args[1]) for call in named}


@pytest.mark.parametrize("name", sorted(RUN.SCRIPTS))
def test_a_script_asks_for_what_its_space_declares(name: str) -> None:
    script = HERE / RUN.SCRIPTS[name][0]
    declared = {entry.name: entry.spec() for entry in read_space(HERE / f"{name}.yaml").declare}
    defaults = requested(script)
    assert set(defaults) == set(declared)
    for knob, default in defaults.items():
        assert default in declared[knob].values
        assert declared[knob].spelling.text == f"autotune.sdk.value:{knob}"
    assert "autotune.step(samples=" in script.read_text()


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_a_result_names_no_folder(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"/(?:work|tmp|root|home)\b", text)
    reported = json.loads(text)
    assert reported["budget"]
    assert all(run["exit"] == 0 for run in reported["applied"].values())


def test_folders_and_the_machines_name_are_taken_out() -> None:
    found = RUN.without_places({"a": f"{HERE}/train.py", "b": f"on {RUN.platform.node() or 'it'}:"})
    assert found == {"a": "/train.py", "b": "on :" if RUN.platform.node() else "on it:"}

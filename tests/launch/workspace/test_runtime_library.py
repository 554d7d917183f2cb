"""The folder a trial is started from holds what it needs of ours, and nothing else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from environments import environment

from autotune.launch.workspace import runtime_library

PACKAGE = Path(__file__).parents[3] / "autotune"


def test_it_holds_the_modules_of_the_training_process_alone(tmp_path: Path) -> None:
    folder = Path(runtime_library.make(tmp_path / "lib"))
    assert sorted(p.name for p in folder.iterdir()) == ["__main__.py", "autotune"]
    names = sorted(p.name for p in (folder / "autotune").iterdir() if p.name != "__pycache__")
    assert names == sorted(runtime_library.PARTS)


def test_nothing_in_it_needs_a_module_of_ours_that_is_left_out(tmp_path: Path) -> None:
    folder = Path(runtime_library.make(tmp_path / "lib"))
    known = {Path(name).stem for name in runtime_library.PARTS}
    requested: set[str] = set()
    for path in (folder / "autotune").rglob("*.py"):
        if path.parent.name == "autotune" and path.name == "__init__.py":
            continue  # the root loads its names late, and only where they are requested
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autotune."):
                requested.add(str(node.module).split(".")[1])
            elif isinstance(node, ast.ImportFrom) and node.module == "autotune":
                requested |= {alias.name for alias in node.names}
    assert requested <= known


def test_it_is_made_once_per_version_also_by_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runtime_library.make(tmp_path / "lib")
    made = Path(first).stat().st_mtime_ns
    assert runtime_library.make(tmp_path / "lib") == first
    assert Path(first).stat().st_mtime_ns == made
    # Somebody else was quicker between the look and the renaming.
    monkeypatch.setattr(runtime_library, "_digest", lambda: "other")
    rename = Path.rename

    def late(draft: Path, target: Path) -> Path:
        (target / "autotune").mkdir(parents=True)
        return rename(draft, target)

    monkeypatch.setattr(Path, "rename", late)
    assert runtime_library.make(tmp_path / "lib") == str(tmp_path / "lib" / "other")
    assert sorted(p.name for p in (tmp_path / "lib").iterdir()) == sorted([Path(first).name, "other"])


def test_it_comes_before_the_users_own_entries(tmp_path: Path) -> None:
    assert runtime_library.environment({"PYTHONPATH": "/a:/b", "X": "1"}, "/lib") == {
        "PYTHONPATH": "/lib:/a:/b",
        "X": "1",
    }
    assert runtime_library.environment({}, "/lib") == {"PYTHONPATH": "/lib"}


LOOK = """
import json, sys
sys.argv = ["x"]
def found(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True
import autotune.trial.entry.trial_runtime, autotune.knobs.registry, autotune.sdk
print(json.dumps([name for name in ("pydantic", "ray", "mlflow", "optuna", "typer", "yaml") if found(name)]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("-I",), ("-OO", "-s")])
def test_another_interpreter_sees_it_and_none_of_our_packages(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    python = str(environment(tmp_path / "env"))
    folder = runtime_library.make(tmp_path / "lib", compiler=(python, *options))
    (Path(folder) / "__main__.py").write_text(LOOK)
    env = runtime_library.environment({"PATH": os.environ["PATH"]}, folder)
    done = subprocess.run(
        [python, *options, folder], env=env, cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_package_without_its_compiled_files_is_compiled_once(tmp_path: Path) -> None:
    folder = Path(runtime_library.make(tmp_path / "lib", compiler=(sys.executable,)))
    sources = list((folder / "autotune").rglob("*.py"))
    tag = sys.implementation.cache_tag
    for path in sources:
        assert (path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc").is_file()

"""A script finds the process as a bare `python` would have left it: path, arguments, main module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.launch.workspace import runtime_library
from autotune.model import wire
from autotune.protocol.plan import PLAN_VARIABLE, Plan

TELL = """
import json, os, sys
def worker(value):
    return value + 1
class Typed:
    field: int = 0
if __name__ == "__main__":
    spec = __spec__
    print(json.dumps({
        "argv": sys.argv, "path": [p for p in sys.path if "site-packages" not in p], "name": __name__,
        "package": __package__, "spec": spec and spec.name, "file": __file__,
        "main": "worker" in dir(sys.modules["__main__"]),
        "annotation": str(Typed.__annotations__["field"]),
        "optimize": sys.flags.optimize, "unbuffered": sys.stdout.write_through,
    }))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A script, a link to it, and a package with a relative import."""
    folder = tmp_path / "project"
    (folder / "package" / "sub").mkdir(parents=True)
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "helper.py").write_text("VALUE = 1\n")
    (folder / "package" / "train.py").write_text(f"from . import helper\n{TELL}")
    (folder / "package" / "__main__.py").write_text(f"from package.helper import VALUE\n{TELL}")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "train.py").write_text(TELL)
    (folder / "link.py").symlink_to(folder / "scripts" / "train.py")
    # What lies in the working directory must never be taken for the standard library's.
    (folder / "json.py").write_text("raise RuntimeError('the wrong json')\n")
    return folder


def bare(folder: Path, *words: str) -> Any:
    return _reported([sys.executable, *words], folder, {})


def ours(
    folder: Path, script: str, *, options: tuple[str, ...] = (), module: str = "", argv: Any = ()
) -> Any:
    """The same under the launcher's command, as `apply` starts it."""
    place = folder.parent / "ours"
    place.mkdir(exist_ok=True)
    plan = Plan(
        nonce="x",
        script=script,
        module=module,
        argv=tuple(argv),
        events_path=str(place / "events"),
        trial_dir=str(place),
        measure=False,
    )
    (place / "plan.json").write_text(wire.dumps(plan))
    started = runtime_library.make(place / "lib")
    env = runtime_library.environment({PLAN_VARIABLE: str(place / "plan.json")}, started)
    reported = _reported([sys.executable, *options, started], folder, env)
    reported["path"] = [entry for entry in reported["path"] if entry != started]
    return reported


def _reported(command: list[str], folder: Path, env: dict[str, str]) -> Any:
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("options", [(), ("-O", "-u"), ("-I",)])
def test_a_script_sees_what_it_sees_without_us(project: Path, options: tuple[str, ...]) -> None:
    script = str(project / "scripts" / "train.py")
    for place in (project, project / "scripts"):
        # Nor for ours, also where it lies beside the script.
        (place / "autotune.py").write_text("raise RuntimeError('the wrong autotune')\n")
    assert ours(project, script, options=options, argv=["--x"]) == bare(project, *options, script, "--x")


def test_a_link_to_a_script_finds_the_neighbours_of_the_script(project: Path) -> None:
    script = str(project / "link.py")
    assert ours(project, script)["path"] == bare(project, script)["path"]


@pytest.mark.parametrize("module", ["package.train", "package"])
def test_a_module_sees_what_it_sees_without_us(project: Path, module: str) -> None:
    # Under -m python itself looks things up in the working directory.
    (project / "json.py").unlink()
    file = "train.py" if module == "package.train" else "__main__.py"
    seen = ours(project, str(project / "package" / file), module=module, argv=["--x", "1"])
    assert seen == bare(project, "-m", module, "--x", "1")
    assert seen["package"] == "package"


SPAWN = """
import multiprocessing, sys
from package.helper import VALUE
def worker(value):
    import autotune.model.config
    return value + VALUE
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(worker, [1]))
"""


@pytest.mark.parametrize(("module", "options"), [("package.train", ()), ("", ()), ("", ("-I",))])
def test_processes_that_the_script_spawns_find_it_and_us(
    project: Path, module: str, options: tuple[str, ...]
) -> None:
    (project / "json.py").unlink()
    script = project / "package" / "train.py"
    script.write_text(
        SPAWN if not options else SPAWN.replace("from package.helper import VALUE", "VALUE = 1")
    )
    if not module:
        script = script.rename(project / "train.py")
    place = project.parent / "ours"
    place.mkdir()
    plan = Plan(
        nonce="x", script=str(script), module=module, argv=(), events_path=str(place / "events"),
        trial_dir=str(place), measure=False,
    )  # fmt: skip
    (place / "plan.json").write_text(wire.dumps(plan))
    started = runtime_library.make(place / "lib")
    env = runtime_library.environment(
        {"PATH": os.environ["PATH"], PLAN_VARIABLE: str(place / "plan.json")}, started
    )
    done = subprocess.run(
        [sys.executable, *options, started], cwd=project, env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("[2]\n", 0), done.stderr


def test_a_module_that_is_not_there_ends_as_python_ends(project: Path) -> None:
    place = project.parent / "ours"
    place.mkdir()
    plan = Plan(
        nonce="x", script="x", module="package.nope", argv=(), events_path="", trial_dir="", measure=False
    )
    (place / "plan.json").write_text(wire.dumps(plan))
    started = runtime_library.make(place / "lib")
    env = runtime_library.environment({PLAN_VARIABLE: str(place / "plan.json")}, started)
    done = subprocess.run([sys.executable, started], cwd=project, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("No module named package.nope")

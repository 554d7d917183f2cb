"""A value of the source that a training process compiles with another one."""

import importlib
import importlib.machinery
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.model.change import Change, Constant
from autotune.model.wire import dumps
from autotune.protocol.plan import PLAN_VARIABLE, Plan
from autotune.trial.loop.replaced_constants import Constants
from autotune.trial.runtime.undo import Undo

ROOT = Path(__file__).parents[3]


def change(name, value, *, was, file, knob="batch_size"):
    return Change(knob=knob, value=value, spelling=Constant((name,), file=file, line=1, was=was))


@pytest.fixture
def state():
    return SimpleNamespace(refusals={})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def run(code):
    names: dict = {}
    exec(code, names)
    return names


def test_the_script_is_compiled_with_the_value_and_stays_what_it_is(tmp_path, state):
    script = tmp_path / "train.py"
    script.write_text("BATCH = 16\nsteps = 960 // BATCH\n", encoding="utf-8")
    values = Constants([change("BATCH", 32, was=16, file="train.py")], str(script), state)
    names = run(values.compiled(str(script), script.read_bytes()))
    assert (names["BATCH"], names["steps"]) == (32, 30)
    assert script.read_text(encoding="utf-8").startswith("BATCH = 16\n")
    assert not state.refusals


def test_an_error_is_reported_on_the_line_of_the_file(tmp_path, state):
    script = tmp_path / "train.py"
    script.write_text("cfg = dict(\n    batch_size=16,\n)\n\n1 / 0\n", encoding="utf-8")
    values = Constants([change("cfg.batch_size", 1 << 20, was=16, file="train.py")], str(script), state)
    with pytest.raises(ZeroDivisionError) as found:
        run(values.compiled(str(script), script.read_bytes()))
    last = found.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(script), 5)


def test_a_module_that_the_script_imports_gets_the_value_and_no_compiled_file(folder, state):
    (folder / "own_settings.py").write_text("BATCH = 16\nHALF = BATCH // 2\n", encoding="utf-8")
    (folder / "own_other.py").write_text("BATCH = 16\n", encoding="utf-8")
    undo = Undo()
    values = Constants([change("BATCH", 64, was=16, file="own_settings.py")], str(folder / "train.py"), state)
    values.install(undo)
    try:
        settings = importlib.import_module("own_settings")
        other = importlib.import_module("own_other")
    finally:
        undo.undo_all()
    assert (settings.BATCH, settings.HALF, other.BATCH) == (64, 32, 16)
    assert not list(folder.glob("__pycache__/own_settings*"))
    del sys.modules["own_settings"]
    assert importlib.import_module("own_settings").BATCH == 16


def test_a_file_that_says_something_else_by_now_refuses_the_knob(tmp_path, state):
    script = tmp_path / "train.py"
    values = Constants([change("BATCH", 32, was=16, file="train.py")], str(script), state)
    names = run(values.compiled(str(script), b"BATCH = 24\n"))
    assert names["BATCH"] == 24
    assert "BATCH=16 at train.py:1" in state.refusals["batch_size"]


def test_without_a_wanted_constant_nothing_is_put_in_place(state):
    before = importlib.machinery.SourceFileLoader.get_code
    undo = Undo()
    Constants([], "train.py", state).install(undo)
    assert importlib.machinery.SourceFileLoader.get_code is before


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["", "pkg.train"])
def test_a_whole_process_runs_the_script_and_its_module_with_the_values(tmp_path, module):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    source = "import json, sys\nsys.path.insert(0, '.')\nfrom pkg.config import WORKERS\nBATCH = 16\n"
    (package / "train.py").write_text(f"{source}print(json.dumps([BATCH, WORKERS]))\n", encoding="utf-8")
    (package / "config.py").write_text("WORKERS = 0\n", encoding="utf-8")
    plan = Plan(
        nonce="n",
        script=str(package / "train.py"),
        module=module,
        argv=(),
        events_path=str(tmp_path / "events.jsonl"),
        trial_dir=str(tmp_path),
        changes=(
            change("BATCH", 64, was=16, file="train.py"),
            change("WORKERS", 4, was=0, file="config.py", knob="num_workers"),
        ),
        measure=False,
    )
    path = tmp_path / "plan.json"
    path.write_text(dumps(plan), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "autotune.trial"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), PLAN_VARIABLE: str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert json.loads(ended.stdout) == [64, 4], ended.stderr


def test_a_script_that_is_a_link_is_the_file_behind_it(tmp_path, state):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "t.py").write_text("BATCH = 16\n", encoding="utf-8")
    link = tmp_path / "train.py"
    link.symlink_to(tmp_path / "real" / "t.py")
    values = Constants([change("BATCH", 32, was=16, file="train.py")], str(link), state)
    assert run(values.compiled(str(link), link.read_bytes()))["BATCH"] == 32

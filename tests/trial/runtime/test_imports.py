"""Hooks that run after a module's import, beside other hooks of the same kind."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotune.trial.runtime.imports import AfterImport


class Another:
    """What another tool does: it wraps `exec_module` of the loader and takes its wrapper away again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[str] = []

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        others = [f for f in sys.meta_path if not isinstance(f, (Another, AfterImport))]
        spec = next(s for f in others if (s := f.find_spec(fullname, path, target)) is not None)
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            loader.__dict__.pop("exec_module", None)
            self.seen.append(module.__name__)

        loader.exec_module = exec_module
        return spec


@pytest.mark.parametrize("ours_first", [True, False])
def test_another_hook_on_the_same_module_does_not_break_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours_first: bool
) -> None:
    name = f"hooked_twice_{ours_first}"
    (tmp_path / f"{name}.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    theirs, ours = Another(name), AfterImport()
    reported: list[int] = []
    before = list(sys.meta_path)
    try:
        ours.on(name, lambda module: reported.append(module.value))
        sys.meta_path.remove(ours)
        sys.meta_path[:0] = [ours, theirs] if ours_first else [theirs, ours]
        assert importlib.import_module(name).value == 7
    finally:
        sys.meta_path[:] = before
        sys.modules.pop(name, None)
    assert theirs.seen == [name]
    if ours_first:
        assert reported == [7]


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AfterImport]:
    """Times imports of a folder of modules by a clock that only they move: each takes as its source says."""
    clock = [1]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.passes", lambda ns: clock.__setitem__(0, clock[0] + ns), raising=False)
    before, loaded = list(sys.meta_path), set(sys.modules)
    for name, text in {
        "timed_leaf": "passes(10)",
        "timed_outer": "passes(1)\nimport timed_leaf\npasses(100)",
        "timed_broken": "passes(1000)\nraise ValueError('broken')",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    hooks = AfterImport()
    hooks.start_timing()
    yield hooks
    sys.meta_path[:] = before
    for name in set(sys.modules) - loaded:
        del sys.modules[name]


def test_the_time_of_an_import_counts_once_with_what_it_imports(timing: AfterImport) -> None:
    importlib.import_module("timed_outer")
    importlib.import_module("timed_leaf")
    assert timing.stop_timing() == 111


def test_an_import_that_fails_takes_its_time_too(timing: AfterImport) -> None:
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module("timed_broken")
    importlib.import_module("timed_leaf")
    assert timing.stop_timing() == 1010


def test_imports_of_other_threads_and_after_the_end_are_not_timed(timing: AfterImport) -> None:
    thread = threading.Thread(target=importlib.import_module, args=("timed_leaf",))
    thread.start()
    thread.join()
    assert "timed_leaf" in sys.modules
    assert timing.stop_timing() == 0
    importlib.import_module("timed_outer")
    assert timing.stop_timing() == 0


def test_a_module_that_is_awaited_and_timed_calls_back_once(timing: AfterImport) -> None:
    reported: list[str] = []
    timing.on("timed_leaf", lambda module: reported.append(module.__name__))
    importlib.import_module("timed_outer")
    assert reported == ["timed_leaf"]
    assert timing.stop_timing() == 111

"""Hooks that run after a module's import, beside other hooks of the same kind."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotune.trial.imports import AfterImport


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
    told: list[int] = []
    before = list(sys.meta_path)
    try:
        ours.on(name, lambda module: told.append(module.value))
        sys.meta_path.remove(ours)
        sys.meta_path[:0] = [ours, theirs] if ours_first else [theirs, ours]
        assert importlib.import_module(name).value == 7
    finally:
        sys.meta_path[:] = before
        sys.modules.pop(name, None)
    assert theirs.seen == [name]
    if ours_first:
        assert told == [7]

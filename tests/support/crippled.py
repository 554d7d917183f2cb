"""A guard of which parts are missing, for tests that show what each part is for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.launch.guard import guard


def crippling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets trials run under a copy of the guard with other text in places that are there once each."""

    def cripple(*changes: tuple[str, str]) -> None:
        folder = tmp_path / "crippled"
        folder.mkdir()
        source = Path(guard.__file__)
        for name in (
            "guard.py",
            "process_tree.py",
            "namespace.py",
            "cpu_quota.py",
            "owned_resources.py",
            "sysv_ipc.py",
        ):
            shutil.copy(source.with_name(name), folder / name)
        text = (folder / "guard.py").read_text()
        for part, instead in changes:
            assert text.count(part) == 1, f"the guard has no {part!r} to take out"
            text = text.replace(part, instead)
        (folder / "guard.py").write_text(text)
        monkeypatch.setattr(guard, "__file__", str(folder / "guard.py"))

    return cripple

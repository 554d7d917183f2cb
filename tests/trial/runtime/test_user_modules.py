"""The files of the user's own that a process has imported, and nobody else's."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.trial.runtime import user_modules as modules
from autotune.trial.runtime.user_modules import Modules


class Folder:
    """A project in which files can be made and imported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script = self.file("code/train.py", "import net")
        self.names: list[str] = []

    def file(self, name: str, text: str = "x = 1\n") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def imported(self, name: str, text: str = "x = 1\n") -> Path:
        """A module of a name of its own, which is imported right away."""
        path = self.file(name, text)
        sys.path.insert(0, str(path.parent))
        try:
            importlib.invalidate_caches()
            importlib.import_module(path.stem)
        finally:
            sys.path.remove(str(path.parent))
        self.names.append(path.stem)
        return path

    def modules(self, cwd: str = "", **environ: str) -> Modules:
        return Modules(str(self.script), cwd or str(self.script.parent), ours=["", "/ours"], environ=environ)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    for name in made.names:
        sys.modules.pop(name, None)


def test_modules_beside_the_script_are_reported_with_their_hash(folder: Folder) -> None:
    path = folder.imported("code/at_net_a.py")
    found = folder.modules()
    assert found.seen() == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    path.write_text("x = 2\n")
    later = folder.imported("code/at_data_b.py")
    assert list(found.seen()) == [str(path), str(later)]
    assert found.seen()[str(path)] == hashlib.sha256(b"x = 1\n").hexdigest(), "as it was imported"


def test_a_project_is_the_work_tree_and_the_working_directory(folder: Folder) -> None:
    inside = folder.imported("lib/at_inside.py")
    elsewhere = folder.imported("elsewhere/at_elsewhere.py")
    assert folder.modules().seen() == {}
    (folder.path / ".git").mkdir()
    assert set(folder.modules().seen()) == {str(inside), str(elsewhere)}
    (folder.path / ".git").rmdir()
    assert set(folder.modules(cwd=str(folder.path / "elsewhere")).seen()) == {str(elsewhere)}


def test_what_python_packages_and_compilers_bring_is_not_the_users(folder: Folder) -> None:
    (folder.path / ".git").mkdir()
    folder.imported(".venv/lib/python3/site-packages/at_package.py")
    folder.imported("tmp/at_generated.py")
    assert folder.modules(TMPDIR=str(folder.path / "tmp")).seen() == {}
    everything = Modules(str(folder.script), "/", ours=[], environ={})
    assert not any(path.startswith(str(Path(sys.prefix))) for path in everything.seen())


def test_there_is_a_limit_to_number_and_size(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MOST_FILES", 2)
    monkeypatch.setattr(modules, "MOST_BYTES", 100)
    first = folder.imported("code/at_one.py")
    folder.imported("code/at_large.py", "x = 1\n" * 50)
    folder.imported("code/at_third.py")
    assert list(folder.modules().seen()) == [str(first)]

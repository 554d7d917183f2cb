"""The script and its modules are looked at often and read seldom."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.driver.loop.script_watch import Imported, ScriptWatch, changed_module
from autotune.trial.runtime.user_modules import MOST_BYTES, MOST_FILES


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("one")
    return path


@pytest.fixture
def watch(script: Path) -> ScriptWatch:
    return ScriptWatch(str(script), hashlib.sha256(b"one").hexdigest())


def test_an_edit_of_the_same_length_is_noticed(script: Path, watch: ScriptWatch) -> None:
    assert watch() == ""
    script.write_text("two")
    os.utime(script, ns=(1, 1))
    assert watch() == "train.py was changed during the search"
    script.write_text("one")
    assert watch() == ""


def test_a_script_that_is_gone_is_reported(script: Path, watch: ScriptWatch) -> None:
    script.unlink()
    assert watch() == "train.py can no longer be read: No such file or directory"


def test_it_is_read_only_where_something_about_it_has_changed(
    script: Path, watch: ScriptWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch() == ""
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("it was read"))
    assert [watch(), watch()] == ["", ""]


def test_without_a_hash_nothing_is_noticed(script: Path) -> None:
    assert ScriptWatch(str(script), "")() == ""


@dataclass
class Project:
    """A script's folder with two modules, and a watch that follows them."""

    folder: Path
    watch: ScriptWatch
    since_s: float

    def file(self, name: str) -> Path:
        return self.folder / name

    def edit(self, name: str, text: str, *, later_s: float = 1.0) -> None:
        self.file(name).write_text(text)
        os.utime(self.file(name), (self.since_s + later_s, self.since_s + later_s))


@pytest.fixture
def project(script: Path, watch: ScriptWatch) -> Project:
    found = Project(script.parent, watch, 1_700_000_000.0)
    (script.parent / "models").mkdir()
    for name in ("models/net.py", "data.py"):
        found.edit(name, name, later_s=-10.0)
    files = {str(found.file(n)): hashlib.sha256(n.encode()).hexdigest() for n in ("models/net.py", "data.py")}
    watch.follow(lambda: Imported(files=files, since_s=found.since_s))
    return found


def test_an_edited_module_is_noticed_and_named(project: Project) -> None:
    assert project.watch() == ""
    project.edit("models/net.py", "another")
    assert project.watch() == "models/net.py was changed during the search"
    project.edit("models/net.py", "models/net.py")
    assert project.watch() == ""
    project.file("data.py").unlink()
    assert project.watch() == "data.py can no longer be read: No such file or directory"


def test_an_edit_while_the_first_run_went_on_is_noticed_as_well(project: Project) -> None:
    project.edit("data.py", "another")
    assert project.watch() == "data.py was changed during the search"
    assert project.watch() != "", "and it stays so"


def test_what_a_trial_made_and_imported_itself_is_no_edit(project: Project) -> None:
    """In its own layer over the user's files: there it lies as before the search, or not at all."""
    project.edit("data.py", "as an earlier run has left it", later_s=-5.0)
    project.file("models/net.py").unlink()
    assert [project.watch(), project.watch()] == ["", ""]


def test_nothing_is_followed_before_it_is_known(script: Path, watch: ScriptWatch) -> None:
    known: list[Imported] = []
    watch.follow(lambda: known[0] if known else None)
    module = script.parent / "net.py"
    module.write_text("one")
    assert watch() == ""
    known.append(Imported(files={str(module): hashlib.sha256(b"one").hexdigest()}, since_s=0.0))
    assert watch() == ""
    module.write_text("two")
    assert watch() == "net.py was changed during the search"


def test_a_module_that_was_merely_touched_is_the_same(project: Project) -> None:
    assert project.watch() == ""
    os.utime(project.file("data.py"))
    assert project.watch() == ""


def test_looking_at_as_many_files_as_are_followed_costs_less_than_10_ms(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for number in range(MOST_FILES):
        path = tmp_path / f"m{number}.py"
        path.write_bytes(b"x" * (MOST_BYTES // MOST_FILES))
        files[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    watch = ScriptWatch(str(tmp_path / "train.py"), "")
    watch.follow(lambda: Imported(files=files, since_s=time.time() + 60.0))
    assert watch() == ""
    taken_s = []
    for _ in range(20):
        began_s = time.perf_counter()
        assert watch() == ""
        taken_s.append(time.perf_counter() - began_s)
    # The shortest of them: a busy machine takes its time now and then.
    assert min(taken_s) < 0.010


def test_a_resumed_search_compares_what_was_imported(project: Project) -> None:
    files = {str(project.file("data.py")): hashlib.sha256(b"data.py").hexdigest()}
    found = Imported(files=files, since_s=project.since_s)
    assert changed_module(found) == ""
    assert changed_module(None) == ""
    project.edit("data.py", "another")
    assert changed_module(found) == str(project.file("data.py"))

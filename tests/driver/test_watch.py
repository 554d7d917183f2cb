"""The script is looked at often and read seldom."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from autotune.driver.watch import ScriptWatch


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
    assert watch() == "train.py was changed while it was searched"
    script.write_text("one")
    assert watch() == ""


def test_a_script_that_is_gone_is_said(script: Path, watch: ScriptWatch) -> None:
    script.unlink()
    assert watch() == "train.py cannot be read any more: No such file or directory"


def test_it_is_read_only_where_something_about_it_has_changed(
    script: Path, watch: ScriptWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch() == ""
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("it was read"))
    assert [watch(), watch()] == ["", ""]


def test_without_a_hash_nothing_is_noticed(script: Path) -> None:
    assert ScriptWatch(str(script), "")() == ""

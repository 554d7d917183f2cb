"""Compile caches: a trial works on its own copy; only a clean end publishes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from autotune.launch.workspace import compile_caches
from autotune.model.measurement import Measurement

FILL = "Path(os.environ['TRITON_CACHE_DIR'], 'kernel').write_text('k')\n"


def test_the_first_clean_trial_publishes_and_the_next_starts_warm(tmp_path: Path) -> None:
    first = compile_caches.prepare(tmp_path, tmp_path / "a", "key")
    assert first.cold
    Path(first.env["TRITON_CACHE_DIR"], "kernel").write_text("k")
    Path(first.env["TORCH_EXTENSIONS_DIR"], "lock").write_text("")
    Path(first.env["TORCHINDUCTOR_CACHE_DIR"], "locks").mkdir()
    assert first.publish()
    second = compile_caches.prepare(tmp_path, tmp_path / "b", "key")
    assert not second.cold
    assert Path(second.env["TRITON_CACHE_DIR"], "kernel").read_text() == "k"
    assert not Path(second.env["TORCH_EXTENSIONS_DIR"], "lock").exists()
    assert not Path(second.env["TORCHINDUCTOR_CACHE_DIR"], "locks").exists()
    assert not second.publish()
    assert compile_caches.prepare(tmp_path, tmp_path / "c", "other key").cold


def test_triton_finds_its_kernels_in_a_copied_cache(tmp_path: Path) -> None:
    """It notes the files of a kernel by full path, and the folder of the first trial is gone by then."""
    first = compile_caches.prepare(tmp_path, tmp_path / "a", "key")
    kernel = Path(first.env["TRITON_CACHE_DIR"], "HASH")
    kernel.mkdir()
    (kernel / "add.cubin").write_bytes(b"code")
    files = {"add.cubin": str(kernel / "add.cubin")}
    (kernel / "__grp__add.json").write_text(json.dumps({"child_paths": files}))
    (kernel / "__grp__torn.json").write_text('{"child_pa')
    (kernel / "add.json").write_text('{"name": "add"}')
    assert first.publish()
    assert not kernel.exists()
    again = Path(compile_caches.prepare(tmp_path, tmp_path / "b", "key").env["TRITON_CACHE_DIR"], "HASH")
    reported = json.loads((again / "__grp__add.json").read_text())
    assert reported == {"child_paths": {"add.cubin": str(again / "add.cubin")}}
    assert Path(reported["child_paths"]["add.cubin"]).read_bytes() == b"code"
    assert not (again / "__grp__torn.json").exists()
    assert (again / "add.json").read_text() == '{"name": "add"}'


def test_of_two_cold_trials_one_publishes(tmp_path: Path) -> None:
    both = [compile_caches.prepare(tmp_path, tmp_path / name, "key") for name in "ab"]
    for cache in both:
        Path(cache.env["TRITON_CACHE_DIR"], "kernel").write_text(cache.folder.parent.name)
    assert [cache.publish() for cache in both] == [True, False]
    assert (tmp_path / "cache" / "key" / "triton" / "kernel").read_text() == "a"


def test_a_cache_for_which_there_is_no_room_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: Any, assignment: Any
) -> None:
    """The trial has been measured by then."""
    real = Path.mkdir

    def mkdir(self: Path, *given: Any, **more: Any) -> None:
        if self == tmp_path / "study" / "cache":
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        real(self, *given, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    (ended,) = runner().run(assignment(FILL + "good()", cache_key="key"))
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert not (tmp_path / "study" / "cache").exists()


def test_an_empty_cache_or_one_without_a_key_is_not_published(tmp_path: Path) -> None:
    assert not compile_caches.prepare(tmp_path, tmp_path / "a", "key").publish()
    nameless = compile_caches.prepare(tmp_path, tmp_path / "b", "")
    Path(nameless.env["TRITON_CACHE_DIR"], "kernel").write_text("k")
    assert not nameless.publish()
    assert not (tmp_path / "cache").exists()


def test_a_killed_trial_publishes_nothing_and_a_good_one_does(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    published = tmp_path / "study" / "cache" / "key"
    torn = assignment(FILL + "step(); os.kill(os.getpid(), 9)", cache_key="key")
    list(runner().run(torn))
    assert not published.exists()
    good = assignment(FILL + "good()", cache_key="key", uid="t0001-a1-000000")
    (ended,) = runner().run(good)
    assert isinstance(ended.outcome, Measurement)
    assert (published / "triton" / "kernel").read_text() == "k"


def test_a_run_of_the_users_own_gets_a_copy_that_is_kept(tmp_path: Path) -> None:
    first = compile_caches.prepare(tmp_path, tmp_path / "a", "key")
    kernel = Path(first.env["TRITON_CACHE_DIR"], "HASH")
    kernel.mkdir()
    (kernel / "add.cubin").write_bytes(b"code")
    (kernel / "__grp__add.json").write_text(json.dumps({"child_paths": {"add.cubin": "/gone/add.cubin"}}))
    Path(first.env["TORCH_EXTENSIONS_DIR"], "lock").write_text("")
    assert first.publish()
    published = tmp_path / "cache" / "key"
    before = {path: path.read_bytes() for path in published.rglob("*") if path.is_file()}
    lent = compile_caches.lent(published)
    assert set(lent) == set(compile_caches.VARIABLES)
    copied = Path(lent["TRITON_CACHE_DIR"], "HASH")
    reported = json.loads((copied / "__grp__add.json").read_text())
    assert Path(reported["child_paths"]["add.cubin"]).read_bytes() == b"code"
    assert Path(reported["child_paths"]["add.cubin"]).is_relative_to(copied)
    assert not Path(lent["TORCH_EXTENSIONS_DIR"], "lock").exists()
    (copied / "add.cubin").write_bytes(b"torn")
    Path(lent["TORCHINDUCTOR_CACHE_DIR"], "more").write_text("compiled by the run")
    assert {path: path.read_bytes() for path in published.rglob("*") if path.is_file()} == before
    assert compile_caches.lent(published) == lent
    assert Path(lent["TORCHINDUCTOR_CACHE_DIR"], "more").exists()
    # Trials go on from what was published, and nothing half made is left.
    again = compile_caches.prepare(tmp_path, tmp_path / "b", "key")
    assert Path(again.env["TRITON_CACHE_DIR"], "HASH", "add.cubin").read_bytes() == b"code"
    assert sorted(p.name for p in published.parent.iterdir()) == ["key", "key.lent"]


def test_where_no_copy_can_be_made_nothing_is_lent(tmp_path: Path) -> None:
    assert compile_caches.lent(tmp_path / "cache" / "none") == {}
    (tmp_path / "cache" / "key").mkdir(parents=True)
    assert compile_caches.lent(tmp_path / "cache" / "key") == {}


def test_the_lock_of_a_build_that_died_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    """PyTorch waits for such a file to disappear, for ever where nobody is left to remove it."""
    first = compile_caches.prepare(tmp_path, tmp_path / "a", "key")
    for name in ("dead", "alive", "young"):
        folder = Path(first.env["TORCH_EXTENSIONS_DIR"], name)
        folder.mkdir()
        (folder / "main.o").touch()
    assert first.publish()
    published = tmp_path / "cache" / "key"
    extensions = Path(compile_caches.lent(published)["TORCH_EXTENSIONS_DIR"])
    locks = {name: extensions / name / "lock" for name in ("dead", "alive", "young")}
    with locks["alive"].open("w"):
        for name, lock in locks.items():
            lock.touch()
            if name != "young":
                os.utime(lock, (1, 1))
        compile_caches.lent(published)
        assert [name for name, lock in locks.items() if lock.exists()] == ["alive", "young"]

"""Only what searches made is removed, nothing of a running one, and nothing through a link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.driver.cleanup import clean
from autotune.errors import StudyNotFound, UsageError
from autotune.store.journal import Journal
from autotune.store.paths import home, new_id
from autotune.store.study_lock import is_locked, locked

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY_S = 24 * 3600.0


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def made(label: str, *, idle_days: float = 0.0) -> Path:
    """A study with a journal, a trial's folder, a cache and our part."""
    folder = home() / "studies" / new_id()
    journal = Journal.create(folder, ballast_bytes=0)
    journal.append("opened", "opened/1", {"spec": {"label": label}, "wall_s": 1.0})
    journal.close()
    for name in ("trials/t0000-a1-aaaaaa", "cache/c1/inductor", "lib/123"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_bytes(b"x" * 10_000)
    (folder / "best.yaml").write_text("schema: x\n")
    age(folder, idle_days)
    return folder


def test_what_fork_servers_and_ray_have_left_below_a_study_goes(temporary: Path) -> None:
    folder = made("one")
    for name in ("forks/12-1/tmpdir", "tune/tune"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_bytes(b"x" * 10_000)
    assert clean.remove(clean.find()) == {}
    assert not (folder / "forks").exists()
    assert not (folder / "tune").exists()


def age(folder: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then), follow_symlinks=False)


def kinds(found: clean.StoredItem) -> list[tuple[str, str]]:
    return [(item.study or item.path.name, item.kind) for item in found.leftovers]


def test_a_study_keeps_its_journal_and_its_answer(temporary: Path) -> None:
    folder = made("one")
    found = clean.find()
    assert kinds(found) == [("one", "trials"), ("one", "caches"), ("one", "caches")]
    assert found.size_bytes >= 30_000
    assert clean.remove(found) == {}
    left = {p.name for p in folder.iterdir()} - {"journal.db-shm", "journal.db-wal"}
    assert left == {"best.yaml", "journal.db", "journal.lock"}
    assert clean.find() == clean.StoredItem(leftovers=())


def test_profiles_that_were_requested_stay_until_their_study_goes(temporary: Path) -> None:
    folder = made("one")
    for name, file in (
        ("t0007-a1-bbbbbb", "profile.pt.trace.json.gz"),
        ("t0008-a1-cccccc", "profile.nsys-rep"),
    ):
        (folder / "trials" / name).mkdir()
        (folder / "trials" / name / file).write_bytes(b"y" * 50_000)
    found = clean.find()
    assert kinds(found) == [("one", "trials"), ("one", "caches"), ("one", "caches")]
    assert found.leftovers[0].size_bytes < 50_000
    assert found.kept == {"one": "its profiles are kept with the study"}
    assert clean.remove(found) == {}
    assert {p.name for p in (folder / "trials").iterdir()} == {"t0007-a1-bbbbbb", "t0008-a1-cccccc"}
    assert clean.find() == clean.StoredItem(leftovers=())
    assert clean.remove(clean.find(["one"])) == {}
    assert not folder.exists()


def test_a_study_that_is_named_goes_whole_and_no_other(temporary: Path) -> None:
    one, two = made("one"), made("two")
    found = clean.find(["one"])
    assert kinds(found) == [("one", "study")]
    assert clean.remove(found) == {}
    assert not one.exists()
    assert (two / "trials" / "t0000-a1-aaaaaa" / "file").exists()
    with pytest.raises(StudyNotFound):
        clean.find(["one"])


def test_studies_go_by_age_since_they_were_written_to(temporary: Path) -> None:
    made("old", idle_days=40)
    resumed = made("resumed", idle_days=40)
    os.utime(resumed / "journal.db")
    made("new")
    assert kinds(clean.find(older_than_s=30 * DAY_S)) == [("old", "study")]


@pytest.fixture
def running() -> Iterator[Path]:
    """A study that a driver writes to."""
    folder = made("running")
    with locked(folder):
        yield folder


def test_nothing_of_a_running_study_is_touched(running: Path, temporary: Path) -> None:
    (temporary / "at-t0000-a1-aaaaaa").mkdir()
    age(temporary, 2)
    assert is_locked(running)
    found = clean.find()
    assert found.leftovers == ()
    assert found.kept == {"running": "it is being written to"}
    assert clean.find(["running"]).leftovers == ()
    assert clean.find(older_than_s=0.0).leftovers == ()


def test_a_study_that_begins_to_run_after_the_question_is_left_alone(temporary: Path) -> None:
    folder = made("one")
    found = clean.find(["one"])
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom autotune.store.study_lock import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert clean.remove(found) == {str(folder): "a search is writing to it"}
        assert (folder / "trials").is_dir()
        other.communicate("")


def test_no_link_is_followed(temporary: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("mine")
    folder = made("one")
    (folder / "trials" / "link").symlink_to(precious)
    other = made("two")
    clean.isolation.remove(other / "trials")
    (other / "trials").symlink_to(precious)
    (home() / "studies" / new_id()).symlink_to(precious)
    (temporary / "at-t0000-a1-bbbbbb").symlink_to(precious)
    found = clean.find()
    assert [item.study for item in found.leftovers if item.kind == "trials"] == ["one"]
    assert all(item.kind != "temporary" for item in found.leftovers)
    assert clean.remove(found) == {}
    assert (precious / "data").read_text() == "mine"
    # And where a folder has become a link after the question.
    swapped = clean.Leftover(kind="temporary", path=temporary / "at-t0000-a1-bbbbbb", size_bytes=0)
    left = clean.remove(clean.StoredItem(leftovers=(swapped,)))
    assert "link" in left[str(swapped.path)]
    assert (precious / "data").read_text() == "mine"


def test_a_study_elsewhere_is_not_ours_to_remove(temporary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "copy"
    made("one").rename(elsewhere)
    with pytest.raises(UsageError, match="does not lie in"):
        clean.find([str(elsewhere)])


def test_what_the_dead_left_in_the_temporary_folder_goes_and_what_lives_stays(temporary: Path) -> None:
    def folder(name: str, days: float, nonce: str = "") -> Path:
        (temporary / name).mkdir()
        if nonce:
            (temporary / name / "plan.json").write_text(json.dumps({"nonce": nonce}))
        age(temporary / name, days)
        return temporary / name

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = {
        folder("at-t0001-a1-dddddd", 0.01).name,
        folder("autotune-apply-dead", 0.01, f"apply-{ended.pid}").name,
        folder("autotune-apply-unsaid", 2).name,
        folder(".autotune-probe-x", 2).name,
        folder("at-tune-x", 2).name,
        folder("at-ray-x", 2).name,
    }
    folder("at-t0001-a1-eeeeee", 0)  # may be about to start
    folder("autotune-apply-mine", 5, f"apply-{os.getpid()}")
    folder("at-tune-y", 0.5)
    folder("at-something-of-others", 9)
    living = folder("at-t0002-a1-ffffff", 1)
    ray = folder("at-ray-y", 3)
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    env = {**os.environ, "AUTOTUNE_TRIAL": "t0002-a1-ffffff"}
    with subprocess.Popen(
        [sys.executable, "-c", code, f"--temp-dir={ray}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    ) as alive:
        assert alive.stdout is not None
        alive.stdout.readline()  # right after its start a process has no command line yet
        found = clean.find()
        alive.communicate(b"")
    assert {item.path.name for item in found.leftovers} == dead
    assert clean.remove(found) == {}
    assert living.is_dir()


def test_the_token_of_a_ray_that_runs_for_days_stays(temporary: Path) -> None:
    """Nobody writes to it again, and its processes know it by a variable alone."""
    for name in ("at-ray-used", "at-ray-left"):
        (temporary / name).mkdir()
        (temporary / name / "token").write_text("x")
        age(temporary / name, 3)
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    env = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(temporary / "at-ray-used" / "token")}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as alive:
        assert alive.stdout is not None
        alive.stdout.readline()
        found = clean.find()
        alive.communicate(b"")
    assert [item.path.name for item in found.leftovers] == ["at-ray-left"]


def test_a_folder_that_goes_or_cannot_be_looked_into_meanwhile_is_passed_over(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made("one")
    (temporary / "at-tune-x").mkdir()
    age(temporary / "at-tune-x", 2)
    plain = Path.iterdir

    def gone(path: Path) -> Iterator[Path]:
        if path.name in ("at-tune-x", "lib"):
            raise FileNotFoundError(path)
        return plain(path)

    monkeypatch.setattr(Path, "iterdir", gone)
    found = clean.find()
    assert [item.path for item in found.leftovers] == [folder / "trials", folder / "cache"]


def test_what_cannot_be_removed_is_named(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made("one")
    monkeypatch.setattr(clean.isolation, "remove", lambda path: None)
    left = clean.remove(clean.find(["one"]))
    assert left == {str(folder): "parts of it could not be removed"}

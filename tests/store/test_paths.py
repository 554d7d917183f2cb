"""Studies are found by id, label or a beginning of either, and ids never become odd paths."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from autotune.errors import StoreError, StudyNotFound
from autotune.store import paths
from autotune.store.journal import Journal

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    return tmp_path


def put(study_id: str, label: str) -> Path:
    directory = paths.study_dir(study_id)
    with Journal.create(directory, ballast_bytes=0, environ={}) as journal:
        event = next(made.events(study_id=study_id, label=label))
        journal.append(event.kind, event.uid, event.data)
    return directory


def test_home_follows_the_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AUTOTUNE_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert paths.home() == tmp_path / "autotune"
    assert paths.default_tracking_uri() == f"sqlite:///{tmp_path}/autotune/mlflow.db"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert paths.home() == Path.home() / ".local/share/autotune"


def test_a_study_is_found_by_id_label_and_beginnings(home: Path) -> None:
    a = put("01JD0000000000000000000001", "train-1121-1002")
    b = put("01JE0000000000000000000002", "other-1121-1003")
    assert paths.find_study(None) == b, "the newest"
    for name in ("01JD0000000000000000000001", "01jd", "train-1121-1002", "tra"):
        assert paths.find_study(name) == a
    assert [f.label for f in paths.studies()] == ["other-1121-1003", "train-1121-1002"]
    with pytest.raises(StudyNotFound, match="2 studies"):
        paths.find_study("01J")
    with pytest.raises(StudyNotFound) as caught:
        paths.find_study("train-1121-1003")
    assert caught.value.hint == 'Did you mean "train-1121-1002"?'


def test_a_damaged_study_does_not_hide_the_others(home: Path) -> None:
    a = put("01JD0000000000000000000001", "train")
    bad = paths.study_dir("01JF0000000000000000000003")
    bad.mkdir()
    (bad / "journal.db").write_text("not a database at all")
    assert [f.path for f in paths.studies()] == [a]


def test_without_a_study_it_says_how_to_begin_one(home: Path) -> None:
    with pytest.raises(StudyNotFound, match="no study"):
        paths.find_study(None)


@pytest.mark.parametrize(
    "name", ["../../etc", "", "01JD", "01JD000000000000000000000/", "O1JD0000000000000000000001"]
)
def test_only_ids_of_ours_become_directories(home: Path, name: str) -> None:
    with pytest.raises(StoreError):
        paths.study_dir(name)


def test_ids_are_unique_sort_by_time_and_make_directories(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.store.paths.time.time_ns", iter(range(10**18, 2 * 10**18, 10**15)).__next__)
    made_ids = [paths.new_id() for _ in range(50)]
    assert made_ids == sorted(set(made_ids))
    assert all(paths.study_dir(i).name == i for i in made_ids)


def test_a_label_is_safe_to_type(home: Path) -> None:
    label = paths.new_label("/w/my train;rm -rf.py", 1_700_000_000.0)
    assert paths.is_label(label)
    assert label.startswith(("my-train-rm--rf-", "my-train-rm-rf-"))
    assert not paths.is_label("a/b")
    assert not paths.is_label("x" * 65)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_home_that_is_made_is_private_and_one_that_was_there_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    before = os.umask(umask)
    try:
        for place, mode in ((tmp_path / "deep" / "new", 0o700), (shared, 0o775)):
            monkeypatch.setenv("AUTOTUNE_HOME", str(place))
            study = paths.make_study_dir(paths.new_id())
            assert stat.S_IMODE(place.stat().st_mode) == mode
            assert stat.S_IMODE(study.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_the_own_store_is_known_by_its_address_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "what?"))
    assert paths.own_store(paths.default_tracking_uri()) == tmp_path / "what?" / "mlflow.db"
    assert paths.own_store(f"sqlite:///{tmp_path}/other.db") is None
    assert paths.own_store("http://tracker:5000") is None

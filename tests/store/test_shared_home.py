"""In a home that several accounts share, each one sees its own studies, and leaves those of others alone."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from acting import acting_as, second_account
from study_fakes import facts

from autotune.cli.main import run
from autotune.cli.open_study import compiled_for, recorded
from autotune.driver.cleanup import clean
from autotune.driver.transfer import newest_study_dirs
from autotune.errors import StoreError
from autotune.store import paths
from autotune.store.journal import Journal
from autotune.store.owners import account, foreign
from autotune.store.paths import all_studies, home, study_dir

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made

MINE, THEIRS = "01JD0000000000000000000001", "01JE0000000000000000000002"
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another account")


def put(study_id: str, label: str, *, root: Path | None = None) -> Path:
    folder = (root or home()) / "studies" / study_id
    with Journal.create(folder, ballast_bytes=0, environ={}) as journal:
        for event in made.events(study_id=study_id, label=label):
            journal.append(event.kind, event.uid, event.data)
    (folder / "cache" / "key").mkdir(parents=True)
    (folder / "trials" / "t0").mkdir(parents=True)
    folder.chmod(0o700)
    return folder


def give(folder: Path, uid: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


@pytest.fixture
def theirs() -> Path:
    """A study of another account, newer than our own."""
    put(MINE, "mine")
    folder = put(THEIRS, "theirs")
    give(folder, NOBODY)
    return folder


@as_root
def test_a_study_of_another_account_is_left_out_and_reported_once(
    theirs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths._logged.clear()
    with caplog.at_level(logging.WARNING):
        assert [found.study_id for found in paths.studies()] == [MINE]
        paths.studies()
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == f"{home() / 'studies'}: 1 study is left out ({THEIRS}: it belongs to {account(NOBODY)})"
    assert paths.find_study(None) == study_dir(MINE)


@as_root
@pytest.mark.parametrize(
    "words",
    [["list"], ["show"], ["show", "mine"], ["report", "--md"], ["clean", "--dry-run"], ["clean", "--yes"]],
    ids=" ".join,
)
def test_no_verb_fails_by_a_study_of_another_account(theirs: Path, words: list[str]) -> None:
    assert run(words) == 0
    assert run(["show", "theirs"]) == 5


@as_root
def test_clean_removes_nothing_of_another_account(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["clean", "--yes"]) == 0
    assert not (study_dir(MINE) / "cache").exists()
    assert (theirs / "cache" / "key").is_dir()
    os.utime(theirs / "journal.db", (0, 0))
    assert run(["clean", "--older-than", "1d", "--yes"]) == 0
    assert run(["clean", "theirs", "--yes"]) == 5
    assert (theirs / "journal.db").is_file()
    assert "theirs" not in capsys.readouterr().out


@as_root
def test_a_study_that_changed_hands_after_it_was_listed_is_not_removed(theirs: Path) -> None:
    found = clean.find(["mine"])
    give(study_dir(MINE), NOBODY)
    (reason,) = clean.remove(found).values()
    assert "it belongs to" in reason
    assert (study_dir(MINE) / "journal.db").is_file()


@as_root
def test_no_study_of_another_account_decides_on_a_search_or_lends_its_compiled_code(theirs: Path) -> None:
    assert newest_study_dirs() == [study_dir(MINE)]
    assert recorded(MINE) is not None
    assert recorded(THEIRS) is None
    assert compiled_for(THEIRS, 3, facts().host, "") is None


@as_root
@pytest.mark.parametrize("verb", [["sync", "--tracking-uri", "sqlite:///x.db"], ["resume"]], ids=" ".join)
def test_nothing_is_written_to_another_accounts_journal_even_by_its_path(
    theirs: Path, verb: list[str]
) -> None:
    before = (theirs / "journal.db").read_bytes()
    assert run([verb[0], str(theirs), *verb[1:]]) == 5
    assert (theirs / "journal.db").read_bytes() == before
    with pytest.raises(StoreError, match="belongs to"):
        Journal.open(theirs)


@as_root
def test_a_journal_of_another_account_may_be_read_by_its_path(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", str(theirs)]) == 0
    assert "theirs" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["sync", "ui"])
def test_an_address_of_somebody_elses_study_is_not_sent_to(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = put(MINE, "copied", root=tmp_path)
    assert run([verb, str(folder)]) == 2
    assert "its tracking address is not used" in capsys.readouterr().err


def test_the_command_of_a_study_elsewhere_is_printed_before_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import autotune.driver

    def resumed(path: Path, **_more: object) -> None:
        raise StoreError(f"resumed {path}")

    monkeypatch.setitem(sys.modules, "autotune.driver.tune", SimpleNamespace(resume_search=resumed))
    monkeypatch.setattr(autotune.driver, "tune", sys.modules["autotune.driver.tune"], raising=False)
    folder = put(MINE, "copied", root=tmp_path)
    assert run(["resume", str(folder), "--quiet"]) == 5
    err = capsys.readouterr().err
    assert err.startswith(
        f"{folder} does not lie in this account's home; it runs: python train.py --epochs 1\n"
    )
    assert f"resumed {folder}" in err
    put(MINE, "own")
    run(["resume", "own", "--quiet"])
    assert "does not lie" not in capsys.readouterr().err


def test_what_cannot_be_read_is_left_out_by_name(tmp_path: Path) -> None:
    put(MINE, "mine")
    studies = home() / "studies"
    (studies / "01JF0000000000000000000003").symlink_to(tmp_path / "gone")
    (studies / "01JF0000000000000000000004").write_text("no folder")
    (studies / "01JF0000000000000000000005").mkdir()
    (studies / "01JF0000000000000000000006").mkdir()
    (studies / "01JF0000000000000000000006" / "journal.db").write_text("no database")
    assert all_studies().left_out == {
        "01JF0000000000000000000006": "its journal cannot be read",
        "01JF0000000000000000000004": "it is no folder",
        "01JF0000000000000000000003": "its link leads nowhere",
    }
    for words in (["list"], ["show"], ["clean", "--yes"]):
        assert run(words) == 0
    assert (studies / "01JF0000000000000000000003").is_symlink()


def test_a_link_to_a_folder_of_ones_own_is_read_and_never_cleaned(tmp_path: Path) -> None:
    real = put(MINE, "mine", root=tmp_path)
    (home() / "studies").mkdir(parents=True)
    study_dir(MINE).symlink_to(real)
    assert foreign(study_dir(MINE)) == ""
    assert [found.label for found in all_studies().found] == ["mine"]
    assert run(["clean", "--yes"]) == 0
    assert (real / "cache").is_dir()


def test_the_line_names_a_few_and_counts_the_rest() -> None:
    seen = paths.Studies(found=(), left_out={f"id{n}": "it is gone" for n in range(7)})
    assert seen.note.startswith("7 studies are left out (id0: it is gone; ")
    assert seen.note.endswith("id4: it is gone; and 2 more)")


# As the second account ----------------------------------------------------------------------


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every account reaches, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="at-shared-"))
    folder.chmod(0o755)
    (folder / "studies").mkdir()
    (folder / "studies").chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.thorough
def test_a_second_account_works_beside_studies_of_root(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(shared))
    monkeypatch.setenv("HOME", str(shared))
    monkeypatch.chdir(shared)
    verbs = (["list", "--json"], ["show"], ["report", "--md"], ["clean", "--dry-run"])
    refused = (["show", "rooted"], ["clean", "rooted", "--yes"])
    with second_account() as other:
        rooted, own = put(THEIRS, "rooted"), put(MINE, "mine")
        for words in (*verbs, ["show", "rooted"]):
            assert run(words) == 0  # as root, which owns both; it loads what the verbs import
        give(own, other.pw_uid)
        capsys.readouterr()
        with acting_as(other):
            assert all_studies().left_out == {THEIRS: "it belongs to root"}
            codes = {" ".join(words): run(words) for words in (*verbs, ["clean", "--yes"])}
            out = capsys.readouterr().out
            assert set(codes.values()) == {0}, codes
            assert [run(words) for words in refused] == [5, 5]
            with pytest.raises(StoreError, match="cannot be read"):
                Journal.open(rooted)
        assert json.JSONDecoder().raw_decode(out)[0]["count"] == 1
        assert (rooted / "cache" / "key").is_dir()
        assert (rooted / "journal.db").is_file()
        assert not (own / "cache").exists()
        assert (own / "journal.db").is_file()

"""`autotune clean`: shown first, removed only after a yes."""

import json

import pytest

from autotune.driver.cleanup import clean


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One folder that may go, and one study that runs."""
    path = tmp_path / "trials"
    path.mkdir()
    (path / "log").write_bytes(b"x" * 3_000_000)
    item = clean.Leftover(kind="trials", path=path, size_bytes=3_000_000, study="train-1")
    found = clean.StoredItem(leftovers=(item,), kept={"train-2": "it is being written to"})
    monkeypatch.setattr(clean, "find", lambda names, older_than_s=None: found)
    monkeypatch.setattr(clean, "remove", lambda what: path.joinpath("log").unlink() or path.rmdir() or {})
    return path


def test_it_is_shown_what_goes_and_what_stays(cli, folder):
    code, out, _err = cli("clean", "--dry-run")
    assert code == 0
    assert out.splitlines() == [
        "train-1  logs and files of its trials  3 MiB",
        "kept train-2: it is being written to",
        "3 MiB in all",
    ]
    assert folder.is_dir()


def test_nobody_to_ask_is_no_consent(cli, folder, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, _out, err = cli("clean")
    assert code == 2
    assert "--yes" in err
    assert folder.is_dir()


@pytest.mark.parametrize(("answer", "gone"), [(True, True), (False, False)])
def test_a_person_is_requested(cli, folder, monkeypatch, answer, gone):
    import typer

    questions = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda text, err: questions.append(text) or answer)
    assert cli("clean")[0] == 0
    assert questions == ["Remove this folder?"]
    assert folder.is_dir() is not gone


def test_yes_removes_and_json_says_what(cli, folder):
    assert cli("clean", "--json")[0] == 2
    assert folder.is_dir()
    data = json.loads(cli("clean", "--yes", "--json")[1])
    assert (data["schema"], data["bytes"], data["removed"], data["exit"]) == (
        "autotune.clean/v1", 3_000_000, True, 0,
    )  # fmt: skip
    assert data["kept"] == {"train-2": "it is being written to"}
    assert not folder.is_dir()


def test_what_is_still_there_ends_with_5(cli, folder, monkeypatch):
    monkeypatch.setattr(clean, "remove", lambda what: {str(folder): "permission denied"})
    code, _out, err = cli("clean", "--yes")
    assert code == 5
    assert f"{folder} is still there: permission denied" in err


def test_names_and_an_age_are_handed_on(cli, monkeypatch):
    requested = []
    monkeypatch.setattr(
        clean,
        "find",
        lambda names, older_than_s=None: (
            requested.append((names, older_than_s)) or clean.StoredItem(leftovers=())
        ),
    )
    assert cli("clean", "train-1", "old", "--older-than", "30d")[1] == "there is nothing to remove\n"
    assert requested == [(["train-1", "old"], 30 * 24 * 3600.0)]
    assert cli("clean", "--older-than", "30")[0] == 2

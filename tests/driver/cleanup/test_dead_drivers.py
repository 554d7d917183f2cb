"""What a killed driver has left is cleared up by the next command, whichever it is."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest
from session_fakes import spec

from autotune.cli.main import run as command
from autotune.driver.cleanup.dead_drivers import clear_up_all
from autotune.model.wire import to_wire
from autotune.store.journal import Journal
from autotune.store.paths import DRIVEN_FILE, make_study_dir, new_id

UID = "t0000-a1-abcdef"
VALUE = "CANARY-of-a-variable"
PRINTED = f"the token is {VALUE}, the password CANARY-argument\n"


def killed(*, args: tuple[str, ...] = (), names: tuple[str, ...] = ("MY_API_TOKEN",)) -> Path:
    """The output of a trial whose launcher and guard were killed with the driver of its study."""
    study = replace(spec(), study_id=new_id(), args=args)
    folder = make_study_dir(study.study_id)
    with Journal.create(folder, ballast_bytes=0) as journal:
        opened = {"spec": study, "wall_s": 1.0, "host": "", "pid": 1, "version": "0", "secrets": names}
        journal.append("opened", "opened/1", to_wire(opened))
        started = {"number": 0, "attempt": 1, "uid": UID, "host": platform.node()}
        journal.append("started", "started/0/1", started)
    (folder / DRIVEN_FILE).touch()
    (folder / "tune" / "left").mkdir(parents=True)
    output = folder / "trials" / UID / "stdout.log"
    output.parent.mkdir(parents=True)
    output.write_text(PRINTED)
    return output


def study_of(output: Path) -> Path:
    return output.parents[2]


@pytest.mark.parametrize("words", [["list"], ["clean", "--dry-run"]])
def test_the_next_command_takes_out_what_the_script_had_printed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", VALUE)
    monkeypatch.setenv("MY_PASSWORD", "CANARY-argument")
    output = killed(args=("--password", "CANARY-argument"), names=("MY_API_TOKEN", "MY_PASSWORD"))
    command(words)
    assert output.read_text() == "the token is <redacted:MY_API_TOKEN>, the password <redacted:MY_PASSWORD>\n"
    assert not (study_of(output) / DRIVEN_FILE).exists()
    assert not (study_of(output) / "tune").exists()
    assert "CANARY" not in str(capsys.readouterr())


@pytest.mark.parametrize(
    ("args", "names"), [((), ("MY_API_TOKEN",)), (("--password", "CANARY-argument"), ())]
)
def test_output_with_a_secret_that_is_not_known_here_is_removed(
    args: tuple[str, ...], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a variable that is not set now, or of an argument, which no file holds."""
    monkeypatch.delenv("MY_API_TOKEN", raising=False)
    output = killed(args=args, names=names)
    clear_up_all()
    assert not output.exists()
    assert output.parent.is_dir()


def test_a_study_that_a_driver_works_on_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", VALUE)
    output = killed()
    with Journal.open(study_of(output), ballast_bytes=0):
        clear_up_all()
        assert output.read_text() == PRINTED
    clear_up_all()
    assert VALUE not in output.read_text()


def test_one_study_that_cannot_be_read_keeps_no_other_from_being_cleared_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", VALUE)
    outputs = [killed(), killed(), killed()]
    (study_of(outputs[1]) / "journal.db").write_bytes(b"no journal")
    clear_up_all()
    assert [VALUE in output.read_text() for output in outputs] == [False, True, False]


def test_a_search_that_ended_by_itself_has_nothing_to_clear_up() -> None:
    output = killed()
    (study_of(output) / DRIVEN_FILE).unlink()
    clear_up_all()
    assert output.read_text() == PRINTED

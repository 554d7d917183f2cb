"""A secret on the script's command line is in nothing that a search writes, sends or says."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from session_fakes import RUN_FACTS, Listed, facts, measurement, spec

from autotune.cli.main import run as command
from autotune.clock import SimulatedClock
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.exit_status import why_nothing
from autotune.driver.loop.planner import Planner
from autotune.driver.loop.session import Session
from autotune.knobs.registry import builtin
from autotune.launch.runner import Runner, TrialResult
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Assignment, Failure, FailureKind
from autotune.model.wire import to_wire
from autotune.report.terminal.event_stream import EventLines
from autotune.report.terminal.live_view import Progress
from autotune.report.text.study_notes import note
from autotune.report.view.summary import apply_command, user_command
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import study_dir

SECRETS = ("p@ss!canary$", "-canary two&", "https://x/#canary three")
ARGS = ("--password", SECRETS[0], "--hf-token", SECRETS[1], f"--db-dsn={SECRETS[2]}", "--lr", "0.1")


class Prints(Runner):
    """Measures the unchanged script; anything else fails, and the script has printed its arguments."""

    def __init__(self, *, baseline: bool = True) -> None:
        self._baseline = baseline

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        config = assignment.segments[0].config
        if config.is_baseline and self._baseline:
            yield TrialResult(trial=assignment.trial, outcome=measurement(), seconds=9.0, facts=RUN_FACTS)
            return
        tail = f"Namespace(password={SECRETS[0]!r}, token={SECRETS[1]!r})\nat {SECRETS[2]}"
        failure = Failure(
            kind=FailureKind.NO_METRIC, message=f"bad: {SECRETS[0]}", evidence={"log_tail": tail}
        )
        yield TrialResult(trial=assignment.trial, outcome=failure, seconds=9.0)

    def stop(self) -> None:
        pass


def searched(runner: Prints) -> tuple[Study, str, Path]:
    """A search with these arguments: its study, what was reported meanwhile, and the journal's folder."""
    given = replace(spec(), study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1B", args=ARGS)
    folder = study_dir(given.study_id)
    message = io.StringIO()
    with Journal.create(folder / "journal.db", ballast_bytes=0) as journal:
        opened = {"spec": given, "wall_s": 0.0, "host": "", "pid": 1, "version": "0"}
        journal.append("opened", "opened/1", to_wire(opened))
        journal.append("inspected", "inspected/1", to_wire({"facts": facts()}))
        session = Session(
            journal=journal,
            study=Study(spec=given, facts=facts()),
            strategy=Listed([Config(), Config({"num_workers": 2}), Config({"num_workers": 3})]),
            planner=Planner(knobs=builtin(), environ={"A": "b"}, memory_limit_bytes=0),
            clock=SimulatedClock(),
            listeners=[Progress(message), EventLines(message)],
        )
        InlineDriver(session, runner).run()
        study = session.close()
        rows = json.dumps([dict(row.payload) for row in journal.pending("mlflow")])
    assert "--lr 0.1" in rows or study.stopped == "no_baseline"
    return study, message.getvalue() + rows, folder


def test_neither_journal_nor_mlflow_nor_screen_holds_a_secret_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, message, folder = searched(Prints())
    assert [t.failure is not None for t in study.trials] == [False, True, True]
    for number in (1, 2):
        failure = study.trials[number].failure
        assert failure is not None
        message += f"{failure.message} {failure.evidence}"
    message += user_command(study) + apply_command(study) + note(study, None)
    assert "canary" not in message
    assert "python train.py --password '<redacted>' --hf-token '<redacted>'" in user_command(study)
    kept = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    assert b"--hf-token" in kept
    assert b"canary" not in kept
    with Journal.read(folder / "journal.db") as journal:
        assert fold(journal.entries()).spec.args[-2:] == ("--lr", "0.1")
    for verb in (["show", "--trials"], ["show", "--md"], ["show", "--json"], ["list"]):
        assert command(verb) == 0
    reported = capsys.readouterr()
    assert "num_workers" in reported.out
    assert "canary" not in reported.out + reported.err


def test_a_baseline_that_fails_and_prints_its_arguments_reports_no_secret() -> None:
    study, message, _folder = searched(Prints(baseline=False))
    error = why_nothing(study)
    assert "Namespace(password=" in error.message
    assert "canary" not in message + error.message + error.hint


@pytest.mark.parametrize(
    "words",
    [["--password", SECRETS[0]], [f"--password={SECRETS[2]}"], [f"DB_PASSWORD={SECRETS[1]}", "train.py"]],
)
def test_a_command_that_cannot_be_read_is_reported_without_its_secrets(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["search", "--budget", "10m", "--json", "--", *words]) == 2
    reported = capsys.readouterr()
    assert "is not a script" in reported.err
    assert "canary" not in reported.out + reported.err


def test_a_dry_run_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    words = ["search", "--script", "train.py", "--budget", "10m", "--driver", "inline", "--dry-run"]
    for more in ([], ["--json"]):
        assert command([*words, *more, "--", *ARGS]) == 0
    reported = capsys.readouterr()
    assert "--lr" in reported.out
    assert "canary" not in reported.out + reported.err

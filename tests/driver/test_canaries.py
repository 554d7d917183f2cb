"""Sixteen kinds of secret go into a search and a verification; none comes out in anything it writes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from inline_search import inline

from autotune.cli.main import run
from autotune.launch.fake import COMPUTE_BOUND
from autotune.launch.runner import TrialResult
from autotune.model.trial import Assignment, Failure, FailureKind
from autotune.report.text.study_notes import note
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import find_study, home

FAST = replace(COMPUTE_BOUND, gains={"precision": {"bf16": 0.5}})

CANARIES = {
    "a variable": "CANARY-variable-01",
    "a short variable": "Cv2%",
    "option=value": "CANARY-joined-03",
    "option and value": "CANARY-two-words-04",
    "a value like an option": "--CANARY-05",
    "a short value": "Cs6!",
    "spaces and quotes": "CANARY 'it is' \"07\"",
    "a setting": "CANARY-hydra-08",
    "password of a URL": "CANARY-url-09",
    "token of a bearer": "CANARY.bearer.10",
    "a header": "Cx11",
    "a path": "CANARY-path-12",
    "a default in the source": "CANARY-default-13",
    "printed settings": "Cp14",
    "a token by its form": "hf_" + "CANARY15" * 4,
    "an assignment": "CANARY-assigned-16",
}
ENVIRON = {
    "MY_API_TOKEN": CANARIES["a variable"],
    "DB_PASSWORD": CANARIES["a short variable"],
    "FOLDER_SECRET": CANARIES["a path"],
}
ARGS = [
    f"--api-key={CANARIES['option=value']}",
    "--hf-token", CANARIES["option and value"],
    "--secret", CANARIES["a value like an option"],
    "--pin-token", CANARIES["a short value"],
    "--password", CANARIES["spaces and quotes"],
    f"+db.password={CANARIES['a setting']}",
    "--source", f"postgres://me:{CANARIES['password of a URL']}@db/x",
    "--lr", "0.1",
]  # fmt: skip
OUTPUT = "\n".join(
    [
        *CANARIES.values(),
        f"Authorization: Bearer {CANARIES['token of a bearer']}",
        f"x-api-key: {CANARIES['a header']}",
        f"Namespace(passphrase='{CANARIES['printed settings']}', lr=0.1)",
        f"AWS_SECRET_ACCESS_KEY={CANARIES['an assignment']}",
        f"Traceback (most recent call last):\nKeyError: {CANARIES['spaces and quotes']!r}",
    ]
)
# Nobody can know these without the name beside them.
BY_NAME = ("token of a bearer", "a header", "printed settings", "an assignment", "a default in the source")
SAID = "\n".join(line for line in OUTPUT.splitlines() if line not in {CANARIES[kind] for kind in BY_NAME})

SCRIPT = f"""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--api-key", default="{CANARIES["a default in the source"]}")
parser.add_argument("--batch-size", type=int, default=32)
"""


def leaks(text: str) -> list[str]:
    return [kind for kind, value in CANARIES.items() if value in text or json.dumps(value)[1:-1] in text]


def written(*folders: Path) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "train.py":
                yield path, path.read_bytes().decode(errors="replace")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / CANARIES["a path"] / "code"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(folder)
    return folder


def printing(ended: TrialResult, assignment: Assignment) -> TrialResult:
    """Runs of bf16 without channels_last work; the others fail and have printed everything that they know."""
    config = assignment.segments[0].config
    if "channels_last" not in config:
        return ended
    failure = Failure(
        kind=FailureKind.CRASH_EXIT,
        message=f"exit code 1: {SAID}",
        evidence={"log_tail": SAID, "traceback": SAID, "dir": str(Path.cwd())},
    )
    return replace(ended, outcome=failure, facts=None)


WORDS = (
    "search", "--script", "train.py", "--budget", "6m", "--driver", "inline",
    "--knob", "precision", "--knob", "channels_last", "--set", "precision=fp32,bf16",
    "--tracking-uri", f"http://me:{CANARIES['option and value']}@mlflow:5000",
)  # fmt: skip


def test_nothing_of_a_whole_search_holds_a_secret(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = inline(monkeypatch, FAST, change=printing)
    assert run([*WORDS, "--jsonl", "--", *ARGS]) == 0
    assert run(["show", "--trials"]) == run(["show", "--json"]) == run(["show", "--md"]) == run(["list"]) == 0
    assert run(["verify", "best.yaml", "--quiet", "--", "python", "train.py", *ARGS]) == 0
    assert run(["show", "--json"]) == run(["clean", "--dry-run", "--json"]) == 0
    reported = capsys.readouterr()
    assert "precision" in reported.out
    assert leaks(reported.out) == []
    assert leaks(reported.err) == []
    # The runs had them all, and what they printed of them came to the journal without.
    assert CANARIES["a short value"] in ran[0].launch.argv
    assert any("channels_last" in a.segments[0].config for a in ran)
    found = dict(written(home(), project))
    assert {path.name for path in found} >= {"journal.db", "best.yaml"}
    assert {str(path): leaks(text) for path, text in found.items() if leaks(text)} == {}
    assert any("Traceback" in text for text in found.values())
    with Journal.read(find_study(None, searches=True) / "journal.db") as journal:
        study = fold(journal.entries())
        rows = json.dumps([dict(row.payload) for row in journal.pending("mlflow")])
    assert "--lr 0.1" in rows
    assert leaks(rows + note(study, None)) == []


def test_what_was_found_is_applied_where_the_secret_of_its_path_is_known(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    inline(monkeypatch, FAST)
    monkeypatch.chdir(tmp_path)
    script = str(project / "train.py")
    words = [w if w != "train.py" else script for w in WORDS]
    assert run([*words, "--quiet", "--out", "best.yaml"]) == 0
    text = (tmp_path / "best.yaml").read_text()
    assert "script: <redacted:FOLDER_SECRET>/code/train.py" in text.replace('"', "").replace("'", "")
    assert run(["apply", "best.yaml", "--print-env"]) == 0
    assert f"{CANARIES['a path']}/code/train.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    "entry",
    [
        f"flag: --password\n    values: [{CANARIES['a variable']}, b]",
        "env: HF_TOKEN\n    values: [a, b]",
        f"flag: --mode\n    values: [plain, {CANARIES['a variable']}]",
    ],
)
def test_secrets_are_no_values_of_a_declared_knob(
    project: Path, entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "space.yaml").write_text(
        "schema: autotune.space/v1\nknobs: {mine: auto}\n"
        f"declare:\n  - name: mine\n    effect: EXACT\n    {entry}\n"
    )
    words = ["search", "--script", "train.py", "--budget", "5m", "--driver", "inline", "--json"]
    assert run([*words, "--space", "space.yaml"]) == 2
    (project / "space.yaml").unlink()
    reported = capsys.readouterr()
    assert "secret" in reported.err
    assert leaks(reported.out + reported.err) == []
    assert {str(p): leaks(t) for p, t in written(home(), project) if leaks(t)} == {}


def test_an_error_of_ours_and_what_is_logged_tell_no_secret(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.cli.main import _Warnings

    handler = _Warnings(logging.WARNING)
    logger = logging.getLogger("autotune")
    logger.addHandler(handler)

    def broken(number: int) -> None:
        logger.warning("about to break: %s", SAID)
        raise RuntimeError(SAID)

    inline(monkeypatch, FAST, before=broken)
    try:
        assert run([*WORDS, "--json", "--", *ARGS]) == 70
    finally:
        logger.removeHandler(handler)
    reported = capsys.readouterr()
    assert "internal error: RuntimeError" in reported.err
    assert "about to break" in reported.err
    assert leaks(reported.out + reported.err) == []
    assert (home() / "errors.log").is_file()
    assert {str(p): leaks(t) for p, t in written(home(), project) if leaks(t)} == {}


def test_a_canary_that_is_not_taken_out_is_found(project: Path) -> None:
    (project / "log.txt").write_text(f"x {CANARIES['a short value']} {CANARIES['spaces and quotes']}")
    (project / "log.json").write_text(json.dumps({"a": CANARIES["spaces and quotes"]}))
    found = [leaks(text) for _path, text in written(project)]
    assert sorted(found) == [["a short value", "spaces and quotes"], ["spaces and quotes"]]


def test_a_short_secret_of_a_variable_needs_no_other_one_on_the_command_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"connecting with {CANARIES['a short variable']} now"

    def fails(ended: TrialResult, assignment: Assignment) -> TrialResult:
        failure = Failure(kind=FailureKind.CRASH_EXIT, message=message, evidence={"log_tail": message})
        return replace(ended, outcome=failure, facts=None)

    inline(monkeypatch, FAST, change=fails)
    assert run([*WORDS, "--quiet"]) == 3
    reported = capsys.readouterr()
    assert "connecting with <redacted> now" in reported.err
    assert leaks(reported.out + reported.err) == []
    assert {str(p): leaks(t) for p, t in written(home()) if leaks(t)} == {}

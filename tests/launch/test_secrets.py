"""What a trial leaves in its folder has no secret in it, and is otherwise as it was."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.launch.direct_run import run_plain
from autotune.launch.result.trial_output import hide_secrets
from autotune.model.measurement import Measurement
from autotune.model.trial import Failure, Launch
from autotune.protocol.plan import HIDDEN_VARIABLE

VARIABLE, OPTION, SHORT = "CANARY-variable", "CANARY-option", "Cs6!"


def launch(**more: Any) -> Launch:
    words = ("--password", OPTION, "--pin-token", SHORT, "--lr", "0.1")
    given: dict[str, Any] = {
        "command": ("python", "train.py", *words),
        "script": "/x/train.py",
        "argv": words,
        "python": "python",
        "cwd": "/x",
        "env": {"MY_API_TOKEN": VARIABLE},
        **more,
    }
    return Launch(**given)


def test_output_events_and_plan_lose_their_secrets(tmp_path: Path) -> None:
    message = f"lr=0.1 {VARIABLE} {OPTION} ({SHORT})\n"
    for name in ("stdout.log", "stderr.log", "stacks.txt", "faults.log", "guard.log"):
        (tmp_path / name).write_text(message)
    verdict = {"why": "spawn", "spawn_error": f"no such file: /x/{VARIABLE}/python", "samples": [[1, 2.5]]}
    (tmp_path / "result.json").write_text(json.dumps(verdict))
    steps = '{"n":"t","e":"Steps","d":[[1,2,3]]}'
    (tmp_path / "events.jsonl").write_text(f'{steps}\n{{"e":"Broke","d":"{message.strip()}"}}\n')
    (tmp_path / "plan.json").write_text(json.dumps({"argv": launch().argv, "seed": 3}))
    hide_secrets(tmp_path, launch().command, launch().env)
    texts = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert [s for s in (VARIABLE, OPTION, SHORT) for text in texts if s in text] == []
    assert (tmp_path / "stdout.log").read_text() == "lr=0.1 <redacted:MY_API_TOKEN> <redacted> (<redacted>)\n"
    assert (tmp_path / "events.jsonl").read_text().startswith(steps)
    reported = json.loads((tmp_path / "result.json").read_text())
    assert reported == {**verdict, "spawn_error": "no such file: /x/<redacted:MY_API_TOKEN>/python"}
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan == {
        "argv": ["--password", "<redacted>", "--pin-token", "<redacted>", "--lr", "0.1"],
        "seed": 3,
    }


def test_what_holds_none_is_not_written_again(tmp_path: Path) -> None:
    noise = bytes(range(256)) * 40
    (tmp_path / "stdout.log").write_bytes(noise)
    before = (tmp_path / "stdout.log").stat().st_mtime_ns
    hide_secrets(tmp_path, launch().command, launch().env)
    assert (tmp_path / "stdout.log").stat().st_mtime_ns == before
    (tmp_path / "stderr.log").write_bytes(noise + OPTION.encode() + b"\xff\r\n")
    hide_secrets(tmp_path, launch().command, launch().env)
    assert (tmp_path / "stderr.log").read_bytes() == noise + b"<redacted>\xff\r\n"


def test_a_link_that_a_script_has_put_there_is_not_followed(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.txt"
    theirs.write_text(OPTION)
    folder = tmp_path / "trial"
    folder.mkdir()
    (folder / "stdout.log").symlink_to(theirs)
    hide_secrets(folder, launch().command, launch().env)
    assert theirs.read_text() == OPTION


def test_the_plan_of_a_running_trial_holds_no_secret_of_its_script(runner: Any, assignment: Any) -> None:
    words = list(launch().argv)
    text = (
        "plan = Path(os.environ['AUTOTUNE_PLAN']).read_text()\n"
        f"assert sys.argv[1:] == {words!r}, sys.argv\n"
        f"assert '--pin-token' in plan and {OPTION!r} not in plan and {SHORT!r} not in plan, plan\n"
        "good()"
    )
    (ended,) = runner().run(assignment(text, argv=launch().argv))
    assert isinstance(ended.outcome, Measurement), ended.outcome


@pytest.mark.parametrize("ranks", [1, 2])
def test_secret_arguments_reach_the_script_without_a_file(tmp_path: Path, ranks: int) -> None:
    """Each of its processes; and nothing that these start has them in its environment."""
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, sys\n"
        "plan = open(os.environ['AUTOTUNE_PLAN']).read()\n"
        "reported = {'argv': sys.argv[1:], 'plan': plan, 'names': sorted(os.environ)}\n"
        "json.dump(reported, open(f\"reported.{os.environ.get('RANK', '0')}\", 'w'))\n"
    )
    env = {"PATH": os.environ["PATH"], "MY_API_TOKEN": VARIABLE}
    started = launch(
        command=(), script=str(script), argv=(*launch().argv, VARIABLE), python=sys.executable,
        cwd=str(tmp_path), env=env, protect=False, measure=False, ranks=ranks,
    )  # fmt: skip
    run_plain(started, tmp_path / "plan")
    for rank in range(ranks):
        reported = json.loads((tmp_path / f"reported.{rank}").read_text())
        assert reported["argv"] == list(started.argv)
        assert [s for s in (VARIABLE, OPTION, SHORT) if s in reported["plan"]] == []
        assert HIDDEN_VARIABLE not in reported["names"]


def test_a_real_trial_that_prints_its_secrets_leaves_none(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    text = "print(sys.argv, os.environ['MY_API_TOKEN'], flush=True)\nraise ValueError(sys.argv[2])"
    started = assignment(text)
    env = {**started.launch.env, "MY_API_TOKEN": VARIABLE}
    more = {"argv": launch().argv, "command": (*started.launch.command, *launch().argv), "env": env}
    (ended,) = runner().run(assignment(text, **more))
    assert isinstance(ended.outcome, Failure)
    assert VARIABLE not in str(ended.outcome.evidence) + ended.outcome.message
    folder = tmp_path / "study" / "trials" / f"t0000-a1-{os.getpid() % 2**24:06x}"
    kept = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert b"--lr" in kept["stdout.log"]
    assert b"ValueError: <redacted>" in kept["stderr.log"]
    leaked = [name for name, data in kept.items() for s in (VARIABLE, OPTION, SHORT) if s.encode() in data]
    assert leaked == []

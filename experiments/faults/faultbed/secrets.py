"""Secrets of many kinds go into a search, one at a time; none comes out in anything it writes or sends."""

import contextlib
import html
import json
import os
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from autotune.clock import SimulatedClock
from autotune.driver import tune
from autotune.launch.fake import COMPUTE_BOUND, FakeRunner
from autotune.launch.runner import TrialResult
from autotune.model.trial import Assignment, Failure, FailureKind
from faultbed.common import Case, Child, Count, until
from faultbed.fake_mlflow import FakeMlflow

NAME = "secrets"
TITLE = "secrets"
MODULES = ("mlflow",)
LIMIT_S = 180.0
SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--api-key", default="{default}")
parser.add_argument("--batch-size", type=int, default=32)
"""
WORLD = replace(COMPUTE_BOUND, gains={"precision": {"bf16": 0.5}})


@dataclass(frozen=True, kw_only=True)
class Plant:
    """Where a canary is put.

    Args:
        value: The canary.
        args: Of the script.
        env: Variables of the search and its trials.
        reported: What a failing trial has printed.
        folder: A folder above the project.
        default: Of an option, in the script's source.
        user: Of the tracker's address.
    """

    value: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    message: str = ""
    folder: str = "place"
    default: str = "none"
    user: str = ""


def _argument(value: str, *args: str) -> Plant:
    """The script prints what it was given, alone, in a traceback and as the list of its arguments."""
    return Plant(value=value, args=args, message=f"{value}\nKeyError: {value!r}\n{list(args)!r}\n")


def _variable(name: str, value: str) -> Plant:
    environ = f"environ({{'HOME': '/home/me', {name!r}: {value!r}}})"
    return Plant(value=value, env={name: value}, message=f"using {value} now\n{environ}\n{name}={value}\n")


def _printed(value: str, text: str) -> Plant:
    return Plant(value=value, message=text.format(value))


QUOTED = "CANARY 'it is' \"07\""
PLANTS = {
    "variable": _variable("MY_API_TOKEN", "CANARY-variable-01"),
    "short variable": _variable("DB_PASSWORD", "Cv2%"),
    "option and value in one": _argument("CANARY-joined-03", "--api-key=CANARY-joined-03"),
    "option and value in two": _argument("CANARY-two-words-04", "--hf-token", "CANARY-two-words-04"),
    "value like an option": _argument("--CANARY-05", "--secret", "--CANARY-05"),
    "short value": _argument("Cs6!", "--pin-token", "Cs6!"),
    "spaces and quotes": _argument(QUOTED, "--password", QUOTED),
    "setting": _argument("CANARY-hydra-08", "+db.password=CANARY-hydra-08"),
    "password of an address": _argument("CANARY-url-09", "--source", "postgres://me:CANARY-url-09@db/x"),
    "password of the tracker": Plant(value="CANARY-tracker-10", user="me:CANARY-tracker-10@"),
    "bearer": _printed("CANARY.bearer.11", "Authorization: Bearer {}\n"),
    "header": _printed("Cx12", "x-api-key: {}\n"),
    "path": Plant(value="CANARY-path-13", env={"FOLDER_SECRET": "CANARY-path-13"}, folder="CANARY-path-13"),
    "default in the source": Plant(value="CANARY-default-14", default="CANARY-default-14"),
    "printed settings": _printed("Cp15", "Namespace(passphrase='{}', lr=0.1)\n"),
    "form of a token": _printed("hf_" + "CANARY16" * 4, "401 for {}\n"),
    "assignment": _printed("CANARY-assigned-17", "AWS_SECRET_ACCESS_KEY={}\n"),
}


def cases() -> list[Case]:
    """Every kind once."""
    return [{"key": kind, "kind": kind} for kind in PLANTS]


def sample() -> list[Case]:
    """The same: it is soon done."""
    return cases()


def run(case: Case, folder: Path, *, patches: tuple[Any, ...] = ()) -> Count:
    """One search by the real command, with a tracker, and everything that is left of it."""
    plant = PLANTS[str(case["kind"])]
    project = folder / plant.folder / "code"
    project.mkdir(parents=True)
    script = project / "train.py"
    script.write_text(SCRIPT.format(default=plant.default))
    server = FakeMlflow(folder / "artifacts", "error 500", after=10**9, delay_s=0.0)
    gate, home, message = folder / "gate", folder / "own", folder / "said.log"
    uri = server.address.replace("http://", f"http://{plant.user}")

    def search() -> dict[str, Any]:
        until(gate.exists, 60.0)
        os.environ.update(plant.env, AUTOTUNE_HOME=str(home))
        os.chdir(project)
        with contextlib.ExitStack() as around:
            for patch in patches:
                around.enter_context(patch)
            return _searched(plant, uri)

    count = Count(injected=1)
    # The search is forked before the server has threads.
    with Child(search, message) as driver:
        server.start()
        gate.touch()
        ended = driver.wait(LIMIT_S)
        found = driver.answer or {}
    server.stop()
    if not ended or set(found.get("codes", [1])) != {0}:
        count.notes.append(f"it ended with {found!r}: {message.read_text()[-300:]}")
        return count
    if not found["reached"]:
        count.notes.append("the secret did not come to the trial")
    if not server.runs:
        count.notes.append("the tracker was told nothing")
    texts = dict(_written(home, project, folder / "artifacts"))
    texts["what was said"] = message.read_text(errors="replace")
    texts["the tracker"] = json.dumps([server.runs, server.experiments], ensure_ascii=False)
    texts.pop(str(script))
    leaks = [place for place, text in texts.items() if is_in(plant.value, text)]
    count.notes += [f"it is in {Path(place).name}" for place in leaks]
    count.facts = {"texts": len(texts), "leaks": len(leaks), "runs": len(server.runs)}
    count.survived = int(not count.notes)
    return count


def is_in(value: str, text: str) -> bool:
    """Whether it can be read there, in clear or in the spelling of JSON, a page, an address or Python."""
    spellings = (
        value,
        json.dumps(value)[1:-1],
        json.dumps(json.dumps(value)[1:-1])[1:-1],
        html.escape(value),
        urllib.parse.quote(value),
        repr(value)[1:-1],
    )
    return any(spelling in text for spelling in spellings)


def _written(*folders: Path) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield str(path), path.read_bytes().decode(errors="replace")


def _searched(plant: Plant, uri: str) -> dict[str, Any]:
    """A search and what shows it, in this process: to be called in a child."""
    from autotune.cli.main import run as command

    clock, ran = SimulatedClock(), list[Assignment]()

    class Printing(FakeRunner):
        """Runs of channels_last fail and have printed what they know."""

        def __init__(self, **_more: object) -> None:
            super().__init__(WORLD, clock)

        def run(self, assignment: Assignment) -> Iterator[TrialResult]:
            ran.append(assignment)
            for ended in super().run(assignment):
                if "channels_last" not in assignment.segments[0].config:
                    yield ended
                    continue
                evidence = {"log_tail": plant.message, "traceback": plant.message, "dir": str(Path.cwd())}
                failure = Failure(
                    kind=FailureKind.CRASH_EXIT, message=f"exit code 1: {plant.message}", evidence=evidence
                )
                yield replace(ended, outcome=failure, facts=None)

    words = [
        *("search", "--script", "train.py", "--budget", "6m", "--driver", "inline"),
        *("--knob", "precision", "--knob", "channels_last", "--set", "precision=fp32,bf16"),
        *("--tracking-uri", uri, "--jsonl", "--", *plant.args),
    ]
    with (
        mock.patch.object(tune, "LocalRunner", Printing),
        mock.patch.object(tune, "SystemClock", return_value=clock),
        mock.patch.object(tune.isolation, "available", return_value="redirect"),
        mock.patch("autotune.cli.outcome.head_start_s", return_value=0.0),
    ):
        codes = [command(words)]
        looks = (("show", "--trials"), ("show", "--json"), ("show", "--md"), ("list",), ("report",))
        codes += [command(list(look)) for look in looks]
    given = repr([(a.launch.argv, a.launch.env, a.launch.script, plant.message) for a in ran])
    elsewhere = plant.user or plant.default != "none"
    return {"codes": codes, "reached": bool(elsewhere) or is_in(plant.value, given)}

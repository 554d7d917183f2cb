"""How a search ends on the command line: the screen or the JSON object, and the exit code."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autotune.cli import BEGAN_S
from autotune.errors import EXIT_NO, EXIT_YES, AutotuneError

if TYPE_CHECKING:
    from collections.abc import Generator

    from autotune.driver.tune import DryRun, SearchEnd

RESULT_SCHEMA = "autotune.result/v1"
PLAN_SCHEMA = "autotune.plan/v1"
INTERPRETER_S = 0.1
"""Start of Python itself up to our first line; measured at 0.03 to 0.1 s."""


def print_json(data: dict[str, Any]) -> None:
    """One strict JSON object on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


@contextmanager
def guarded(*, as_json: bool) -> Generator[None]:
    """Within it an error of ours is also told as a JSON object, where JSON was asked for."""
    try:
        yield
    except AutotuneError as error:
        if as_json:
            told = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
            print_json({"schema": RESULT_SCHEMA, "exit": error.exit_code, "error": told})
        raise


def head_start_s() -> float:
    """Seconds since the command line was entered: a budget counts from the user's Enter."""
    return INTERPRETER_S + time.monotonic() - BEGAN_S


def shown_path(path: str) -> str:
    """A path as the user would type it from here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def searched(end: SearchEnd, *, as_json: bool, exit_zero: bool) -> int:
    """Print the answer of a search and give its exit code."""
    from autotune.report.text import final_screen, stopped_screen

    code = EXIT_YES if exit_zero and end.exit_code == EXIT_NO else end.exit_code
    spec = end.study.spec
    if as_json:
        print_json(result_json(end, code))
    elif end.answer is None:
        sys.stdout.write(stopped_screen(end.study, reason="the search ended before it could answer"))
    else:
        sys.stdout.write(
            final_screen(
                end.study,
                end.answer,
                out=shown_path(spec.out) if spec.out else "",
                links=end.links,
                unsent=end.unsent,
            )
        )
        if code not in (EXIT_YES, EXIT_NO):
            print(f"{'go on':<8}autotune resume {spec.label}")
    return code


def result_json(end: SearchEnd, code: int) -> dict[str, Any]:
    """``autotune.result/v1``: the fields of best.yaml, then links, unsent, exit."""
    fields = _best_fields(end)
    fields.pop("schema", None)
    return {
        "schema": RESULT_SCHEMA,
        **fields,
        "sentence": end.answer.sentence if end.answer else "",
        "caveats": list(end.answer.caveats) if end.answer else [],
        "failures": dict(end.answer.failures) if end.answer else {},
        "refusals": dict(end.study.refusals),
        "links": dict(end.links),
        "unsent": end.unsent,
        "out": end.study.spec.out,
        "study_dir": str(end.study_dir),
        "exit": code,
    }


def _best_fields(end: SearchEnd) -> dict[str, Any]:
    if end.answer is None:
        return {"study": {"id": end.study.spec.study_id, "label": end.study.spec.label}}
    from autotune.cli.opened import changes_of
    from autotune.export.best_config import build_best

    return build_best(end.study, end.answer, changes_of(end.study)).data()


def say_plan(plan: DryRun, *, as_json: bool) -> int:
    """Print what a search would do."""
    spec, space = plan.spec, plan.space
    knobs = {
        name: {"values": list(d.values), "effect": d.effect.name, "how": plan.ways.get(name, "")}
        for name, d in space.dimensions.items()
    }
    if as_json:
        print_json(
            {
                "schema": PLAN_SCHEMA,
                "script": spec.script,
                "args": list(spec.args),
                "budget_s": spec.budget.seconds,
                "driver": spec.driver,
                "knobs": knobs,
                "refused": dict(plan.refusals),
                "configurations_at_most": space.size_bound(),
                "exit": EXIT_YES,
            }
        )
        return EXIT_YES
    sys.stdout.write(_plan_text(spec.label, knobs, dict(plan.refusals), space.size_bound()))
    return EXIT_YES


def _plan_text(label: str, knobs: dict[str, Any], refusals: dict[str, str], size: int) -> str:
    from autotune.report.summary import value_text

    width = max((len(name) for name in [*knobs, *refusals]), default=0)
    lines = [f"study {label}: nothing is run", "", "would be searched, as far as the source tells:"]
    lines += [
        f"  {name:<{width}}  {', '.join(value_text(v) for v in row['values']) or 'values'}"
        f"   {row['effect']}   by {row['how'] or 'a way known after the first run'}"
        for name, row in knobs.items()
    ]
    if refusals:
        lines += ["", "would be left alone:"]
        lines += [f"  {name:<{width}}  {reason}" for name, reason in refusals.items()]
    lines += ["", f"at most {size} configurations; the first run of your script may narrow or widen this"]
    return "\n".join(lines) + "\n"

"""The page docs/zoo.md, made from the committed results of experiments/zoo/run.py."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import KNOBS, ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zoo import Script

RESULTS = ROOT / "experiments" / "zoo" / "results.jsonl"
BAD = ("wrong", "dangerous", "broken", "refused", "reason", "means")
_SIGNS = {"flag": "F", "patch": "P", "environment": "E", "framework": "W", "config": "C", "constant": "S"}
_HEAD = """# Scripts of every kind

Made by `python experiments/zoo/run.py --table`; a test fails where this page is not that of the results
that are committed. The scripts are in [tests/scripts/zoo](../tests/scripts/zoo), and so is `expected.yaml`:
what a user may rightly expect of each, written before any of it was tried.

Every cell is one script with one knob asked for, run to its end. A letter says that the knob was applied and
by what: **F** an option of the script, **P** code or a keyword argument in the running process, **E** the
environment, **W** a framework's own argument, **S** a constant of the source. **-** says that it was refused
with a reason, as expected. That a knob was applied is judged from outside, by torch's own state in the
running process: number formats inside the forward pass, sizes of batches, worker processes, compiled graphs,
steps that took effect, and where the parameters end.

In bold is what is not as expected: **wrong** (said to be applied, and the training shows otherwise),
**dangerous** (applied where only a refusal is right), **broken** (the run failed), **refused** (not to be had
though it should be), **means** (applied by another way), **reason** (refused for another reason). An empty
cell was not run. [Public bug reports](reported_bugs.md) lists reports whose pattern one of these scripts has.
"""


def read_results(path: Path = RESULTS) -> dict[tuple[str, str], dict[str, Any]]:
    """The latest line of every (script, test)."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {(line["script"], line["knob"]): line for line in lines}


def page(scripts: Mapping[str, Script], results: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """The whole page."""
    columns = ("steps", "nothing", "ending", *KNOBS)
    lines = [_HEAD, f"{_summary(results)}\n"]
    lines += ["| script | " + " | ".join(f"`{c}`" for c in columns) + " |"]
    lines += ["|" + " --- |" * (len(columns) + 1)]
    for name in scripts:
        found = [_cell(results.get((name, column))) for column in columns]
        lines.append(f"| {name} | " + " | ".join(found) + " |")
    lines += [
        "",
        "`steps`: steps and samples are those counted by hand. `nothing`: with nothing changed, losses and",
    ]
    lines += [
        "parameters are those of a bare run, bit by bit. `ending`: a script without a measurement says why."
    ]
    lines.append("")
    bad = [r for r in results.values() if r["verdict"] != "ok"]
    if bad:
        lines += ["## What is not as expected", "", "| verdict | script | knob | expected | found |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        bad.sort(key=lambda r: (BAD.index(r["verdict"]), r["knob"], r["script"]))
        lines += [
            f"| {r['verdict']} | {r['script']} | `{r['knob']}` "
            f"| {_text(r['expected'])} | {_text(_found(r))} |"
            for r in bad
        ]
        lines.append("")
    return "\n".join(lines)


def _summary(results: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    counts = Counter(r["verdict"] for r in results.values())
    other = ", ".join(f"{counts[word]} {word}" for word in BAD if counts[word])
    return f"{len(results)} cells: {counts['ok']} as expected{', ' + other if other else ''}."


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return ""
    if result["verdict"] != "ok":
        return f"**{result['verdict']}**"
    if result["outcome"] == "ok":
        return "ok"
    if result["outcome"] != "applied":
        return "-"
    return "".join(_SIGNS.get(word, word) for word in str(result["by"]).split("+"))


def _found(result: Mapping[str, Any]) -> str:
    if result["problems"]:
        return f"applied by {result['by']}, but: {'; '.join(result['problems'])}"
    if result["outcome"] == "applied":
        return f"applied by {result['by']}"
    return f"{result['outcome']}: {result['reason']}"


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")[:300]

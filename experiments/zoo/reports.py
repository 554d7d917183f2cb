"""Public bug reports, each with a script of the zoo that has its pattern: what was done, what is done now.

    python experiments/zoo/reports.py --tree PATH     # runs the cells without a result in that older checkout
    python experiments/zoo/reports.py                 # writes docs/reported_bugs.md; runs nothing

The reports are those of ``reports.yaml``. Results of the older checkout are in ``reports_before.jsonl``,
those of this one in ``results.jsonl`` (see ``run.py``).
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPTS = ROOT / "tests" / "scripts" / "zoo"
REPORTS = HERE / "reports.yaml"
BEFORE = HERE / "reports_before.jsonl"
PAGE = ROOT / "docs" / "reported_bugs.md"
LONGEST = 300
"""Characters of a cell of the table."""
HEAD = """# Public bug reports

Bug reports and questions that people filed with other projects, each with a small script of
[the zoo](zoo.md) that has the reported pattern. The scripts are our own; only the pattern was taken over.
Each script was run to its end with one knob that meets the pattern, at commit 5461503 (*before*) and now.

*Right* is what [expected.yaml](../tests/scripts/zoo/expected.yaml) expects of the knob: *applied*,
*refused* with a reason, or *either*. In bold is what is not right, in the words of [the zoo](zoo.md):
**wrong**, **dangerous**, **broken**, **refused**, **means** or **reason**. *Dangerous* means applied
where only a refusal is right, without a difference that this one run shows. Knobs are applied by a
*flag* (an option of the script), by a *constant* (a number in the source) or by a *patch* (a keyword
argument or code in the running process).

A script is looked at in one whole run before the knob is asked for. A search sees the first steps only, so
it can offer what this table has as refused for something that comes late; `autotune apply` watches for that.

Made by `python experiments/zoo/reports.py`; a test fails where this page is not that of the committed
results.
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, help="checkout of the commit before")
    tree = parser.parse_args().tree
    if tree:
        measure(tree.resolve(), load())
    else:
        write(results(HERE / "results.jsonl"))


def write(now):
    """Write the page; `now` has the results of this checkout."""
    PAGE.write_text(page(load(), results(BEFORE), now), encoding="utf-8")


def load():
    return yaml.safe_load(REPORTS.read_text(encoding="utf-8"))


def results(path):
    """The latest line of every (script, knob)."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.exists() else ())
    return {(line["script"], line["knob"]): line for line in lines}


def page(reports, before, now):
    """The whole page."""
    rows = [row(report, before, now) for report in reports]
    lines = [HEAD, f"{summary(reports, before, now)}\n"]
    lines += ["| report | pattern | script, knob | right | before | now |", "| --- " * 6 + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, ""])


def row(report, before, now):
    cell = (report["script"], report["knob"])
    name = f"{report['repo']}#{report['number']}"
    link = f"[{name}](https://github.com/{report['repo']}/issues/{report['number']})"
    script = f"[{cell[0]}](../tests/scripts/zoo/{cell[0]}), `{cell[1]}`"
    pattern, right = report["pattern"], report["right"]
    return [
        f"{link} {text(report['title'])}",
        text(pattern),
        script,
        right,
        found(before[cell]),
        found(now[cell]),
    ]


def summary(reports, before, now):
    cells = {(report["script"], report["knob"]) for report in reports}
    names = {(report["repo"], report["number"]) for report in reports}
    fine = [sum(side[cell]["verdict"] == "ok" for cell in cells) for side in (before, now)]
    return f"{len(names)} reports, {len(cells)} cells. As expected: {fine[0]} before, {fine[1]} now."


def found(result):
    """What was done with the knob, and in bold what is not right about it."""
    done = f"applied by {result['by']}" if result["outcome"] == "applied" else result["reason"]
    said = "; ".join([done, *result["problems"]])
    return text(said) if result["verdict"] == "ok" else f"**{result['verdict']}**: {text(said)}"


def text(words):
    for sign, escaped in (("|", "\\|"), ("<", "&lt;"), ("[", "\\["), ("__", "\\_\\_"), ("\n", " ")):
        words = words.replace(sign, escaped)
    return words if len(words) <= LONGEST else words[: LONGEST - 3] + "..."


def measure(tree, reports):
    """Run every cell without a result: scripts and expectations of here, product and observer of `tree`."""
    support = tree / "tests" / "support"
    sys.path[:0] = [str(support), str(tree)]
    zoo, fork = importlib.import_module("zoo"), importlib.import_module("zoo_fork")
    zoo.SCRIPTS = SCRIPTS
    scripts, known = zoo.load(), results(BEFORE)
    wanted = defaultdict(dict)
    for report in reports:
        if (report["script"], report["knob"]) not in known:
            wanted[report["script"]][report["knob"]] = None
    fork.preload()
    for name, knobs in wanted.items():
        with tempfile.TemporaryDirectory() as folder:
            world = zoo.World(scripts[name], Path(folder), start=fork.run)
            world.environ["PYTHONPATH"] = os.pathsep.join((str(support), str(tree)))
            world.look()
            with BEFORE.open("a", encoding="utf-8") as file:
                for knob in knobs:
                    file.write(json.dumps(world.cell(knob).as_dict()) + "\n")
        print(name, *knobs, flush=True)


if __name__ == "__main__":
    main()

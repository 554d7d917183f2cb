"""Does `autotune verify` call a script faster than itself, on a real machine, beside a busy neighbour?

    python real.py --neighbour busy --runs 20 --limit 40m   # again and again until all is done
    python real.py --list                                   # what is done and what it says; runs nothing

Each comparison is the whole command in processes of its own: `best.yaml` sets one knob to the value that the
script has already, so that both sides run the same thing, and the exit code 0 is a false win. Workloads take
turns. With `--neighbour busy` one process computes all the time meanwhile; with `bursts` it computes and
sleeps in turns of a few seconds, which is worse: it hits one half of a pair and not the other. Goes on where
it stopped.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from neighbours import NEIGHBOURS, beside
from scipy.stats import beta

from autotune.config_files.duration import duration_s
from autotune.export.best_config import (
    SCHEMA,
    BaselinePart,
    BestConfig,
    ChangePart,
    EnvironmentPart,
    EstimatePart,
    LossPart,
    PickPart,
    StudyPart,
)
from autotune.export.write import save

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
RESULT = HERE / "results" / "real.jsonl"
NAMES = ("vision_digits", "tabular_mlp", "photos_denoise")
"""Scripts whose loaders have no workers, which is what `best.yaml` sets."""
FALSE_WIN, ANSWERS = 0, (0, 1, 7)


def same_as_it_is(script):
    """A file that changes nothing: no workers, as the script has it."""
    rate = EstimatePart(value=1.0, unit="samples/s")
    spelling = "torch.utils.data.DataLoader:num_workers"
    pick = PickPart(
        trial=1,
        effect="EXACT",
        knobs={"num_workers": 0},
        changes=[ChangePart(knob="num_workers", how="keyword", spelling=spelling, value=0)],
        speedup=EstimatePart(value=1.0, low=1.0, high=1.0, n=3, unit="ratio"),
        throughput=rate,
        loss=LossPart(level=0, verdict="pass"),
    )
    return BestConfig(
        schema=SCHEMA,
        study=StudyPart(id="01KAK2M7Q4ZC0V9X3T5R8W6Y1B", script=script.name),
        is_better=True,
        baseline=BaselinePart(throughput=rate),
        picks={"best": pick},
        environment=EnvironmentPart(script_sha256=hashlib.sha256(script.read_bytes()).hexdigest()),
    )


def compare(name, neighbour, pairs):
    """One verification; a line of the file."""
    script = WORKLOADS / f"{name}.py"
    with tempfile.TemporaryDirectory() as folder:
        best = Path(folder) / "best.yaml"
        save(best, same_as_it_is(script))
        words = [
            "verify",
            str(best),
            "--pairs",
            str(pairs),
            "--json",
            "--quiet",
            "--",
            sys.executable,
            str(script),
        ]
        began = time.monotonic()
        with beside(neighbour):
            done = subprocess.run(
                [sys.executable, "-m", "autotune", *words],
                cwd=folder,
                env={**os.environ, "AUTOTUNE_HOME": str(Path(folder) / "home")},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        row = {
            "workload": name,
            "neighbour": neighbour,
            "pairs_at_most": pairs,
            "exit": done.returncode,
            "seconds": round(time.monotonic() - began, 1),
            "load": round(os.getloadavg()[0], 1),
            "date": datetime.date.today().isoformat(),
        }
        if done.returncode not in ANSWERS:
            return {**row, "last_lines": done.stderr.splitlines()[-3:]}
        reported = json.loads(done.stdout)
        return {
            **row,
            "verdict": reported["verdict"],
            "speedup": reported["speedup"],
            "caveats": reported.get("caveats"),
        }


def header():
    return {
        "schema": "autotune.real_claims/v1",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def stored():
    if not RESULT.exists():
        return []
    head, *rows = (json.loads(line) for line in RESULT.read_text().splitlines())
    if head != header():
        raise SystemExit(f"{RESULT.name} was made elsewhere: {head}; move it away to begin another")
    return rows


def show(rows):
    for neighbour in NEIGHBOURS:
        of = [row for row in rows if row["neighbour"] == neighbour]
        answered = [row for row in of if row["exit"] in ANSWERS]
        if not answered:
            continue
        wrong = sum(row["exit"] == FALSE_WIN for row in answered)
        most = beta.ppf(0.95, wrong + 1, len(answered) - wrong) if wrong < len(answered) else 1.0
        slower = sum(row["exit"] == 7 for row in answered)
        covered = sum(
            row["speedup"]["low"] <= 1.0 <= row["speedup"]["high"] for row in answered if row["speedup"]
        )
        print(
            f"{neighbour}: {wrong} false wins of {len(answered)} (at most {100 * most:.1f} %), "
            f"{slower} called slower or worse, 1.00 in the interval of {covered}; "
            f"{len(of) - len(answered)} without an answer"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--neighbour", choices=NEIGHBOURS, default="busy")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--limit", type=duration_s, default=duration_s("40m"))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    rows, began = stored(), time.monotonic()
    while not options.list and time.monotonic() - began < options.limit:
        number = sum(row["neighbour"] == options.neighbour for row in rows)
        if number >= options.runs:
            break
        rows.append(compare(NAMES[number % len(NAMES)], options.neighbour, options.pairs))
        print(json.dumps(rows[-1]), flush=True)
        RESULT.parent.mkdir(exist_ok=True)
        part = RESULT.with_suffix(".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in [header(), *rows]))
        part.replace(RESULT)
    show(rows)


if __name__ == "__main__":
    main()

"""A script without PyTorch, NumPy or anything else: searched and applied by what it says and asks itself."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.mlflow, pytest.mark.slow, pytest.mark.timeout(400)]

TRAIN = """
import argparse, itertools, sys, time
import autotune
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
args = parser.parse_args()
pause_ms, batch = autotune.value("pause_ms", 8), autotune.value("batch", 4)
with open("log.txt", "a") as log:
    log.write("begun\\n")
for step in itertools.islice(itertools.count(1), args.steps):
    time.sleep(pause_ms / 1000)
    autotune.step(samples=batch, loss=1.0 / step)
assert not {"torch", "numpy"} & set(sys.modules)
print("trained with", pause_ms, batch)
"""
SPACE = """
schema: autotune.space/v1
knobs: {precision: auto, threads: auto}
declare:
  - {name: pause_ms, effect: EXACT, values: [2, 4, 8], keyword: "autotune.value:pause_ms"}
  - {name: batch, effect: TRAINING, values: [4, 8], keyword: "autotune.value:batch"}
  - {name: misspelt, effect: EXACT, values: [1, 2], keyword: "autotune.value:misspelt"}
"""


def test_a_script_that_says_its_steps_is_searched_and_applied(place: Any) -> None:
    (place.folder / "train.py").write_text(TRAIN)
    (place.folder / "mine.yaml").write_text(SPACE)
    words = ("--space", "./mine.yaml", "--driver", "inline", "--budget", "4m", "--trials", "10", "--json")
    ended = place.run("search", *words, "--", sys.executable, "train.py")
    assert ended.exit == 0, ended
    assert ended.best["picks"]["best"]["knobs"]["pause_ms"] == 2
    assert ended.best["baseline"]["knobs"]["pause_ms"] == 8
    assert ended.report["picks"]["best"]["speedup"]["value"] > 1.5
    assert ended.report["picks"]["best"]["throughput"]["unit"] == "samples/s"
    refusals = ended.report["refusals"]
    assert "does not use PyTorch" in refusals["precision"]
    assert "does not use PyTorch" in refusals["threads"]
    assert 'did not call autotune.value("misspelt"' in refusals["misspelt"]
    assert "--allow batch" in refusals["batch"]
    requested = [json.dumps(e.data["trial"]["config"]) for e in place.journal() if e.kind == "proposed"]
    assert any('"pause_ms": 4' in config for config in requested), requested
    assert not any('"pause_ms": 8' in config for config in requested), "its own value is the baseline"
    assert not (place.folder / "log.txt").exists(), "what a trial writes is kept away"
    applied = place.run("apply", "best.yaml", "--", sys.executable, "train.py", "--steps", "20")
    assert (applied.exit, applied.out) == (0, "trained with 2 4\n"), applied
    assert (place.folder / "log.txt").read_text() == "begun\n"


def test_a_script_without_reports_gets_the_name_of_the_call(place: Any) -> None:
    (place.folder / "train.py").write_text("print('trained')\n")
    ended = place.run("search", "--driver", "inline", "--budget", "1m", "--json", "--script", "train.py")
    assert ended.exit not in (0, 1), ended
    assert "autotune.step()" in json.loads(ended.out)["error"]["message"]

"""A search of the number of processes, from outside: the real command on a real script over gloo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from autotune.errors import EXIT_INCONCLUSIVE, EXIT_NO, EXIT_YES
from tests.e2e.test_scale import run
from tests.launch.test_ranks import TRAIN

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(500)]


def test_another_number_of_processes_is_measured_at_the_same_effective_batch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("search", "--driver", "inline", "--knob", "processes", "--budget", "150s", "--share", "--quiet")
    done = run(tmp_path, *words, "--", "torchrun", "--nproc-per-node", "2", "train.py", "--batch-size", "16")
    assert done.returncode in (EXIT_YES, EXIT_NO, EXIT_INCONCLUSIVE), done.stderr
    trials = json.loads(run(tmp_path, "show", "--json").stdout)["trials"]
    measured = [t for t in trials if (t.get("outcome") or {}).get("effective_batch")]
    found = {t["config"].get("processes", 2): t["outcome"] for t in measured}
    assert set(found) >= {1, 2}
    assert {outcome["effective_batch"] for outcome in found.values()} == {32.0}
    assert [len(found[count]["ranks"]) for count in (1, 2)] == [0, 2]
    batches = {t["config"].get("batch_size") for t in measured if t["config"].get("processes") == 1}
    assert batches == {32}

"""The simulations behind the confirmation interval: what is drawn, what is counted, what is reported."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import claim_noise
import pytest
import simulated_confirmations as simulated

from autotune.model.trial import Stage

FOLDER = Path(__file__).parents[2] / "experiments" / "confirmation_noise"
SERIES = claim_noise.recorded()[0]


def script() -> Any:
    """`run.py` of the experiment, under a name of its own."""
    spec = importlib.util.spec_from_file_location("confirmation_noise_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def confirmation(name: str, seed: int = 1, **more: Any) -> simulated.Confirmation:
    given = {"gain": 0.0, "last": 5, **more}
    return simulated.Confirmation(simulated.SETTINGS[name], random.Random(seed), SERIES, **given)


def test_a_search_ends_with_a_claim_at_an_interim_analysis_or_with_its_budget() -> None:
    sure = confirmation("normal 5 %", gain=math.log(3.0), last=8)
    assert any(sure.claims(c) for c in sure.ended())
    assert max(t.group for t in sure.study.trials) == 3
    nothing = confirmation("normal 5 %", last=4)
    nothing.ended()
    assert max(t.group for t in nothing.study.trials) == 4
    assert len(nothing.members) == simulated.FINALISTS


@pytest.mark.parametrize(("name", "first"), [("10x after screening", 1), ("10x in mid-confirmation", 2)])
def test_the_scatter_grows_when_the_setting_says_so(name: str, first: int) -> None:
    logs: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(40):
        one = confirmation(f"normal 5 %, {name}", seed, last=2)
        one.ended()
        for trial in one.study.trials:
            assert trial.measurement is not None
            is_late = trial.stage is Stage.CONFIRM and trial.group >= first
            logs[is_late].append(math.log(trial.measurement.throughput.value))
    assert 7.0 < statistics.stdev(logs[True]) / statistics.stdev(logs[False]) < 13.0


def test_verification_screens_nothing_and_needs_three_pairs() -> None:
    two = confirmation("normal 5 %", gain=math.log(3.0), last=2, verifies=True)
    assert {t.stage for t in two.study.trials} == {Stage.BASELINE}
    assert not any(two.claims(c) for c in two.ended())
    three = confirmation("normal 5 %", gain=math.log(3.0), last=3, verifies=True)
    assert any(three.claims(c) for c in three.ended())


def test_intervals_of_95_percent_are_narrower_and_leave_the_levels_as_they_are() -> None:
    one = confirmation("normal 5 %", last=2)
    claimed = one.ended()
    for wide, plain in zip(claimed, one.plain(), strict=True):
        assert (plain.speedup.confidence, plain.speedup.value) == (0.95, wide.speedup.value)
        assert plain.speedup.relative_width < wide.speedup.relative_width
    assert one.ended()[0].speedup.confidence > 0.95


def test_a_case_that_is_done_is_not_done_again_and_the_report_has_both_sides(tmp_path: Path) -> None:
    run = script()
    wanted = {
        k: v
        for k, v in run.cases(simulated.SETTINGS, 20).items()
        if "2x" in k or k.endswith("search / recorded")
    }
    path = tmp_path / "after.json"
    done = run.carry_out(path, wanted)
    assert {case: got["n"] for case, got in done.items()} == {case: what[-1] for case, what in wanted.items()}
    changed = json.loads(path.read_text())
    case = next(iter(changed))
    changed[case]["claims"] = 7
    path.write_text(json.dumps(changed))
    assert run.carry_out(path, wanted)[case]["claims"] == 7
    text = run.report({case: changed[case]}, done)
    assert f"| 7 of {changed[case]['n']} |" in text
    assert "2x / search / normal 5 %, 2 pairs" in text

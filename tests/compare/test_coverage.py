"""Which knob families a search has a result of."""

from __future__ import annotations

from dataclasses import replace

from study_fakes import BASE, measured, spec, study

from autotune.answer.answer import SearchOutcome
from autotune.answer.pick import answer
from autotune.compare.coverage import measured as covered
from autotune.model.config import Config
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Stage
from autotune.report.text.terminal_text import progress_line

TOGETHER = Config({"precision": "bf16", "compile_mode": "default"})
SPACE = SearchSpace(
    dimensions={
        "precision": Dimension(knob="precision", values=("fp32", "bf16"), own="fp32", family="precision"),
        "compile_mode": Dimension(
            knob="compile_mode", values=("off", "default"), own="off", family="compile"
        ),
    }
)


def searched(run_steps: int | None) -> Study:
    """A script, and beside it steps 1.57 times as fast whose compile took a minute."""
    both = measured(1, TOGETHER, 157.0, Stage.INITIAL)
    compiled = replace(both, outcome=replace(both.outcome, compile_s=60.0, cold_compile=True))
    trials = (measured(0, BASE, 100.0, Stage.BASELINE), compiled)
    return replace(study(spec=spec(run_steps=run_steps), trials=trials), space=SPACE, stopped="budget")


def test_a_compile_that_is_not_paid_back_says_nothing_about_the_changes_beside_it() -> None:
    assert covered(searched(200)) == {"compile"}
    assert covered(searched(20_000)) == {"precision", "compile"}
    assert covered(searched(None)) == {"precision", "compile"}


def test_such_a_search_is_inconclusive_and_names_the_reading() -> None:
    found = answer(searched(200))
    assert found.outcome is SearchOutcome.INCONCLUSIVE
    assert any("Not measured yet: precision" in text for text in found.unsettled)
    (named,) = (c for c in found.caveats if "ran 1.57 times as fast" in c)
    assert "its compile of 60 s pays back after" in named
    assert "your run is about 64 s" in named
    assert "--run-steps" not in named, "its length was given"


def test_the_progress_does_not_call_it_the_best() -> None:
    short, long = searched(200), searched(20_000)
    line = progress_line(short, short.trials[1])
    assert "your run does not pay back its compile" in line
    assert "best" not in line
    assert "best 1.57x" in progress_line(long, long.trials[1])

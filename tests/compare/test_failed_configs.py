"""What failed once in the runs that a claim rests on is no answer, however fast it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import dimension, loss_trace, measurement, spec, tell

from autotune.answer.pick import answer
from autotune.compare.failed_configs import CUT_SHORT, broken
from autotune.compare.finalists import finalists
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Outcome, Proposal, Stage

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
BASE, BF16, WORKERS = Config(), Config({"precision": "bf16"}), Config({"workers": 2})
SPACE = SearchSpace(
    dimensions={
        "workers": dimension("workers", (0, 2), 0),
        "precision": dimension("precision", ("fp32", "bf16"), "fp32", effect=Effect.NUMERIC),
    }
)
RATES = {BASE: 100.0, BF16: 150.0, WORKERS: 120.0}
TEACHING = [kind for kind in FailureKind if kind.teaches]
OTHERS = [kind for kind in FailureKind if not kind.teaches]
CRASH = Failure(kind=FailureKind.CRASH_EXIT, message="exit code 1")


def add(
    study: Study,
    stage: Stage,
    config: Config,
    outcome: Outcome | None = None,
    *,
    group: int = 0,
    **more: float,
) -> Study:
    """The study with one more run; measured at its rate where nothing else is given."""
    proposal = Proposal(
        stage=stage,
        config=config,
        fidelity=replace(FIDELITY, **more),
        reason="x",
        seed=group + 1,
        group=group,
    )
    trace = loss_trace(seed=group + 1, jitter_seed=len(study.trials))
    wobble = 1.0 + 0.01 * ((group * 3 + len(config)) % 4)
    return tell(study, proposal, outcome or measurement(RATES[config] * wobble, loss=trace), 7.0)


def confirmed(cycles: int = 3) -> Study:
    """Both configs have won their pairs."""
    study = Study(spec=spec(seconds=900.0), space=SPACE)
    for config in (BASE, BASE, BF16, WORKERS):
        study = add(study, Stage.BASELINE if config.is_baseline else Stage.REFINE, config)
    for group in range(1, cycles + 1):
        for config in (BASE, BF16, WORKERS):
            study = add(study, Stage.CONFIRM, config, group=group)
    assert answer(study).best.config == BF16
    return study


def failed(kind: FailureKind, stage: Stage = Stage.CONFIRM, **more: float) -> Study:
    return add(confirmed(), stage, BF16, Failure(kind=kind, message="it ended"), group=4, **more)


@pytest.mark.parametrize("stage", [Stage.CONFIRM, Stage.ABLATE])
@pytest.mark.parametrize("kind", TEACHING, ids=lambda kind: kind.label)
def test_three_pairs_that_were_won_do_not_outweigh_a_fourth_run_that_failed(
    kind: FailureKind, stage: Stage
) -> None:
    study = failed(kind, stage)
    found = answer(study)
    assert found.best.config == WORKERS
    assert found.safe.config == WORKERS
    assert BF16 not in finalists(study)


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.label)
def test_a_run_that_was_lost_says_nothing_of_its_config(kind: FailureKind) -> None:
    assert broken(failed(kind)) == {}
    assert answer(failed(kind)).best.config == BF16


def test_the_answer_says_which_run_failed_and_how() -> None:
    message = answer(failed(FailureKind.OOM_CUDA)).caveats
    why = "but trial 13, one of its 4 runs in pairs, failed (out of GPU memory)."
    assert any(why in text for text in message)
    alone = replace(confirmed(), trials=tuple(t for t in confirmed().trials if t.config != WORKERS))
    gone = answer(add(alone, Stage.CONFIRM, BF16, CRASH, group=4))
    assert not gone.is_better
    assert gone.sentence.endswith("runs in pairs, failed (exited with an error).")


def test_a_loss_that_became_no_number_counts_in_any_run() -> None:
    diverged = Failure(kind=FailureKind.DIVERGED, message="the loss became nan")
    study = add(confirmed(), Stage.REFINE, BF16, diverged)
    found = answer(study)
    assert found.best.config == WORKERS
    assert any("its loss became nan in trial 13" in text for text in found.caveats)
    # A single run that ran out of memory says how it is tuned, and pairs may still show that it runs.
    single = add(confirmed(), Stage.REFINE, BF16, replace(diverged, kind=FailureKind.OOM_CUDA))
    assert answer(single).best.config == BF16


@pytest.mark.parametrize("kind", [FailureKind.TIMEOUT_TOTAL, FailureKind.TIMEOUT_PROGRESS])
def test_a_run_that_the_end_of_the_budget_cut_short_did_not_hang(kind: FailureKind) -> None:
    cut = failed(kind, deadline_s=CUT_SHORT * 7.0 - 1.0)
    assert answer(cut).best.config == BF16
    assert answer(failed(kind, deadline_s=CUT_SHORT * 7.0)).best.config == WORKERS


def test_too_few_pairs_of_what_failed_are_reported_with_the_failure() -> None:
    study = add(confirmed(), Stage.CONFIRM, BF16, CRASH, group=2)
    kept = tuple(t for t in study.trials if t.group < 2 or t.failure)
    message = answer(replace(study, trials=kept)).caveats
    assert any("in 1 of 2 pairs only: trial 13, one of its 2 runs" in text for text in message)


def test_a_crash_that_did_not_come_again_is_what_its_repeat_measured() -> None:
    study = confirmed()
    again = replace(study.trials[-2], attempt=2)
    assert again.config == BF16
    assert broken(study.with_trial(again)) == {}

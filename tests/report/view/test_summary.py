"""What is reported about a study: claims only what the answer holds, and is short where it has to be."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.answer.contributions import contributions
from autotune.model.config import Config, config_text
from autotune.model.measurement import Estimate
from autotune.model.trial import Failure, FailureKind, Stage
from autotune.report.text import study_notes
from autotune.report.view import contribution_text, summary

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
import made_studies as made

CRASH = Failure(kind=FailureKind.CRASH_EXIT, message="exit 1", evidence={"log_tail": "a\nKeyError: <x>\n\n"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1505.4, "1505"),
        (12.3456, "12.35"),
        (0.00211234, "0.002112"),
        (123456.0, "123456"),
        (0.0, "0"),
        (-2.0, "-2"),
        (999.99, "1000"),
    ],
)
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert summary.number_text(value) == text


def test_rounding_leaves_what_is_not_finite() -> None:
    assert summary.significant(0.00294224) == 0.002942
    assert math.isinf(summary.significant(float("inf")))
    assert summary.number_text(float("nan")) == "unknown"


def test_a_ratio_from_one_run_has_no_interval() -> None:
    once = Estimate(value=2.0, low=-math.inf, high=math.inf, n=1, unit="ratio")
    assert summary.ratio_text(once) == "2.00x"
    assert summary.ratio_text(replace(once, low=1.9, high=2.1)) == "2.00x [1.90, 2.10]"


def test_a_config_is_named_shortly_and_in_words() -> None:
    config = Config(
        {"num_workers": 8, "compile_mode": "default", "batch_size": 256, "precision": "bf16", "tf32": True}
    )
    assert config_text(config) == "precision=bf16 batch_size=256 num_workers=8 compile_mode=default tf32=on"
    assert config_text({}) == "baseline"


def test_a_gain_is_named_with_its_config_and_count() -> None:
    study, answer = made.study(), made.found()
    assert summary.run_name(study, answer) == "2.41x [2.34, 2.48] · precision=bf16 num_workers=2 · 7 trials"
    assert summary.headline(study, answer) == "2.41x faster: precision=bf16 num_workers=2 (safe pick 1.30x)"
    headline = summary.headline(study, answer, interval=True)
    assert headline.startswith("2.41x faster [2.34, 2.48]: precision=bf16")
    note = study_notes.note(study, answer).splitlines()
    assert note[0] == "## 2.41x faster [2.34, 2.48]: precision=bf16 num_workers=2 (safe 1.30x)"
    apply, _, why = note[1].partition(" **Why:** ")
    assert apply == "**Apply:** `autotune apply best.yaml -- python train.py --epochs 1`"
    parts = "precision about +85 % (+71 to +101), num_workers about +29 % (+20 to +38)"
    assert why == f"{parts}, estimated from single runs"
    text = "\n".join(note)
    assert "| precision | fp32 | **bf16** | fp32 | about +85 % |" in text
    assert "| num_workers | 0 | **2** | **2** | about +29 % |" in text
    for part in (
        "--pick safe",
        "1 oom_host",
        "4 pairs",
        "Not inferior by 0.004",
        "Only one machine was used",
        "3.0 GiB",
    ):
        assert part in text
    assert "your script against itself: 1.01x [0.98, 1.03]" in text


def test_the_why_of_a_note_is_never_the_claim_again() -> None:
    ratio = "It trains 2.41 [2.34, 2.48] times as fast, in 4 pairs of fresh runs."
    best = replace(made.found().best, config=Config({"threads": 1}), reasons=(ratio,))
    answer = replace(made.found(), best=best)
    assert "Why" not in study_notes.note(made.study(), answer).splitlines()[1]
    held_back = ["your script is bound by input: it waits for data (71 % of a step)."]
    assert study_notes.note(made.study(), answer, held_back=held_back).splitlines()[1].endswith(held_back[0])
    assert ratio not in study_notes.note(made.study(), answer)


def test_knobs_that_were_never_apart_have_one_contribution() -> None:
    pair = Config({"num_workers": 2, "threads": 1})
    outcomes = (
        *made.OUTCOMES[:2],
        (Stage.INITIAL, pair, made.measured(160.0)),
        (Stage.INITIAL, Config({**pair, "precision": "bf16"}), made.measured(215.0)),
    )
    study, config = made.study(outcomes=outcomes), Config({**pair, "precision": "bf16"})
    best = replace(made.found().best, config=config)
    found = contributions(study, best)
    assert [part.knobs for part in found.parts] == [("num_workers", "threads"), ("precision",)]
    assert {part.source for part in found.parts} == {"estimated"}
    assert found.not_separated == ()
    together, precision = (part.ratio for part in found.parts)
    assert together.value == pytest.approx(160 / 101, rel=0.02)
    assert precision.value == pytest.approx(215 / 160, rel=0.02)
    assert 1.0 < together.low < together.value
    assert contribution_text.knob_text(found, "threads") == "about +58 % with num_workers"
    assert contribution_text.knob_text(found, "malloc") == ""
    parts = "num_workers with threads about +58 % (+48 to +70), precision about +34 % (+24 to +46)"
    assert contribution_text.gains_text(study, best) == f"{parts}, estimated from single runs"


def test_a_pick_that_leaves_training_unchanged_says_so() -> None:
    answer = replace(made.found(), best=made.found().safe)
    assert summary.headline(made.study(), answer) == "1.30x faster, training unchanged: num_workers=2"


def test_a_safe_pick_that_is_the_script_itself_is_not_sold_as_a_gain() -> None:
    answer = replace(made.found(), safe=made.no_gain().safe)
    assert "no safe pick is faster" in summary.headline(made.study(), answer)
    assert "nothing that leaves the training unchanged" in study_notes.note(made.study(), answer)


def test_no_gain_is_reported_everywhere_and_nothing_to_apply_is_offered() -> None:
    study, answer = made.study(), made.no_gain()
    assert summary.run_name(study, answer) == "no gain · train · 7 trials"
    assert summary.headline(study, answer).startswith("No gain: none of 3 other configurations")
    assert summary.picks_of(answer) == {}
    for text in (study_notes.note(study, answer), study_notes.experiment_note(study, answer)):
        assert "x faster" not in text
        assert "apply" not in text.lower()
    assert "Keep your script unchanged" in study_notes.note(study, answer)


def test_an_inconclusive_search_says_everywhere_what_is_likely_and_how_to_continue() -> None:
    study, answer = made.study(), made.inconclusive()
    assert summary.status(study, answer) == "inconclusive"
    assert summary.run_name(study, answer) == (
        "inconclusive · likely 2.18x precision=bf16 num_workers=2 · train · 7 trials"
    )
    assert summary.headline(study, answer) == (
        "Inconclusive: precision=bf16 num_workers=2 reads 2.18x in 2 runs, not confirmed"
    )
    assert summary.picks_of(answer) == {3: ["likely"]}
    note = study_notes.note(study, answer)
    assert "**Not decided.** precision=bf16 reads 2.18x" in note
    assert "**Continue:** `autotune resume train-1121-1002 --budget 8m`" in note
    assert "--pick likely" in note
    assert "Continue: `autotune resume" in study_notes.experiment_note(study, answer)
    for text in (note, study_notes.experiment_note(study, answer)):
        assert "Keep your script" not in text
        assert "No gain" not in text
        assert "106.61" not in text


def test_an_inconclusive_search_without_a_candidate_counts_what_was_tried() -> None:
    answer = replace(made.inconclusive(), likely=None)
    reported = "Inconclusive: 3 other configurations of train.py tried, none is confirmed to be faster"
    assert summary.headline(made.study(), answer) == reported
    nothing = made.study(outcomes=made.OUTCOMES[:2])
    reported = "Inconclusive: no configuration of train.py but its own was tried"
    assert summary.headline(nothing, answer) == reported


def test_a_budget_that_ended_the_first_run_is_no_failure_of_the_script() -> None:
    short = Failure(kind=FailureKind.TIMEOUT_TOTAL, message="not done after 10 s", evidence={"steps": 0})
    study = made.study(outcomes=((Stage.BASELINE, Config(), short),), stopped="no_baseline")
    assert summary.run_name(study, None) == "budget too short · train"
    assert summary.headline(study, None) == (
        "The budget ended before train.py was measured once: one run takes more than 10 s; --budget 2m"
    )


def test_while_searching_a_single_run_is_called_unconfirmed() -> None:
    study = made.study(stopped="")
    assert summary.run_name(study, None) == "searching... best 2.4x · train"
    assert "not confirmed" in summary.headline(study, None)
    assert (
        summary.run_name(made.study(stopped="", outcomes=made.OUTCOMES[:2]), None) == "searching... · train"
    )
    assert "faster [" not in study_notes.note(study, made.found()), "an answer before the end is no answer"


def test_a_script_that_fails_by_itself_shows_its_last_line() -> None:
    study = made.study(outcomes=((Stage.BASELINE, Config(), CRASH),), stopped="no_baseline")
    assert summary.run_name(study, None) == "baseline failed · train"
    assert summary.headline(study, None) == "train.py fails unmodified: KeyError: &lt;x>"
    assert "```\na\nKeyError: <x>\n```" in study_notes.note(study, None)


def test_a_log_cannot_close_its_fence() -> None:
    evil = replace(CRASH, evidence={"log_tail": "```\n# 9.99x faster"})
    study = made.study(outcomes=((Stage.BASELINE, Config(), evil),), stopped="no_baseline")
    assert "````\n```\n# 9.99x faster\n````" in study_notes.note(study, None)


def test_a_search_stopped_early_says_so() -> None:
    study = made.study(stopped="interrupted")
    assert summary.headline(study, made.found()).endswith("(stopped early)")
    assert summary.run_name(study, made.found()).endswith("stopped early")
    bare = made.study(stopped="signal", outcomes=())
    assert summary.run_name(bare, None) == "stopped before the baseline · train"
    assert "autotune resume train-1121-1002" in study_notes.note(bare, None)


def test_trials_are_named_by_what_they_change() -> None:
    trials = made.study().trials
    assert summary.trial_name(trials[3], picks=["best"]) == "BEST t03 precision=bf16 num_workers=2"
    assert (
        summary.trial_name(trials[0], knobs=made.RUN.values)
        == "baseline t00 precision=fp32 batch_size=64 num_workers=0"
    )
    assert [summary.status_word(t) for t in trials] == ["ok", "ok", "ok", "ok", "oom", "ok", "ok"]
    assert summary.failed_count(made.study()) == 1


def test_a_confirmation_run_is_compared_with_its_own_partner() -> None:
    study = made.study()
    assert summary.speedup_of(study, study.trials[6]) == Estimate(
        value=2.4, low=pytest.approx(2.352), high=pytest.approx(2.448), n=8, unit="ratio"
    )
    first = summary.speedup_of(study, study.trials[0])
    assert first is not None
    assert first.value == pytest.approx(1.0), "later baselines do not change what was message"
    assert summary.speedup_of(study, study.trials[4]) is None


def test_paths_with_spaces_are_quoted() -> None:
    study = made.study(script="/w/my train.py", out="/w/out dir/best.yaml", args=("--name", "a b"))
    assert summary.apply_command(study, "safe") == (
        "autotune apply 'out dir/best.yaml' --pick safe -- python 'my train.py' --name 'a b'"
    )
    elsewhere = made.study(script="/other/train.py")
    assert summary.user_command(elsewhere) == "python /other/train.py --epochs 1"


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"launcher": "torchrun"}, "torchrun"),
        ({"launcher": "accelerate"}, "accelerate launch --num_processes 1"),
        (
            {"launcher": "torchrun", "python": "/other/bin/python"},
            "/other/bin/python -m torch.distributed.run",
        ),
    ],
)
def test_a_launcher_is_a_part_of_the_users_command(fields: dict[str, str], start: str) -> None:
    study = made.study(script="/w/train.py", **fields)
    assert summary.user_command(study) == f"{start} train.py --epochs 1"

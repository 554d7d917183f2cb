"""The report on bottlenecks, energy, cost and pay-back, and its absence where nothing is known."""

from __future__ import annotations

from dataclasses import replace

from study_fakes import BASE, BEST, good_answer, measured, no_answer, spec, study

from autotune.answer.bottleneck import PREFIX
from autotune.model.trial import Stage
from autotune.report.text.answer_screen import answer_screen
from autotune.report.view.bottleneck_text import (
    energy_rows,
    pays_back_text,
    why_data,
    why_figures,
    why_lines,
    why_tags,
)


def probed(number, config, *, wait, **figures):
    made = measured(number, config, 100.0, Stage.DIAGNOSE)
    extra = {PREFIX + name: value for name, value in figures.items()}
    outcome = replace(made.outcome, data_wait_frac=wait, extra=extra)
    return replace(made, fidelity=replace(made.fidelity, probe="why"), outcome=outcome)


def explained(**fields):
    made = study(**fields)
    return replace(
        made,
        trials=(
            *made.trials,
            probed(6, BASE, wait=0.6, replay_step_s=0.12, phase_forward_s=0.1, phase_host_s=0.02),
            probed(
                7, BEST, wait=0.0, phase_forward_s=0.3, phase_host_s=0.02, work_compute_s=0.2,
                work_memory_s=0.01, flops=1e9, peak_flops_per_s=1e10,
            ),
        ),
    )  # fmt: skip


def test_script_and_winner_are_reported_in_a_line_each() -> None:
    own, won = why_lines(explained(), good_answer())
    assert own.startswith("your script is bound by input: it waits for data (61 % of a step).")
    assert "120 ms in place of 320 ms" in own
    assert won.startswith("with this config it is bound by compute: arithmetic (89 % of a step).")
    assert "31 % of what a matrix product does here" in won


def test_the_screen_shows_them_with_the_reasons() -> None:
    screen = answer_screen(explained(), good_answer())
    assert "            your script is bound by input" in screen
    places = [screen.index(text) for text in ("loss    ", "estimated from single runs", "bound by input")]
    assert places == sorted(places)
    nothing = answer_screen(explained(), no_answer())
    assert "  why       your script is bound by input" in nothing
    assert "with this config" not in nothing
    # What is waited for is reported once.
    assert "waits for data" in screen
    assert "your script waits for data" not in screen


def test_a_winner_of_which_nothing_is_clear_is_reported_so_in_a_whole_sentence() -> None:
    reported = why_lines(study(spec=spec(why=True)), good_answer())
    assert reported[0].startswith("your script waits for data ")
    assert reported[1].startswith("with this config it waits for data ")
    # Why no more is known is reported once.
    assert "not probed" not in reported[0]
    assert reported[1].endswith("the budget was too short for it.")


def test_a_study_that_asks_no_why_says_nothing_about_it() -> None:
    assert why_lines(study(), good_answer()) == []
    reported = why_lines(study(spec=spec(why=True)), no_answer())
    assert len(reported) == 1
    assert "not clear" in reported[0]
    assert "the budget was too short" in reported[0]


def test_when_a_compile_pays_is_reported_in_time_and_beside_the_run() -> None:
    pick = replace(good_answer().best, compile_s=95.0, break_even_steps=1200)
    assert pays_back_text(pick) == "95 s once; paid back after 1200 steps"
    timed = replace(pick, pays_back_s=720.0)
    assert pays_back_text(timed) == "95 s once; pays back after 12 min (1200 steps)"
    assert pays_back_text(replace(timed, run_s=3700.0)).endswith("; your run is about 1 h 2 min")
    # A compile that takes a good part of the run: the pairs, which paid a full cache's, do not show that.
    whole = replace(timed, run_s=3700.0, over_run=0.9 * timed.speedup.value)
    assert pays_back_text(whole).endswith(
        f" 1 h 2 min, {0.9 * timed.speedup.value:.2f}x as fast with it included"
    )
    assert pays_back_text(replace(whole, over_run=timed.speedup.value)).endswith(" 1 h 2 min")
    assert pays_back_text(good_answer().best) == ""


def test_energy_that_nobody_counted_is_not_available_and_never_zero() -> None:
    assert energy_rows(study(), good_answer()) == []
    assert energy_rows(study(), good_answer(), always=True) == [
        ("energy", "not available: no energy counter could be read")
    ]
    assert why_data(study(), good_answer())["energy"] == {
        "baseline": "not available",
        "best": "not available",
    }
    assert why_tags(study(), good_answer())["autotune.energy"] == "not available"
    assert why_figures(study(), good_answer())["joules_per_sample"] is None


def test_energy_and_cost_are_rows_where_they_are_known() -> None:
    made = study(spec=spec(price_per_hour=3.6))
    counted = [
        replace(t, outcome=replace(t.outcome, window_s=5.0, steps=10, extra={"energy_gpu_j": joules}))
        for t, joules in ((made.trials[0], 640.0), (made.trials[3], 320.0))
    ]
    rows = dict(energy_rows(replace(made, trials=tuple(counted)), good_answer()))
    assert (
        rows["energy"]
        == "1 J per sample, 2 J per sample for your unchanged script (of the GPU, including other processes)"
    )
    assert rows["cost"] == "5 per million samples, 10 for your unchanged script (at 3.6 an hour)"
    figures = why_figures(made, good_answer())
    assert (figures["cost_per_million"], figures["baseline_cost_per_million"]) == (5.0, 10.0)


def test_plain_data_holds_both_verdicts() -> None:
    reported = why_data(explained(), good_answer())["bottleneck"]
    assert (reported["baseline"]["kind"], reported["best"]["kind"]) == ("input", "compute")
    assert reported["best"]["probed"]
    assert abs(reported["baseline"]["shares"]["input"] - 0.6125) < 1e-3

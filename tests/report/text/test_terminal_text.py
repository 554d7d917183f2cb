"""Progress lines, wrapping, and the table of trials."""

import golden
import pytest
from study_fakes import SAFE, good_answer, measured, study

from autotune.report.text.answer_screen import INDENT, answer_screen
from autotune.report.text.terminal_text import progress_line, stopped_screen, trials_table, wrapped

OUT = "/project/best.yaml"


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_on_a_terminal_long_lines_go_on_below_their_text_and_commands_stay_whole(columns):
    text = answer_screen(study(), good_answer(), out=OUT)
    shown = wrapped(text, columns)
    commands = [line for line in text.splitlines() if line[INDENT:].startswith("autotune ")]
    assert set(commands) <= set(shown.splitlines())
    assert all(len(line) <= columns for line in shown.splitlines() if line not in commands)
    assert shown.split() == text.split(), "nothing is lost"
    assert wrapped(text, 0) == text
    below = " " * INDENT
    names = [line.split()[0] for line in text.splitlines() if not line.startswith(below)]
    assert [line.split()[0] for line in shown.splitlines() if not line.startswith(below)] == names


def test_a_screen_before_any_answer_says_how_to_go_on():
    text = stopped_screen(study(), reason="it was suspended")
    assert text.startswith("No answer: it was suspended.\n")
    assert "2.00x in one run, not confirmed" in text
    assert "autotune resume train-1121-1002" in text


def test_a_plain_line_has_stage_result_best_failures_and_time_left():
    golden.check("progress.txt", "".join(progress_line(study(), t) + "\n" for t in study().trials))


def test_the_table_of_trials_is_aligned_and_the_baseline_has_no_ratio():
    lines = trials_table(study()).splitlines()
    assert lines[0].split() == ["0", "baseline", "100", "samples/s", "baseline"]
    assert len({line.index("samples/s") for line in lines[:2]}) == 1


def test_a_trial_that_is_faster_than_nothing_measured_shows_its_rate_alone():
    lonely = study(trials=(measured(0, SAFE, 50.0),))
    assert progress_line(lonely, lonely.trials[0]).split(" | ")[2] == "50 samples/s"

"""The answer as one screen: the outcome first, at most 15 lines after a search, every figure in `show`."""

from dataclasses import replace

import golden
import pytest
import report_study
from study_fakes import BASE, BEST, good_answer, no_answer, open_answer, pick, ratio, spec, study

from autotune.answer.pick import answer as compute
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate
from autotune.report.text import study_notes
from autotune.report.text.answer_screen import INDENT, MOST_LINES, answer_screen

OUT = "/project/best.yaml"
LINKS = {"answer": "autotune ui", "table": "http://x", "report": "~/report.html"}


def screen(answer, known=None, **options):
    return answer_screen(known or study(), answer, out=OUT, **options)


def row(text, name):
    """The text of a row; the row's name is not part of it."""
    return next(line[INDENT:] for line in text.splitlines() if line.startswith(f"  {name} "))


def test_the_screen_of_a_gain():
    golden.check("screen_gain.txt", screen(good_answer(), links=LINKS))


def test_the_screen_of_a_gain_with_details():
    golden.check("screen_gain_details.txt", screen(good_answer(), links=LINKS, details=True))


def test_the_screen_without_a_gain_claims_none():
    text = screen(no_answer(), study(better=False))
    golden.check("screen_no_gain.txt", text)
    assert "Faster" not in text
    assert "autotune apply" not in text


def test_an_inconclusive_search_names_its_candidate_and_how_to_continue():
    text = screen(open_answer(), study(better=False))
    golden.check("screen_inconclusive.txt", text)
    assert "Nothing is faster" not in text


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(good_answer(), "Faster: "), (no_answer(), "Nothing is faster: "), (open_answer(), "Inconclusive: ")],
)
def test_the_first_line_is_the_outcome_and_the_screen_is_short(answer, outcome):
    busy = replace(answer, caveats=("One.", "Two.", "Three."))
    text = screen(busy, study(better=answer.is_better), links=LINKS)
    assert text.startswith(outcome)
    assert len(text.splitlines()) <= MOST_LINES


def test_a_screen_with_every_row_leaves_out_the_least_important_ones():
    paid = replace(good_answer().best, compile_s=95.0, break_even_steps=1200)
    crowded = good_answer(best=paid, fastest=replace(paid, pick="fastest", advice="Try a higher rate."))
    text = screen(crowded, links=LINKS | {"answer": "http://y"}, unsent=3, folder="/elsewhere")
    assert len(text.splitlines()) <= MOST_LINES
    names = {line[2:INDENT].strip() for line in text.splitlines()[1:]}
    assert {"changes", "loss", "safe", "fastest", "apply", "details", "unsent"} <= names
    assert "search" not in names


def test_notes_that_do_not_fit_are_counted_with_the_command_that_lists_them():
    noted = good_answer(caveats=("One.", "Two.", "Three.", "Four."))
    text = screen(noted, links=LINKS)
    assert row(text, "note") == "One."
    assert "2 more notes: autotune show train-1121-1002\n" in text
    assert "Four." in screen(noted, details=True)


def test_an_inconclusive_search_without_a_candidate_offers_nothing_to_try():
    text = screen(open_answer(likely=None), study(better=False))
    assert "--pick" not in text
    assert row(text, "continue") == "autotune resume train-1121-1002 --budget 8m"


def test_what_cannot_be_resumed_has_no_line_for_it():
    assert "continue" not in screen(open_answer(resume=""), study(better=False))


def test_why_nothing_new_was_tried_is_a_detail():
    why = "Nothing new was tried any more, as the time left is needed for the confirmation."
    assert why in screen(good_answer(), study(because=why), details=True)
    assert why not in screen(good_answer(), study(because=why))


def test_a_control_of_two_pairs_gives_no_interval():
    wide = Estimate(value=1.03, low=0.01, high=143.87, n=2, unit="ratio")
    text = screen(good_answer(identical=wide), details=True)
    assert "your script against itself: 1.03x in 2 pairs, too few for an interval" in text
    assert "143.87" not in text


def test_a_fastest_pick_is_flagged_and_an_equal_safe_one_is_a_detail():
    answer = good_answer(
        safe=pick("safe", BEST, ratio(2.0)),
        fastest=pick("fastest", Config({"effective_batch": 256}), ratio(2.6), effect=Effect.TRAINING),
    )
    text = screen(answer, unsent=2)
    message = "2.60x [2.55, 2.65] in 6 pairs: effective_batch=256; same loss sooner, training changed"
    assert row(text, "fastest") == message
    assert row(text, "unsent").startswith("2 records not in MLflow yet")
    assert "autotune sync train-1121-1002" in text
    assert "  safe " not in text
    assert row(screen(answer, details=True), "safe") == "the same configuration"


def test_learning_rate_advice_is_beside_the_pick_that_changes_the_training():
    message = "Learning rate: the effective batch is 8 times your script's, and this ran with your rate."
    wild = Config({"effective_batch": 256})
    fastest = pick("fastest", wild, ratio(2.6), effect=Effect.TRAINING, advice=message)
    for answer in (good_answer(fastest=fastest), no_answer(fastest=fastest)):
        assert f"{' ' * INDENT}{message}\n" in screen(answer)
        assert message in study_notes.note(study(), answer)
    assert "Learning rate" not in screen(good_answer())


def test_a_fastest_pick_alone_is_applied_from_the_file_that_was_requested():
    wild = pick("fastest", Config({"effective_batch": 256}), ratio(2.6), effect=Effect.TRAINING)
    text = answer_screen(study(), no_answer(fastest=wild), out="/project/kept/best.yaml", folder="/project")
    assert row(text, "apply") == "autotune apply kept/best.yaml --pick fastest -- python train.py --lr 1e-3"
    assert row(text, "in") == "/project"
    assert "autotune apply" not in answer_screen(study(), no_answer(fastest=wild)), "there is no such file"


def test_a_safe_pick_that_is_the_baseline_is_a_detail():
    answer = good_answer(safe=pick("safe", BASE, ratio(1.0)))
    assert "  safe " not in screen(answer)
    message = "none: no configuration that leaves the training unchanged was confirmed"
    assert row(screen(answer, details=True), "safe") == message


def test_keep_states_that_other_batches_were_not_tried():
    kept = study(spec=spec(effective_batch="keep"))
    assert "were not tried (--effective-batch keep)" in screen(good_answer(), kept, details=True)


def test_refused_knobs_and_advice_are_details():
    many = study(refusals={f"knob{i}": f"Reason {i}." for i in range(9)})
    assert screen(good_answer(), many, details=True, advice=["train.py:3: x"]).count("Reason") == 9
    short = screen(good_answer(), many, advice=["train.py:3: x"])
    assert "Reason" not in short
    assert "train.py:3" not in short
    assert row(short, "details") == "autotune show train-1121-1002"


def test_speed_memory_and_loss_are_beside_those_of_the_script():
    text = screen(good_answer())
    assert row(text, "speed") == "200 samples/s; your script 100 samples/s"
    assert row(text, "memory") == "1.0 GiB at peak (of 8.0 GiB); your script 2.0 GiB"
    assert row(text, "loss").startswith("Not inferior to your script")


def test_changes_are_shown_with_the_values_before_and_after():
    message = "precision fp32 -> bf16, batch_size 32 -> 64, num_workers 0 -> 4, threads 1 -> 2"
    assert row(screen(good_answer()), "changes") == message
    unread = screen(good_answer(), study(facts=None))
    assert row(unread, "changes") == "precision bf16, batch_size 64, num_workers 4, threads 2"


def test_the_next_command_is_on_the_screen():
    command = "best.yaml -- python train.py --lr 1e-3"
    assert row(screen(good_answer()), "apply") == f"autotune apply {command}"
    assert row(screen(good_answer(), details=True), "verify") == f"autotune verify {command}"


def test_the_cost_of_the_search_is_shown_beside_its_budget_and_failures_in_words():
    text = screen(good_answer(), seconds=480.0)
    assert row(text, "search") == "8 min of 10 min, 6 trials, 1 failed (out of host memory 1)"
    assert row(screen(good_answer(failures={})), "search").endswith("6 trials, none failed")


def test_a_figure_of_the_winner_is_shown_once():
    made = report_study.made()
    found = compute(made)
    text = screen(found, made, details=True)
    best = found.best.speedup
    assert text.count(f"{best.value:.2f}x [{best.low:.2f}, {best.high:.2f}]") == 1
    assert f"{best.value:.2f} [" not in text, "not in a second notation either"
    assert "Its peak memory is" not in text
    assert text.count(found.best.loss.reason) == 1


def test_compile_time_is_shown_with_the_steps_that_pay_for_it():
    answer = good_answer(best=replace(good_answer().best, compile_s=95.0, break_even_steps=1200))
    assert row(screen(answer), "compile") == "95 s once; paid back after 1200 steps"


def test_the_report_and_the_best_link_are_shown_and_others_are_details():
    short = screen(good_answer(), links=LINKS)
    assert row(short, "report") == "autotune ui, or the file ~/report.html"
    remote = screen(good_answer(), links=LINKS | {"answer": "https://mlflow.example.org/#/x"})
    assert row(remote, "answer") == "https://mlflow.example.org/#/x"
    assert row(remote, "report") == "~/report.html"
    assert "http://x" not in short
    assert "http://x" in screen(good_answer(), links=LINKS, details=True)

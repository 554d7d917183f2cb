"""Progress and the last screen: what a person reads."""

from dataclasses import replace

import golden
import pytest
import report_study
from study_fakes import (
    BASE,
    BEST,
    SAFE,
    good_answer,
    measured,
    no_answer,
    open_answer,
    pick,
    ratio,
    spec,
    study,
)

from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.measurement import Estimate
from autotune.core.pick import answer as compute
from autotune.report import notes
from autotune.report.text import (
    final_screen,
    progress_line,
    stopped_screen,
    trials_table,
    wrapped,
)

OUT = "/project/best.yaml"


def test_the_screen_of_a_gain():
    golden.check(
        "screen_gain.txt", final_screen(study(), good_answer(), out=OUT, links={"MLflow": "http://x"})
    )


def test_the_screen_without_a_gain_claims_none():
    text = final_screen(study(better=False), no_answer(), out=OUT)
    golden.check("screen_no_gain.txt", text)
    assert "x faster" not in text
    assert "] faster" not in text
    assert "autotune apply" not in text


def test_an_inconclusive_search_names_its_candidate_and_how_to_continue():
    text = final_screen(study(better=False), open_answer(), out=OUT)
    golden.check("screen_inconclusive.txt", text)
    assert "nothing beats" not in text


def test_an_inconclusive_search_without_a_candidate_offers_nothing_to_try():
    text = final_screen(study(better=False), open_answer(likely=None), out=OUT)
    assert "--pick" not in text
    assert "go on   autotune resume train-1121-1002 --budget 8m" in text


def test_what_cannot_be_resumed_has_no_line_for_it():
    assert "go on" not in final_screen(study(better=False), open_answer(resume=""), out=OUT)


def test_why_nothing_new_was_tried_stands_below_what_the_search_has_cost():
    why = "Nothing new was tried any more, as the time left is what confirming takes."
    lines = final_screen(study(because=why), good_answer(), out=OUT).splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("search ")]
    assert lines[at + 1].strip() == why
    assert "Nothing new" not in final_screen(study(), good_answer(), out=OUT)


def test_a_control_of_two_pairs_gives_no_interval():
    wide = Estimate(value=1.03, low=0.01, high=143.87, n=2, unit="ratio")
    text = final_screen(study(), good_answer(identical=wide), out=OUT)
    assert "your script against itself: 1.03x in 2 pairs, too few for an interval" in text
    assert "143.87" not in text


def test_the_screen_of_a_fastest_pick_and_an_equal_safe_one():
    answer = good_answer(
        safe=pick("safe", BEST, ratio(2.0)),
        fastest=pick("fastest", Config({"effective_batch": 256}), ratio(2.6), effect=Effect.TRAINING),
        caveats=("This machine was busy.",),
    )
    text = final_screen(study(), answer, out=OUT, unsent=2)
    assert "safe    the same" in text
    row = next(line for line in text.splitlines() if line.startswith("fastest"))
    assert row.startswith("fastest 2.60x [2.55, 2.65] sooner at the same loss, training changed  ")
    assert row.endswith("6 pairs")
    assert "        effective_batch 256\n" in text
    assert "note    This machine was busy." in text
    assert "unsent  2 records not in MLflow yet" in text
    assert "autotune sync train-1121-1002" in text


def test_learning_rate_advice_stands_with_the_pick_that_changes_the_training():
    said = "Learning rate: the effective batch is 8 times your script's, and this ran with your rate."
    wild = Config({"effective_batch": 256})
    fastest = pick("fastest", wild, ratio(2.6), effect=Effect.TRAINING, advice=said)
    for answer in (good_answer(fastest=fastest), no_answer(fastest=fastest)):
        assert f"        {said}\n" in final_screen(study(), answer, out=OUT)
        assert said in notes.note(study(), answer)
    assert "Learning rate" not in final_screen(study(), good_answer(), out=OUT)


def test_a_fastest_that_stands_alone_is_applied_from_the_file_that_was_asked_for():
    wild = pick("fastest", Config({"effective_batch": 256}), ratio(2.6), effect=Effect.TRAINING)
    text = final_screen(study(), no_answer(fastest=wild), out="/project/kept/best.yaml", folder="/project")
    lines = [line.strip() for line in text.splitlines()]
    assert "autotune apply kept/best.yaml --pick fastest -- python train.py --lr 1e-3" in lines
    assert "in      /project" in lines
    assert "autotune apply" not in final_screen(study(), no_answer(fastest=wild)), "there is no such file"


def test_the_screen_where_only_best_beats_the_script():
    answer = good_answer(safe=pick("safe", BASE, ratio(1.0)))
    said = "safe    none: nothing that leaves the training unchanged was confirmed to be faster"
    assert said in final_screen(study(), answer)


def test_keep_says_that_other_batches_were_not_tried():
    kept = study(spec=spec(effective_batch="keep"))
    assert "were not tried (--effective-batch keep)" in final_screen(kept, good_answer())


def test_refusals_are_a_short_list_with_the_rest_counted():
    many = study(refusals={f"knob{i}": f"Reason {i}." for i in range(9)})
    text = final_screen(many, good_answer())
    assert text.count("Reason") == 4
    assert "and 5 more: autotune show train-1121-1002" in text
    assert final_screen(many, good_answer(), refusals=None).count("Reason") == 9


def test_every_pick_stands_beside_the_script_with_speed_memory_and_loss():
    text = final_screen(study(), good_answer(), out=OUT)
    rows = text.splitlines()
    best, safe, own = (next(r for r in rows if r.startswith(name)) for name in ("best", "safe", "yours"))
    assert "200 samples/s  1.0 GiB  loss holds  6 pairs" in best
    assert "130 samples/s  1.0 GiB  loss holds  6 pairs" in safe
    assert "100 samples/s  2.0 GiB" in own
    places = {best.index("1.0 GiB"), safe.index("1.0 GiB"), own.index("2.0 GiB")}
    assert len(places) == 1, "columns stand below each other"


def test_what_changes_is_told_from_what_to_what():
    text = final_screen(study(), good_answer(), out=OUT)
    said = "precision fp32 -> bf16, batch_size 32 -> 64, num_workers 0 -> 4, threads 1 -> 2"
    assert f"        {said}\n" in text
    unread = final_screen(study(facts=None), good_answer(), out=OUT)
    assert "        precision bf16, batch_size 64, num_workers 4, threads 2\n" in unread


def test_what_comes_next_is_a_command_each():
    text = final_screen(study(), good_answer(), out=OUT)
    command = "best.yaml -- python train.py --lr 1e-3"
    assert f"apply   autotune apply {command}\nverify  autotune verify {command}\n" in text
    assert "        safe in place of best: --pick safe\n" in text
    same = final_screen(study(), good_answer(safe=pick("safe", BEST, ratio(2.0))), out=OUT)
    assert "--pick" not in same


def test_what_the_search_cost_is_told_beside_its_budget():
    text = final_screen(study(), good_answer(), out=OUT, seconds=480.0)
    assert "search  8 min of 10 min, 6 trials, 1 failed and survived (oom_host 1)\n" in text
    assert "6 trials, none failed\n" in final_screen(study(), good_answer(failures={}), out=OUT)


def test_a_figure_of_the_winner_is_told_once():
    told = report_study.made()
    found = compute(told)
    text = final_screen(told, found, out=OUT)
    best = found.best.speedup
    assert text.count(f"{best.value:.2f}x [{best.low:.2f}, {best.high:.2f}]") == 1
    assert f"{best.value:.2f} [" not in text, "not in a second notation either"
    assert "Its peak memory is" not in text
    assert text.count(found.best.loss.reason) == 1


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_on_a_terminal_long_lines_go_on_below_their_text_and_commands_stay_whole(columns):
    text = final_screen(study(), good_answer(), out=OUT)
    shown = wrapped(text, columns)
    commands = [line for line in text.splitlines() if line[8:].startswith("autotune ")]
    assert set(commands) <= set(shown.splitlines())
    assert all(len(line) <= columns for line in shown.splitlines() if line not in commands)
    assert shown.split() == text.split(), "nothing is lost"
    assert wrapped(text, 0) == text
    names = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in shown.splitlines() if not line.startswith(" ")] == names


def test_compile_time_is_said_with_when_it_pays_back():
    answer = good_answer(best=replace(good_answer().best, compile_s=95.0, break_even_steps=1200))
    assert "compile 2 min once; paid back after 1200 steps" in final_screen(study(), answer)


def test_a_screen_before_any_answer_says_how_to_go_on():
    text = stopped_screen(study(), reason="it was stopped")
    assert "none    it was stopped" in text
    assert "2.00x, not confirmed" in text
    assert "autotune resume train-1121-1002" in text


def test_a_plain_line_has_stage_result_best_failures_and_time_left():
    golden.check("progress.txt", "".join(progress_line(study(), t) + "\n" for t in study().trials))


def test_the_table_of_trials_is_aligned_and_the_baseline_has_no_ratio():
    lines = trials_table(study()).splitlines()
    assert lines[0].endswith("100 samples/s")
    assert "x  100" not in lines[0]
    assert len({line.index("samples/s") for line in lines[:2]}) == 1


def test_a_trial_that_is_faster_than_nothing_measured_shows_its_rate_alone():
    lonely = study(trials=(measured(0, SAFE, 50.0),))
    assert progress_line(lonely, lonely.trials[0]).split(" | ")[2] == "50 samples/s"

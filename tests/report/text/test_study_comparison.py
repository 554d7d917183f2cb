"""Two studies side by side: what may be reported, and what may not."""

from dataclasses import replace

import pytest
from study_fakes import BEST, facts, good_answer, no_answer, open_answer, pick, rate, spec, study

from autotune.model.facts import DeviceFacts
from autotune.model.measurement import Estimate
from autotune.report.text.study_comparison import compare_studies, comparison_data, comparison_text


def ratio(value, half=0.05, n=6):
    return Estimate(value=value, low=value - half, high=value + half, n=n, unit="ratio")


def found(value, *, half=0.05, n=6, throughput=None, **fields):
    best = replace(pick("best", BEST, ratio(value, half, n)), throughput=throughput or rate(100.0 * value))
    return good_answer(best=best, **fields)


def about(compared, what):
    (one,) = [s for s in compared.statements if s.about == what]
    return one


A = study(spec=spec(label="first"))
B = study(spec=spec(label="second", study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1C"))


def test_intervals_that_overlap_show_no_difference():
    compared = compare_studies((A, found(2.0, half=0.2)), (B, found(2.3, half=0.2)))
    message = about(compared, "best")
    assert message.verdict == "same"
    assert "no difference between the speed-ups is shown" in message.sentence
    assert "2.00x [1.80, 2.20] in A, 2.30x [2.10, 2.50] in B" in message.sentence


def test_intervals_apart_show_which_is_higher():
    compared = compare_studies((A, found(1.5)), (B, found(2.3)))
    assert about(compared, "best").verdict == "b"
    assert about(compared, "throughput").verdict == "b"
    assert "B is faster" in about(compared, "throughput").sentence
    assert compared.same_machine
    assert compared.same_script


def test_another_machine_gives_no_difference_in_throughput():
    gpu = DeviceFacts(name="NVIDIA X", uuid="GPU-1", memory_bytes=1, driver="1")
    there = replace(facts(), host=replace(facts().host, devices=(gpu,)))
    compared = compare_studies((A, found(1.5)), (replace(B, facts=there), found(2.3)))
    assert not compared.same_machine
    assert about(compared, "throughput").verdict == "incomparable"
    assert "Different machines or versions" in about(compared, "throughput").sentence
    assert ("device", "none", "NVIDIA X") in compared.differences


@pytest.mark.parametrize("change", [{"args": ("--lr", "2")}, {"script": "/project/other.py"}])
def test_another_script_is_not_held_against_it(change):
    other = replace(B, spec=replace(B.spec, **change))
    compared = compare_studies((A, found(1.5)), (other, found(2.3)))
    assert not compared.same_script
    assert about(compared, "throughput").verdict == "incomparable"
    assert "each of its own script" in about(compared, "best").sentence


def test_another_content_of_the_same_file_is_another_script():
    edited = replace(facts(), script=replace(facts().script, sha256="cd" * 32))
    assert not compare_studies((A, found(1.5)), (replace(B, facts=edited), found(1.5))).same_script


def test_a_machine_in_another_state_decides_nothing():
    slow = found(2.3, baseline_throughput=rate(60.0))
    compared = compare_studies((A, found(1.5)), (B, slow))
    message = about(compared, "baseline")
    assert message.verdict == "a"
    assert "not in the same state" in message.sentence
    assert not [s for s in compared.statements if s.about == "throughput"]


def test_a_pick_that_only_one_has_proves_nothing_about_the_other():
    compared = compare_studies((A, no_answer()), (B, found(2.3)))
    message = about(compared, "best")
    assert message.verdict == "incomparable"
    assert "only B has one" in message.sentence
    assert "does not prove that none exists" in message.sentence
    neither = compare_studies((A, no_answer()), (B, no_answer()))
    assert "neither study confirmed anything faster" in about(neither, "best").sentence


def test_a_speed_up_without_an_interval_decides_nothing():
    compared = compare_studies((A, found(1.5, n=1)), (B, found(2.3)))
    assert about(compared, "best").verdict == "incomparable"


def test_a_study_without_a_baseline_is_named():
    (message,) = compare_studies((A, None), (B, found(2.3))).statements
    assert "first has no measured baseline" in message.sentence


def test_the_table_has_both_studies_with_their_picks():
    text = comparison_text(compare_studies((A, found(1.5)), (B, found(2.3))))
    lines = text.splitlines()
    assert lines[0].split() == ["first", "second"]
    for word in ("script", "device", "CPU X", "your script", "best", "safe", "1.50x [1.45, 1.55], 6 pairs"):
        assert word in text
    assert "overlap" in text


def test_a_likely_pick_is_listed_and_nothing_is_stated_about_it():
    compared = compare_studies((A, open_answer()), (B, found(2.3)))
    text = comparison_text(compared)
    assert "2.18x in 3 runs, not confirmed" in text
    assert "inconclusive" in text
    assert "likely" not in [s.about for s in compared.statements]
    data = comparison_data(compared)
    assert "likely" in str(data)


def test_the_object_holds_the_same_figures():
    data = comparison_data(compare_studies((A, found(1.5)), (B, found(2.3))))
    assert data["schema"] == "autotune.compare/v1"
    assert data["a"]["picks"]["best"]["speedup"]["value"] == 1.5
    assert data["b"]["picks"]["best"]["config"] == dict(BEST)
    assert {s["about"] for s in data["statements"]} >= {"best", "safe", "throughput"}


def test_speed_ups_of_different_machines_name_no_winner():
    gpu = DeviceFacts(name="NVIDIA X", uuid="GPU-1", memory_bytes=1, driver="1")
    there = replace(facts(), host=replace(facts().host, devices=(gpu,)))
    message = about(compare_studies((A, found(1.5)), (replace(B, facts=there), found(2.3))), "best")
    assert message.verdict == "incomparable"
    assert "higher" not in message.sentence
    assert "different machines or versions: no difference is claimed" in message.sentence


def test_runs_of_another_planned_length_name_no_winner():
    longer = replace(B, spec=replace(B.spec, run_steps=100_000))
    compared = compare_studies((A, found(1.5)), (longer, found(2.3)))
    assert compared.same_machine
    for what in ("best", "throughput"):
        assert about(compared, what).verdict == "incomparable"
        assert "no difference is claimed" in about(compared, what).sentence
    assert "planned run of another length" in about(compared, "best").sentence
    assert not [s for s in compared.statements if s.verdict in ("a", "b")]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_on_a_terminal_both_sides_keep_to_their_half(columns):
    compared = compare_studies((A, found(1.5)), (B, found(2.3)))
    whole, shown = comparison_text(compared), comparison_text(compared, columns=columns)
    assert max(map(len, whole.splitlines())) > columns
    assert all(len(line) <= columns for line in shown.splitlines())
    assert sorted(shown.split()) == sorted(whole.split()), "nothing is lost"
    assert shown.splitlines()[0].split() == ["first", "second"]

"""Where the profiles of a search lie."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from study_fakes import BASE, BEST, good_answer, measured, no_answer, reported, study

from autotune.driver.profiles import kept_profiles, kept_reports, profile_files, profile_lines
from autotune.model.trial import Failure, FailureKind, Stage
from autotune.protocol.plan import PRIVATE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_whole_trace_of_script_and_winner_is_found_by_its_trial(tmp_path: Path) -> None:
    made = study()
    probes = (measured(6, BASE, 100.0, Stage.DIAGNOSE), measured(7, BEST, 200.0, Stage.DIAGNOSE))
    made = replace(made, trials=(*made.trials, *probes))
    assert kept_profiles(made, tmp_path) == {}
    for name, files in {
        "t0006-a1-aa": ("profile.pt.trace.json.gz", "profile.txt"),
        "t0007-a1-bb": ("profile.pt.trace.json.gz.part",),  # cut off
        "t0003-a1-cc": ("profile.pt.trace.json.gz",),  # of no probe
    }.items():
        (tmp_path / "trials" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "trials" / name / file).write_text("")
    place = tmp_path / "trials" / "t0006-a1-aa"
    assert kept_profiles(made, tmp_path) == {"baseline": place}
    assert profile_files(made, tmp_path) == {
        "profile/baseline/profile.pt.trace.json.gz": place / "profile.pt.trace.json.gz",
        "profile/baseline/profile.txt": place / "profile.txt",
    }
    assert "perfetto" in profile_lines(made, tmp_path)[0]
    assert f"tensorboard --logdir {place}" in profile_lines(made, tmp_path)[0]


def test_a_trace_that_was_requested_and_is_not_there_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.driver.profiles.answer_or_none", lambda _: good_answer())
    made = study()
    assert profile_lines(made, tmp_path) == [], "none was requested"
    requested = replace(made, spec=replace(made.spec, profile=True, why=True), stopped="finished")
    lines = profile_lines(requested, tmp_path)
    assert [line.partition(":")[0] for line in lines] == ["baseline", "winner"]
    assert all("The budget had no time left for its run" in line for line in lines)
    lost = reported(6, BASE, Failure(kind=FailureKind.NO_METRIC, message="no step was seen"), Stage.DIAGNOSE)
    ended = replace(requested, trials=(*requested.trials, lost, measured(7, BEST, 200.0, Stage.DIAGNOSE)))
    lines = profile_lines(ended, tmp_path)
    assert lines[0] == "baseline: none. The detailed probe ended early: no step was seen."
    assert lines[1] == "winner: none. The process that records it ended without one."
    stopped = replace(requested, stopped="interrupted")
    assert "stopped before" in profile_lines(stopped, tmp_path)[0]
    # Where nothing won there is no winner to be missed.
    monkeypatch.setattr("autotune.driver.profiles.answer_or_none", lambda _: no_answer())
    assert len(profile_lines(requested, tmp_path)) == 1


def test_a_report_by_nsight_systems_is_found_where_it_is_whole_and_reported_where_there_is_none(
    tmp_path: Path,
) -> None:
    made = study()
    kept = measured(6, BASE, 100.0, Stage.DIAGNOSE)
    lost = reported(
        7, BEST, Failure(kind=FailureKind.NO_METRIC, message="nsys left no report"), Stage.DIAGNOSE
    )
    probes = tuple(replace(t, fidelity=replace(t.fidelity, probe="nsys")) for t in (kept, lost))
    made = replace(made, trials=(*made.trials, *probes))
    for number in (6, 7):
        place = tmp_path / "trials" / f"t000{number}-a1-aa"
        place.mkdir(parents=True)
        (place / "profile.nsys-rep").write_text("")
    report = tmp_path / "trials" / "t0006-a1-aa" / "profile.nsys-rep"
    assert kept_reports(made, tmp_path) == {"baseline": report}
    assert profile_files(made, tmp_path) == {"profile/baseline/profile.nsys-rep": report}
    assert kept_profiles(made, tmp_path) == {}
    lines = profile_lines(made, tmp_path)
    assert [line.partition(":")[0] for line in lines] == ["baseline", "winner"]
    assert "MLflow" not in lines[0]
    assert lines[1] == "winner: nothing by Nsight Systems: nsys left no report"
    # Of a process that was started with secrets it stays here.
    report.with_name(report.name + PRIVATE).touch()
    assert kept_reports(made, tmp_path) == {"baseline": report}
    assert profile_files(made, tmp_path) == {}
    assert "was not sent to MLflow" in profile_lines(made, tmp_path)[0]

"""The saved view: packed so that MLflow's UI reads it, small whatever the study, and of known words only."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import report_study

from autotune.answer.pick import answer
from autotune.report.mlflow import run_content as record
from autotune.report.mlflow import saved_views

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
import made_studies as made

STATE_KEYS = """
    searchFilter orderByKey orderByAsc startTime lifecycleFilter modelVersionFilter datasetsFilter
    selectedColumns columnOrder columnWidths runsHiddenMode compareRunSections compareRunCharts
    isAccordionReordered hideEmptyCharts useGroupedValuesInCharts viewMaximized runListHidden groupBy
    groupsExpanded globalLineChartConfig
"""


def test_a_saved_view_survives_packing_and_holds_known_keys_only() -> None:
    state = saved_views.view_state(made.study(), made.found())
    assert saved_views.decode_view(saved_views.view_tag("autotune x", state, 1)) == state
    assert set(state) == set(STATE_KEYS.split())
    assert state["runsHiddenMode"] == "SHOW_ALL"
    assert saved_views.view_state(made.study(), made.found()) == state, (
        "identifiers do not change between sendings"
    )
    for bad in ("", "{}", '{"state": 3}', '{"state": "deflate;AAAA"}'):
        with pytest.raises(ValueError, match=r".*"):
            saved_views.decode_view(bad)


def test_the_fastest_that_was_confirmed_is_on_top_and_its_interval_beside_it() -> None:
    state = saved_views.view_state(made.study(), made.found())
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`speedup`", False)
    assert state["selectedColumns"][:4] == [
        "metrics.`speedup`",
        "metrics.`speedup_ci_low`",
        "metrics.`speedup_ci_high`",
        "metrics.`single_run_speedup`",
    ]
    order = state["columnOrder"]
    assert order[0] == "attributes.`Run Name`"
    assert order.index("tags.`autotune.loss`") < order.index("params.`precision`")
    assert order[-1] == "tags.`autotune.reason`"
    assert set(state["columnWidths"]) <= set(order)
    assert state["columnWidths"]["metrics.`throughput_samples_s`"] > 100


def test_while_it_searches_single_runs_are_what_there_is_to_sort_by() -> None:
    assert saved_views.view_state(made.study(stopped=""))["orderByKey"] == "metrics.`single_run_speedup`"
    nothing = saved_views.view_state(made.study(stopped="", outcomes=()))
    assert [c["type"] for c in nothing["compareRunCharts"]] == ["SCATTER", "BAR", "LINE"]


def test_charts_show_front_knobs_speedups_and_the_best_so_far() -> None:
    scatter, parallel, bars, line = saved_views.view_state(made.study(), made.found())["compareRunCharts"]
    assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == ("peak_mem_gib", "throughput_samples_s")
    assert parallel["selectedParams"] == ["precision", "num_workers", "batch_size"], "the answer's first"
    assert parallel["selectedMetrics"] == ["single_run_speedup"]
    assert (bars["metricKey"], line["metricKey"]) == ("speedup", "best_so_far_speedup")
    assert len({c["uuid"] for c in (scatter, parallel, bars, line)}) == 4


def test_an_axis_that_some_runs_lack_would_drop_them_so_it_is_none() -> None:
    study = report_study.made(12)
    assert "threads" in {knob for trial in study.trials for knob in trial.config}
    (parallel,) = (c for c in saved_views.view_state(study)["compareRunCharts"] if c["type"] == "PARALLEL")
    assert set(parallel["selectedParams"]) == {"num_workers", "precision", "channels_last"}


def test_a_view_of_many_trials_is_as_small_as_of_few() -> None:
    study = report_study.made(450)
    assert len(study.trials) > 400
    state = saved_views.view_state(study, answer(study))
    assert len(saved_views.view_tag("autotune x", state, 1)) < 3000 < saved_views.LONGEST_TAG
    assert len(state["selectedColumns"]) <= 22
    assert state["compareRunCharts"][0]["runsCountToCompare"] == 100


@pytest.mark.parametrize("version", ["3.15.2", "3.16.1", "3.17.2", "3.18.0", "3.18.1.dev0"])
def test_versions_that_were_looked_at_get_a_view(version: str) -> None:
    assert saved_views.is_tested(version)


@pytest.mark.parametrize(
    "version", ["", "unknown", "2.22.5", "3.10.0", "3.13.0", "3.14.0", "3.99.0", "4.0.0", "databricks"]
)
def test_versions_that_nobody_has_looked_at_get_none(version: str) -> None:
    assert not saved_views.is_tested(version)


def test_a_list_of_many_searches_keeps_to_its_room_and_counts_the_rest() -> None:
    searches = [
        record.Search(
            study_id=str(n), label=f"train-{n}", answer="w" * 200, link="#/x", started_ms=n, params={}
        )
        for n in range(60)
    ]
    note = record.searches_note(searches, 2000)
    assert len(note) <= 2000
    assert "train-59" in note
    shown = note.count("[train-")
    assert 3 < shown < 20
    assert f"And {60 - shown} older." in note
    assert record.searches_note(searches, 100) == ""
    assert record.searches_note(searches[:1], 2000) == ""

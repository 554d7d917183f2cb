"""Terminal, best.yaml, JSON, MLflow and the report show one answer with one set of numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pages
import pytest
import report_study
import yaml

from autotune.answer.answer import SearchOutcome
from autotune.answer.closest import closest
from autotune.answer.pick import answer
from autotune.answer.reasons import sentence
from autotune.compare.control import self_difference
from autotune.driver.result import result_data
from autotune.export.best_config import write_best
from autotune.model.config import Config
from autotune.model.measurement import Contamination, Estimate
from autotune.model.study import Study
from autotune.model.trial import Stage
from autotune.report.html.page import report_html
from autotune.report.mlflow import artifacts, run_content
from autotune.report.text import study_notes
from autotune.report.text.answer_screen import answer_screen
from autotune.report.view import bottleneck_text, summary
from autotune.report.view.report_data import report_data
from autotune.report.view.study_view import View

SLOWER = dict.fromkeys(report_study.SPEED, 0.7)
KNOB = r"[a-z_]+(?: with [a-z_]+(?: and [a-z_]+)*)?"
INTERVAL = re.compile(r"\[([-+]?[\d.]+|inf|nan), ([-+]?[\d.]+|inf|nan)\]")


def busy(study: Study) -> Study:
    """Others used the machine beside every second single run, which reads four times too fast or too slow."""
    trials = list(study.trials)
    for n, trial in enumerate(trials):
        if trial.stage is Stage.REFINE and trial.measurement is not None and n % 2:
            rate = trial.measurement.throughput
            factor = 4.0 if n % 4 == 1 else 0.25
            other = replace(rate, value=rate.value * factor, low=rate.low * factor, high=rate.high * factor)
            marked = Contamination(flags=("cpu_contended",))
            trials[n] = replace(
                trial, outcome=replace(trial.measurement, throughput=other, contamination=marked)
            )
    return replace(study, trials=tuple(trials))


def scattered(study: Study) -> Study:
    """Pairs of the winner that lie far apart."""
    trials = list(study.trials)
    for n, trial in enumerate(trials):
        if trial.stage is Stage.CONFIRM and not trial.config.is_baseline and trial.measurement is not None:
            rate = trial.measurement.throughput
            factor = (0.2, 1.7, 0.4)[trial.group % 3]
            other = replace(rate, value=rate.value * factor, low=rate.low * factor, high=rate.high * factor)
            trials[n] = replace(trial, outcome=replace(trial.measurement, throughput=other))
    return replace(study, trials=tuple(trials))


STUDIES = {
    "ablated": report_study.made,
    "estimated": lambda: report_study.made(40, ablations=0),
    "hardly screened": lambda: report_study.made(0, ablations=0),
    "one ablation": lambda: report_study.made(ablations=1),
    "while other processes used the machine": lambda: busy(report_study.made(40, ablations=0)),
    "one change": lambda: report_study.made(speed=SLOWER, ablations=0),
    "nothing faster": lambda: report_study.made(speed={**SLOWER, ("num_workers", 4): 0.5}, ablations=0),
    "scattered pairs": lambda: scattered(report_study.made(cycles=2, ablations=0)),
    "screened only": lambda: report_study.made(cycles=0, ablations=0),
    "slower and unfinished": lambda: report_study.made(
        speed=dict.fromkeys([*SLOWER, ("num_workers", 4)], 0.7), cycles=0, ablations=0
    ),
}


@dataclass(frozen=True)
class Shown:
    """What every renderer says of one study."""

    study: Study
    found: object
    screen: str
    written: dict
    printed: dict
    page: dict
    html: pages.Element
    note: str
    figures: dict


@pytest.mark.thorough
def test_the_studies_have_the_answers_that_their_names_say() -> None:
    better = {name for name, make in STUDIES.items() if answer(make()).is_better}
    none = {"nothing faster", "scattered pairs", "screened only", "slower and unfinished"}
    assert set(STUDIES) - better == none


@pytest.fixture(scope="module", params=list(STUDIES))
def shown(request, tmp_path_factory) -> Shown:
    import autotune.driver.result as result

    study = STUDIES[request.param]()
    found = answer(study)
    path = tmp_path_factory.mktemp("out") / "best.yaml"
    write_best(path, study, found, lambda _config: ())
    end = SimpleNamespace(study=study, answer=found, links={}, unsent=0, study_dir=Path("/s"), exit_code=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "changes_of", lambda _study: lambda _config: ())
        printed = json.loads(json.dumps(result_data(end, 0)))
    html = report_html(study, found)
    return Shown(
        study=study,
        found=found,
        screen=answer_screen(study, found, out="/project/best.yaml", details=True),
        written=yaml.safe_load(path.read_text()),
        printed=printed,
        page=json.loads(json.dumps(report_data(View.of(study, found)))),
        html=pages.read(html),
        note=study_notes.note(study, found, held_back=bottleneck_text.why_lines(study, found)),
        figures=run_content.study_figures(study, found),
    )


def percent(gain: float) -> str:
    return f"{100 * gain:+.0f}"


def of_data(pick: dict) -> tuple[dict[frozenset[str], str], set[str]]:
    """Contributions in per cent and what is not separated, as files for programs have them."""
    listed = pick.get("contributions", [])
    parts = {frozenset([c["knob"], *c.get("also", [])]): percent(c["gain"]) for c in listed}
    return parts, set(pick.get("not_separated", []))


def of_line(line: str) -> tuple[dict[frozenset[str], str], set[str]]:
    """The same from a line for people."""
    head, _, rest = line.partition("not separated: ")
    found = re.findall(rf"({KNOB}) (?:about )?([+-]\d+) %", head)
    knobs = re.match(r"[a-z_, ]*", rest)
    separate = set(filter(None, knobs[0].strip().split(", "))) if rest and knobs else set()
    return {frozenset(re.split(r" with | and ", name)): gain for name, gain in found}, separate


def of_cells(cells: dict[str, str]) -> tuple[dict[frozenset[str], str], set[str]]:
    """The same from a table with a cell for each knob."""
    parts: dict[frozenset[str], str] = {}
    for knob, cell in cells.items():
        found = re.match(r"(?:about )?([+-]\d+) %(?: with ([a-z_]+(?: and [a-z_]+)*))?", cell)
        if found:
            others = found[2].split(" and ") if found[2] else []
            parts[frozenset([knob, *others])] = found[1]
    return parts, {knob for knob, cell in cells.items() if cell == "not separated"}


def test_contributions_are_the_same_everywhere_and_name_each_change_once(shown: Shown) -> None:
    best = shown.found.best
    expected = of_data(shown.page["picks"]["best"]) if shown.found.is_better else ({}, set())
    named = [knob for part in expected[0] for knob in part] + sorted(expected[1])
    assert sorted(named) == sorted(best.config)
    for source in (shown.written, shown.printed):
        assert of_data(source["picks"]["best"]) == expected
    for name, pick in shown.page["picks"].items():
        assert of_data(pick) == of_data(shown.written["picks"][name]) == of_data(shown.printed["picks"][name])
    if not shown.found.is_better:
        return
    if len(best.config) == 1:
        assert expected[0] == {frozenset(best.config): percent(best.speedup.value - 1.0)}
        assert "not separated" not in shown.screen
        return
    (line,) = [line for line in shown.screen.splitlines() if line.startswith("  why ")]
    assert of_line(line.removeprefix("  why")) == expected
    rows = [line.strip("| ").split(" | ") for line in shown.note.splitlines() if line.startswith("| ")]
    cells = {row[0]: row[-1].strip(" |") for row in rows if row[0] in best.config}
    assert of_cells(cells) == expected
    hero = shown.html.by_id("answer").by_class("why")[0].all("li")[0].text
    assert of_line(hero) == expected
    table = shown.html.by_id("knobs").all("table")[0]
    rows = [[c.text for c in row.all("td", "th")] for row in table.all("tr")]
    assert of_cells({row[0]: row[-1] for row in rows if row[0] in best.config}) == expected


def test_no_contribution_exceeds_the_speedup_or_rests_on_a_wide_interval(shown: Shown) -> None:
    for pick in shown.page["picks"].values():
        total = pick["speedup"]
        for part in pick["contributions"]:
            most = total["high"] if part["how"] == "pairs" else total["value"]
            assert 1.0 + part["gain"] <= 1.02 * most
            assert -1.0 < part["low"] <= part["gain"] <= part["high"] < 10.0


def test_speedup_interval_and_throughput_are_the_same_everywhere(shown: Shown) -> None:
    best = shown.found.best
    if not shown.found.is_better:
        assert shown.figures["speedup"] == 1.0
        return
    ends = (best.speedup.value, best.speedup.low, best.speedup.high)
    for source in (shown.page, shown.written, shown.printed):
        data = source["picks"]["best"]["speedup"]
        assert (data["value"], data["low"], data["high"]) == pytest.approx(ends, rel=1e-5)
    metrics = [shown.figures[name] for name in ("speedup", "speedup_ci_low", "speedup_ci_high")]
    assert metrics == pytest.approx(ends)
    value, low, high = (f"{end:.2f}" for end in ends)
    assert f"{value}x [{low}, {high}]" in shown.screen
    assert f"{value}x faster [{low}, {high}]" in shown.note
    hero = shown.html.by_id("answer").text
    assert all(f"{end}x" in hero for end in (value, low, high))


def test_what_came_closest_is_the_same_everywhere(shown: Shown) -> None:
    sources = (shown.page, shown.written, shown.printed)
    if shown.found.is_better or shown.found.likely is not None:
        assert all(source.get("closest") is None for source in sources)
        return
    near = closest(shown.study)
    assert near is not None
    for source in sources:
        data = source["closest"]
        assert (data["trial"], Config(data["changes"])) == (near.trial, near.config)
        assert data["speedup"]["value"] == pytest.approx(near.ratio.value, rel=1e-5)
    ratio = f"{near.ratio.value:.2f}"
    if shown.found.outcome is SearchOutcome.NOTHING_FASTER:
        (row,) = [line for line in shown.screen.splitlines() if line.startswith("  closest ")]
        assert f"{ratio}x" in row
        assert near.config.text() in row
        assert f"trial {near.trial}" in row
    message = f"he closest, {near.config.text()}, reads {ratio}"
    for text in (shown.screen, shown.note, shown.html.by_id("answer").text, shown.printed["sentence"]):
        assert message in text


def test_no_interval_ends_at_zero_or_beyond_a_hundred(shown: Shown) -> None:
    for text in (shown.screen, shown.note, shown.html.by_id("answer").text):
        for low, high in INTERVAL.findall(text):
            assert math.isfinite(float(high)), text
            assert 0.0 < float(low) <= float(high) <= 100.0, text


def test_the_front_is_the_same_everywhere_and_holds_nothing_that_is_beaten(shown: Shown) -> None:
    front = shown.found.front
    trials = [member.trial for member in front]
    rows = list(csv.DictReader(io.StringIO(artifacts.front_csv(shown.study, shown.found))))
    assert [int(row["trial"].removeprefix("t")) for row in rows] == trials
    for members in (shown.page["front"], shown.written["pareto"], shown.printed["pareto"]):
        assert [member["trial"] for member in members] == trials
        rates = [member["throughput"] for member in members]
        assert rates == pytest.approx([m.throughput for m in front], rel=1e-5)
    base = shown.found.baseline_throughput.value
    for member in front:
        if member.throughput < 0.9 * base:
            assert member.peak_bytes is not None
            assert member.peak_bytes < 0.95 * shown.found.baseline_peak_bytes
    assert len(re.findall(r"^\| (?:\[)?t\d+", shown.note, re.MULTILINE)) == len(front)
    listed = next(t for t in shown.html.by_id("front").all("table"))
    assert len(listed.all("tr")) - 1 == len(front)


def test_a_script_that_differs_from_itself_as_much_as_the_claim_says_so_in_the_first_line() -> None:
    study = report_study.made()
    found = answer(study)
    assert "weak" not in answer_screen(study, found) + summary.headline(study, found) + found.sentence
    small = Estimate(value=1.005, low=1.002, high=1.008, n=5, unit="ratio")
    found = replace(found, best=replace(found.best, speedup=small))
    message = f"weak: your script differs from itself by {self_difference(study):.2f}x"
    assert message in answer_screen(study, found).splitlines()[0]
    assert message in study_notes.note(study, found).splitlines()[0]
    assert message in summary.run_name(study, found)
    assert message in sentence(study, found.best, None, (), 1.0)
    assert message in pages.read(report_html(study, found)).by_id("answer").text

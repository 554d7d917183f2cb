"""report and compare: made from the journal alone."""

import json
from dataclasses import replace
from pathlib import Path

import pages
import pytest
from study_fakes import facts, failed, measured, spec

from autotune.core.config import Config
from autotune.core.facts import LoaderFacts, ModelFacts
from autotune.core.study import Budget, SpaceRequest
from autotune.core.trial import Stage
from autotune.core.wire import to_wire
from autotune.store.journal import Journal
from autotune.store.paths import study_dir

FAST = Config({"num_workers": 4})
LEAN = Config({"num_workers": 2})
SEEN = Config({"num_workers": 1})
GIB = 2**30
FIRST = "01KAK2M7Q4ZC0V9X3T5R8W6Y1B"
LATER = "01KAK2M7Q4ZC0V9X3T5R8W6Y1C"


def sized(trial, gib):
    memory = replace(trial.outcome.memory, pss=int(gib * GIB))
    return replace(trial, outcome=replace(trial.outcome, memory=memory))


def trials(gain=2.0):
    """Baselines, screening, and pairs of the script with a fast and a lean configuration."""
    rows = [
        sized(measured(0, Config(), 100.0, Stage.BASELINE), 2.0),
        sized(measured(1, Config(), 101.0, Stage.BASELINE), 2.0),
        sized(measured(2, FAST, 100.0 * gain), 3.0),
        sized(measured(3, LEAN, 150.0), 1.5),
        sized(measured(4, SEEN, 120.0), 1.2),
        failed(5, Config({"num_workers": 8})),
    ]
    for cycle in range(1, 5):
        for config, value, gib in ((Config(), 100.0, 2.0), (FAST, 100.0 * gain, 3.0), (LEAN, 150.0, 1.5)):
            trial = measured(len(rows), config, value + 0.3 * cycle, Stage.CONFIRM)
            rows.append(sized(replace(trial, group=cycle, seed=cycle), gib))
    return rows


def journaled(script, *, label="train-1", study_id=FIRST, rows=None, **changes):
    given = spec(
        script=str(script),
        cwd=str(script.parent),
        label=label,
        study_id=study_id,
        budget=Budget(seconds=600.0),
        space=SpaceRequest(name="quick", knobs={"num_workers": (0, 1, 2, 4, 8)}),
        **{"out": "", **changes},
    )
    loader = LoaderFacts(
        site="train.py:3",
        batch_size=32,
        num_workers=0,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        fetch_cpu_frac=1.0,
        fetch_s=0.01,
        length=100,
        dataset_length=3200,
    )
    known = facts()
    run = replace(known.run, loader=loader, model=ModelFacts(name="Net", parameters=10))
    known = replace(known, run=run, host=replace(known.host, cpus=8, physical_cores=8))
    folder = study_dir(study_id)
    folder.mkdir(parents=True)
    journal = Journal.create(folder / "journal.db", ballast_bytes=0)
    opened = {"spec": given, "wall_s": 1.79e9, "host": "", "pid": 1, "version": "0.1.0"}
    journal.append("opened", "opened/1", to_wire(opened))
    journal.append("inspected", "inspected/1", to_wire({"facts": known}))
    for trial in trials() if rows is None else rows:
        n = trial.number
        told = {
            "number": n,
            "attempt": 1,
            "outcome": trial.outcome,
            "seconds": 9.0,
            "elapsed_s": 9.0 * n + 9,
            "facts": known.run,
        }
        journal.append("asked", f"asked/{n}/1", to_wire({"trial": trial, "uid": f"t{n}"}))
        journal.append("told", f"told/{n}/1", to_wire(told))
    journal.append("stopped", "stopped/1", to_wire({"why": "finished", "elapsed_s": 480.0}))
    journal.close()
    return folder


def test_the_report_is_one_file_named_after_the_study(cli, script):
    journaled(script)
    code, out, err = cli("report", "train-1")
    assert (code, err) == (0, "")
    assert out == "train-1.html\n"
    data = pages.data(Path("train-1.html").read_text())
    assert data["picks"]["best"]["config"] == dict(FAST)
    assert data["picks"]["best"]["speedup"]["value"] == pytest.approx(2.0, abs=0.02)
    assert data["wishes"] is None


def test_it_goes_where_it_is_told_and_leaves_nothing_else(cli, script):
    journaled(script)
    Path("out").mkdir()
    assert cli("report", "--out", "out/r.html")[0] == 0
    assert [p.name for p in Path("out").iterdir()] == ["r.html"]
    code, out, _err = cli("report", "--out", "-")
    assert code == 0
    assert out == Path("out/r.html").read_text()
    code, _out, err = cli("report", "--out", "nowhere/r.html")
    assert code == 5
    assert "--out" in err


def test_markdown_and_json_go_to_stdout_unless_a_file_is_named(cli, script):
    journaled(script)
    assert "## 1.99x faster" in cli("report", "--md")[1]
    data = json.loads(cli("report", "--json")[1])
    assert data["schema"] == "autotune.report/v1"
    assert data["exit"] == 0
    assert cli("report", "--json", "--out", "r.json")[1] == "r.json\n"
    assert json.loads(Path("r.json").read_text()) == data
    assert not Path("train-1.html").exists()


def test_a_bound_picks_again_without_measuring(cli, script):
    folder = journaled(script)
    before = (folder / "journal.db").read_bytes()
    data = json.loads(cli("report", "--json", "--max-memory", "2560MiB")[1])
    assert data["picks"]["best"]["config"] == dict(LEAN)
    assert data["wishes"]["max_memory_bytes"] == 2560 * 2**20
    assert any("confirmed" in n for n in data["wishes"]["notes"])
    tight = json.loads(cli("report", "--json", "--max-memory", "1300MiB")[1])
    assert not tight["is_better"]
    assert [e["config"] for e in tight["wishes"]["estimates"]] == [dict(SEEN)]
    assert tight["wishes"]["estimates"][0]["confirmed"] is False
    assert "estimated, not confirmed" in cli("report", "--md", "--max-memory", "1300MiB")[1]
    assert (folder / "journal.db").read_bytes() == before


def test_the_least_memory_is_an_objective_and_its_picks_can_be_applied(cli, script):
    journaled(script)
    code, _out, err = cli("report", "--objective", "memory", "--yaml", "lean.yaml", "--out", "lean.html")
    assert (code, err) == (0, "")
    from autotune.export.best_config import read_best

    assert read_best("lean.yaml").picks["best"].knobs["num_workers"] == 2
    hero = pages.read(Path("lean.html").read_text()).by_id("answer").text
    assert "autotune apply lean.yaml" in hero


def test_per_cent_are_of_the_machine_that_was_searched_on(cli, script):
    journaled(script)
    data = json.loads(cli("report", "--json", "--max-memory", "25%")[1])
    assert data["wishes"]["max_memory_bytes"] == facts().host.memory_bytes // 4


def test_speed_is_a_wish_where_it_is_said_and_without_one_nothing_is_picked_again(cli, script):
    journaled(script)
    assert json.loads(cli("report", "--json")[1])["wishes"] is None
    wished = json.loads(cli("report", "--json", "--objective", "throughput")[1])["wishes"]
    assert wished["objective"] == "throughput"
    bounded = json.loads(cli("report", "--json", "--max-memory", "64GiB")[1])["wishes"]
    assert bounded["objective"] == "throughput"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--objective", "memry"], "memory"),
        (["--objective", "loss"], "has to keep it"),
        (["--html", "--json"], "at a time"),
        (["--json", "--open"], "--open"),
        (["--max-memory", "3"], "no unit"),
    ],
)
def test_what_cannot_be_wished_for_is_said(cli, script, words, said):
    journaled(script)
    code, _out, err = cli("report", *words)
    assert code == 2
    assert said in err


def test_a_study_that_is_not_there_is_guessed_at(cli, script):
    journaled(script, label="train-1121-1002")
    code, _out, err = cli("report", "trian-1121-1002")
    assert code == 5
    assert "train-1121-1002" in err
    assert cli("compare", "train-1121-1002", "train-1121-1001")[0] == 5


def test_without_a_baseline_there_is_a_page_and_nothing_to_pick_against(cli, script):
    journaled(script, rows=[replace(failed(0, Config()), stage=Stage.BASELINE)])
    assert cli("report")[0] == 0
    assert "fails unmodified" in Path("train-1.html").read_text()
    code, _out, err = cli("report", "--objective", "memory")
    assert code == 2
    assert "no measured baseline" in err
    assert cli("report", "--yaml", "x.yaml")[0] == 2


def test_opening_shows_the_file(cli, script, monkeypatch):
    journaled(script)
    seen = []
    monkeypatch.setattr("webbrowser.open", seen.append)
    assert cli("report", "--open")[0] == 0
    assert seen == [Path("train-1.html").absolute().as_uri()]


def test_two_studies_are_compared_from_their_journals(cli, script):
    journaled(script, label="first")
    journaled(script, label="second", study_id=LATER, rows=trials(3.0))
    code, out, err = cli("compare", "first", "second")
    assert (code, err) == (0, "")
    assert "The intervals do not overlap: B's speed-up is higher" in out
    data = json.loads(cli("compare", "first", "second", "--json")[1])
    assert data["schema"] == "autotune.compare/v1"
    assert data["exit"] == 0
    verdicts = {s["about"]: s["verdict"] for s in data["statements"]}
    assert verdicts["best"] == "b"
    same = json.loads(cli("compare", "first", "first", "--json")[1])
    assert {s["verdict"] for s in same["statements"]} == {"same"}


def test_compare_wants_two_studies(cli, script):
    journaled(script, label="first")
    assert cli("compare", "first")[0] == 2


# -- which file, which study ----------------------------------------------------------------------


def test_markdown_of_other_wishes_applies_their_file(cli, script):
    journaled(script, out=str(script.parent / "best.yaml"))
    text = cli("report", "--md", "--max-memory", "2560MiB")[1]
    assert "best.yaml" not in text
    lines = text.splitlines()
    write = "autotune report train-1 --max-memory 2560MiB --yaml picked.yaml"
    assert lines[1] == f"**Write these picks to a file:** `{write}`"
    assert lines[3].startswith("**Apply:** `autotune apply picked.yaml -- python train.py")
    text = cli("report", "--md", "--objective", "memory", "--yaml", "lean.yaml")[1]
    assert "`autotune apply lean.yaml -- python train.py" in text
    assert "--yaml" not in text
    assert "best.yaml" not in text
    nothing = cli("report", "--md", "--max-memory", "1300MiB")[1]
    assert "Write these picks" not in nothing


@pytest.mark.parametrize("kind", ["--md", "--json", "--html"])
def test_a_file_of_a_later_search_is_not_named_as_that_of_an_earlier_one(cli, script, kind):
    out = str(script.parent / "best.yaml")
    folder = journaled(script, label="early", out=out)
    journaled(script, label="later", study_id=LATER, rows=trials(3.0), out=out)
    assert cli("report", "early", "--json", "--yaml", str(folder / "best.yaml"))[0] == 0
    assert cli("report", "later", "--json", "--yaml", "best.yaml")[0] == 0
    said = cli("report", "later", kind, "--out", "-")[1]
    assert "autotune apply best.yaml" in said
    said = cli("report", "early", kind, "--out", "-")[1]
    assert "autotune apply best.yaml" not in said
    kept = folder / "best.yaml"
    assert f"autotune apply {kept}" in said or f"autotune apply {kept.relative_to(script.parent)}" in said
    written = cli("report", "early", kind, "--yaml", "early.yaml", "--out", "-")[1]
    assert "autotune apply early.yaml" in written


def test_a_report_is_of_a_search_and_not_of_what_verify_measured(cli, script):
    journaled(script, label="found")
    journaled(script, label="checked", study_id=LATER, purpose="verify")
    assert json.loads(cli("report", "--json")[1])["study"]["label"] == "found"
    for words in (["report", "checked"], ["compare", "found", "checked"], ["compare", "checked", "found"]):
        code, _out, err = cli(*words)
        assert code == 2
        assert "`autotune verify` measured" in err
        assert "autotune show checked" in err

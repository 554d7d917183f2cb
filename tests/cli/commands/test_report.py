"""report and compare: made from the journal alone."""

import hashlib
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pages
import pytest
from journaled import FAST, LATER, LEAN, SEEN, journaled, trials
from study_fakes import facts, failed

from autotune.answer.advice import advice_data, advice_of, advice_text
from autotune.cli.open_study import open_study
from autotune.config_files.presets import load_space
from autotune.driver.rebuild_space import space_of
from autotune.inspection.source_advice import advise
from autotune.model.config import Config
from autotune.model.trial import Stage


def test_the_report_is_one_file_named_after_the_study(cli, script):
    journaled(script)
    code, out, err = cli("report", "train-1")
    assert (code, err) == (0, "")
    assert out == "train-1.html\n"
    data = pages.data(Path("train-1.html").read_text())
    assert data["picks"]["best"]["config"] == dict(FAST)
    assert data["picks"]["best"]["speedup"]["value"] == pytest.approx(2.0, abs=0.02)
    assert data["wishes"] is None


def test_it_goes_where_it_is_reported_and_leaves_nothing_else(cli, script):
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


def test_wishes_that_nothing_confirmed_meets_are_answered_with_what_single_runs_saw(cli, script):
    journaled(script)
    code, out, err = cli("report", "--max-memory", "1300MiB")
    assert (code, out) == (0, "train-1.html\n")
    assert err.startswith("none    No configuration within these criteria is confirmed")
    assert "maybe   1.19x, 1.2 GiB in 1 single run, not confirmed: num_workers 0 -> 1\n" in err
    assert "apply" not in err


@pytest.mark.parametrize("name", ["quick", "auto"])
def test_what_would_confirm_an_estimate_is_a_search_that_runs_as_pasted(cli, script, tune, name):
    space = load_space(name, cwd=str(script.parent), sets=("num_workers=1,2,4,8",))
    folder = journaled(script, space=space)
    err = cli("report", "--max-memory", "1300MiB")[2]
    (line,) = [line for line in err.splitlines() if "To confirm the first" in line]
    words = shlex.split(line.partition(" pinned: ")[2])
    assert words[:4] == ["autotune", "search", "--budget", "600s"]
    code, _out, err = cli(*words[1:], "--dry-run")
    assert code == 0, err
    (requested,) = tune.specs
    assert requested.script == str(script)
    assert requested.max_memory_bytes == 1300 << 20
    for request in requested.space.candidates or [requested.space]:
        assert dict(request.fixed) == dict(SEEN)
        found, _refusals = space_of(replace(requested, space=request), open_study(folder).study.facts)
        assert dict(found.fixed) == dict(SEEN)


def test_without_a_name_for_its_space_only_the_option_is_reported(cli, script):
    journaled(script)
    err = cli("report", "--max-memory", "1300MiB")[2]
    assert "search again with its knobs pinned (--fix)." in err
    assert "autotune search" not in err


def test_the_least_memory_is_an_objective_and_its_picks_can_be_applied(cli, script):
    journaled(script)
    code, out, err = cli("report", "--objective", "memory", "--yaml", "lean.yaml", "--out", "lean.html")
    assert (code, out) == (0, "lean.html\n")
    assert err.startswith("best    1.5"), "what was picked is reported where it was requested"
    assert "1.5 GiB, loss " in err
    assert "num_workers 0 -> 2" in err
    assert "note    Selected again from stored trials; nothing was measured" in err
    assert "apply   autotune apply lean.yaml -- " in err
    from autotune.export.best_config import read_best

    assert read_best("lean.yaml").picks["best"].knobs["num_workers"] == 2
    hero = pages.read(Path("lean.html").read_text()).by_id("answer").text
    assert "autotune apply lean.yaml" in hero


def test_per_cent_are_of_the_machine_that_was_searched_on(cli, script):
    journaled(script)
    data = json.loads(cli("report", "--json", "--max-memory", "25%")[1])
    assert data["wishes"]["max_memory_bytes"] == facts().host.memory_bytes // 4


def test_speed_is_a_wish_where_it_is_reported_and_without_one_nothing_is_picked_again(cli, script):
    journaled(script)
    assert json.loads(cli("report", "--json")[1])["wishes"] is None
    wished = json.loads(cli("report", "--json", "--objective", "throughput")[1])["wishes"]
    assert wished["objective"] == "throughput"
    bounded = json.loads(cli("report", "--json", "--max-memory", "64GiB")[1])["wishes"]
    assert bounded["objective"] == "throughput"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--objective", "memry"], "memory"),
        (["--objective", "loss"], "has to keep it"),
        (["--html", "--json"], "at a time"),
        (["--json", "--open"], "--open"),
        (["--max-memory", "3"], "no unit"),
    ],
)
def test_what_cannot_be_wished_for_is_reported(cli, script, words, message):
    journaled(script)
    code, _out, err = cli("report", *words)
    assert code == 2
    assert message in err


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
    message = cli("report", "later", kind, "--out", "-")[1]
    assert "autotune apply best.yaml" in message
    message = cli("report", "early", kind, "--out", "-")[1]
    assert "autotune apply best.yaml" not in message
    kept = folder / "best.yaml"
    assert (
        f"autotune apply {kept}" in message or f"autotune apply {kept.relative_to(script.parent)}" in message
    )
    written = cli("report", "early", kind, "--yaml", "early.yaml", "--out", "-")[1]
    assert "autotune apply early.yaml" in written


@pytest.mark.parametrize("words", [["--md"], []], ids=["note", "screen"])
def test_show_names_the_file_of_the_study_it_shows(cli, script, words):
    out = str(script.parent / "best.yaml")
    folder = journaled(script, label="early", out=out)
    journaled(script, label="later", study_id=LATER, rows=trials(3.0), out=out)
    assert cli("report", "early", "--json", "--yaml", str(folder / "best.yaml"))[0] == 0
    assert cli("report", "later", "--json", "--yaml", "best.yaml")[0] == 0
    assert "autotune apply best.yaml" in cli("show", "later", *words)[1]
    message = cli("show", "early", *words)[1]
    assert "autotune apply best.yaml" not in message
    kept = folder / "best.yaml"
    assert (
        f"autotune apply {kept}" in message or f"autotune apply {kept.relative_to(script.parent)}" in message
    )


def test_commands_that_are_shown_elsewhere_say_where_they_are_typed(cli, script, monkeypatch, tmp_path):
    journaled(script, out=str(script.parent / "best.yaml"))
    assert cli("report", "--json", "--yaml", "best.yaml")[0] == 0
    typed, here = f"\n  in        {script.parent}\n", f"\nin      {script.parent}\n"
    assert typed not in cli("show")[1]
    assert here not in cli("report", "--max-memory", "2560MiB")[2]
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    shown = cli("show")[1]
    assert shown.index(typed) < shown.index("apply     autotune apply best.yaml -- python train.py")
    reported = cli("report", "--max-memory", "2560MiB", "--yaml", "lean.yaml")[2]
    assert reported.index(here) < reported.index(
        f"apply   autotune apply {other}/lean.yaml -- python train.py"
    )
    for kind in ("--md", "--json"):
        assert str(script.parent) not in cli("report", kind)[1], "what is sent on names no folder"


def test_a_report_is_of_a_search_and_not_of_what_verify_measured(cli, script):
    journaled(script, label="found")
    journaled(script, label="checked", study_id=LATER, purpose="verify")
    assert json.loads(cli("report", "--json")[1])["study"]["label"] == "found"
    for words in (["report", "checked"], ["compare", "found", "checked"], ["compare", "checked", "found"]):
        code, _out, err = cli(*words)
        assert code == 2
        assert "`autotune verify` measured" in err
        assert "autotune show checked" in err


# -- advice on the script's own code --------------------------------------------------------------

SLOW = (
    "import torch\nfor x in loader:\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"
    "    print(loss.item())\n"
)


@pytest.fixture
def advised(script):
    script.write_text(SLOW)
    hints = advise(str(script))
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    folder = journaled(script, advice=hints, sha256=sha256)
    return script, folder, hints


def test_advice_is_the_same_on_the_screen_the_page_in_markdown_and_for_programs(cli, advised):
    _script, folder, _hints = advised
    (hint,) = advice_of(open_study(folder).study)
    assert hint.place == "train.py:6"
    assert f"advice    {advice_text(hint)}\n" in cli("show")[1]
    for words in (["report", "--md"], ["show", "--md"]):
        assert f"### In your own code\n\n- {advice_text(hint)}\n" in cli(*words)[1]
    reported = json.loads(cli("report", "--json")[1])["advice"]
    assert reported == json.loads(cli("show", "--json")[1])["advice"] == [advice_data(hint)]
    page = cli("report", "--out", "-")[1]
    assert pages.data(page)["advice"] == reported
    section = pages.read(page).by_id("advice").text
    assert hint.place in section
    assert hint.text in section


def test_advice_is_of_the_script_that_was_searched_whatever_became_of_it(cli, advised):
    script, _folder, (hint,) = advised
    message = "train.py has changed since the search; these lines are the searched version"
    assert message not in cli("show")[1]
    script.write_text("# edited\n" * 20 + SLOW)
    out = cli("show")[1]
    assert f"advice    {hint.place}: " in out
    assert message in out
    script.unlink()
    out = cli("show")[1]
    assert f"advice    {hint.place}: " in out
    assert message in out


def test_a_script_without_advice_has_no_part_for_it(cli, script):
    journaled(script)
    assert "In your own code" not in cli("report", "--md")[1]
    assert 'id="advice"' not in cli("report", "--out", "-")[1]

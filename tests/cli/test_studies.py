"""list, show, resume, sync: what is read from journals."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from study_fakes import facts, failed, measured, spec, study

from autotune.model.config import Config
from autotune.model.facts import DeviceFacts
from autotune.model.study import Budget, SpaceRequest
from autotune.model.trial import Stage
from autotune.model.wire import to_wire
from autotune.store.journal import Journal
from autotune.store.paths import study_dir


def journaled(
    script,
    *,
    label="train-1",
    study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1B",
    trials=None,
    stopped="finished",
    knobs=None,
):
    """A study on disk, its events appended one by one."""
    given = spec(
        script=str(script), cwd=str(script.parent), label=label, study_id=study_id, out="",
        budget=Budget(seconds=600.0),
        space=SpaceRequest(name="quick", knobs=knobs or {"num_workers": (0, 4), "batch_size": ()}),
    )  # fmt: skip
    folder = study_dir(study_id)
    folder.mkdir(parents=True)
    journal = Journal.create(folder / "journal.db")
    known = facts()
    rows = [
        ("opened", "opened/1", {"spec": given, "wall_s": 1.79e9, "host": "", "pid": 1, "version": "0.1.0"}),
        ("inspected", "inspected/1", {"facts": known}),
    ]
    for trial in study().trials if trials is None else trials:
        n = trial.number
        outcome = {
            "number": n, "attempt": 1, "outcome": trial.outcome, "seconds": 9.0,
            "elapsed_s": 9.0 * n + 9, "facts": known.run,
        }  # fmt: skip
        rows += [
            ("proposed", f"proposed/{n}/1", {"trial": trial, "uid": f"t{n}"}),
            ("finished", f"finished/{n}/1", outcome),
        ]
    if stopped:
        rows.append(("stopped", "stopped/1", {"why": stopped, "elapsed_s": 480.0}))
    for kind, uid, data in rows:
        journal.append(kind, uid, to_wire(data))
    journal.close()
    return folder


def test_without_studies_list_says_how_to_begin(cli):
    code, out, _err = cli("list")
    assert code == 0
    assert "autotune search" in out
    assert json.loads(cli("list", "--json")[1])["studies"] == []


def test_list_shows_newest_first_and_survives_a_damaged_journal(cli, script):
    journaled(script, label="old", study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1B")
    folder = journaled(
        script, label="new", study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1C", trials=(), stopped="signal"
    )
    broken = journaled(script, label="bad", study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1D")
    (broken / "journal.db").write_bytes(b"not a database, not at all")
    code, out, _err = cli("list", "--json")
    rows = json.loads(out)["studies"]
    assert code == 0
    assert [row["label"] for row in rows if row["label"]] == ["new", "old"]
    assert rows[-1]["trials"] == 6
    assert rows[-1]["script"] == "train.py"
    assert "new" in cli("list")[1]
    assert folder.is_dir()


def test_show_reports_picks_front_failures_from_the_journal_alone(cli, script):
    journaled(script)
    code, out, err = cli("show", "train-1")
    assert (code, err) == (0, "")
    for word in ("study train-1", "front", "failed", "out of host memory", "trials"):
        assert word in out


def test_show_json_carries_every_trial(cli, script):
    journaled(script)
    data = json.loads(cli("show", "--json")[1])
    assert data["schema"] == "autotune.show/v1"
    assert len(data["trials"]) == 6
    assert data["failures"] == {"oom_host": 1}
    assert data["baseline"]["throughput"]["value"] == pytest.approx(100.0, rel=0.1)


def test_show_without_a_baseline_says_so(cli, script):
    journaled(script, trials=(failed(0, Config()),), stopped="no_baseline")
    code, out, _err = cli("show")
    assert code == 0
    assert "not measured" in out
    assert json.loads(cli("show", "--json")[1])["stopped"] == "no_baseline"


def test_a_study_with_a_knob_of_another_version_is_shown(cli, script):
    faster = measured(1, Config({"num_workers": 4, "warp_drive": 9}), 200.0)
    trials = (measured(0, Config(), 100.0, Stage.BASELINE), faster)
    journaled(script, trials=trials, knobs={"num_workers": (0, 4), "warp_drive": (1, 9)})
    for words in ([], ["--md"], ["--trials"], ["--json"]):
        code, out, err = cli("show", *words)
        assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["refusals"]["warp_drive"] == "This version of autotune does not have this knob."
    assert data["baseline"]["knobs"]["num_workers"] == 0
    assert len(data["trials"]) == 2


def test_a_study_whose_space_cannot_be_built_any_more_is_shown(cli, script, monkeypatch):
    journaled(script)

    def broken(*args, **more):
        raise TypeError("from another version")

    monkeypatch.setattr("autotune.driver.rebuild_space.build_space", broken)
    code, out, err = cli("show")
    assert (code, err) == (0, "")
    assert "study train-1" in out


@pytest.mark.parametrize("verb", ["show", "resume", "sync"])
def test_an_unknown_study_ends_with_5(cli, script, verb, tune):
    journaled(script)
    code, _out, err = cli(verb, "trian-1")
    assert code == 5
    assert 'Did you mean "train-1"?' in err


def test_resume_hands_the_studys_folder_and_a_new_budget_on(cli, script, tune):
    folder = journaled(script)
    assert cli("resume", "train-1", "--budget", "5m")[0] == 0
    assert cli("resume")[0] == 0
    assert cli("resume", "--budget", "8m", "--trials", "12")[0] == 0
    assert tune.resumed == [(folder, 300.0, None), (folder, None, None), (folder, 480.0, 12)]
    code, _out, _err = cli("resume", "--budget", "3s")
    assert code == 2


def test_resume_keeps_the_wait_of_the_search_unless_it_is_given_another(cli, script, tune):
    journaled(script)
    cli("resume", "train-1")
    cli("resume", "train-1", "--wait-for-quiet", "2m")
    cli("resume", "train-1", "--wait", "30m", "--share")
    assert tune.waits == [None, 120.0, None]
    assert tune.turns == [(None, False), (None, False), (1800.0, True)]
    code, _out, err = cli("resume", "train-1", "--wait-for-quiet", "soon")
    assert code == 2
    assert '--wait-for-quiet: "soon" is no duration' in err


def test_resume_reports_a_line_per_event_and_the_result_in_the_last(cli, script, tune):
    journaled(script)
    code, out, _err = cli("resume", "train-1", "--jsonl", "--quiet")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row.get("event") for row in rows] == ["study_began", "study_ended", None]
    assert (rows[-1]["schema"], rows[-1]["exit"], code) == ("autotune.result/v1", 0, 0)
    (line,) = cli("resume", "trian-1", "--jsonl")[1].splitlines()
    assert json.loads(line)["error"]["kind"] == "StudyNotFound"


@pytest.fixture
def sending(monkeypatch):
    """`sync_study` without MLflow: `requested` lists its calls, `unsent` is the number that it returns."""
    fake = SimpleNamespace(requested=[], unsent=0)

    def sync_study(path, deadline_s, **more):
        fake.requested.append((path, deadline_s, more))
        return fake.unsent

    monkeypatch.setattr("autotune.driver.sinks.sync.sync_study", sync_study)
    return fake


@pytest.mark.parametrize(("unsent", "code"), [(0, 0), (3, 6)])
def test_sync_ends_with_6_while_records_wait(cli, script, sending, unsent, code):
    folder = journaled(script)
    sending.unsent = unsent
    got, _out, err = cli("sync", "--wait", "9s")
    assert got == code
    assert sending.requested == [(folder, 9.0, {"tracking_uri": "", "again": False})]
    assert ("3 records" in err) == bool(unsent)


def test_sync_sends_everything_again_and_to_another_address_where_it_is_reported(cli, script, sending):
    folder = journaled(script)
    code, out, _err = cli("sync", "train-1", "--again", "--tracking-uri", "http://other:5000")
    assert (code, out) == (0, f"MLflow has everything of {folder.name}\n")
    assert sending.requested == [(folder, 60.0, {"tracking_uri": "http://other:5000", "again": True})]


def test_sync_that_has_nothing_to_send_does_not_vouch_for_the_store(cli, script, sending):
    folder = journaled(script)
    out = cli("sync")[1]
    assert "MLflow has everything" not in out
    assert f"autotune sync {folder.name} --again" in out


def test_compile_caches_of_a_study_are_found_where_they_fit(script):
    from autotune.cli.open_study import compiled_for
    from autotune.driver.loop.planner import cache_key
    from autotune.model.study import Study
    from autotune.store.fold import fold

    folder = journaled(
        script, trials=(measured(0, Config(), 100.0), measured(1, Config({"compile_mode": "default"}), 200.0))
    )
    journal = Journal.read(folder / "journal.db")
    folded: Study = fold(journal.entries())
    journal.close()
    host, sha256 = folded.facts.host, folded.facts.script.sha256
    assert compiled_for(folder.name, 1, host, sha256) is None
    made = folder / "cache" / cache_key(Config({"compile_mode": "default"}), folded.facts)
    made.mkdir(parents=True)
    assert compiled_for(folder.name, 1, host, sha256) == made
    assert compiled_for(folder.name, 0, host, sha256) is None
    assert compiled_for(folder.name, 99, host, sha256) is None
    device = DeviceFacts(name="GPU X", uuid="GPU-1", memory_bytes=1 << 34, capability=(9, 0))
    for other in (
        replace(host, versions={**host.versions, "torch": "2.12.0"}),
        replace(host, cpu_model="CPU Y"),
        replace(host, devices=(device,)),
    ):
        assert compiled_for(folder.name, 1, other, sha256) is None
    assert compiled_for(folder.name, 1, host, "0" * 64) is None


def test_show_as_markdown_is_the_note_that_mlflow_gets(cli, script):
    journaled(script)
    code, out, err = cli("show", "--md")
    assert (code, err) == (0, "")
    assert out.startswith("## ")
    assert "### How it was measured" in out


def test_a_narrow_terminal_is_kept_to_and_a_pipe_gets_whole_lines(cli, script, monkeypatch):
    journaled(script)
    listed, shown = cli("list")[1], cli("show")[1]
    assert "01KAK2M7Q4ZC0V9X3T5R8W6Y1B" in listed
    monkeypatch.setattr("autotune.cli.outcome.terminal_columns", lambda: 80)
    narrow = cli("list")[1].splitlines()
    assert all(len(line) <= 80 for line in narrow)
    assert narrow[0].split() == ["STUDY", "SCRIPT", "WHEN", "TRIALS", "STATE", "OUTCOME"]
    assert narrow[1].startswith("train-1")
    monkeypatch.setattr("autotune.cli.outcome.terminal_columns", lambda: 50)
    folded = cli("show")[1]
    assert len(folded.splitlines()) > len(shown.splitlines())
    assert sorted(folded.split()) == sorted(shown.split())

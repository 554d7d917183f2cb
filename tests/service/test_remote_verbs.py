"""Verbs that read a local study, given the id of a search on a service; and apply from its registry."""

import hashlib
import json
import re

import pytest
from journaled import LATER, journaled
from live_service import listening
from service_fakes import FakeJobs, submission

from autotune.cli.heartbeat import Heartbeat
from autotune.cli.main import run
from autotune.service.app import create_app
from autotune.service.bundles import Bundles
from autotune.service.client import Client
from autotune.service.progress import hardware_key
from autotune.service.reconcile import Place, Reconciler
from autotune.service.states import SearchState
from autotune.service.store import Database


@pytest.fixture
def database(tmp_path):
    found = Database(f"sqlite:///{tmp_path / 'service.db'}")
    found.migrate()
    yield found
    found.engine.dispose()


@pytest.fixture
def place(tmp_path):
    return Place(root=tmp_path / "data")


@pytest.fixture
def service(tmp_path, database, place, monkeypatch):
    """A service that listens; this process is a client of it, with a home of its own."""
    jobs = FakeJobs()
    reconciler = Reconciler(
        database, jobs, place, capacity=2, prepare=lambda row: None, options={}, environ={}
    )
    app = create_app(database, Bundles(tmp_path / "bundles"), jobs, place, reconciler, price_per_hour=2.0)
    with listening(app) as url:
        monkeypatch.setenv("AUTOTUNE_SERVER", url)
        monkeypatch.setenv("AUTOTUNE_TOKEN", database.create_token(user="ann", scope="run"))
        monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "laptop"))
        monkeypatch.chdir(tmp_path)
        yield url


@pytest.fixture
def ended(database, place, service, monkeypatch, tmp_path):
    """A search that has ended, with a journal on the service."""
    row, _ = database.submit(submission())
    with monkeypatch.context() as patched:
        patched.setenv("AUTOTUNE_HOME", str(place.home(row.id)))
        journaled(place.search(row.id) / "code" / "train.py", label=row.id.lower())
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x")
    database.move(row.id, SearchState.STARTING, SearchState.SUCCEEDED, "faster", exit_code=0)
    return row.id


def out(capsys, *words):
    code = run(list(words))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_show_and_report_read_the_study_of_a_search_on_the_service(ended, capsys, tmp_path):
    assert "num_workers" in out(capsys, "show", ended)
    assert json.loads(out(capsys, "show", ended.lower(), "--json"))["study"]["label"] == ended.lower()
    assert "num_workers" in out(capsys, "report", ended, "--md")
    assert (tmp_path / "laptop" / "fetched" / ended / "journal.db").is_file()


def test_a_search_that_still_runs_has_no_study_to_show_and_says_how_to_follow_it(service, database, capsys):
    row, _ = database.submit(submission())
    assert run(["show", row.id]) == 2
    assert f"autotune logs -f {row.id}" in capsys.readouterr().err


def test_an_id_that_the_service_does_not_have_is_no_study(service, capsys):
    assert run(["show", "01M8F66ST0HDK8RNF36PQ6RHNH"]) == 5
    assert "there is no such search" in capsys.readouterr().err


def test_a_local_study_of_that_id_comes_first(service, capsys, tmp_path):
    folder = journaled(tmp_path / "train.py", label="mine")
    assert "study mine" in out(capsys, "show", folder.name)


def test_list_logs_and_ui_take_the_id(ended, service, capsys):
    assert ended in out(capsys, "list", ended)
    assert out(capsys, "logs", ended) == "trial 0\ntrial 1\n"
    assert f"{service}/searches/{ended}" in out(capsys, "ui", ended, "--no-open")


def test_following_prints_each_change_once_until_the_end(ended, database, capsys):
    for n in (1, 2):
        database.report(
            ended,
            epoch=1,
            facts={},
            kind="trial",
            study_seq=7,
            data={"trial": {"number": n, "stage": "start"}},
        )
    lines = out(capsys, "logs", "-f", ended).splitlines()
    assert [line.split(":")[0] for line in lines] == ["queued", "starting", "succeeded", "trial 1 start"]


def test_following_a_local_study_is_refused_with_the_way_to_do_it(service, capsys, tmp_path):
    journaled(tmp_path / "train.py", label="mine")
    assert run(["logs", "-f", "mine"]) == 2


def test_resume_gives_a_search_a_further_budget(ended, database, capsys):
    out(capsys, "resume", ended, "--budget", "5m")
    row = database.search(ended)
    assert (row.state, row.budget_s) == ("queued", row.used_s + 300)


def test_estimate_and_the_fleet_report(ended, database, capsys):
    text = out(capsys, "estimate", "--budget", "1h", "--gpus", "2")
    assert "at most 4.00" in text
    assert "0 searches ahead" in text
    database.register(
        database.search(ended), script_sha256="a" * 64, hardware="b" * 32, speedup=2.0, yaml="x"
    )
    database.note_applied(ended, "ann", "run-00001", 1800.0)
    database.note_applied(ended, "ann", "run-00001", 3600.0)
    database.note_applied(ended, "ann", "run-00001", 3600.0)
    assert re.search(r"saved since +1\.0 slot-hours", out(capsys, "report", "fleet"))
    assert json.loads(out(capsys, "report", "fleet", "--json"))["scripts"][0]["applied_hours"] == 1.0


def test_apply_takes_the_newest_configuration_for_this_script_and_machine(
    ended, database, capsys, tmp_path, monkeypatch
):
    from autotune.cli.commands import apply
    from autotune.cli.open_study import open_study
    from autotune.driver.result import changes_of
    from autotune.export.best_config import write_best

    script = tmp_path / "train.py"
    script.write_text("import os; print(os.environ.get('OMP_NUM_THREADS'))\n")
    monkeypatch.setattr(apply, "_host", lambda run: apply_host)
    from autotune.inspection.host import host_facts

    apply_host = host_facts()
    opened = open_study(journaled(tmp_path / "x" / "train.py", label=ended.lower(), study_id=LATER))
    write_best(tmp_path / "made.yaml", opened.study, opened.answer, changes_of(opened.study))
    assert run(["apply", "--from-server", "--print-env", "--", "python", "train.py"]) == 5
    assert "no configuration is registered" in capsys.readouterr().err
    database.register(
        database.search(ended),
        script_sha256=hashlib.sha256(script.read_bytes()).hexdigest(),
        hardware=hardware_key(apply_host),
        speedup=2.0,
        yaml=(tmp_path / "made.yaml").read_text(),
    )
    text = out(capsys, "apply", "--from-server", "--print-env", "--", "python", "train.py")
    assert "train.py" in text
    assert "--num-workers" in text or "num_workers=4" in text


def test_a_heartbeat_reports_the_time_of_a_run_once_and_a_dead_service_costs_nothing(
    ended, database, service
):
    database.register(
        database.search(ended), script_sha256="a" * 64, hardware="b" * 32, speedup=2.0, yaml="x"
    )
    with Heartbeat(Client(), ended.lower(), period_s=0.01):
        while database.fleet()["saved_slot_hours"] == 0.0:
            pass
    assert len(database.fleet_scripts()) == 1


def test_a_heartbeat_needs_a_configuration_of_the_service(service):
    from autotune.errors import UsageError

    with pytest.raises(UsageError, match="--report needs"):
        Heartbeat(Client(), "mine")


def test_a_script_that_would_not_be_sent_is_named_before_anything_is_sent(
    service, database, tmp_path, capsys
):
    assert run(["submit", "--budget", "2m", "--", "python", "nothing.py"]) == 2
    assert "nothing.py is not among the files to send" in capsys.readouterr().err
    (tmp_path / "id_rsa.py").write_text("")
    assert run(["submit", "--budget", "2m", "./id_rsa.py"]) == 2
    assert "send it with --include" in capsys.readouterr().err
    assert database.searches() == []
    assert run(["submit", "--budget", "2m", "--include", "id_rsa.py", "./id_rsa.py"]) == 0
    assert len(database.searches()) == 1


def test_a_failed_search_is_listed_with_its_reason_and_not_with_its_progress(service, database, capsys):
    row, _ = database.submit(submission())
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x")
    failed = "the script fails without any change"
    answer = {"headline": "so far 1.2x"}
    database.move(row.id, SearchState.STARTING, SearchState.FAILED, failed, answer=answer)
    assert run(["status"]) == 0
    reported = capsys.readouterr().out
    assert failed in reported
    assert "so far" not in reported

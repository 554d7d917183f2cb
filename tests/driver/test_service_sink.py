"""What a search sends to the service: facts in order, each once, and never what is secret."""

import http.server
import json
import sys
import threading
from pathlib import Path

import pytest

from autotune.driver.sinks import sync
from autotune.driver.sinks.service_sink import HEARTBEAT_S, ServiceSink, report_of
from autotune.driver.sinks.sync import Syncer
from autotune.errors import BackendError
from autotune.report.mlflow.recorder import Refused
from autotune.store.journal import Journal
from autotune.store.outbox import REPORT, SERVICE, rows_for

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made


class Service(http.server.ThreadingHTTPServer):
    """Takes facts, and answers as it is set to."""

    def __init__(self):
        self.bodies, self.status, self.tokens = [], 202, []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.tokens.append(self.headers["authorization"])
        if self.server.status == 202:
            self.server.bodies.append(json.loads(body))
        self.send_response(self.server.status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_words):
        pass


@pytest.fixture
def service():
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


@pytest.fixture
def report(tmp_path, service):
    path = tmp_path / "report.json"
    url = f"http://127.0.0.1:{service.server_address[1]}/api/v1/searches/X"
    path.write_text(json.dumps({"url": url, "token": "att_driver", "epoch": 2}))
    return path


@pytest.fixture
def journal(tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "_answer", lambda study: made.found())
    monkeypatch.setenv(REPORT, "set")
    with Journal.create(tmp_path / "study", ballast_bytes=0, environ={}) as opened:
        for event in made.events():
            opened.append(event.kind, event.uid, event.data, outbox=rows_for(event.kind, event.data))
        yield opened


def test_rows_for_the_service_are_written_only_where_one_has_started_the_search(monkeypatch):
    data = {"number": 0, "attempt": 0}
    monkeypatch.delenv(REPORT, raising=False)
    assert [row.sink for row in rows_for("finished", data)] == ["mlflow"]
    monkeypatch.setenv(REPORT, "/x")
    assert [row.sink for row in rows_for("finished", data)] == ["mlflow", SERVICE]


def test_facts_arrive_in_order_each_once(journal, report, service):
    sending = Syncer(
        journal, made.study, lambda: ServiceSink(str(report), made.study), sends=SERVICE, idle_s=0.01
    )
    assert sending.flush(10) == 0
    sent = [body for body in service.bodies if body["op"] != "heartbeat"]
    assert [body["op"] for body in sent] == ["study_began", *["trial_ended"] * 7, "study_ended"]
    assert [body["trial"]["number"] for body in sent[1:-1]] == list(range(7))
    assert [body["seq"] for body in sent] == sorted({body["seq"] for body in sent})
    assert sent[-1]["facts"]["outcome"]
    assert {(body["epoch"], body["protocol"]) for body in sent} == {(2, 1)}
    assert set(service.tokens) == {"Bearer att_driver"}
    assert journal.unsent("mlflow") == 9, "rows of MLflow are another sender's"


def test_a_service_that_is_away_loses_nothing_and_one_that_moved_is_found(journal, report, service):
    there = json.loads(report.read_text())
    report.write_text(json.dumps({**there, "url": "http://127.0.0.1:1/api/v1/searches/X"}))
    made_sink = lambda: ServiceSink(str(report), made.study)  # noqa: E731
    away = Syncer(journal, made.study, made_sink, sends=SERVICE, back_off_s=0.01)
    assert away.flush(1.0) == 9
    report.write_text(json.dumps(there))
    assert Syncer(journal, made.study, made_sink, sends=SERVICE, idle_s=0.01).flush(10) == 0
    assert [body["op"] for body in service.bodies].count("trial_ended") == 7


@pytest.mark.parametrize(("status", "error"), [(409, Refused), (422, Refused), (500, BackendError)])
def test_what_the_service_refuses_is_set_aside_and_what_fails_is_sent_again(report, service, status, error):
    service.status = status
    with pytest.raises(error) as raised:
        ServiceSink(str(report), made.study).send("study_began", {"seq": 1}, made.study())
    assert isinstance(raised.value, Refused) == (error is Refused)


def test_heartbeats_come_no_more_often_than_promised(report, service):
    sink = ServiceSink(str(report), made.study)
    for _ in range(5):
        sink.open()
    assert [body["op"] for body in service.bodies] == ["heartbeat"]
    assert HEARTBEAT_S >= 1.0


def test_a_report_file_that_cannot_be_read_is_a_message(tmp_path):
    (tmp_path / "x").write_text("{")
    for name in ("x", "missing"):
        with pytest.raises(BackendError, match="cannot be read"):
            report_of(str(tmp_path / name))

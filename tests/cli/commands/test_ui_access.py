"""`autotune ui` with the real MLflow and a second account of the machine that tries every door."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from second_account import Account, second_account

from autotune.report.mlflow import saved_views

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
import made_studies as made

__all__ = ["second_account"]

pytestmark = [pytest.mark.mlflow, pytest.mark.timeout(400)]
ODD = "o'neil 100%41? #1"

ASK = """
import http.client, json, sys
port, requests = int(sys.argv[1]), json.loads(sys.argv[2])
answers = []
for method, path, headers, body in requests:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    answers.append([answer.status, answer.read(300).decode(errors="replace")])
    connection.close()
print(json.dumps(answers))
"""


class Shown:
    """`autotune ui` of a study, in a folder and a home with odd names that every account can enter."""

    def __init__(self, home: Path, process: subprocess.Popen[str]) -> None:
        self.home = home
        self._process = process
        assert process.stdout is not None
        lines = (
            process.stdout.readline().split()
            for _ in range(3 if saved_views.is_tested(version("mlflow")) else 1)
        )
        self.links = dict(lines)
        parts = urlsplit(self.links["answer"])
        assert parts.hostname == "127.0.0.1"
        self.port = int(parts.port or 0)
        self.place = f"/{parts.path.split('/')[1]}"
        self.cookie = ""

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, bytes]:
        """One request of this account's, with the cookie once there is one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if self.cookie:
            headers["Cookie"] = self.cookie
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        if given := answer.getheader("set-cookie"):
            self.cookie = given.split(";")[0]
        with contextlib.closing(connection):
            return answer.status, answer.read()

    def api(self, name: str, **data: Any) -> Any:
        path = f"{self.place}/ajax-api/2.0/mlflow/{name}"
        status, text = self.ask("POST", path, json.dumps(data), **{"Content-Type": "application/json"})
        assert status == 200, text
        return json.loads(text)

    def state(self) -> tuple[list[Any], list[str]]:
        """All that another account could change: the rows of the store, the files of the home."""
        with contextlib.closing(sqlite3.connect(self.home / "mlflow.db")) as connection:
            rows = [
                connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
                for table in ("experiments", "experiment_tags", "runs", "tags", "params")
            ]
        return rows, sorted(str(p) for p in self.home.parents[1].rglob("*"))


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    from autotune.driver.sinks.sync import sync_study
    from autotune.store.journal import Journal

    folder = Path(tempfile.mkdtemp(prefix="autotune-open-", dir="/tmp"))
    work = folder / ODD
    home = work / "home"
    study = home / "studies" / made.STUDY_ID
    study.mkdir(parents=True)
    for path in (folder, work, home, home / "studies"):
        path.chmod(0o755)
    study.chmod(0o700)
    with Journal.create(study, ballast_bytes=0, environ={}) as journal:
        for event in made.events():
            journal.append(event.kind, event.uid, event.data, outbox=event.outbox)
    (study / "best.yaml").write_text("picks: {}\n")
    environ = {**os.environ, "AUTOTUNE_HOME": str(home)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(home))
        assert sync_study(study, 120) == 0
    command = [sys.executable, "-m", "autotune", "ui", "--no-open"]
    process = subprocess.Popen(command, cwd=work, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        yield Shown(home, process)
    finally:
        process.terminate()
        process.communicate(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def routes() -> list[tuple[str, str]]:
    """Every method and path of the MLflow that is installed."""
    from mlflow.server import app as flask
    from mlflow.server.fastapi_app import app as fastapi

    found = {(method, rule.rule) for rule in flask.url_map.iter_rules() for method in rule.methods or ()}
    for path, methods in fastapi.openapi()["paths"].items():
        found |= {(method.upper(), path) for method in methods}
    return sorted((method, re.sub(r"<[^>]*>|\{[^}]*\}", "x", path)) for method, path in found)


def test_another_account_is_refused_at_every_route_of_mlflow_and_changes_nothing(
    shown: Shown, second_account: Account
) -> None:
    found = routes()
    paths = {path for _, path in found}
    assert len(found) > 100
    for part in (
        "mlflow-artifacts/artifacts",
        "graphql",
        "gateway",
        "upload-artifact",
        "runs/delete",
        "mcp",
        "assistant",
    ):
        assert any(part in path for path in paths), part
    before = shown.state()
    fake = {"Cookie": "autotune_ui=0", "Content-Type": "application/json"}
    requests = [
        [method, prefix + path, fake, None if method in ("GET", "HEAD", "OPTIONS") else '{"name": "x"}']
        for method, path in found
        for prefix in ("", shown.place)
    ]
    for begin in range(0, len(requests), 200):
        part = requests[begin : begin + 200]
        answers = json.loads(second_account.run(ASK, str(shown.port), json.dumps(part)))
        assert {status for status, _ in answers} == {403}, [
            (r, a) for r, a in zip(part, answers, strict=True) if a[0] != 403
        ]
        assert not any("MLflow" in text or "mlflow" in text for _, text in answers)
    assert shown.state() == before


def test_a_link_lets_in_its_user_once_and_no_other_account_before(
    shown: Shown, second_account: Account
) -> None:
    link = urlsplit(shown.links["answer"]).path
    (stolen,) = json.loads(second_account.run(ASK, str(shown.port), json.dumps([["GET", link, {}, None]])))
    assert stolen[0] == 403
    shown.cookie = ""
    assert shown.ask("GET", f"{shown.place}/")[0] == 403
    assert shown.ask("POST", f"{shown.place}/ajax-api/2.0/mlflow/runs/search", "{}")[0] == 403
    assert shown.ask("GET", link)[0] == 303
    assert shown.cookie
    status, page = shown.ask("GET", f"{shown.place}/")
    assert (status, b"<title>MLflow</title>" in page) == (200, True)
    for name in re.findall(rb'(?:src|href)="((?:\./)?static-files/[^"]+)"', page):
        assert shown.ask("GET", f"{shown.place}/{name.decode().removeprefix('./')}")[0] == 200, name
    kept, shown.cookie = shown.cookie, ""
    assert shown.ask("GET", link)[0] == 403, "it was used"
    shown.cookie = kept


def test_the_page_works_with_the_cookie_and_what_is_uploaded_stays_private(
    shown: Shown, second_account: Account
) -> None:
    if not shown.cookie:
        shown.ask("GET", urlsplit([*shown.links.values()][-1]).path)
    (experiment,) = [
        e for e in shown.api("experiments/search", max_results=10)["experiments"] if e["name"] != "Default"
    ]
    (run,) = shown.api(
        "runs/search",
        experiment_ids=[experiment["experiment_id"]],
        filter="tags.`autotune.role` = 'study'",
    )["runs"]
    place = f"run_uuid={run['info']['run_id']}&path=best.yaml"
    assert shown.ask("GET", f"{shown.place}/get-artifact?{place}") == (200, b"picks: {}\n")
    upload = f"{shown.place}/ajax-api/2.0/mlflow/upload-artifact?{place.replace('best', 'mine')}"
    assert shown.ask("POST", upload, "mine: 1\n")[0] == 200
    (mine,) = shown.home.rglob("mine.yaml")
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    files = f"{shown.place}/api/2.0/mlflow-artifacts/artifacts/x.txt"
    assert shown.ask("PUT", files, "x")[0] == 503, "the proxy for artifacts is off"
    assert list(shown.home.parents[1].rglob("x.txt")) == []
    read = second_account.readable(shown.home)
    assert read == [str(shown.home), str(shown.home / "studies")]

"""`autotune ui` without MLflow: its requests, its message when there is nothing, a server's life."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli import mlflow_server
from autotune.cli.commands import ui
from autotune.cli.gate import Keys
from autotune.cli.main import run
from autotune.errors import BackendError, UsageError

SERVER = f"""#!{sys.executable}
import http.server, os, socket, sys

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        AFTERWARDS

    def log_message(self, *_args):
        pass

AT_FIRST
server = http.server.HTTPServer(("127.0.0.1", 0), Health, bind_and_activate=False)
server.socket = socket.socket(fileno=int(sys.argv[-1]))
server.serve_forever()
"""
"""Stands in for `python -m autotune.cli.mlflow_app`."""


def found(
    monkeypatch: pytest.MonkeyPatch, uri: str, paths: dict[str, str], report: Path | None = None
) -> None:
    monkeypatch.setattr(ui, "_report", lambda *_more: report)
    monkeypatch.setattr("autotune.store.paths.find_study", lambda name, **more: Path("/nowhere"))
    monkeypatch.setattr("autotune.driver.sinks.sync.study_paths", lambda path, **more: (uri, paths))


def test_a_study_that_mlflow_does_not_hold_is_reported_with_the_command_that_sends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found(monkeypatch, "sqlite:////nowhere.db", {})
    with pytest.raises(BackendError) as raised:
        ui.ui(None, open_it=False)
    assert raised.value.hint == "send it: autotune sync --again"
    with pytest.raises(BackendError) as raised:
        ui.ui("train-1", open_it=False, tracking_uri="http://colleague:5000")
    assert raised.value.hint == "send it: autotune sync train-1 --again --tracking-uri http://colleague:5000"


def test_a_server_of_the_users_is_only_linked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(
        monkeypatch,
        "http://tracker:5000/",
        {"answer": "/#/experiments/1/runs/2?workflowType=machine_learning"},
    )
    assert ui.ui(None, open_it=False) == 0
    assert "http://tracker:5000/#/experiments/1/runs/2" in capsys.readouterr().out


def test_a_server_that_ends_at_once_is_an_error_that_names_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    found(monkeypatch, "sqlite:////nowhere.db", {"answer": "/#/x"})
    with pytest.raises(BackendError, match="code 1"):
        ui.ui(None, open_it=False)


def test_the_page_that_is_requested_is_the_one_that_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    found(monkeypatch, "http://tracker:5000", {"answer": "/#/a", "table": "/#/t"})
    ui.ui(None)
    ui.ui(None, page="table")
    assert opened == ["http://tracker:5000/#/a", "http://tracker:5000/#/t"]


def test_a_page_that_is_not_there_is_reported_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, "http://tracker:5000", {"answer": "/#/a", "table": "/#/t"})
    with pytest.raises(UsageError, match="no page `searches`") as raised:
        ui.ui(None, page="searches", open_it=False)
    assert raised.value.hint == "it was searched once only; there is: answer, table"


def test_another_store_is_looked_into_when_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autotune.store.paths.find_study", lambda name, **more: Path("/nowhere"))
    monkeypatch.setattr(
        "autotune.driver.sinks.sync.study_paths",
        lambda path, *, tracking_uri: (tracking_uri, {"answer": "/#/a"}),
    )
    ui.ui(None, open_it=False, tracking_uri="http://colleague:5000/")
    assert capsys.readouterr().out == "answer   http://colleague:5000/#/a\n"


def as_mlflow(folder: Path, *, at_first: str = "", afterwards: str = "pass") -> Path:
    """An interpreter whose server does as set, before it answers and after the first answer."""
    path = folder / "python"
    path.write_text(SERVER.replace("AT_FIRST", at_first).replace("AFTERWARDS", afterwards))
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def listening(address: str) -> Iterator[int]:
    with socket.create_server((address, 0)) as taken:
        yield taken.getsockname()[1]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_at_which_another_server_listens_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    monkeypatch.setattr("sys.executable", str(as_mlflow(tmp_path, at_first="sys.exit(1)")))
    found(monkeypatch, "sqlite:////nowhere.db", {"answer": "/#/x"})
    with (
        listening(address) as port,
        pytest.raises(BackendError, match=f"port {port} is not available") as raised,
    ):
        ui.ui(None, port=port, open_it=False)
    assert "--port" in raised.value.hint
    assert capsys.readouterr().out == ""


def test_a_port_that_there_cannot_be_is_a_mistake_of_the_command_line() -> None:
    assert run(["ui", "--port", "70000"]) == UsageError.exit_code


def test_a_server_that_fails_is_reported_with_what_it_reported_last_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = (
        "print('one\\n\\ncannot open postgresql://me:canary-pass@host/db', file=sys.stderr); sys.exit(3)"
    )
    monkeypatch.setattr("sys.executable", str(as_mlflow(tmp_path, at_first=message)))
    found(monkeypatch, "sqlite:////nowhere.db", {"answer": "/#/x"})
    with pytest.raises(BackendError) as raised:
        ui.ui(None, open_it=False)
    first, *lines = raised.value.message.splitlines()
    assert first == "MLflow's server exited with code 3; its last lines:"
    assert lines == ["  one", "  cannot open postgresql://<redacted>@host/db"]


@pytest.mark.parametrize("code", [0, 1])
def test_a_server_that_ends_while_it_is_looked_at_has_failed_unless_it_ended_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    monkeypatch.setattr("sys.executable", str(as_mlflow(tmp_path, afterwards=f"os._exit({code})")))
    # Nobody is there: a proxy is for what is far away.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(mlflow_server, "START_TIMEOUT_S", 20.0)
    found(monkeypatch, "sqlite:////nowhere.db", {"answer": "/#/x"})
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    if code:
        # 1 would be "nothing found".
        with pytest.raises(BackendError, match="exited with code 1"):
            ui.ui(None, open_it=False)
    else:
        assert ui.ui(None, open_it=False) == 0
    assert "#/x\n" in capsys.readouterr().out
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == before


@pytest.mark.parametrize("page", [None, "table"])
def test_the_browser_gets_a_link_of_its_own_and_no_secret_is_in_a_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: ui.Page | None
) -> None:
    noted = tmp_path / "noted"
    note = f"open({str(noted)!r}, 'w').write(repr(sys.argv) + os.environ['AUTOTUNE_UI_KEYS'])"
    monkeypatch.setattr("sys.executable", str(as_mlflow(tmp_path, at_first=note, afterwards="os._exit(0)")))
    monkeypatch.setattr(mlflow_server, "START_TIMEOUT_S", 20.0)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    pages = {"answer": "/#/a", "table": "/#/t"}
    found(monkeypatch, "postgresql://me:canary-pass@host/db", pages, tmp_path / "report.html")
    assert ui.ui(None, page=page) == 0
    arguments, _, text = noted.read_text().partition("]")
    keys = Keys.from_text(text)
    links = [line.split() for line in capsys.readouterr().out.splitlines()]
    base = links[0][1].partition(f"/{keys.place}/")[0]
    names, addresses = zip(*links, strict=True)
    assert names == ("report", "answer", "table"), "the report is first"
    codes = [address.removeprefix(f"{base}/{keys.place}/") for address in (*addresses, *opened)]
    assert [code[22:] for code in codes] == ["", "#/a", "#/t", "#/t" if page else ""]
    assert sorted(code[:22] for code in codes) == sorted(keys.codes), "each link works once"
    assert {code[:22] for code in codes if "#" not in code} == set(keys.report_codes)
    assert not any(secret in arguments for secret in ("canary-pass", keys.place, keys.cookie, *keys.codes))


PLAIN = """
import signal
# What started the tests may ignore them, as nohup and a shell's background do.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""

SHOWN = """
import sys
from pathlib import Path
from autotune.driver.sinks import sync
from autotune.store import paths
paths.find_study = lambda name, **more: Path("/nowhere")
sync.study_paths = lambda path, **more: ("sqlite:////nowhere.db", {"answer": "/#/x"})
from autotune.cli.commands import ui
from autotune.cli.main import run
ui._report = lambda *_more: None
sys.executable = sys.argv[1]
sys.exit(run(["ui", "--no-open"]))
"""


@contextlib.contextmanager
def shown(folder: Path, *, before: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`autotune ui` in a process of its own, its page just shown; and the process id of its server."""
    noted = folder / "pid"
    python = as_mlflow(folder, at_first=f"open({str(noted)!r}, 'w').write(str(os.getpid()))")
    code = PLAIN + textwrap.dedent(before) + SHOWN
    command = [sys.executable, "-c", code, str(python)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("answer")
            yield process, int(noted.read_text())
        finally:
            process.kill()
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int(noted.read_text()), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_the_server_goes_with_the_terminal_and_with_whoever_ends_the_command(
    tmp_path: Path, number: int
) -> None:
    with shown(tmp_path) as (process, pid):
        assert is_alive(pid)
        process.send_signal(number)
        assert process.wait(20) == 0
        assert not is_alive(pid)


def test_a_second_hang_up_does_not_stop_the_ending_of_the_server(tmp_path: Path) -> None:
    # The kernel and the shell each report of a terminal that was closed: here the second comes in between.
    before = """
        import os, signal
        from autotune.cli import mlflow_server as server
        end = server.Server.end
        def ending(self):
            os.kill(os.getpid(), signal.SIGHUP)
            end(self)
        server.Server.end = ending
    """
    with shown(tmp_path, before=before) as (process, pid):
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0
        assert not is_alive(pid)


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    before = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    with shown(tmp_path, before=before) as (process, pid):
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert is_alive(pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not is_alive(pid)

"""doctor, inspect, spaces: what is seen without running anything."""

import base64
import contextlib
import http.server
import json
import os
import sqlite3
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from study_fakes import facts

import autotune.cli.commands.doctor as doctor
from autotune.devices.nvidia import NvidiaDevices
from autotune.model.facts import DeviceFacts
from autotune.store.paths import default_store, home


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    import autotune.inspection.host as host
    import autotune.launch.workspace.isolation as enclosure

    monkeypatch.setattr(host, "host_facts", lambda: facts().host)
    monkeypatch.setattr(enclosure, "examined", lambda *_: enclosure.Isolation("redirect"))


def test_doctor_shows_versions_and_what_is_missing(cli, monkeypatch):
    real = metadata.version
    # The default tests also run where PyTorch is not installed.
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0" if name == "torch" else real(name))
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    for word in (
        "torch",
        "ray",
        "python",
        "isolation",
        "redirect",
        "energy",
        "no NVIDIA GPU",
        "no C++ compiler",
    ):
        assert word in out
    assert "mlflow store" not in out


def test_doctor_examines_this_folder_and_reports_what_rules_out_an_overlay(cli, monkeypatch, tmp_path):
    import autotune.launch.workspace.isolation as enclosure

    requested = []
    found = enclosure.Isolation("redirect", why="an overlay that you mount cannot write to data (me:lab)")
    monkeypatch.setattr(enclosure, "examined", lambda *request: requested.append(request) or found)
    monkeypatch.chdir(tmp_path)
    rows = {f["name"]: f for f in json.loads(cli("doctor", "--json")[1])["findings"]}
    assert rows["isolation"]["state"] == "warn"
    assert rows["isolation"]["hint"] == found.why
    assert str(tmp_path) in requested[0][2]


@pytest.mark.parametrize("moves", [True, False])
def test_doctor_reports_what_an_overlay_cannot_do(cli, monkeypatch, moves):
    import autotune.launch.workspace.isolation as enclosure

    found = enclosure.Isolation("overlay", moves_folders=moves)
    monkeypatch.setattr(enclosure, "examined", lambda *_: found)
    rows = {f["name"]: f for f in json.loads(cli("doctor", "--json")[1])["findings"]}
    assert rows["isolation"]["state"] == "ok"
    assert ("renames an old folder" in rows["isolation"]["text"]) is not moves


def test_a_missing_torch_blocks_with_6(cli, monkeypatch):
    real = metadata.version

    def version(name):
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    code, out, _err = cli("doctor", "--json")
    data = json.loads(out)
    assert code == data["exit"] == 6
    assert [f["name"] for f in data["findings"] if f["state"] == "block"] == ["torch"]


def test_a_missing_torch_is_answered_by_an_option_that_there_is(cli, monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    found = {f.name: f for f in doctor.packages()}
    assert found["torch"].hint.endswith("autotune search --python PATH")
    assert "--python PATH" in cli("search", "--help")[1]


def test_a_gpu_that_cannot_be_queried_is_a_warning_and_not_a_machine_without_one(cli, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("autotune.devices.find.why_unread", lambda: "Driver Not Loaded")
    line = next(line for line in cli("doctor")[1].splitlines() if line.split()[1] == "device")
    assert line.startswith("warn")
    assert "NVML could not be read: Driver Not Loaded" in line
    assert "no NVIDIA GPU" not in line
    monkeypatch.setattr("autotune.devices.find.why_unread", lambda: "")
    (found,) = [f for f in doctor._machine(facts().host) if f.name == "device"]
    assert (found.state, found.text) == ("ok", "no NVIDIA GPU: training runs on the CPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (found,) = [f for f in doctor._machine(facts().host) if f.name == "device"]
    assert found.text == "no NVIDIA GPU that CUDA_VISIBLE_DEVICES shows: training runs on the CPU"


def test_triton_is_missed_where_there_is_a_gpu_alone(monkeypatch):
    host = facts().host
    gpu = DeviceFacts(name="NVIDIA X", uuid="GPU-1", memory_bytes=1 << 34, capability=(9, 0))
    with_gpu = replace(host, devices=(gpu,))
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    assert doctor._triton(host).state == "ok"
    missed = doctor._triton(with_gpu)
    assert (missed.state, missed.text) == ("warn", "not installed")
    assert "compile_mode" in missed.hint
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: object())
    there = doctor._triton(replace(with_gpu, versions={"triton": "3.4.0"}))
    assert (there.state, there.text) == ("ok", "3.4.0")


def test_who_else_is_on_a_gpu_is_named_without_ourselves(monkeypatch):
    nvml = FakeNvml(count=1)
    monkeypatch.setattr("autotune.devices.find.find_devices", lambda: NvidiaDevices(nvml).devices())
    monkeypatch.setattr("autotune.launch.devices.devices_sampler.draws", lambda pid: pid == 7)
    nvml.pids = [5, 7, os.getpid()]
    (found,) = doctor._neighbours()
    assert (found.state, found.text) == ("warn", "others are on NVIDIA H200, by process id: 5")
    nvml.pids = [7, os.getpid()]
    (found,) = doctor._neighbours()
    assert (found.state, found.text) == ("ok", "no other process is seen on NVIDIA H200")


@pytest.mark.parametrize(
    ("limits", "states", "hint"),
    [
        ((1024, 4096), ["ok", "ok"], ""),
        ((-1, -1), ["ok", "ok"], ""),
        ((256, 4096), ["warn", "warn"], "ulimit -n 1024"),
        ((256, -1), ["warn", "warn"], "ulimit -n 1024"),
        ((256, 512), ["warn", "warn"], "ask the administrator"),
    ],
)
def test_limits_that_break_loaders_are_warned_of(monkeypatch, limits, states, hint):
    monkeypatch.setattr("resource.getrlimit", lambda what: limits)
    found = list(doctor._limits())
    assert [f.name for f in found] == ["open files", "processes"]
    assert [f.state for f in found] == states
    assert hint in found[0].hint


def test_a_missing_ray_is_a_warning(monkeypatch):
    def version(name):
        if name == "ray":
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    found = {f.name: f for f in doctor.packages()}
    assert (found["ray"].state, found["ray"].hint) == ("warn", "use --driver inline")


def test_a_store_that_cannot_be_made_blocks(cli, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "file" / "home"))
    code, out, _err = cli("doctor")
    assert code == 6
    assert "set AUTOTUNE_HOME" in out


def test_doctor_shows_neither_home_nor_secrets(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "deep"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "canary-token-1")
    out = cli("doctor", "--check-mlflow", "--tracking-uri", "http://me:canary-pass@127.0.0.1:9/")[1]
    out += cli("doctor", "--json", "--check-mlflow")[1]
    assert "canary" not in out
    assert str(tmp_path) not in out
    assert "$AUTOTUNE_HOME" in out
    assert str(Path.home()) == str(tmp_path)


@pytest.fixture
def requested():
    """A server; the requests that it received, as whom, and by which address."""

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.requested.append((self.path, self.headers["Host"], self.headers["Authorization"]))
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Health)
    server.requested, server.host = [], f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_mlflow_server_that_answers_and_one_that_does_not(requested):
    assert doctor.mlflow_store(f"http://{requested.host}").state == "ok"
    assert requested.requested == [("/health", requested.host, None)]
    gone = doctor.mlflow_store("http://127.0.0.1:9")
    assert gone.state == "warn"
    assert "autotune sync" in gone.hint


def test_the_user_of_an_address_is_sent_to_the_server_alone(requested):
    found = doctor.mlflow_store(f"http://me:canary%2Fpass@{requested.host}/")
    reported = base64.b64encode(b"me:canary/pass").decode()
    assert requested.requested == [("/health", requested.host, f"Basic {reported}")]
    assert (found.state, found.text) == ("ok", f"http://<redacted>@{requested.host}/ answers (200)")


def test_a_broken_store_is_found_broken_and_left_to_those_that_replace_it(cli):
    assert "mlflow.db, not yet created" in cli("doctor", "--check-mlflow")[1]
    with contextlib.closing(sqlite3.connect(default_store())) as connection:
        connection.execute("CREATE TABLE _alembic_tmp_runs (name TEXT)")
    reported = next(
        line for line in cli("doctor", "--check-mlflow")[1].splitlines() if "mlflow store" in line
    )
    assert reported.startswith("warn")
    assert "is broken: an update of its tables was interrupted" in reported
    assert "autotune sync" in reported
    assert [p.name for p in home().iterdir()] == ["mlflow.db"]


@pytest.mark.mlflow
def test_a_store_that_exists_is_really_opened(cli, tmp_path):
    own = tmp_path / "own.db"
    own.write_bytes(b"no database, " * 1000)
    reported = cli("doctor", "--check-mlflow", "--tracking-uri", f"sqlite:///{own}")[1]
    line = next(line for line in reported.splitlines() if "mlflow store" in line)
    assert line.startswith("warn")
    assert "cannot be reached" in line


@pytest.mark.parametrize(
    "uri",
    [
        "https://me:canary@127.0.0.1",
        "http://me:canary@127.0.0.1:9",
        "http://me:1/canary@127.0.0.1:9",
        "http://me:canary/pass@127.0.0.1:9",
        "http://me:1?canary@127.0.0.1:9",
        "http://me:canary@127.0.0.1:port",
        "http://me:canary@",
        "http://[canary",
    ],
)
def test_an_address_that_leads_nowhere_is_a_finding_without_its_password(cli, uri):
    code, out, err = cli("doctor", "--check-mlflow", "--tracking-uri", uri)
    assert (code in (0, 6), err) == (True, "")
    assert "canary" not in out
    line = next(line for line in out.splitlines() if "mlflow store" in line)
    assert line.startswith("warn")


def test_the_store_that_is_tried_is_the_one_that_a_search_here_would_take(
    cli, script, requested, monkeypatch
):
    def tried(*words):
        requested.requested.clear()
        out = cli("doctor", "--check-mlflow", *words)[1]
        assert f"{requested.host}" in out
        return [path for path, *_ in requested.requested]

    (script.parent / "pyproject.toml").write_text(
        f'[tool.autotune]\ntracking-uri = "http://{requested.host}/file"\n'
    )
    assert tried() == ["/file/health"]
    monkeypatch.setenv("AUTOTUNE_TRACKING_URI", f"http://{requested.host}/variable")
    assert tried() == ["/variable/health"]
    assert tried("--tracking-uri", f"http://{requested.host}/typed") == ["/typed/health"]


def test_settings_that_a_search_would_refuse_are_a_finding(cli, script):
    (script.parent / "pyproject.toml").write_text('[tool.autotune]\ntracking-ur = "http://x"\n')
    code, out, err = cli("doctor", "--check-mlflow", "--json")
    reported = json.loads(out)["findings"][-1]
    assert (code, err, reported["state"]) == (6, "", "block")
    assert 'no setting "tracking-ur"' in reported["text"]


def test_inspect_says_for_every_knob_how_or_why_not(cli, script):
    script.write_text(
        "import argparse, torch\n"
        "p = argparse.ArgumentParser()\n"
        "p.add_argument('--batch-size', type=int, default=8)\np.parse_args()\n"
    )
    code, out, _err = cli("inspect", "train.py", "--static", "--json")
    rows = {row["knob"]: row for row in json.loads(out)["knobs"]}
    assert code == 0
    assert rows["batch_size"]["how"].startswith("flag --batch-size")
    assert rows["tf32"]["status"] == "not varied"
    assert "NVIDIA" in rows["tf32"]["why"]
    assert rows["effective_batch"]["how"].startswith("through batch_size")
    assert all(row["why"] for row in rows.values())
    assert "KNOB" in cli("inspect", "train.py", "--static")[1]


def test_inspect_shows_the_values_that_a_script_asks_for(cli, script):
    script.write_text("import autotune\nbatch = autotune.value('batch', 64)\nautotune.step(samples=64)\n")
    data = json.loads(cli("inspect", "train.py", "--static", "--json")[1])
    assert data["values"] == [{"name": "batch", "file": "train.py", "line": 2, "default": 64}]
    assert [hint["kind"] for hint in data["advice"]] == ["samples"]
    out = cli("inspect", "train.py", "--static")[1]
    assert "value      batch: requested at train.py:2, default 64" in out
    assert "keyword: autotune.value:batch" in out
    script.write_text("import torch\n")
    assert "values" not in json.loads(cli("inspect", "train.py", "--static", "--json")[1])


def test_inspect_lists_every_knob(cli):
    from autotune.knobs.registry import builtin

    rows = json.loads(cli("inspect", "--knobs", "--json")[1])["knobs"]
    assert [row["knob"] for row in rows] == list(builtin())
    assert cli("inspect")[0] == 2


def test_spaces_are_listed_shown_and_checked(cli, script):
    assert "quick" in cli("spaces", "list")[1]
    names = [row["name"] for row in json.loads(cli("spaces", "list", "--json")[1])["spaces"]]
    for name in names:
        assert cli("spaces", "validate", name)[0] == 0
    assert "num_workers" in cli("spaces", "show", "quick")[1]
    assert json.loads(cli("spaces", "show", "quick", "--json")[1])["knobs"]
    Path("mine.yaml").write_text("schema: autotune.space/v1\nknobs:\n  num_worker: [0, 2]\n")
    code, _out, err = cli("spaces", "validate", "./mine.yaml")
    assert code == 2
    assert "num_workers" in err


def test_inspect_reads_the_file_of_a_module(cli, script):
    package = script.parent / "package"
    package.mkdir()
    (package / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch-size', type=int, default=8)\n"
    )
    code, out, err = cli("inspect", "--static", "--json", "--", "python", "-m", "package.train")
    assert code == 0, err
    rows = {row["knob"]: row for row in json.loads(out)["knobs"]}
    assert rows["batch_size"]["how"].startswith("flag --batch-size")

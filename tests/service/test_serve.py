"""The real service: started by its command, a search submitted by the command, killed and started again."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from autotune.errors import UsageError
from autotune.service.serve import ServiceSettings, _check

TRAIN = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 32), torch.randn(4096, 1))
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(200):
    for x, y in DataLoader(data, batch_size=32):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def environ(tmp_path):
    return os.environ | {"AUTOTUNE_HOME": str(tmp_path / "home"), "RAY_AUTH_MODE": "disabled"}


@pytest.fixture
def served(tmp_path, environ):
    """Starts the service; returns the process and its address."""
    running, logs = [], []

    def start(*words):
        log = (tmp_path / "serve.log").open("w+")
        logs.append(log)
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune", "serve", "--local", "--port", "0", *words],
            env=environ,
            stdout=log,
            stderr=log,
        )
        running.append(process)
        end = time.monotonic() + 60
        while True:
            text = (tmp_path / "serve.log").read_text()
            if found := re.search(r"autotune service: (\S+)", text):
                return process, found[1]
            assert process.poll() is None, text
            assert time.monotonic() < end, text
            time.sleep(0.1)

    yield start
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    for log in logs:
        log.close()


def cli(environ, url, cwd, *words):
    token = (cwd.parent / "home" / "service" / "token").read_text().strip()
    env = environ | {"AUTOTUNE_SERVER": url, "AUTOTUNE_TOKEN": token}
    return subprocess.run(
        [sys.executable, "-m", "autotune", *words], env=env, cwd=cwd, capture_output=True, text=True
    )


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_submitted_search_survives_a_kill_of_the_service_and_its_answer_is_fetched(
    served, environ, project, tmp_path
):
    process, url = served()
    made = cli(
        environ,
        url,
        project,
        "submit",
        "--budget",
        "60s",
        "-o",
        "knob=threads",
        "-o",
        "trials=4",
        "--json",
        "--",
        "python",
        "train.py",
    )
    assert made.returncode == 0, made.stderr
    search = json.loads(made.stdout)["id"]
    end = time.monotonic() + 60
    while json.loads(cli(environ, url, project, "status", search, "--json").stdout)["state"] != "running":
        assert time.monotonic() < end
        time.sleep(0.5)
    process.kill()
    process.wait()
    _process, url = served()
    end = time.monotonic() + 240
    while True:
        found = json.loads(cli(environ, url, project, "status", search, "--json").stdout)
        if found["state"] in ("succeeded", "failed", "cancelled"):
            break
        assert time.monotonic() < end, found
        time.sleep(1.0)
    assert found["state"] == "succeeded", found
    assert found["answer"]["trials"] >= 1
    fetched = cli(environ, url, project, "fetch", search)
    assert fetched.returncode == 0, fetched.stderr
    assert (project / "best.yaml").read_text().count("schema: autotune.config/") == 1
    assert len(list((tmp_path / "home" / "service" / "jobs").iterdir())) == 1, "it was run once"


@pytest.mark.parametrize("given", [{"host": "0.0.0.0"}, {"tls": ("a", "")}, {"proxy_header": "X-User"}])
def test_it_does_not_listen_to_the_network_without_protection(tmp_path, given):
    with pytest.raises(UsageError):
        _check(ServiceSettings(root=tmp_path, **given))

"""The files below docs/deploy: their options exist, installed tools accept them, the job script runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.cli.main import app

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
CHART = DEPLOY / "helm"
HELM = os.environ.get("HELM") or shutil.which("helm")
VALIDATE = os.environ.get("KUBERNETES_VALIDATE") or shutil.which("kubernetes-validate")


def options_of_serve():
    import typer

    command = typer.main.get_command(app).commands["serve"]
    return {option for parameter in command.params for option in parameter.opts}


def called_options(words):
    return {str(word).partition("=")[0] for word in words}


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def rendered(*more):
    if HELM is None:
        pytest.skip("helm is not installed; HELM names its command")
    words = [HELM, "template", "autotune", str(CHART), *more]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_compose_calls_the_service_with_options_that_exist():
    services = compose()["services"]
    assert {"service", "ray", "database", "mlflow"} == set(services)
    assert called_options(services["service"]["command"]) <= options_of_serve()
    volumes = {volume.partition(":")[0] for one in services.values() for volume in one.get("volumes", ())}
    assert volumes == set(compose()["volumes"])
    for one in services.values():
        for port in one.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nothing is open to the network"


def test_compose_accepts_its_file():
    found = shutil.which("docker-compose")
    words = [found] if found else ["docker", "compose"]
    if not found and (
        shutil.which("docker") is None
        or subprocess.run([*words, "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("docker compose is not installed")
    words += ["-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    refused = subprocess.run(
        words, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]}
    )
    assert "set it" in refused.stderr, "there is no default password"
    env = {"PATH": os.environ["PATH"], "AUTOTUNE_DB_PASSWORD": "x"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


def test_the_image_has_the_jobs_server_and_no_root():
    text = (DEPLOY / "Dockerfile").read_text()
    assert "'ray[default]'" in text
    assert text.index("USER autotune") < text.index("ENTRYPOINT")


def test_the_chart_calls_the_service_with_options_that_exist():
    found = {one["kind"]: one for one in rendered("--set", "hosts={a.example}", "--set", "proxyHeader=X-User",
                                                  "--set", "trackingUri=http://mlflow:5000")}  # fmt: skip
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert called_options(container["args"]) <= options_of_serve()
    assert {"--allow-host", "--proxy-header", "--tracking-uri"} <= called_options(container["args"])
    assert found["Deployment"]["spec"]["replicas"] == 1
    assert container["securityContext"]["readOnlyRootFilesystem"]


def pods():
    """Pod templates of the KubeRay file as pods, which have a schema everywhere."""
    spec = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}


def test_kubernetes_accepts_every_object(tmp_path):
    if VALIDATE is None:
        pytest.skip("kubernetes-validate is not installed; KUBERNETES_VALIDATE names its command")
    for number, one in enumerate([*rendered(), *pods()]):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(one))
        done = subprocess.run([VALIDATE, "--strict", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (one["kind"], done.stdout + done.stderr)


def test_the_ray_cluster_mounts_the_claim_and_the_head_of_the_chart():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    cluster = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())
    assert values["ray"]["address"] == f"http://{cluster['metadata']['name']}-head-svc:8265"
    for pod in pods():
        claims = [
            v["persistentVolumeClaim"]["claimName"]
            for v in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in v
        ]
        assert claims == [values["dataClaim"]]
        assert pod["spec"]["containers"][0]["image"] == values["image"]


SCRIPT = DEPLOY / "slurm" / "autotune.sbatch"


@pytest.fixture
def slurm(tmp_path):
    """Runs the job script with an `autotune` and a `scontrol` that write down how they are called."""
    calls = tmp_path / "calls"
    for name in ("autotune", "scontrol"):
        command = tmp_path / name
        command.write_text(
            f'#!/bin/bash\necho "{name} $*" >> {calls}\n'
            '[[ "$0" == */autotune && $1 == show ]] && exit "${SHOWN:-1}"\n'
            '[[ "$0" == */scontrol ]] && exit 0\nexit "${CODE:-0}"\n'
        )
        command.chmod(0o755)

    def run(**environ):
        calls.write_text("")
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **environ}
        words = ["bash", str(SCRIPT), "train.py", "--lr", "1e-3"]
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, calls.read_text().splitlines()

    return run


def test_the_job_script_searches_resumes_and_is_queued_again_where_it_was_stopped(slurm):
    code, calls = slurm()
    assert (code, calls) == (
        0,
        [
            "autotune show slurm-7",
            "autotune search --label slurm-7 --budget 30d --quiet -- python train.py --lr 1e-3",
        ],
    )
    code, calls = slurm(SHOWN="0", CODE="1")
    assert (code, calls[1:]) == (1, ["autotune resume slurm-7 --quiet"])
    code, calls = slurm(CODE="75", AUTOTUNE_BUDGET="2h")
    assert (code, calls[-1]) == (75, "scontrol requeue 7")
    code, calls = slurm(CODE="75", SLURM_RESTART_COUNT="20")
    assert (code, [call for call in calls if "requeue" in call]) == (75, []), "it ends at last"


def test_the_options_of_the_job_script_exist():
    for verb in ("search", "resume"):
        done = subprocess.run(
            [sys.executable, "-m", "autotune", verb, "--help"], capture_output=True, text=True, check=True
        )
        for option in ("--quiet", *(("--label", "--budget") if verb == "search" else ())):
            assert option in done.stdout

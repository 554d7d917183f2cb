"""A sample of every experiment of the service: real services, killed, loaded and searched for secrets."""

import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HERE = Path(__file__).parents[2] / "experiments" / "service"
sys.path.append(str(HERE))

import api_checks  # noqa: E402 (needs the path set above)
import canaries  # noqa: E402
import growth  # noqa: E402
import kill_matrix  # noqa: E402
import load  # noqa: E402
import moments  # noqa: E402
import ray_nodes  # noqa: E402
import restarts  # noqa: E402
import run as proof  # noqa: E402

SAMPLE = [(kind, case) for kind in (kill_matrix, moments, restarts, load, canaries) for case in kind.sample()]


@pytest.mark.parametrize(("kind", "case"), SAMPLE, ids=[f"{kind.NAME}-{case}" for kind, case in SAMPLE])
def test_a_sample_of_the_proof_has_no_fault(kind, case, tmp_path):
    assert kind.run(case, tmp_path)["faults"] == []


def test_generated_requests_end_with_no_error_of_the_service(tmp_path, monkeypatch):
    if api_checks.command() is None:
        pytest.skip("schemathesis is not installed; SCHEMATHESIS names its command")
    monkeypatch.setattr(api_checks, "MOST_S", 30)
    found = api_checks.run("run", tmp_path)
    assert found["faults"] == []
    assert found["requests"] > 100


@pytest.mark.ray
@pytest.mark.parametrize("kind", [kill_matrix, growth], ids=["node-killed", "growth"])
def test_a_search_on_a_real_cluster_loses_nothing_and_uses_its_devices(kind, tmp_path, monkeypatch):
    if ray_nodes.ray_command() is None:
        pytest.skip("the Ray of this environment has no Jobs server: pip install 'ray[default]'")
    monkeypatch.setattr(growth, "RUN_S", 5.0)
    case = "node/running/0" if kind is kill_matrix else "devices/2"
    assert kind.run(case, tmp_path)["faults"] == []


@pytest.mark.timeout(60)
def test_a_run_that_was_stopped_continues_behind_its_last_case(tmp_path, capsys):
    from types import SimpleNamespace

    ran = []
    kind = SimpleNamespace(
        NAME="x", TITLE="x", cases=lambda: ["a", "b", "c"],
        run=lambda case, _folder: ran.append(case) or {"faults": [], "searches": 2},
    )  # fmt: skip
    table = tmp_path / "x.jsonl"
    table.write_text('{"case": "a", "faults": ["lost"], "searches": 1}\n')
    proof.go_on(kind, table, float("inf"))
    assert ran == ["b", "c"]
    total = proof.totals_of(kind, table)
    assert (total["done"], total["faults"], total["counts"]) == (3, 1, {"searches": 5})
    kind.run = lambda case, _folder: 1 / 0
    assert "ZeroDivisionError" in proof.result_of(kind, "d")["faults"][0]

"""The proofs of the distributed knobs: a sample of each kind runs and holds."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[2] / "experiments" / "distributed"
sys.path.insert(0, str(HERE))

import links  # noqa: E402 (needs the path set above)
import parity  # noqa: E402 (needs the path set above)
import rank_failures  # noqa: E402 (needs the path set above)

# Other experiments have a module of that name as well.
SPEC = importlib.util.spec_from_file_location("distributed_run", HERE / "run.py")
assert SPEC is not None
runner: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runner)  # pyright: ignore[reportOptionalMemberAccess]

torch_trial = [pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(400)]


def case(kind: Any, key: str) -> dict[str, Any]:
    return next(each for each in kind.cases() if each["key"] == key)


class TestSample:
    pytestmark = torch_trial

    def test_two_ranks_train_the_same_parameters_with_exact_knobs(self) -> None:
        settings = "ddp_bucket_cap_mb=1 ddp_gradient_as_bucket_view=True cpu_affinity=block"
        wanted = f"plain_ddp x2 {settings} ddp_shard_optimizer=True"
        row = parity.run(case(parity, wanted), {})
        assert row["ok"], row
        # 192 samples over two ranks in batches of 8, three times.
        assert (row["steps"], row["samples"]) == (36, [288, 288])

    def test_another_training_is_not_called_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(parity.CASES, "plain_ddp", ({"ddp_powersgd_rank": 1},))
        row = parity.run(case(parity, "plain_ddp x2 ddp_powersgd_rank=1"), {})
        assert row["is_applied"]
        assert not row["ok"]

    @pytest.mark.parametrize("key", ["exception rank 1 of 2 #0", "port taken rank 0 of 2 #0"])
    def test_the_first_cause_is_named_and_nobody_survives(self, key: str) -> None:
        row = rank_failures.run(case(rank_failures, key), {})
        assert row["ok"], row


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("key", [each["key"] for each in parity.cases()])
def test_every_script_trains_the_same_parameters(key: str) -> None:
    wanted = case(parity, key)
    pytest.importorskip(parity.NEEDS.get(wanted["script"], "torch"))
    row = parity.run(wanted, {})
    assert row["ok"], row


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("link", list(links.LINKS))
def test_a_search_finds_knobs_of_communication_on_a_slow_link_alone(link: str) -> None:
    row = links.run(case(links, f"{link} #0"), {})
    assert row["ok"], row


@pytest.mark.parametrize("kind", [parity, rank_failures, links])
def test_cases_have_keys_of_their_own(kind: Any) -> None:
    keys = [each["key"] for each in kind.cases()]
    assert len(keys) == len(set(keys))


def test_what_was_run_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    class Kind:
        @staticmethod
        def cases() -> list[dict[str, Any]]:
            return [{"key": key, "group": "g"} for key in "abc"]

        @staticmethod
        def run(each: dict[str, Any], _plain: object) -> dict[str, Any]:
            ran.append(each["key"])
            if each["key"] == "b":
                raise RuntimeError("planted")
            return {"ok": True}

    monkeypatch.setattr(runner, "KINDS", {"fake": Kind})
    (tmp_path / "fake.jsonl").write_text(json.dumps({"key": "a", "group": "g", "ok": True}) + "\n")
    words = ["run.py", "--work", str(tmp_path), "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", words)
    assert runner.main() == 1
    assert ran == ["b", "c"]
    totals = json.loads((tmp_path / "results" / "fake.json").read_text())
    assert (totals["cases"], totals["ok"], totals["broken"]) == (3, 2, ["b"])
    assert runner.main() == 1
    assert ran == ["b", "c"]
    assert "fake" in capsys.readouterr().out

"""Several processes that train one model: what settings do to what they exchange, seen by the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import parallel_script
import pytest
from fake_torchao import FAKE_TORCHAO

from autotune.launch.ports import with_port
from autotune.model.change import Change, Patch
from autotune.model.distributed_launch import launch_variables, rank_variables, several
from autotune.protocol.events import Applied, Broke

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trial_kit import Ran

    from autotune.model.config import Value

pytestmark = [pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(600)]

SUPPORT = Path(parallel_script.__file__).parent
PARAMETERS = 16 * 64 + 64 + 4 * (64 * 64 + 64) + 64 + 1
WHOLE = 4 * PARAMETERS

EXACT: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "buckets": (("--bucket", "0.01", "--profile"), {"ddp_bucket_cap_mb": 1}),
    "unused": (("--find-unused", "--norm"), {"ddp_find_unused_parameters": False}),
    "view": (("--norm",), {"ddp_gradient_as_bucket_view": True}),
    "static": ((), {"ddp_static_graph": True}),
    "no_sync": (("--accumulate", "4", "--profile"), {"ddp_no_sync": 4}),
    # Ten batches per process: the fourth step of a pass over the data has one backward pass.
    "no_sync, rests": (("--accumulate", "3", "--clip", "--samples", "160"), {"ddp_no_sync": 3}),
    "reshard": (("--wrap", "fsdp"), {"fsdp_reshard_after_forward": False}),
    "prefetch": (("--wrap", "fsdp"), {"fsdp_prefetch": 2}),
    "affinity": ((), {"cpu_affinity": "block"}),
    "shard optimizer": (("--adamw", "--norm", "--clip"), {"ddp_shard_optimizer": True}),
    "shard optimizer, no_sync": (
        ("--accumulate", "3", "--samples", "160"),
        {"ddp_shard_optimizer": True, "ddp_no_sync": 3},
    ),
    "offload": (("--wrap", "fsdp"), {"fsdp_cpu_offload": True}),
    "together": (
        ("--bucket", "0.01", "--find-unused"),
        {
            "ddp_bucket_cap_mb": 1,
            "ddp_find_unused_parameters": False,
            "ddp_gradient_as_bucket_view": True,
            "ddp_static_graph": True,
        },
    ),
}
OF_FOUR: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "replicas": (("--wrap", "fsdp"), {"fsdp_shard_ranks": 2}),
    "replicas, clipped": (("--wrap", "fsdp", "--clip"), {"fsdp_shard_ranks": 2, "fsdp_prefetch": 1}),
}
LOSSY: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "fp16": ((), {"ddp_comm_hook": "fp16"}),
    "fp16 of the script's hook": (("--hook",), {"ddp_comm_hook": "fp16"}),
    "powersgd": (("--profile", "--steps", "16"), {"ddp_powersgd_rank": 1}),
    "bf16 parameters": (("--wrap", "fsdp"), {"fsdp_param_dtype": "bfloat16"}),
}
OWN: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "own": (("--bucket", "0.01"), {}),
    "own, always": (("--find-unused",), {}),
    "own, sometimes": (("--find-unused", "--branch", "sometimes"), {}),
    "own, never": (("--find-unused", "--branch", "never"), {}),
    "own, no_sync": (("--accumulate", "4", "--no-sync"), {}),
    "own, hook": (("--hook",), {}),
    "own, fsdp": (("--wrap", "fsdp"), {}),
    "silent": (("--profile", "--hook"), "silent"),  # pyright: ignore[reportAssignmentType]
}


def processes(folder: Path, ranks: int, scenarios: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What each process saw, for every scenario."""
    words = [sys.executable, str(SUPPORT / "parallel_scenarios.py"), json.dumps(list(scenarios.values()))]
    variables = with_port({**os.environ, **launch_variables(several(ranks), {}), "OMP_NUM_THREADS": "1"})
    started = [
        subprocess.Popen(
            words,
            env={**variables, **rank_variables(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    message = [process.communicate(timeout=500) for process in started]
    assert [process.returncode for process in started] == [0] * ranks, message
    assert not list(folder.glob("faults.*.log"))
    everything = json.loads(message[0][0].strip().splitlines()[-1])
    return {name: [found[at] for found in everything] for at, name in enumerate(scenarios)}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return processes(tmp_path_factory.mktemp("two"), 2, {**EXACT, **LOSSY, **OWN})


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return processes(tmp_path_factory.mktemp("four"), 4, {**EXACT, **OF_FOUR})


def assert_same_training(found: list[Any], rel: float) -> None:
    for each in found:
        before, after = each["plain"], each["changed"]
        assert (before["steps"], before["samples"]) == (after["steps"], after["samples"])
        assert after["weights"] == pytest.approx(before["weights"], rel=rel, abs=rel / 10)
        assert after["weights"] == found[0]["changed"]["weights"]


def assert_applied(found: list[Any], settings: dict[str, Any]) -> None:
    if settings.get("cpu_affinity") == "block" and len(found[0]["plain"]["cpus"]) < len(found):
        settings = {**settings, "cpu_affinity": "none"}
    assert [each["changed"]["observed"] for each in found] == [settings] * len(found)
    assert not any(each["changed"]["refusals"] or each["changed"]["faults"] for each in found)


@pytest.mark.parametrize("name", EXACT)
def test_an_exact_setting_trains_the_same_parameters(two: dict[str, list[Any]], name: str) -> None:
    assert_applied(two[name], EXACT[name][1])
    assert_same_training(two[name], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *OF_FOUR])
def test_four_processes_train_the_same_parameters(four: dict[str, list[Any]], name: str) -> None:
    assert_applied(four[name], {**EXACT, **OF_FOUR}[name][1])
    assert_same_training(four[name], rel=1e-5)


@pytest.mark.parametrize("name", [name for name in LOSSY if name != "powersgd"])
def test_sixteen_bits_round_and_train_nearly_the_same(two: dict[str, list[Any]], name: str) -> None:
    assert_applied(two[name], LOSSY[name][1])
    assert_same_training(two[name], rel=0.03)
    assert two[name][0]["changed"]["weights"] != two[name][0]["plain"]["weights"]


def exchanged(found: list[Any], which: str) -> list[list[int]]:
    return [each[which]["exchanged"] for each in found]


def test_larger_buckets_send_the_same_bytes_in_fewer_exchanges(two: dict[str, list[Any]]) -> None:
    for before, after in zip(*(exchanged(two["buckets"], w) for w in ("plain", "changed")), strict=True):
        assert len(before) > 3
        assert after == [WHOLE]
        assert sum(before) == WHOLE


def test_gradients_of_sixteen_bits_send_half_the_bytes(two: dict[str, list[Any]]) -> None:
    found = two["fp16 of the script's hook"]
    assert [sum(sent) for sent in exchanged(found, "plain")] == [WHOLE, WHOLE]
    assert [sum(sent) for sent in exchanged(found, "changed")] == [WHOLE // 2, WHOLE // 2]


def test_powersgd_sends_a_small_part_and_trains_otherwise(two: dict[str, list[Any]]) -> None:
    found = two["powersgd"]
    assert_applied(found, LOSSY["powersgd"][1])
    assert 0 < sum(exchanged(found, "changed")[0]) < WHOLE / 4
    first, second = (each["changed"]["weights"] for each in found)
    assert first == second
    assert first != pytest.approx(found[0]["plain"]["weights"], rel=1e-4)


def test_passes_without_an_exchange_send_one_part_in_so_many(two: dict[str, list[Any]]) -> None:
    found = two["no_sync"]
    assert [sum(sent) for sent in exchanged(found, "plain")] == [4 * WHOLE] * 2
    assert [sum(sent) for sent in exchanged(found, "changed")] == [WHOLE] * 2


def test_gradients_are_whole_where_they_are_clipped_at_the_end_of_a_pass(two: dict[str, list[Any]]) -> None:
    plain, changed = ([each[w]["norms"] for each in two["no_sync, rests"]] for w in ("plain", "changed"))
    assert changed[0] == pytest.approx(plain[0], rel=1e-5)
    assert changed[0] == changed[1]


def test_each_process_keeps_the_optimizers_state_of_its_share(two: dict[str, list[Any]]) -> None:
    found = two["shard optimizer"]
    whole = [each["plain"]["kept"] for each in found]
    shares = [each["changed"]["kept"] for each in found]
    assert sum(shares) == whole[0] == whole[1]
    assert max(shares) < 0.6 * whole[0]
    # Each parameter was updated by one process, from the same gradients.
    assert found[0]["changed"]["weights"] == found[0]["plain"]["weights"]


def test_each_process_may_use_the_cpus_of_its_block_alone(two: dict[str, list[Any]]) -> None:
    found = two["affinity"]
    if len(found[0]["plain"]["cpus"]) < 2:
        pytest.skip("one CPU cannot be shared out")
    first, second = (set(each["changed"]["cpus"]) for each in found)
    assert not first & second
    assert len(first) == len(second) == len(found[0]["plain"]["cpus"]) // 2


def test_a_run_without_communication_sends_nothing_and_its_processes_diverge(
    two: dict[str, list[Any]],
) -> None:
    first, second = two["silent"]
    assert first["exchanged"] == second["exchanged"] == []
    assert first["weights"] != second["weights"]


def own(found: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    changed = found[0]["changed"]
    return changed["facts"], {k: v for k, v in changed["observed"].items() if v is not None}


def test_facts_say_how_gradients_are_exchanged(two: dict[str, list[Any]]) -> None:
    facts, values = own(two["own"])
    assert facts == {
        "wrapper": "ddp",
        "count": 1,
        "backend": "gloo",
        "gradient_bytes": WHOLE,
        "all_used": True,
        "no_sync": False,
        "mixed_precision": False,
        "own_mesh": False,
    }
    assert values.pop("ddp_bucket_cap_mb") == pytest.approx(0.01, rel=1e-3)
    assert values == {
        "ddp_find_unused_parameters": False,
        "ddp_gradient_as_bucket_view": False,
        "ddp_static_graph": False,
        "ddp_comm_hook": "none",
        "ddp_powersgd_rank": 0,
        "ddp_no_sync": 1,
        "ddp_shard_optimizer": False,
        "cpu_affinity": "none",
    }


@pytest.mark.parametrize(("branch", "all_used"), [("always", True), ("sometimes", False), ("never", False)])
def test_a_parameter_without_a_gradient_in_some_pass_is_seen(
    two: dict[str, list[Any]], branch: str, all_used: bool
) -> None:
    facts, values = own(two[f"own, {branch}"])
    assert facts["all_used"] is all_used
    assert values["ddp_find_unused_parameters"] is True


def test_exchanges_that_the_script_leaves_out_are_seen(two: dict[str, list[Any]]) -> None:
    facts, values = own(two["own, no_sync"])
    assert facts["no_sync"]
    assert "ddp_no_sync" not in values


def test_a_hook_of_the_scripts_is_seen(two: dict[str, list[Any]]) -> None:
    assert own(two["own, hook"])[1]["ddp_comm_hook"] == "own"


def test_facts_say_how_parameters_are_sharded(two: dict[str, list[Any]]) -> None:
    facts, values = own(two["own, fsdp"])
    assert (facts["wrapper"], facts["count"], facts["backend"]) == ("fsdp", 5, "gloo")
    assert values == {
        "fsdp_reshard_after_forward": True,
        "fsdp_prefetch": 0,
        "fsdp_param_dtype": "float32",
        "fsdp_cpu_offload": False,
        "fsdp_shard_ranks": 2,
        "cpu_affinity": "none",
    }


class TestThroughTheLauncher:
    """The same script in a trial and under `apply`, unmodified."""

    TEXT = Path(parallel_script.__file__).read_text(encoding="utf-8")
    WANTED = Change(knob="ddp_gradient_as_bucket_view", value=True, spelling=Patch())

    def test_every_process_reports_what_it_read_back(self, run: Callable[..., Ran]) -> None:
        ran = run(self.TEXT, argv=("--steps", "40"), ranks=2, changes=[self.WANTED], timeout_s=200)
        assert ran.reading(self.WANTED.knob).status == "applied"
        assert [e for e in ran.events if isinstance(e, Applied)] == [Applied(rank=1)]

    def test_one_process_that_does_otherwise_rejects_the_config(self, run: Callable[..., Ran]) -> None:
        argv = ("--steps", "60", "--strays")
        ran = run(self.TEXT, argv=argv, ranks=2, changes=[self.WANTED], timeout_s=200)
        # The other process fails next, for want of this one.
        first = next(e for e in ran.events if isinstance(e, Broke))
        assert (first.kind, first.rank) == ("config_rejected", 1)
        assert "rank 1 of 2" in first.message

    def test_a_real_training_ends_with_the_setting_in_effect(self, run: Callable[..., Ran]) -> None:
        ran = run(self.TEXT, ranks=2, measure=False, changes=[self.WANTED], timeout_s=200)
        assert ran.code == 0, ran.err
        readings = json.loads((ran.folder / "status.json").read_text())
        found = next(r for r in readings if r["knob"] == self.WANTED.knob)
        assert (found["found"], found["status"]) == (True, "applied")
        first, second = json.loads(ran.out.strip().splitlines()[-1])
        assert first["weights"] == second["weights"]


def _patch(knob: str, value: Value) -> Change:
    return Change(knob=knob, value=value, spelling=Patch())


class TestBelowTheWrapper:
    """Knobs of the model and of its steps, where `DistributedDataParallel` is around the model."""

    TEXT = Path(parallel_script.__file__).read_text(encoding="utf-8")

    def trained(self, run: Callable[..., Ran], argv: str, *changes: Change) -> list[Any]:
        ran = run(self.TEXT, argv=argv.split(), ranks=2, measure=False, changes=changes, timeout_s=200)
        assert ran.code == 0, ran.err
        assert not ran.faults
        readings = {r["knob"]: r for r in json.loads((ran.folder / "status.json").read_text())}
        for change in changes:
            found = readings[change.knob]
            assert (found["found"], found["status"]) == (change.value, "applied")
        return json.loads(ran.out.strip().splitlines()[-1])

    def test_a_step_of_parts_trains_as_the_whole_batch_and_exchanges_in_its_last_part(
        self, run: Callable[..., Ran]
    ) -> None:
        plain = self.trained(run, "--batch-size 8 --steps 12 --clip --profile")
        halves = _patch("accumulation", 2)
        parts = self.trained(run, "--batch-size 4 --steps 24 --clip --profile", halves)
        for whole, part in zip(plain, parts, strict=True):
            assert part["samples"] == whole["samples"]
            assert part["weights"] == pytest.approx(whole["weights"], rel=1e-5, abs=1e-6)
            assert sum(part["exchanged"]) == sum(whole["exchanged"]) == WHOLE
        # The last step of the script is the first part of a step that does not take place.
        first = self.trained(run, "--batch-size 4 --steps 23 --clip --profile", halves)
        assert [each["exchanged"] for each in first] == [[], []]

    def test_parameters_are_halved_before_the_wrapper_takes_them_over(self, run: Callable[..., Ran]) -> None:
        plain = self.trained(run, "--profile")
        first, second = self.trained(run, "--profile", _patch("pure_bf16", True))
        assert first["format"] == second["format"] == "torch.bfloat16"
        assert first["weights"] == second["weights"]
        assert first["weights"] == pytest.approx(plain[0]["weights"], rel=0.05, abs=0.02)

    @pytest.mark.slow
    def test_layers_compute_in_8_bits_below_the_wrapper(
        self, run: Callable[..., Ran], tmp_path: Path
    ) -> None:
        folder = tmp_path / "torchao"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "float8.py").write_text(FAKE_TORCHAO)
        changes = (
            _patch("fp8", "tensorwise"),
            _patch("precision", "bf16"),
            _patch("compile_mode", "default"),
        )
        first, second = self.trained(run, "--steps 24", *changes)
        assert first["weights"] == second["weights"]

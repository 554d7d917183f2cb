"""Knobs of several processes, and the number of processes, in the formats of the frameworks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from picks import argument, patch, tuned

from autotune.export.formats.accelerate import accelerate_config
from autotune.export.formats.command import command_line
from autotune.export.formats.deepspeed import deepspeed_config
from autotune.export.formats.huggingface import training_arguments
from autotune.export.formats.lightning import lightning_keywords
from autotune.knobs.frameworks import DEEPSPEED
from autotune.model.distributed_launch import launch_words, several

PICK = tuned(
    patch("ddp_bucket_cap_mb", 100.0),
    patch("ddp_static_graph", True),
    patch("ddp_gradient_as_bucket_view", True),
    patch("ddp_find_unused_parameters", False),
    patch("ddp_comm_hook", "fp16"),
)


def test_lightning_has_the_arguments_of_its_strategy() -> None:
    message = lightning_keywords(PICK, keywords=True)
    values: dict[str, object] = {}
    exec(message.text, values)
    assert values["strategy"] == {
        "bucket_cap_mb": 100.0,
        "static_graph": True,
        "gradient_as_bucket_view": True,
        "find_unused_parameters": False,
    }
    assert [left.reason for left in message.left] == [
        "it is not a literal: DDPStrategy(ddp_comm_hook=default_hooks.fp16_compress_hook)"
    ]
    assert any("DDPStrategy(**strategy)" in note for note in message.notes)


def test_a_pick_without_them_has_no_strategy() -> None:
    assert "strategy" not in lightning_keywords(tuned(patch("precision", "bf16")), keywords=True).text


def test_training_arguments_have_those_that_are_fields_there() -> None:
    message = training_arguments(PICK, keywords=False)
    assert message.data["training_arguments"] == {
        "ddp_bucket_cap_mb": 100,
        "ddp_static_graph": True,
        "ddp_find_unused_parameters": False,
    }
    assert {left.knob for left in message.left} == {"ddp_gradient_as_bucket_view", "ddp_comm_hook"}
    part = training_arguments(tuned(patch("ddp_bucket_cap_mb", 0.5)), keywords=False)
    assert [left.reason for left in part.left] == ["`ddp_bucket_cap_mb` is a whole number of MiB"]


@pytest.mark.parametrize(("nodes", "total"), [(1, 4), (2, 8)])
def test_accelerates_file_starts_as_many_processes_as_the_search(nodes: int, total: int) -> None:
    message = accelerate_config(replace(PICK, launcher=several(4, nodes), on_device=True))
    config = yaml.safe_load(message.text)
    assert (config["num_processes"], config["num_machines"]) == (total, nodes)
    assert (config["distributed_type"], config["use_cpu"]) == ("MULTI_GPU", False)
    reasons = {left.knob: left.reason for left in message.left}
    assert "DistributedDataParallelKwargs(bucket_cap_mb=100.0)" in reasons["ddp_bucket_cap_mb"]
    assert "comm_hook=DDPCommunicationHookType.FP16" in reasons["ddp_comm_hook"]


def test_accelerates_file_for_one_process_has_no_type_of_several() -> None:
    assert yaml.safe_load(accelerate_config(PICK).text)["distributed_type"] == "NO"


def test_deepspeeds_file_has_its_own_entries_by_section() -> None:
    pick = tuned(
        argument("deepspeed_zero_stage", 2, DEEPSPEED, "zero_optimization.stage"),
        argument("deepspeed_bucket_size", 10**8, DEEPSPEED, "zero_optimization.reduce_bucket_size"),
        patch("ddp_bucket_cap_mb", 100.0),
        batch_size=8,
    )
    message = deepspeed_config(pick)
    assert message.data == {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 10**8},
    }
    assert [left.knob for left in message.left] == ["ddp_bucket_cap_mb"]


def test_a_command_line_begins_with_the_launcher_and_its_number_of_processes() -> None:
    start = [*launch_words(several(4, 2)), "train.py"]
    assert command_line(PICK, start, ["--lr", "1"], {}).text == (
        "torchrun --nnodes 2 --nproc-per-node 4 train.py --lr 1\n"
    )

"""Exports are loaded by the libraries that they are for, where those are installed.

By default the interpreter that runs the tests is queried; `FRAMEWORKS_PYTHON` names another one that
has them. Libraries run in a process of their own: they import PyTorch, and warn in their own ways.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from picks import argument, env, loader, patch, tuned

from autotune.export.formats.accelerate import accelerate_config
from autotune.export.formats.deepspeed import deepspeed_config
from autotune.export.formats.huggingface import training_arguments
from autotune.export.formats.lightning import lightning_keywords
from autotune.knobs.frameworks import ARGUMENTS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PYTHON = os.environ.get("FRAMEWORKS_PYTHON", sys.executable)


def loaded(library, code, text, tmp_path):
    """What a few lines make of an export in a file ``tuned``, as JSON; skips where the library is missing."""
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({library!r}) is None)"
    if subprocess.run([PYTHON, "-c", find]).returncode:
        pytest.skip(f"{library} is not installed")
    (tmp_path / "tuned").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", f"import json\n{code}\nprint('LOADED', json.dumps(found))"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOADED "))
    return json.loads(line.removeprefix("LOADED "))


FIELDS = """
from transformers import HfArgumentParser, TrainingArguments
requested = json.load(open("tuned"))
(args,) = HfArgumentParser(TrainingArguments).parse_dict({"output_dir": "out", "use_cpu": True, **requested})
found = {name: getattr(args, name) for name in requested}
found["optim"] = getattr(args.optim, "value", args.optim)
"""


def test_transformers_takes_every_field(tmp_path):
    pick = tuned(
        argument("batch_size", 16, ARGUMENTS, "per_device_train_batch_size"),
        argument("fused_optimizer", True, ARGUMENTS, "optim"),
        loader("num_workers", 2),
        loader("prefetch_factor", 4),
        loader("persistent_workers", True),
        patch("compile_mode", "max-autotune"),
        patch("accumulation", 2),
        patch("precision", "bf16"),
        patch("activation_checkpointing", "full"),
        patch("mp_context", "spawn"),
        patch("in_order", False),
    )
    message = training_arguments(pick, keywords=False)
    assert message.left == ()
    assert loaded("transformers", FIELDS, message.text, tmp_path) == message.data["training_arguments"]


def test_transformers_takes_no_workers_and_no_compile(tmp_path):
    message = training_arguments(
        tuned(loader("num_workers", 0), patch("compile_mode", "off"), patch("precision", "fp32")),
        keywords=False,
    )
    found = loaded("transformers", FIELDS, message.text, tmp_path)
    assert {name: found[name] for name in message.data["training_arguments"]} == message.data[
        "training_arguments"
    ]


TRAINER = """
import torch
from lightning.pytorch import Trainer
scope = {}
exec(open("tuned").read(), scope)
trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **scope["trainer"])
data = torch.utils.data.DataLoader(list(range(64)), **scope["loader"])
found = {
    "precision": trainer.precision,
    "parts": trainer.accumulate_grad_batches,
    "batch": data.batch_size,
    "workers": data.num_workers,
    "prefetch": data.prefetch_factor,
    "context": data.multiprocessing_context and data.multiprocessing_context.get_start_method(),
    "in_order": data.in_order,
}
"""


def test_lightning_and_the_loader_take_every_keyword(tmp_path):
    pick = tuned(
        patch("precision", "bf16"),
        patch("accumulation", 4),
        patch("cudnn_benchmark", True),
        loader("batch_size", 16),
        loader("num_workers", 2),
        loader("prefetch_factor", 4),
        loader("pin_memory", False),
        loader("multiprocessing_context", "spawn", knob="mp_context"),
        loader("in_order", False),
    )
    message = lightning_keywords(pick, keywords=True)
    assert message.left == ()
    assert loaded("lightning", TRAINER, message.commented(["head"]), tmp_path) == {
        "precision": "bf16-mixed",
        "parts": 4,
        "batch": 16,
        "workers": 2,
        "prefetch": 4,
        "context": "spawn",
        "in_order": False,
    }


def test_a_loader_without_workers_can_be_built(tmp_path):
    message = lightning_keywords(tuned(loader("num_workers", 0)), keywords=True)
    found = loaded("lightning", TRAINER, message.text, tmp_path)
    assert (found["workers"], found["prefetch"]) == (0, None)


CLUSTER = """
import shutil
from accelerate.commands.config.config_args import load_config_from_file
shutil.copy("tuned", "tuned.yaml")
config = load_config_from_file("tuned.yaml")
found = {
    "mixed_precision": config.mixed_precision,
    "distributed_type": config.distributed_type.value,
    "processes": config.num_processes,
    "use_cpu": config.use_cpu,
    "dynamo": config.dynamo_config,
}
"""


def test_accelerate_takes_the_file(tmp_path):
    pick = tuned(
        patch("precision", "bf16"), patch("compile_mode", "default"), env("threads", 2, "OMP_NUM_THREADS")
    )
    text = accelerate_config(pick).commented(["head"])
    assert loaded("accelerate", CLUSTER, text, tmp_path) == {
        "mixed_precision": "bf16",
        "distributed_type": "NO",
        "processes": 1,
        "use_cpu": True,
        "dynamo": {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"},
    }


LAUNCHED = """
import shutil, subprocess, sys
shutil.copy("tuned", "tuned.yaml")
with open("train.py", "w") as file:
    file.write("import os, accelerate, json\\n"
               "a = accelerate.Accelerator()\\n"
               "print('IS', a.mixed_precision, os.environ['ACCELERATE_DYNAMO_BACKEND'])\\n")
words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "tuned.yaml", "train.py"]
done = subprocess.run(words, capture_output=True, text=True)
assert done.returncode == 0, done.stderr
found = next(line for line in done.stdout.splitlines() if line.startswith("IS "))
"""


@pytest.mark.slow
def test_accelerate_launches_with_the_file(tmp_path):
    text = accelerate_config(tuned(patch("precision", "bf16"), patch("compile_mode", "default"))).text
    assert loaded("accelerate", LAUNCHED, text, tmp_path) == "IS bf16 INDUCTOR"


ENGINE = """
from deepspeed.runtime.config import DeepSpeedConfig
config = DeepSpeedConfig("tuned")
found = {
    "train_batch_size": config.train_batch_size,
    "micro": config.train_micro_batch_size_per_gpu,
    "parts": config.gradient_accumulation_steps,
    "bf16": config.bfloat16_config.enabled,
    "fp16": config.float16_config.enabled,
}
"""


@pytest.mark.parametrize("form", ["bf16", "fp16", "fp32"])
def test_deepspeed_takes_the_file(form, tmp_path):
    pick = tuned(loader("batch_size", 16), patch("accumulation", 4), patch("precision", form))
    assert loaded("deepspeed", ENGINE, deepspeed_config(pick).text, tmp_path) == {
        "train_batch_size": 64,
        "micro": 16,
        "parts": 4,
        "bf16": form == "bf16",
        "fp16": form == "fp16",
    }


STRATEGY = """
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
values = {}
exec(open("tuned").read(), values)
trainer = Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(**values["strategy"]), logger=False)
found = trainer.strategy._ddp_kwargs
"""


def test_lightning_takes_the_arguments_of_its_strategy(tmp_path):
    message = lightning_keywords(
        tuned(patch("ddp_bucket_cap_mb", 100.0), patch("ddp_static_graph", True)), keywords=True
    )
    assert loaded("lightning", STRATEGY, message.text, tmp_path) == message.data["strategy"]


PROCESSES = """
import sys
from dataclasses import replace
from autotune.inspection.accelerate_launch import resolve
open("train.py", "w").close()
found = resolve(sys.executable, ["--config_file", "tuned", "train.py"]).count
"""


def test_accelerate_launch_starts_the_processes_of_the_file(tmp_path):
    pick = replace(tuned(patch("precision", "bf16")), launcher="torchrun --nproc-per-node 2")
    assert loaded("accelerate", PROCESSES, accelerate_config(pick).text, tmp_path) == 2

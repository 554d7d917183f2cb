"""Arguments of training frameworks: how they are set and read back, and that the same is trained."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.knobs.frameworks import ACCELERATOR, ARGUMENTS, DEEPSPEED, LIGHTNING, LIGHTNING_DDP, TRAINER
from autotune.knobs.registry import builtin
from autotune.model.change import Change, Keyword
from autotune.trial.actuators.framework_keywords import Keywords
from autotune.trial.actuators.readings import Readings
from autotune.trial.hooks.libraries.frameworks import (
    Frameworks,
    _of_lightning,  # pyright: ignore[reportPrivateUsage]
    let_divide,
    runs_once,
)
from autotune.trial.hooks.step.optimizer import Optimizer
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.imports import AfterImport
from autotune.trial.runtime.state import RuntimeState
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ARGUMENTS_MODULE = """
import os
from dataclasses import dataclass

@dataclass
class TrainingArguments:
    output_dir: str = ""
    bf16: bool = False
    fp16: bool = False
    gradient_accumulation_steps: int = 1
    dataloader_num_workers: int = 0
    dataloader_prefetch_factor: int | None = None
    dataloader_persistent_workers: bool = False
    per_device_train_batch_size: int = 8
    optim: str = "adamw_torch"

    def __post_init__(self):
        self.mixed_precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        self.mixed_precision = "bf16" if self.bf16 else self.mixed_precision
        if not self.dataloader_num_workers and self.dataloader_prefetch_factor is not None:
            raise ValueError("prefetch without workers")
"""
TRAINER_MODULE = """
class Trainer:
    loss_is_scaled_for_ga = None
    compute_loss_func = None

    def __init__(self, model=None, args=None, optimizers=(None, None)):
        self.model, self.args = model, args
        self.model_accepts_loss_kwargs = True
"""
ACCELERATOR_MODULE = """
import os

class Accelerator:
    def __init__(self, mixed_precision=None, gradient_accumulation_steps=1):
        stronger = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", gradient_accumulation_steps)
        self.mixed_precision, self.gradient_accumulation_steps = mixed_precision, int(stronger)

    def accumulate(self, *models):
        return models
"""
DEEPSPEED_CONFIG_MODULE = """
import json

class DeepSpeedConfig:
    def __init__(self, config, mpu=None):
        read = config if isinstance(config, dict) else json.load(open(config))
        assert "train_batch_size" in read or "train_micro_batch_size_per_gpu" in read
        self.read = read
"""
DEEPSPEED_ENGINE_MODULE = """
from deepspeed.runtime.config import DeepSpeedConfig

class DeepSpeedEngine:
    def __init__(self, config):
        self.read = DeepSpeedConfig(config).read

    def gradient_accumulation_steps(self):
        return self.read.get("gradient_accumulation_steps", 1)

    lr_scheduler, client_lr_scheduler = object(), None

    def zero_optimization_stage(self):
        return 1

    def torch_autocast_enabled(self):
        return self.read.get("torch_autocast", {}).get("enabled", False)

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True):
        return loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss
"""
DEEPSPEED_LOADER_MODULE = """
class DeepSpeedDataLoader:
    def __len__(self):
        return 50
"""
KERAS_MODULE = """
class TorchTrainer:
    def fit(self, x, epochs=1):
        return x * epochs
"""
STRATEGY_MODULE = """
class DDPStrategy:
    def __init__(self, accelerator=None, **kwargs):
        self.accelerator, self.kwargs = accelerator, kwargs
"""
FAKES = {
    "keras": "",
    "keras.src": "",
    "keras.src.backend": "",
    "keras.src.backend.torch": "",
    "keras.src.backend.torch.trainer": KERAS_MODULE,
    "transformers": "",
    "transformers.training_args": ARGUMENTS_MODULE,
    "transformers.trainer": TRAINER_MODULE,
    "deepspeed": "",
    "deepspeed.runtime": "",
    "deepspeed.runtime.config": DEEPSPEED_CONFIG_MODULE,
    "deepspeed.runtime.engine": DEEPSPEED_ENGINE_MODULE,
    "deepspeed.runtime.dataloader": DEEPSPEED_LOADER_MODULE,
    "accelerate": "",
    "accelerate.accelerator": ACCELERATOR_MODULE,
    "lightning": "",
    "lightning.pytorch": "",
    "lightning.pytorch.strategies": "",
    "lightning.pytorch.strategies.ddp": STRATEGY_MODULE,
}


class Bench:
    """What a trial has of frameworks, in this process, with stand-ins for the packages."""

    def __init__(self) -> None:
        self.state = RuntimeState(Faults(None), __file__)
        self.undo, self.hooks = Undo(), AfterImport()
        self.readings = Readings((), builtin(), self.state)
        self.frameworks = Frameworks(self.state, self.undo)
        self.frameworks.watch(self.hooks)

    def change(self, knob: str, value: Any, target: str, name: str) -> None:
        spelling = Keyword(target, name)
        change = Change(knob=knob, value=value, spelling=spelling)
        keywords = Keywords(self.state, self.undo, self.readings, builtin())
        keywords.carry_out(change, spelling, self.hooks)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name, text in FAKES.items():
        path = tmp_path.joinpath(*name.split("."))
        is_package = any(other.startswith(f"{name}.") for other in FAKES)
        path = path / "__init__.py" if is_package else path.with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"):
        monkeypatch.delenv(name, raising=False)
    importlib.invalidate_caches()
    made = Bench()
    yield made
    made.undo.undo_all()
    made.hooks.remove()
    for name in FAKES:
        sys.modules.pop(name, None)


def arguments() -> Any:
    return importlib.import_module("transformers.training_args").TrainingArguments


def trainer() -> Any:
    return importlib.import_module("transformers.trainer").Trainer


def accelerator() -> Any:
    return importlib.import_module("accelerate.accelerator").Accelerator


def test_arguments_reach_a_dataclass_of_the_scripts_own(bench: Bench) -> None:
    bench.change("precision", "bf16", ARGUMENTS, "bf16")
    bench.change("num_workers", 2, ARGUMENTS, "dataloader_num_workers")
    bench.change("prefetch_factor", 4, ARGUMENTS, "dataloader_prefetch_factor")
    space: dict[str, Any] = {"Base": arguments()}
    text = "from dataclasses import dataclass\n@dataclass\nclass Mine(Base):\n    fp16: bool = True\n"
    exec(text, space)
    for cls in (arguments(), space["Mine"]):
        made = cls(output_dir="out")
        assert (made.bf16, made.fp16, made.mixed_precision) == (True, False, "bf16")
        assert (made.dataloader_num_workers, made.dataloader_prefetch_factor) == (2, 4)
    assert bench.readings.delivered[ARGUMENTS, "bf16"] == "bf16"


def test_lightnings_strategy_is_constructed_with_the_arguments(bench: Bench) -> None:
    bench.change("ddp_bucket_cap_mb", 100.0, LIGHTNING_DDP, "bucket_cap_mb")
    bench.change("ddp_find_unused_parameters", False, LIGHTNING_DDP, "find_unused_parameters")
    cls = importlib.import_module("lightning.pytorch.strategies.ddp").DDPStrategy
    # As its registry constructs "ddp_find_unused_parameters_true".
    made = cls(accelerator="cpu", find_unused_parameters=True, start_method="popen")
    wanted = {"find_unused_parameters": False, "bucket_cap_mb": 100, "start_method": "popen"}
    assert (made.accelerator, made.kwargs) == ("cpu", wanted)
    assert type(made.kwargs["bucket_cap_mb"]) is int
    bench.undo.undo_all()
    assert cls(bucket_cap_mb=1).kwargs == {"bucket_cap_mb": 1}


def test_keras_owns_what_its_fit_trains_and_no_model_that_is_only_built(bench: Bench) -> None:
    cls = importlib.import_module("keras.src.backend.torch.trainer").TorchTrainer
    model = cls()
    assert bench.frameworks.owners == []
    assert model.fit(3, epochs=2) == 6
    assert model.fit(1) == 1
    assert bench.frameworks.owners == ["keras"]
    assert bench.frameworks.settings() == {}
    bench.undo.undo_all()
    assert not hasattr(cls.fit, "__wrapped__")


def engine() -> Any:
    return importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine


def test_deepspeed_trains_by_a_copy_of_the_configuration(bench: Bench, tmp_path: Path) -> None:
    bench.change("accumulation", 4, DEEPSPEED, "gradient_accumulation_steps")
    bench.change("precision", "bf16", DEEPSPEED, "torch_autocast")
    own = {"train_batch_size": 64, "gradient_accumulation_steps": 2, "torch_autocast": {"lower": ["a"]}}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(own))
    for given in (own, str(file)):
        made = engine()(given)
        assert made.read == {
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 16,
            "gradient_accumulation_steps": 4,
            "torch_autocast": {"lower": ["a"], "enabled": True, "dtype": "bfloat16"},
        }
    assert own["train_batch_size"] == 64
    assert json.loads(file.read_text()) == own
    assert bench.readings.delivered[DEEPSPEED, "gradient_accumulation_steps"] == 4
    assert bench.frameworks.owners == ["deepspeed"]


def test_an_entry_of_a_section_leaves_the_rest_of_it(bench: Bench) -> None:
    bench.change("deepspeed_zero_stage", 2, DEEPSPEED, "zero_optimization.stage")
    own = {"train_batch_size": 64, "zero_optimization": {"stage": 1, "overlap_comm": True}}
    assert engine()(own).read["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert own["zero_optimization"] == {"stage": 1, "overlap_comm": True}
    assert engine()({"train_batch_size": 64}).read["zero_optimization"] == {"stage": 2}


@pytest.mark.parametrize(
    ("own", "reported"),
    [
        ({"train_micro_batch_size_per_gpu": 32}, (32, 8)),
        ({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}, (16, 4)),
        ({"train_micro_batch_size_per_gpu": 5, "train_batch_size": 5}, (None, 5)),  # no four parts of it
        ({"train_batch_size": 30}, (None, 30)),
        ({"train_batch_size": 30, "gradient_accumulation_steps": 2}, (None, 15)),
        ({"train_batch_size": 1}, (None, 1)),
    ],
)
def test_the_batch_that_deepspeed_counts_by_stays_that_of_a_step(
    bench: Bench, own: dict[str, int], reported: tuple[int | None, int]
) -> None:
    bench.change("accumulation", 4, DEEPSPEED, "gradient_accumulation_steps")
    read = engine()(own).read
    assert (read.get("train_batch_size"), read["train_micro_batch_size_per_gpu"]) == reported


def test_a_configuration_with_comments_is_read_as_deepspeed_reads_it(bench: Bench, tmp_path: Path) -> None:
    hjson = ModuleType("hjson")
    hjson.__dict__["load"] = lambda file: json.loads(re.sub(r"#.*", "", file.read()))
    bench.change("accumulation", 2, DEEPSPEED, "gradient_accumulation_steps")
    file = tmp_path / "ds.hjson"
    file.write_text('{"train_batch_size": 8 # of a step\n}')
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "hjson", hjson)
        assert engine()(str(file)).read["train_micro_batch_size_per_gpu"] == 4


def test_full_precision_turns_deepspeeds_autocast_off(bench: Bench) -> None:
    bench.change("precision", "fp32", DEEPSPEED, "torch_autocast")
    own = {"train_micro_batch_size_per_gpu": 8, "torch_autocast": {"enabled": True, "dtype": "float16"}}
    assert engine()(own).torch_autocast_enabled() is False


@pytest.mark.parametrize(
    ("call", "divides"),
    [
        (lambda made: None, False),
        (lambda made: made.backward(4.0), True),
        (lambda made: made.backward(4.0, scale_wrt_gas=False), False),
        (lambda made: made.backward(4.0, False, False), False),
    ],
)
def test_whether_deepspeed_divides_shows_in_its_backward(
    bench: Bench, call: Callable[[Any], Any], divides: bool
) -> None:
    made = engine()({"train_batch_size": 8, "gradient_accumulation_steps": 2})
    call(made)
    assert bench.frameworks.settings() == {
        "deepspeed.divides": divides,
        "deepspeed.gradient_accumulation_steps": 2,
        "deepspeed.torch_autocast": False,
        "deepspeed.pipeline": False,
        "deepspeed.managed": True,
        "deepspeed.zero": 1,
        "deepspeed.own_schedule": True,
    }


def test_that_the_script_counts_by_deepspeeds_loader_is_reported(bench: Bench, tmp_path: Path) -> None:
    loader = importlib.import_module("deepspeed.runtime.dataloader").DeepSpeedDataLoader()
    library = tmp_path / "site-packages" / "bar.py"
    exec(compile("assert len(loader) == 50", str(library), "exec"), {"loader": loader})
    assert "deepspeed.counts_batches" not in bench.frameworks.settings()
    exec(compile("assert len(loader) == 50", str(tmp_path / "train.py"), "exec"), {"loader": loader})
    assert bench.frameworks.settings()["deepspeed.counts_batches"] is True


def test_no_workers_take_what_only_workers_have_along(bench: Bench) -> None:
    bench.change("num_workers", 0, ARGUMENTS, "dataloader_num_workers")
    made = arguments()(dataloader_num_workers=4, dataloader_prefetch_factor=8)
    assert (made.dataloader_num_workers, made.dataloader_prefetch_factor) == (0, None)


def test_a_variable_that_beats_an_argument_is_away_for_that_call_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert accelerator()(gradient_accumulation_steps=2).gradient_accumulation_steps == 8
    assert arguments()().mixed_precision == "bf16"
    bench.change("accumulation", 4, ACCELERATOR, "gradient_accumulation_steps")
    bench.change("precision", "fp32", ARGUMENTS, "bf16")
    assert accelerator()().gradient_accumulation_steps == 4
    assert arguments()().mixed_precision == "no"
    assert os.environ["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "8"
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_the_trainer_is_set_to_divide_and_its_arguments_are_set(bench: Bench) -> None:
    bench.change("accumulation", 2, TRAINER, "gradient_accumulation_steps")
    made = trainer()(model=object(), args=arguments()())
    assert made.args.gradient_accumulation_steps == 2
    assert made.loss_is_scaled_for_ga is False


def test_an_older_trainer_is_reported_by_what_it_takes_the_model_for() -> None:
    old = SimpleNamespace(model_accepts_loss_kwargs=True)
    let_divide(old)
    assert old.model_accepts_loss_kwargs is False


def test_what_frameworks_were_built_with_is_reported(bench: Bench) -> None:
    assert bench.frameworks.settings() == {}
    optimizer = object()
    held = trainer()(args=arguments()(optim="adafactor"), optimizers=(optimizer, None))
    other = accelerator()(mixed_precision="bf16")
    assert bench.frameworks.owners == ["transformers", "accelerate"]
    reported = bench.frameworks.settings()
    assert reported["transformers.own_optimizer"] is True
    assert reported["transformers.own_scheduler"] is False
    assert (reported["transformers.optim"], reported["transformers.divides"]) == ("adafactor", False)
    assert reported["transformers.own_loss"] is False
    assert (reported["accelerate.mixed_precision"], reported["accelerate.accumulates"]) == ("bf16", False)
    other.accumulate(held)
    assert bench.frameworks.settings()["accelerate.accumulates"] is True
    del held
    assert bench.frameworks.settings()["transformers.optim"] == "adafactor", "kept where the object is gone"


def test_a_trainer_that_computes_the_loss_in_its_own_way_is_distinguished(
    bench: Bench,
) -> None:
    trainer().compute_loss = lambda self: 0.0
    own = type("Mine", (trainer(),), {"compute_loss": lambda self: 1.0})
    held = own(args=arguments()())
    assert bench.frameworks.settings()["transformers.own_loss"] is True
    held = type("Plain", (trainer(),), {})(args=arguments()())
    assert bench.frameworks.settings()["transformers.own_loss"] is False
    del held


def test_a_framework_that_is_like_none_known_harms_nobody(bench: Bench) -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    held = trainer()(args=Odd())
    assert bench.frameworks.settings()["transformers.own_optimizer"] is False
    assert "frameworks" in bench.state.faults.off
    assert held is not None


def test_patches_of_frameworks_are_taken_back(bench: Bench) -> None:
    before = (arguments().__post_init__, trainer().__init__, accelerator().__init__)
    bench.change("precision", "bf16", ARGUMENTS, "bf16")
    bench.change("accumulation", 2, TRAINER, "gradient_accumulation_steps")
    assert arguments()().bf16 is True
    bench.undo.undo_all()
    assert arguments()().bf16 is False
    assert trainer().__init__ is not before[1]


def test_a_closure_of_the_scripts_own_may_run_the_model_as_often_as_it_likes() -> None:
    assert not runs_once(lambda: None, object())
    inside = type("Closure", (), {"__module__": "lightning.pytorch.loops.optimization.automatic"})()
    assert runs_once(inside, object())
    assert runs_once(functools.partial(print, "model", "optimizer", inside), object())
    assert not runs_once(functools.partial(print, inside, "optimizer", lambda: None), object())


def test_a_closure_with_arguments_of_its_own_is_no_closure_of_lightning() -> None:
    class Closure:
        args = SimpleNamespace(lr=0.1)

        def __call__(self) -> float:
            return 0.0

    assert not runs_once(Closure(), object())


def test_fractions_of_a_pass_and_code_after_the_backward_pass_are_reported(monkeypatch: Any) -> None:
    library: Any = type("LightningModule", (), {"on_after_backward": lambda self: None})
    library.__module__ = "lightning.pytorch.core.hooks"
    plain, own = type("Plain", (library,), {})(), type("Own", (library,), {"on_after_backward": print})()

    def read(limit: Any, module: Any, *callbacks: Any) -> dict[str, Any]:
        trainer = SimpleNamespace(
            limit_train_batches=limit, val_check_interval=1.0, lightning_module=module, callbacks=callbacks
        )
        reported = _of_lightning(trainer)
        return {name: reported[name] for name in ("counts_batches", "after_backward")}

    assert read(1.0, plain, plain) == {"counts_batches": False, "after_backward": False}
    assert read(0.5, own) == {"counts_batches": True, "after_backward": True}
    assert read(10, plain, own) == {"counts_batches": True, "after_backward": True}


def test_the_loss_of_a_router_is_reported(bench: Bench) -> None:
    for config, reported in (
        (SimpleNamespace(output_router_logits=True), True),
        (SimpleNamespace(text_config=SimpleNamespace(output_router_logits=True)), True),
        (SimpleNamespace(output_router_logits=False), False),
    ):
        held = trainer()(model=SimpleNamespace(config=config), args=arguments()())
        assert bench.frameworks.settings()["transformers.router_loss"] is reported
        assert held is not None


def plain_model(labels=None):
    return labels


def counting_model(labels=None, num_items_in_batch=None):
    return labels, num_items_in_batch


@pytest.mark.parametrize(
    ("forward", "function", "accepts", "takes", "own"),
    [
        (counting_model, None, True, True, False),
        (counting_model, None, False, False, False),  # this version does not hand the count over
        (plain_model, None, True, False, False),
        (plain_model, counting_model, False, True, False),
        (plain_model, plain_model, False, False, True),
    ],
)
def test_who_takes_the_count_of_items_divides_by_it_where_the_trainer_leaves_it_to_them(
    bench: Bench, forward: Any, function: Any, accepts: bool, takes: bool, own: bool
) -> None:
    held = trainer()(model=SimpleNamespace(forward=forward), args=arguments()())
    held.model_accepts_loss_kwargs, held.compute_loss_func = accepts, function
    reported = bench.frameworks.settings()
    assert (reported["transformers.takes_items"], reported["transformers.own_loss"]) == (takes, own)
    assert held is not None


@pytest.mark.parametrize(("smoother", "takes"), [(counting_model, True), (plain_model, False)])
def test_label_smoothing_divides_by_the_items_in_place_of_the_model_where_this_version_hands_them_over(
    bench: Bench, smoother: Any, takes: bool
) -> None:
    held = trainer()(model=SimpleNamespace(forward=counting_model), args=arguments()())
    held.model_accepts_loss_kwargs, held.label_smoother = True, smoother
    assert bench.frameworks.settings()["transformers.takes_items"] is takes
    assert held is not None


@pytest.mark.parametrize("compiling", [True, False])
def test_a_loss_that_is_being_traced_leaves_no_note(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, compiling: bool
) -> None:
    torch = SimpleNamespace(compiler=SimpleNamespace(is_compiling=lambda: compiling))
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    module = SimpleNamespace(fixed_cross_entropy=lambda source, target, num_items_in_batch=None: 1.0)
    frameworks: Any = bench.frameworks
    frameworks._watch_items(module)
    assert module.fixed_cross_entropy("logits", "labels", num_items_in_batch=7) == 1.0
    assert ("transformers.loss_per_item" in frameworks.settings()) is not compiling


@pytest.mark.torch
@pytest.mark.parametrize(
    ("course", "first", "module"),
    [
        (("part", "backward", "zero"), False, False),
        (("zero", "part", "backward"), False, False),
        (("part", "zero", "backward"), True, False),
        (("module", "part", "backward", "zero"), False, False),
        (("part", "backward", "module"), False, True),
    ],
)
def test_zeroing_that_throws_parts_away_is_seen(
    bench: Bench, course: tuple[str, ...], first: bool, module: bool
) -> None:
    torch: Any = pytest.importorskip("torch")
    reported: Any = SimpleNamespace(passed=print, may_have_passed=lambda: None)
    loader: Any = SimpleNamespace(backward_seen=lambda: None, built_any=True, input_batch=1)
    passes: list[bool] = []
    inputs: Any = SimpleNamespace(backward=lambda: passes.append(True))
    root: Any = SimpleNamespace(detecting=False, own_compile=False, dtype_name=None, inputs=inputs)
    losses: Any = None
    seen: Any = Optimizer(bench.state, bench.undo, reported, loader, root, losses)
    seen._torch, seen.constructed = torch, 1
    bench.frameworks.on_part = seen.part_begins
    net = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    seen._wrap_backward(torch)
    seen._wrap_zero_grad(torch.optim.Optimizer)
    seen._wrap_zero_grad(torch.nn.Module)
    part = accelerator()().accumulate
    steps: dict[str, Any] = {
        "part": part,
        "zero": opt.zero_grad,
        "module": net.zero_grad,
        "backward": lambda: net(torch.ones(1, 2)).sum().backward(),
    }
    for _ in range(2 if course[0] != "module" else 1):
        for word in course:
            steps[word]()
    assert (seen.zeroes_first, seen.zeroes_module) == (first, module)
    assert len(passes) == seen.backwards_seen > 0


# The real ones, where they are installed

PRELUDE = """
import json, os, sys, warnings
warnings.filterwarnings("ignore")
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def reported(model, **what):
    weights = [float(p.detach().double().sum()) for p in model.parameters()]
    print(json.dumps({"weights": weights, **what})); sys.stdout.flush()

"""
WITH_LIGHTNING = (
    PRELUDE
    + """
import lightning as L

class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

L.seed_everything(0)
x = torch.randn(320, 8)
loader = DataLoader(TensorDataset(x, x[:, :1] * x[:, 1:2]), batch_size=16)
trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
model = Lit()
trainer.fit(model, loader)
reported(model, steps=trainer.global_step)
"""
)
WITH_ACCELERATE = (
    PRELUDE
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(320, 8)
loader = DataLoader(TensorDataset(x, x[:, :1] * x[:, 1:2]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, opt, loader = accelerator.prepare(model, opt, loader)
for epoch in range(2):
    for a, b in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(a), b))
            opt.step()
            opt.zero_grad()
reported(model)
"""
)
CLIPPED = WITH_ACCELERATE.replace(
    "            opt.step()",
    "            if accelerator.sync_gradients:\n"
    "                accelerator.clip_grad_norm_(model.parameters(), 0.1)\n"
    "            opt.step()",
)
WITH_TRAINER = (
    PRELUDE
    + """
from transformers import Trainer, TrainingArguments, set_seed

class Pairs(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.randint(5, 60, (160, 8), generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return len(self.ids)
    def __getitem__(self, i):
        return row(self.ids[i])

set_seed(0)
args = TrainingArguments(output_dir="out", per_device_train_batch_size=16, num_train_epochs=2, use_cpu=True,
                         report_to="none", save_strategy="no", optim="sgd", learning_rate=0.1,
                         disable_tqdm=True, max_grad_norm=0.0)
trainer = Trainer(model=model(), args=args, train_dataset=Pairs())
trainer.train()
reported(trainer.model, steps=trainer.state.global_step)
"""
)
CLASSIFIER = """
from transformers import BertConfig, BertForSequenceClassification

def row(ids):
    return {"input_ids": ids, "labels": int(ids.sum() > 260)}

def model():
    return BertForSequenceClassification(BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
"""
LANGUAGE_MODEL = """
from transformers import GPT2Config, GPT2LMHeadModel

def row(ids):
    padded = torch.where(torch.arange(8) < 3 + ids[0] % 5, ids, -100)
    return {"input_ids": ids, "labels": padded}

def model():
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2,
                                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
"""
HALF = Change(knob="batch_size", value=8, spelling=Keyword("torch.utils.data.DataLoader", "batch_size"))
HALF_BY_TRAINER = Change(
    knob="batch_size", value=8, spelling=Keyword(ARGUMENTS, "per_device_train_batch_size")
)


def twice(target: str, name: str) -> Change:
    return Change(knob="accumulation", value=2, spelling=Keyword(target, name))


def needs(*packages: str) -> Any:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def trainer_script(model: str) -> str:
    head, _, tail = WITH_TRAINER.partition("class Pairs")
    return f"{head}{model}\nclass Pairs{tail}"


CASES = [
    pytest.param(
        WITH_LIGHTNING,
        (HALF, twice(LIGHTNING, "accumulate_grad_batches")),
        {
            "lightning.automatic_optimization": True,
            "lightning.accumulate_grad_batches": 1,
            "lightning.after_backward": False,
            "lightning.counts_batches": False,
        },
        id="lightning",
        marks=needs("lightning"),
    ),
    pytest.param(
        WITH_ACCELERATE,
        (HALF, twice(ACCELERATOR, "gradient_accumulation_steps")),
        {
            "accelerate.accumulates": True,
            "accelerate.zeroes_first": False,
            "accelerate.zeroes_module": False,
        },
        id="accelerate",
        marks=needs("accelerate"),
    ),
    pytest.param(
        CLIPPED,
        (HALF, twice(ACCELERATOR, "gradient_accumulation_steps")),
        {"accelerate.accumulates": True},
        id="accelerate-clipped",
        marks=needs("accelerate"),
    ),
    pytest.param(
        trainer_script(CLASSIFIER),
        (HALF_BY_TRAINER, twice(TRAINER, "gradient_accumulation_steps")),
        {"transformers.divides": False, "transformers.router_loss": False},
        id="trainer-mean",
        marks=needs("transformers", "accelerate"),
    ),
    pytest.param(
        trainer_script(LANGUAGE_MODEL),
        (HALF_BY_TRAINER, twice(ARGUMENTS, "gradient_accumulation_steps")),
        {"transformers.loss_per_item": True, "transformers.own_loss": False},
        id="trainer-per-item",
        marks=needs("transformers", "accelerate"),
    ),
]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("script", "changes", "settings"), CASES)
def test_accumulation_by_a_framework_trains_what_the_full_batch_does(
    run: Callable[..., Any], script: str, changes: tuple[Change, ...], settings: dict[str, Any]
) -> None:
    whole = run(script, timeout_s=300)
    parts = run(script, changes=changes, measure=False, timeout_s=300)
    assert not whole.faults, whole.faults
    assert not parts.faults, parts.faults
    full, halves = whole.reported, parts.reported
    assert halves["weights"] == pytest.approx(full["weights"], rel=1e-4, abs=1e-5)
    assert halves.get("steps") == full.get("steps")
    readings = json.loads((parts.folder / "status.json").read_text())
    status = {r["knob"]: r["status"] for r in readings}
    assert status["accumulation"] == status["batch_size"] == "applied", readings
    seen = whole.facts.owner_settings
    assert {name: seen[name] for name in settings} == settings

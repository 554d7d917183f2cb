"""The hooks one by one: reversible, cheap, harmless when they break."""

from __future__ import annotations

import io
import sqlite3
import sys
import zipfile
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import LONG, PRELUDE, SHORT

from autotune.model.change import Change, Patch
from autotune.trial.actuators.readings import same
from autotune.trial.hooks.data.datasets import shared_handle
from autotune.trial.records.batch_structure import count, find_count, is_batch_of_one
from autotune.trial.runtime.imports import AfterImport
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Shaped:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Graphs:
    num_graphs = 5


class GraphsOfNodes:
    """As a graph library's batch: it looks like a mapping of what its nodes hold, with `keys` a property."""

    keys = ("x", "y")
    num_graphs = 3

    def __getitem__(self, key: str) -> Shaped:
        return {"x": Shaped(40, 8), "y": Shaped(40)}[key]


class Fields:
    """As a mapping without being one."""

    keys = ("ids",)

    def __getitem__(self, key: str) -> Shaped:
        return {"ids": Shaped(6, 12)}[key]


class Sampled:
    """As what a library samples around some nodes of a graph: their fields, and how many were requested."""

    keys = ("x", "edges")
    batch_size = 4

    def __getitem__(self, key: str) -> Shaped:
        return {"x": Shaped(37, 8), "edges": Shaped(2, 90)}[key]


class Told:
    """A class of a library that has a length, and keeps the names of its fields before them."""

    def __init__(self, size: int) -> None:
        self.names = ["signal", "length", "label"]
        self.signal = (Shaped(size, 900), Shaped(size))

    def __len__(self) -> int:
        return int(self.signal[1].shape[0])


class OwnBatch:
    """A class of a script's own that its collate function makes."""

    def __init__(self, size: int) -> None:
        self.name = "pairs"
        self.src, self.lengths = Shaped(size, 11), Shaped(size)


@pytest.mark.parametrize(
    ("batch", "expected", "samples"),
    [
        (Shaped(8, 3), 8, 8),
        (Shaped(20, 8), 8, 8),
        ([Shaped(8, 3), Shaped(8)], None, 8),
        ({"ids": Shaped(6, 12), "mask": Shaped(6, 12)}, 6, 6),
        ((tuple(Shaped(3, 9, 9) for _ in range(4)), tuple({"boxes": Shaped(7, 4)} for _ in range(4))), 4, 4),
        (["one", "two", "three"], 3, 3),
        (Graphs(), None, 5),
        (GraphsOfNodes(), None, 3),
        (Fields(), None, 6),
        (OwnBatch(12), None, 12),
        (OwnBatch(12), 12, 12),
        (Sampled(), None, 4),
        (Sampled(), 4, 4),
        (Sampled(), 16, 4),
        (Told(5), None, 5),
        (Told(5), 5, 5),
        ([[Shaped(2, 2)], Shaped()], 2, 2),
        (3, None, 1),
    ],
)
def test_samples_are_counted_in_batches_of_many_forms(batch: Any, expected: int | None, samples: int) -> None:
    assert count(batch, find_count(batch, expected)) == samples


def test_a_later_smaller_batch_is_counted_by_the_way_found_on_the_first() -> None:
    how = find_count({"x": Shaped(20, 8)}, 8)
    assert count({"x": Shaped(20, 5)}, how) == 5


def test_later_batches_of_a_class_of_the_scripts_own_are_counted_by_its_attributes() -> None:
    assert count(OwnBatch(7), find_count(OwnBatch(12), None)) == 7


@pytest.mark.parametrize(
    ("batch", "is_one"),
    [
        (Shaped(1, 28, 28), True),
        ([Shaped(1, 28, 28), Shaped(1)], True),
        ({"ids": Shaped(1, 12), "mask": Shaped(1, 12), "texts": ["one"], "none": None}, True),
        ([{"image": Shaped(3, 9, 9), "height": 9}], True),
        (Told(1), True),
        (OwnBatch(1), True),
        (Shaped(3, 9, 9), False),
        ([Shaped(1, 28, 28), 7], False),
        ([Shaped(1, 28, 28), Shaped()], False),
        ({"image": Shaped(3, 9, 9), "height": 9}, False),
        ((Shaped(32, 4), Shaped(32)), False),
        (Told(2), False),
        (Graphs(), False),
        ([], False),
        ("text", False),
    ],
)
def test_a_batch_of_one_is_reported_from_a_sample(batch: Any, is_one: bool) -> None:
    assert is_batch_of_one(batch) is is_one


def detection_batch(*boxes: int) -> Any:
    """What the collate function of torchvision's detection tutorial makes of samples with so many boxes."""
    samples = [(Shaped(3, 9 + n, 9), {"boxes": Shaped(n, 4), "labels": Shaped(n)}) for n in boxes]
    return tuple(zip(*samples, strict=True))


@pytest.mark.parametrize("size", [2, 3, 4, None])
def test_images_of_a_detection_batch_are_counted_and_not_their_boxes_or_channels(size: int | None) -> None:
    how = find_count(detection_batch(*range(1, (size or 5) + 1)), size)
    assert [count(detection_batch(*boxes), how) for boxes in ((4, 4, 4, 4), (1,))] == [4, 1]
    # The last batch of an epoch may be the first that is seen, and its boxes as many as a batch.
    assert count(detection_batch(4, 4, 4), find_count(detection_batch(6, 1), 6)) == 3


@pytest.mark.parametrize("kind", [list, tuple])
def test_samples_that_were_never_put_together_are_counted_one_by_one(kind: Any) -> None:
    images = find_count(kind(Shaped(3, 9, 9) for _ in range(4)), 4)
    assert count([Shaped(3, 9, 9)] * 2, images) == 2
    pairs = find_count([(Shaped(3, 9, 9), 1), (Shaped(3, 9, 9), 2)], None)
    assert count([(Shaped(3, 9, 9), 1)] * 7, pairs) == 7
    fields = find_count(kind([Shaped(3, 9, 9), Shaped(3)]), 2)
    assert count([Shaped(5, 9, 9), Shaped(5)], fields) == 5


def test_an_object_that_answers_any_question_with_any_error_is_one_of_the_samples_parts() -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    assert count([Odd(), Shaped(7, 2)], find_count([Odd(), Shaped(8, 2)], 8)) == 7
    assert shared_handle(Odd()) == ""


def test_callbacks_fire_once_a_body_has_run_and_loaders_are_left_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "awaited_one.py").write_text("value = 1\n")
    (tmp_path / "broken_one.py").write_text("raise ValueError('on purpose')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks = AfterImport()
    seen: list[tuple[ModuleType, Any]] = []
    hooks.on("awaited_one", lambda module: seen.append((module, module.value)))
    hooks.on("broken_one", lambda module: seen.append((module, None)))
    try:
        import awaited_one  # pyright: ignore[reportMissingImports]

        assert seen == [(awaited_one, 1)]
        assert "exec_module" not in vars(awaited_one.__loader__)
        with pytest.raises(ValueError, match="on purpose"):
            import broken_one  # pyright: ignore[reportMissingImports]  # noqa: F401 - importing it is the test
        assert len(seen) == 1
        hooks.on("awaited_one", lambda module: seen.append((module, 2)))
        assert seen[-1] == (awaited_one, 2)
    finally:
        hooks.remove()
        sys.modules.pop("awaited_one", None)
    assert hooks not in sys.meta_path


def test_assignments_are_taken_back_in_reverse_inherited_attributes_included() -> None:
    class Base:
        def name(self) -> str:
            return "base"

    class Child(Base):
        other = 1

    undo, level = Undo(), [0]
    undo.assign(Child, "name", lambda _self: "patched")
    undo.assign(Child, "other", 2)
    undo.assign(Child, "other", 3)
    undo.call(lambda value: level.__setitem__(0, value), 5, undo=0)
    assert (Child().name(), Child.other, level) == ("patched", 3, [5])
    undo.undo_all()
    assert "name" not in vars(Child)
    assert (Child().name(), Child.other, level) == ("base", 1, [0])


@pytest.mark.parametrize(
    ("found", "wanted", "equal"),
    [
        (1, 1.0, True),
        (True, 1, False),
        ("2", 2, True),
        ("bf16", "fp16", False),
        (True, "true", True),
        (0.1, 0.1, True),
    ],
)
def test_readings_compare_settings_not_types(found: Any, wanted: Any, equal: bool) -> None:
    assert same(found, wanted) is equal


UNDO = (
    PRELUDE
    + """
import random, numpy.random
from autotune.model.change import Change, Patch, Keyword
from autotune.protocol.plan import Plan
from autotune.trial.entry.trial_runtime import TrialRuntime as Session
from torch.utils.data import dataloader
from torch.optim import lr_scheduler
warm = nn.Linear(2, 1)
o = torch.optim.AdamW(warm.parameters())
warm(torch.ones(1, 2)).sum().backward()
o.step()
owners = [torch, torch.nn.Module, torch.Tensor, torch.autograd, torch.optim.Optimizer,
          torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.nn.functional,
          torch.nn.utils, sys.modules["torch.nn.utils.clip_grad"], DataLoader,
          dataloader._BaseDataLoaderIter, lr_scheduler.LRScheduler,
          lr_scheduler.ReduceLROnPlateau, torch.amp.GradScaler,
          torch.amp.autocast_mode.autocast, torch.random, torch.cuda, random, numpy.random]
def snapshot(): return [dict(vars(o)) for o in owners]
before, threads = snapshot(), torch.get_num_threads()
def loader(name, value):
    return Change(knob=name, value=value, spelling=Keyword("torch.utils.data.DataLoader", name))
plan = Plan(nonce="n", script=__file__, argv=(), events_path="", trial_dir="", changes=(
    loader("batch_size", 4), Change(knob="precision", value="bf16", spelling=Patch()),
    Change(knob="threads", value=2, spelling=Patch()),
    Change(knob="fused_optimizer", value=True, spelling=Patch()),
    Change(knob="accumulation", value=2, spelling=Patch()),
    Change(knob="channels_last", value=True, spelling=Patch())))
session = Session(plan, None)
session.begin()
patched = sum(a[k] is not b.get(k) for a, b in zip(snapshot(), before) for k in a)
model = nn.Linear(2, 1)
class Mine(torch.optim.SGD):
    def step(self, closure=None): return super().step(closure)
opt = Mine(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=8):
    model(x).sum().backward(); opt.step()
session.patches.undo_all()
after = snapshot()
changed = [(str(o), k) for o, a, b in zip(owners, after, before)
           for k in set(a) | set(b) if a.get(k) is not b.get(k)]
reported(patched=patched, changed=[c for c in changed if c[1] not in ("__warningregistry__", "__doc__")],
     hooked=bool(Mine.step.hooked),
     plain=not hasattr(Mine.step, "_autotune_plain"), slot="_compiled_call_impl" in model.__dict__,
     faults=sorted(session.faults.off), threads=torch.get_num_threads() == threads)
"""
)


@pytest.mark.torch
def test_patch_then_undo_is_identity(run: Callable[..., Any]) -> None:
    reported = run(UNDO, bare=True).reported
    assert reported["patched"] > 30
    assert reported["faults"] == []
    assert reported["changed"] == []
    assert reported["plain"]
    assert reported["hooked"]
    assert not reported["slot"]
    assert reported["threads"]


FAULT = (
    PRELUDE
    + """
from autotune.trial.hooks.data import loader
from autotune.trial.hooks.step import losses
from autotune.trial.hooks.model import trained_modules as root
from autotune.trial.measure import step_counter as steps
def broken(*args, **kwargs): raise RuntimeError("injected")
if sys.argv[1:] == ["broken"]:
    loader.Loader._count = broken; root.ForwardWrapper._before = broken; losses.Losses.backward = broken
    steps.StepCounter._loss = broken
torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for (x,) in DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=8, shuffle=True):
        opt.zero_grad(); F.mse_loss(model(x), torch.ones(8, 1)).backward(); opt.step()
reported(weights=weights(model))
"""
)


@pytest.mark.torch
def test_a_fault_of_ours_leaves_the_script_alone_and_its_knob_unconfirmed(run: Callable[..., Any]) -> None:
    fine = run(FAULT, fidelity=LONG)
    broken = run(FAULT, fidelity=LONG, argv=["broken"])
    assert broken.reported == fine.reported
    assert broken.code == 0
    assert "injected" in broken.faults
    assert fine.faults == ""
    wanted = [Change(knob="precision", value="bf16", spelling=Patch())]
    void = run(FAULT.replace("range(3)", "range(10**6)"), fidelity=SHORT, argv=["broken"], changes=wanted)
    assert void.broke.kind == "config_rejected"
    assert void.broke.knob == "precision"


GENERATOR = (
    PRELUDE
    + """
import numpy.random as r
r.get_state = lambda: {"bit_generator": "PCG64"} if sys.argv[1] == "dict" else 1 / 0
model = nn.Linear(4, 1)
for (x,) in DataLoader(TensorDataset(torch.ones(40, 4)), batch_size=4): model(x).sum().backward()
reported(done=True)
"""
)


@pytest.mark.torch
def test_another_generator_of_numpy_raises_nothing_into_the_script(run: Callable[..., Any]) -> None:
    fine = run(GENERATOR, argv=["dict"])
    assert fine.reported == {"done": True}
    assert fine.faults == ""
    broken = run(GENERATOR, argv=["raises"])
    assert broken.reported == {"done": True}
    assert "ZeroDivisionError" in broken.faults


def test_open_files_of_a_dataset_are_found_where_forks_would_share_them(tmp_path: Path) -> None:
    class Data:
        def __init__(self, **held: Any) -> None:
            self.__dict__.update(held)

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, (tmp_path / "f").open("w+b") as file:
        assert shared_handle(Data(archive=archive)) == "ZipFile"
        assert shared_handle(Data(dataset=Data(parts=[file]))) == "BufferedRandom"
        assert shared_handle(Data(parts={"a": file})) == "BufferedRandom"
    with (tmp_path / "log").open("w") as log:
        assert shared_handle(Data(log=log)) == ""
    connection = sqlite3.connect(":memory:")
    assert shared_handle(Data(db=connection)) == "Connection"
    connection.close()
    assert shared_handle(Data(text=io.BytesIO(b"x"), closed=file, n=3)) == ""
    assert shared_handle(object()) == ""

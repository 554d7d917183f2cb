"""What a real training is promised: tuned throughout or ended with 6, and never harmed by watching."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Patch
from autotune.trial.hooks.model.compiling import Compile
from autotune.trial.hooks.step.accumulation import MicroBatches
from autotune.trial.hooks.step.fused_optimizer import OptimizerKernel
from autotune.trial.hooks.step.optimizer import Optimizer
from autotune.trial.measure.step_counter import StepCounter
from autotune.trial.records.loader_stats import BatchPart
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.state import RuntimeState

if TYPE_CHECKING:
    from collections.abc import Callable


def patch(knob: str, value: Any) -> Change:
    return Change(knob=knob, value=value, spelling=Patch())


def made() -> RuntimeState:
    return RuntimeState(Faults(None), __file__)


def _nothing(*_: object) -> None:
    return


class Stepping:
    """Stands for an optimizer: anything that can be referred to weakly."""


def test_accumulation_is_read_from_most_of_the_last_steps() -> None:
    accumulation = MicroBatches(made())
    assert accumulation.observed() is None
    for backwards in (4, 4, 4, 1):
        accumulation.note(backwards)
    assert accumulation.observed() == 4
    for _ in range(8):
        accumulation.note(2)
    assert accumulation.observed() == 2


FULL = BatchPart(samples=8, full=8, left=5, drop_last=False)


@pytest.mark.parametrize(
    "parts",
    [
        [FULL] * 4,
        [FULL, FULL._replace(samples=7), FULL, FULL],
        [FULL._replace(samples=7)] * 3 + [FULL],
        [None, FULL, None, FULL],
        [FULL, FULL._replace(left=0)],
        [FULL, FULL, FULL._replace(samples=3, left=0)],
        [FULL, FULL, FULL, FULL._replace(samples=3, left=0)],
        [FULL, FULL._replace(samples=7), FULL, FULL._replace(left=0, drop_last=True)],
    ],
)
def test_the_parts_of_a_step_weigh_one_together_whatever_is_known_of_them(
    parts: list[BatchPart | None],
) -> None:
    accumulation = MicroBatches(made())
    accumulation.set(4)
    whole = 0.0
    for number, part in enumerate(parts, 1):
        weight, others = accumulation.weigh(part)
        whole = whole * others + weight
        assert accumulation.take_part() == (number == len(parts))
    assert whole == pytest.approx(1.0)


def test_a_rest_that_the_loader_drops_makes_no_step_and_leaves_nothing() -> None:
    accumulation = MicroBatches(made())
    accumulation.set(4)
    accumulation.weigh(FULL._replace(left=0, drop_last=True))
    assert not accumulation.take_part()
    assert accumulation.dropped
    assert accumulation.weigh(FULL) == (0.25, 1.0)
    assert accumulation.pending == 0


def test_giving_accumulation_up_is_reported_once() -> None:
    state, reported = made(), list[tuple[str, str]]()
    state.lost = lambda knob, reason: reported.append((knob, reason))
    accumulation = MicroBatches(state)
    accumulation.set(4)
    accumulation.give_up("A reason.")
    accumulation.give_up("Another one.")
    assert reported == [("accumulation", "A reason.")]


@pytest.mark.parametrize(
    ("reduction", "compiles", "own", "weighs", "reasons"),
    [
        ("mean", False, False, 0.25, 0),
        ("sum", False, False, 1.0, 0),
        ("unknown", False, False, 1.0, 1),
        # What is inside code that we compile cannot be seen; only means are let through to here.
        ("unknown", True, False, 0.25, 0),
        ("sum", True, False, 1.0, 0),
        # What the script compiles was so in the first run, too, which saw the loss beside it.
        ("unknown", True, True, 1.0, 1),
        ("mean", True, True, 0.25, 0),
    ],
)
def test_parts_of_a_loss_that_is_not_known_in_this_run_are_not_weighed_by_a_guess(
    reduction: str, compiles: bool, own: bool, weighs: float, reasons: int
) -> None:
    state, reported = made(), list[tuple[str, str]]()
    state.lost = lambda knob, reason: reported.append((knob, reason))
    anything: Any = None
    loader: Any = SimpleNamespace(part=lambda: None, feeds=True)
    losses: Any = SimpleNamespace(reduction=reduction)
    root: Any = SimpleNamespace(compiles=compiles, own_compile=own)
    optimizer: Any = Optimizer(state, anything, anything, loader, root, losses)
    optimizer.accumulation.set(4)
    assert optimizer._factor(None) == weighs
    assert len(reported) == reasons
    assert all("mean or a sum" in reason for _, reason in reported)


@pytest.mark.torch
def test_an_optimizer_that_merely_has_the_same_weights_is_not_the_one_that_another_wraps() -> None:
    torch: Any = pytest.importorskip("torch")

    class Lion(torch.optim.Optimizer):
        def __init__(self, params: Any, **inside: Any) -> None:
            super().__init__(params, {})
            self.__dict__.update(inside)

    weights = [torch.nn.Parameter(torch.zeros(2))]
    anything: Any = None
    kernel: Any = OptimizerKernel(made(), anything, anything)
    kernel._torch = torch
    other = torch.optim.AdamW(weights)
    assert kernel.of(Lion(weights)) is None
    assert kernel.of(Lion(weights, base_optimizer=other)) is other
    assert kernel.of(Lion(weights, inside=[other])) is other
    assert kernel.of(other) is other


def test_optimizers_that_follow_each_other_count_as_one_and_those_that_take_turns_do_not() -> None:
    anything: Any = None
    optimizer = Optimizer(made(), anything, anything, anything, anything, anything)
    kept = [Stepping(), Stepping()]
    note: Any = optimizer._note_stepping  # pyright: ignore[reportPrivateUsage]
    for stepping in (kept[0], kept[0], kept[1], kept[1], Stepping()):
        note(stepping)
    assert (optimizer.alternating, optimizer.count) == (False, 1)
    del stepping
    gc.collect()
    note(kept[0])
    assert (optimizer.alternating, optimizer.count) == (True, 2)


def test_the_anchor_moves_only_for_one_optimizer_that_outsteps_it_by_far() -> None:
    restarts: list[int] = []
    recorder: Any = SimpleNamespace(
        restart=lambda **_: restarts.append(1), step=_nothing, measures=False, broke=None
    )
    boundary = StepCounter(made(), recorder)
    try:
        kept = [Stepping() for _ in range(4)]
        boundary.passed(kept[0])
        for _ in range(5):
            for other in kept[1:]:
                boundary.passed(other)
        assert boundary.anchor_optimizer() is kept[0]
        for _ in range(4):
            boundary.passed(kept[2])
        assert boundary.anchor_optimizer() is kept[2]
        assert restarts == [1, 1], "before and after what was held is reported"
    finally:
        boundary.release()


@pytest.mark.parametrize("name", ["fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"])  # in PyTorch 2.6
@pytest.mark.parametrize(
    ("mode", "measured", "strict"),
    [("default", True, True), ("default", False, False), ("off", True, False), (None, True, False)],
)
def test_the_recompile_limit_ends_only_measured_trials_of_a_mode_of_ours(
    monkeypatch: pytest.MonkeyPatch, mode: str | None, measured: bool, strict: bool, name: str
) -> None:
    config: Any = ModuleType("torch._dynamo.config")
    setattr(config, name, False)
    monkeypatch.setitem(sys.modules, "torch._dynamo.config", config)
    anything: Any = None
    channel: Any = object() if measured else None
    compiling = Compile(made(), anything, anything, channel)
    compiling.own = True
    if mode is not None:
        compiling.set(mode)
    compiling.arm()
    assert vars(config)[name] is strict


def test_under_apply_a_script_that_never_imports_torch_ends_with_6_or_its_own_failure(
    run: Callable[..., Any],
) -> None:
    untuned = run("print('done')", changes=[patch("precision", "bf16")], measure=False)
    assert untuned.code == 6
    assert untuned.out == "done\n"
    assert len(untuned.err.strip().splitlines()) == 1
    assert "precision=bf16" in untuned.err
    own = run("import sys; sys.exit(3)", changes=[patch("precision", "bf16")], measure=False)
    assert (own.code, own.err) == (3, "")
    failed = run("raise ValueError('mine')", changes=[patch("precision", "bf16")], measure=False)
    assert failed.code == 1
    assert "mine" in failed.err
    assert "autotune:" not in failed.err
    assert run("print('done')", measure=False).code == 0


FOLDS = (
    PRELUDE
    + """
import gc, weakref
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
def fold():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    seen = []
    model[0].register_forward_hook(lambda m, i, o: seen.append(str(o.dtype)))
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(3):
        for x, y in DataLoader(data, batch_size=8):
            opt.zero_grad(); F.mse_loss(model(x), y).backward(); opt.step()
    steps = int(next(iter(opt.state.values()))["step"])
    return weakref.ref(model), steps, seen[0], seen[1], seen[-1], model, opt
folds, alive = [], []
for k in range(3):
    ref, *rest, model, opt = fold()
    folds.append(rest)
    alive.append(ref)
del model, opt
gc.collect()
reported(folds=folds, alive=sum(r() is not None for r in alive))
"""
)


@pytest.mark.torch
def test_under_apply_every_fold_gets_the_changes_and_no_model_is_kept_alive(run: Callable[..., Any]) -> None:
    ran = run(FOLDS, changes=[patch("precision", "bf16"), patch("accumulation", 2)], measure=False)
    assert ran.faults == ""
    assert ran.code == 0, ran.err
    assert ran.reported["folds"] == [[12, *["torch.bfloat16"] * 3]] * 3
    assert ran.reported["alive"] == 0


LATE = (
    PRELUDE
    + """
from autotune.trial.hooks.step import optimizer
def broken(*args, **kwargs): raise RuntimeError("injected")
model, other = nn.Linear(8, 1), nn.Linear(8, 1)
opts = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
x = DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=8)
for i in range(60):
    if i == 30 and sys.argv[1:] == ["fault"]:
        optimizer.Optimizer._before_backward = broken
    for n, (m, o) in enumerate(zip((model, other), opts)):
        if n and (i < 30 or sys.argv[1:] != ["turns"]):
            continue
        for (b,) in x:
            o.zero_grad(); F.mse_loss(m(b), torch.ones(8, 1)).backward(); o.step()
reported(end=True)
"""
)


@pytest.mark.torch
def test_under_apply_a_knob_that_is_lost_in_the_middle_of_the_run_is_withdrawn_with_a_warning(
    run: Callable[..., Any],
) -> None:
    changes = [patch("accumulation", 2)]
    fine = run(LATE, changes=changes, measure=False)
    assert (fine.code, fine.err) == (0, "")
    for how, reason in (("turns", "in turns"), ("fault", "Observing the script failed")):
        lost = run(LATE, changes=changes, measure=False, argv=[how])
        assert (lost.code, lost.reported) == (0, {"end": True})
        assert len(lost.err.strip().splitlines()) == 1
        assert "accumulation=2 withdrawn after step" in lost.err
        assert reason in lost.err
        strict = run(LATE, changes=changes, measure=False, argv=[how], strict=True)
        assert (strict.code, strict.out) == (6, "")
        assert reason in strict.err


SEVERAL = (
    PRELUDE
    + """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8)
    def forward(self, x): return self.head(checkpoint(self.block, x, use_reentrant=False))
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
train = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
for epoch in range(2):
    for (x,) in train:
        opt.zero_grad()
        F.cross_entropy(model(x) @ x.T, torch.arange(8)).backward()
        if sys.argv[1:] == ["two"]: model(x).mean().backward()
        opt.step()
reported(end=True)
"""
)


@pytest.mark.torch
def test_recomputation_several_losses_and_comparing_losses_are_distinguished(run: Callable[..., Any]) -> None:
    two = run(SEVERAL, argv=["two"]).facts
    assert two.model.roots == 1
    assert two.backward_per_step == 2
    assert not two.own_accumulation
    assert two.effective_batch == 8
    assert run(SEVERAL).facts.reduction == "unknown"


FULLGRAPH = (
    PRELUDE
    + """
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
model = nn.Linear(8, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="eager", fullgraph=True)
def loss_of(x, y): return cross_entropy(model(x), y)
@torch.compile(backend="eager", fullgraph=True)
def clip(): clip_grad_norm_(list(model.parameters()), 1.0)
for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8):
    opt.zero_grad(); loss_of(x, torch.zeros(8, dtype=torch.long)).backward(); clip(); opt.step()
reported(end=True)
"""
)


@pytest.mark.torch
@pytest.mark.slow
def test_code_that_the_script_compiles_as_one_graph_is_not_broken(run: Callable[..., Any]) -> None:
    ran = run(FULLGRAPH)
    assert ran.faults == ""
    assert ran.done is not None, ran.err
    assert ran.done.why == "script_end"
    assert len(ran.rows) == 8

"""Knobs carried out in real processes, and what was read back."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.model.change import Change, Env, Flag, Keyword, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

LOADER = "torch.utils.data.DataLoader"


def patch(knob: str, value: Any) -> Change:
    return Change(knob=knob, value=value, spelling=Patch())


def keyword(name: str, value: Any, site: str = "") -> Change:
    return Change(knob=name, value=value, spelling=Keyword(LOADER, name), site=site)


ACCUMULATED = (
    PRELUDE
    + """
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
train = DataLoader(data, batch_size=64, shuffle=False)
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
losses = []
for epoch in range(5):
    for x, y in train:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y, reduction="REDUCTION")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        opt.step()
        schedule.step()
reported(weights=weights(model), rate=schedule.get_last_lr()[0])
"""
)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_accumulation_equals_the_full_batch(run: Callable[..., Any], reduction: str) -> None:
    text = ACCUMULATED.replace("REDUCTION", reduction)
    full = run(text)
    assert full.facts.reduction == reduction
    assert full.facts.scheduler_per_step
    for factor in (2, 4) if reduction == "mean" else (4,):
        parts = run(text, changes=[keyword("batch_size", 64 // factor), patch("accumulation", factor)])
        assert parts.faults == ""
        assert parts.done.why == "script_end", parts.err
        assert parts.reported["weights"] == pytest.approx(full.reported["weights"], rel=2e-4, abs=2e-5)
        assert parts.reported["rate"] == pytest.approx(full.reported["rate"])
        assert [r.samples for r in parts.rows] == [r.samples for r in full.rows]
        assert parts.facts.values["accumulation"] == factor


@pytest.mark.parametrize("rows", [240, 100, 72])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_rest_at_the_end_of_an_epoch_steps_as_in_the_full_batch(
    run: Callable[..., Any], rows: int, drop_last: bool
) -> None:
    """A number of parts that is odd, a part that is short, one of a step that the loader drops."""
    text = (
        ACCUMULATED.replace("REDUCTION", "mean")
        .replace("256", str(rows))
        .replace("shuffle=False", f"shuffle=False, drop_last={drop_last}")
    )
    full = run(text)
    parts = run(text, changes=[keyword("batch_size", 16), patch("accumulation", 4)])
    assert parts.faults == ""
    assert parts.done is not None, parts.err
    assert parts.done.steps == full.done.steps
    assert parts.reported["weights"] == pytest.approx(full.reported["weights"], rel=2e-4, abs=2e-5)
    assert parts.facts.values["accumulation"] == 4
    assert [r.samples for r in parts.rows] == [r.samples for r in full.rows]


AHEAD = """
def ahead(loader):
    batches = iter(loader)
    last = next(batches)
    for batch in batches:
        yield last
        last = batch
    yield last
"""
DISCARDS = """
        if x[0, 0] > 1.2:
            (loss * float("nan")).backward()
            opt.zero_grad()
            continue
"""


def test_a_loop_that_fetches_ahead_ends_its_steps_on_the_right_batch(run: Callable[..., Any]) -> None:
    text = ACCUMULATED.replace("REDUCTION", "mean").replace("in train:", "in ahead(train):")
    text = text.replace("losses = []", AHEAD + "losses = []")
    full = run(text)
    parts = run(text, changes=[keyword("batch_size", 16), patch("accumulation", 4)])
    assert parts.faults == ""
    assert parts.done is not None, parts.err
    assert parts.done.steps == full.done.steps
    assert parts.reported["weights"] == pytest.approx(full.reported["weights"], rel=2e-4, abs=2e-5)


def test_a_gradient_that_the_script_throws_away_does_not_stay(run: Callable[..., Any]) -> None:
    """A step is begun anew where a batch is left out; before, its NaN stayed and spoilt the weights."""
    text = ACCUMULATED.replace("REDUCTION", "mean")
    text = text.replace("        loss.backward()\n", DISCARDS + "        loss.backward()\n")
    parts = run(text, changes=[keyword("batch_size", 16), patch("accumulation", 4)], measure=False)
    assert parts.faults == ""
    assert all(math.isfinite(weight) for weight in parts.reported["weights"]), parts.reported


CONV = (
    PRELUDE
    + """
torch.manual_seed(3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 8, 3)
        self.n = nn.BatchNorm2d(8)
        self.d = nn.Conv2d(8, 8, 3)
        self.e = nn.Linear(8, 4)
    def forward(self, x):
        return F.log_softmax(self.e(self.d(self.n(self.c(x)).relu()).mean((2, 3))), 1)
class Images(Dataset):
    def __len__(self): return 96
    def __getitem__(self, i):
        torch.rand(1)
        return {"image": torch.randn(3, 8, 8), "label": i % 4}
model = Net()
train = DataLoader(Images(), batch_size=8, shuffle=True)
test = DataLoader(Images(), batch_size=8)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
outs, sizes = set(), []
while True:
    for batch in train:
        opt.zero_grad()
        out = model(batch["image"])
        outs.add(str(out.dtype))
        loss = F.nll_loss(out, batch["label"])
        loss.backward()
        opt.step()
        sizes.append(len(out))
    with torch.no_grad():
        evals = [len(b["label"]) for b in test]
    if len(sizes) > STEPS:
        break
reported(outs=sorted(outs), sizes=sizes, evals=evals, threads=torch.get_num_threads(), test=test.num_workers)
"""
)


def test_numeric_and_loader_knobs_are_applied_and_read_back_on_the_training_loader_only(
    run: Callable[..., Any],
) -> None:
    base = run(CONV.replace("STEPS", "20"))
    assert base.faults == ""
    facts = base.facts
    assert facts.loader.random
    assert facts.model.batch_norm
    assert facts.model.has_4d
    assert facts.values["channels_last"] is False
    changes = [
        patch("precision", "bf16"),
        patch("channels_last", True),
        patch("fused_optimizer", True),
        keyword("batch_size", 16, facts.loader.site),
        keyword("num_workers", 1, facts.loader.site),
        keyword("prefetch_factor", 3, facts.loader.site),
        keyword("persistent_workers", True, facts.loader.site),
    ]
    ran = run(CONV.replace("STEPS", "20"), changes=changes, sites=[facts.loader.site])
    assert ran.faults == ""
    assert ran.done.why == "script_end", (ran.err, ran.broke)
    assert ran.reported["outs"] == ["torch.float32"]
    assert set(ran.reported["sizes"]) == {16}
    assert set(ran.reported["evals"]) == {8}
    assert ran.reported["test"] == 0
    assert {r.samples for r in ran.rows} == {16}
    values = ran.facts.values
    assert values["precision"] == "bf16"
    assert values["channels_last"] is True
    assert values["fused_optimizer"] is True
    assert values["num_workers"] == 1
    assert values["prefetch_factor"] == 3
    assert values["persistent_workers"] is True
    assert values["batch_size"] == 16
    measured = run(
        CONV.replace("STEPS", "100000"), changes=changes, sites=[facts.loader.site], fidelity=SHORT
    )
    assert measured.done.why == "measured", measured.broke
    assert all(r.status == "applied" for r in measured.closed.readings if r.wanted is not None)
    closed = measured.closed
    kept = sum(closed.begin_ns < row.t_ns <= closed.end_ns for row in measured.rows)
    # Known where the window opened, and reported where nothing of its start was cut off.
    assert closed.ready_begin is not None or kept < closed.counters["window_steps"]


PLAIN = (
    PRELUDE
    + """
torch.manual_seed(3)
model = nn.Linear(8, 2)
opt = OPTIMIZER
x, y = torch.randn(16, 8), torch.randint(0, 2, (16,))
for i in range(40):
    opt.zero_grad(); loss = F.cross_entropy(model(x), y); loss.backward(); opt.step()
reported(weights=weights(model))
"""
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (keyword("num_workers", 2), "did not reach"),
        (patch("channels_last", True), "found"),
        (patch("fused_optimizer", True), "itself"),
    ],
)
def test_a_knob_that_cannot_take_effect_is_config_rejected(
    run: Callable[..., Any], change: Change, reason: str
) -> None:
    text = PLAIN.replace("OPTIMIZER", "torch.optim.AdamW(model.parameters(), foreach=True)")
    ran = run(text.replace("range(40)", "range(10**9)"), changes=[change], fidelity=SHORT)
    assert ran.broke.kind == "config_rejected"
    assert ran.broke.knob == change.knob
    assert ran.broke.how == change.spelling.how
    assert reason in ran.broke.message
    assert ran.code != 0
    assert ran.done is None


def test_under_apply_the_script_runs_on_with_its_own_exit_code_or_ends_with_6(
    run: Callable[..., Any],
) -> None:
    text = PLAIN.replace("OPTIMIZER", "torch.optim.AdamW(model.parameters())") + "\nsys.exit(5)\n"
    fused = run(text, changes=[patch("fused_optimizer", True)], measure=False)
    assert fused.code == 5
    assert fused.faults == ""
    assert fused.events == []
    status = json.loads((fused.folder / "status.json").read_text())
    assert [(r["knob"], r["status"]) for r in status if r["wanted"] is not None] == [
        ("fused_optimizer", "applied")
    ]
    dead = run(text, changes=[patch("channels_last", True)], measure=False)
    assert dead.code == 6
    assert dead.out == ""
    assert len(dead.err.strip().splitlines()) == 1
    assert "channels_last" in dead.err


def test_delivered_options_and_variables_are_read_back(run: Callable[..., Any]) -> None:
    text = PLAIN.replace("OPTIMIZER", "torch.optim.AdamW(model.parameters())").replace(
        "range(40)", "range(10**9)"
    )
    changes = [
        Change(knob="depth", value=3, spelling=Flag(("--depth",)), delivered="3"),
        Change(knob="mode", value="a", spelling=Env("MODE"), delivered="a"),
    ]
    ran = run(text, changes=changes, fidelity=SHORT, argv=["--depth=3"], env={"MODE": "a"})
    assert [r.status for r in ran.closed.readings[:2]] == ["applied", "applied"]
    ran = run(text, changes=changes, fidelity=SHORT, argv=["--depth=4"], env={"MODE": "a"})
    assert ran.broke.kind == "config_rejected"
    assert ran.broke.knob == "depth"


def test_fp16_scales_unscales_before_clipping_and_keeps_to_the_full_precision_run(
    run: Callable[..., Any],
) -> None:
    text = ACCUMULATED.replace("REDUCTION", "mean")
    changes = [patch("precision", "fp16"), keyword("batch_size", 32), patch("accumulation", 2)]
    ran = run(text, changes=changes)
    assert ran.faults == ""
    assert ran.done.why == "script_end", ran.broke
    assert ran.facts.values["precision"] == "fp16"
    assert ran.reported["weights"] == pytest.approx(
        run(text, bare=True).reported["weights"], rel=0.05, abs=0.03
    )


INSIDE = (
    PRELUDE
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)
    def forward(self, x, y):
        out = self.b(self.a(x).relu())
        return out, F.cross_entropy(out, y)
model = Net().eval()
train = DataLoader(TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,))), batch_size=16)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10**9):
    for x, y in train:
        opt.zero_grad()
        out, loss = model(x, y)
        loss.backward()
        opt.step()
"""
)


@pytest.mark.parametrize("more", [(), pytest.param(("compile_mode",), marks=pytest.mark.slow)])
def test_a_loss_inside_a_model_in_evaluation_mode_is_known_and_accumulated(
    run: Callable[..., Any], more: tuple[str, ...]
) -> None:
    """As nanoGPT computes it, in a model as `from_pretrained` hands it out."""
    changes = [keyword("batch_size", 8), patch("accumulation", 2), *(patch(m, "default") for m in more)]
    ran = run(INSIDE, changes=changes, fidelity=SHORT)
    assert ran.done is not None, (ran.broke, ran.err)
    assert ran.faults == ""
    assert ran.reading("accumulation").status == "applied"
    assert [ran.reading(m).status for m in more] == ["applied"] * len(more)
    if not more:
        assert ran.facts.reduction == "mean"


@pytest.mark.slow
def test_compile_is_applied_in_place_and_its_seconds_stay_outside_the_window(run: Callable[..., Any]) -> None:
    text = PLAIN.replace("OPTIMIZER", "torch.optim.AdamW(model.parameters())")
    ran = run(
        text.replace("range(40)", "range(10**9)"), changes=[patch("compile_mode", "default")], fidelity=SHORT
    )
    assert ran.done is not None, (ran.broke, ran.err)
    assert ran.closed.compile_s > 0.1
    assert ran.reading("compile_mode").status == "applied"
    own = text.replace("opt =", "model = torch.compile(model)\nopt =")
    off = run(
        own.replace("range(40)", "range(10**9)"), changes=[patch("compile_mode", "off")], fidelity=SHORT
    )
    assert off.reading("compile_mode").status == "applied"
    assert off.closed.compile_s == 0
    assert off.facts.own_compile

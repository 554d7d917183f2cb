"""Under `apply`, a batch size of loaders is undone where it does not reach a step count of the script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.knobs.common import LOADER
from autotune.model.change import Change, Keyword, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

BATCH = Change(knob="batch_size", value=16, spelling=Keyword(LOADER, "batch_size"))
SMALL = Change(knob="batch_size", value=4, spelling=Keyword(LOADER, "batch_size"))
PARTS = Change(knob="accumulation", value=2, spelling=Patch())
SCRIPT = (
    PRELUDE
    + """
cfg = {"batch_size": 8, "rows": 64, "epochs": 4}
BATCH_SIZE = 8

def built(opt, total):
    return torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)

def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(cfg["rows"], 6))
    loader = DataLoader(data, batch_size=cfg["batch_size"], shuffle=True, drop_last=True)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    SCHEDULE
    sizes = []
    for epoch in range(cfg["epochs"]):
        LOOP
            sizes.append(len(x))
            opt.zero_grad(); net(x).square().mean().backward(); opt.step()
            STEP
    reported(sizes=sizes, rate=opt.param_groups[0]["lr"], last=weights(net))

main()
"""
)
PASS = "for (x,) in loader:"
ONE_CYCLE = "schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps={})"


def script(schedule: str, *, loop: str = PASS, step: str = "schedule.step()") -> str:
    return SCRIPT.replace("SCHEDULE", schedule).replace("LOOP", loop).replace("STEP", step)


BY_CONSTANT = {
    "one cycle": ONE_CYCLE.format('cfg["rows"] // cfg["batch_size"] * cfg["epochs"]'),
    "an odd number": ONE_CYCLE.format('cfg["rows"] // cfg["batch_size"] * cfg["epochs"] + 3'),
    "by a function": 'schedule = built(opt, cfg["epochs"] * cfg["rows"] // BATCH_SIZE)',
    "by a lambda": "total = 64 // BATCH_SIZE * 4\n"
    "    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 - step / (total + 1))",
}


@pytest.mark.parametrize("schedule", BY_CONSTANT.values(), ids=BY_CONSTANT)
def test_a_schedule_by_the_constant_of_the_batch_size_keeps_the_batches_of_the_script(
    run: Callable[..., Any], schedule: str
) -> None:
    own = run(script(schedule), bare=True).reported
    tuned = run(script(schedule), changes=[BATCH], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.reported == own
    assert tuned.reported["sizes"] == [8] * 32
    assert tuned.err.count("autotune: warning: ") == 1
    assert "batch_size=16 withdrawn after step 0: The script counts" in tuned.err
    assert "train.py:" in tuned.err


def test_a_schedule_of_a_literal_length_is_found_at_its_first_step(run: Callable[..., Any]) -> None:
    tuned = run(script(ONE_CYCLE.format("32")), changes=[BATCH], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    # The first batch had been drawn; those after it are whole, also in this pass.
    assert tuned.reported["sizes"] == [16] + [8] * 30
    assert "batch_size=16 withdrawn after step 1: The script counts OneCycleLR of 32 steps" in tuned.err


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_of_counted_batches_is_found_before_its_first_one(
    run: Callable[..., Any], workers: int
) -> None:
    loop = (
        "batches = iter(loader)\n        for _ in range(64 // BATCH_SIZE):\n            (x,) = next(batches)"
    )
    text = script("", loop=loop, step="").replace("drop_last=True", f"drop_last=True, num_workers={workers}")
    own = run(text, bare=True).reported
    tuned = run(text, changes=[BATCH], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.reported == own
    assert "withdrawn after step 0: The script counts a pass of 8 batches (train.py:" in tuned.err


@pytest.mark.parametrize(
    ("schedule", "step"),
    [
        (ONE_CYCLE.format('len(loader) * cfg["epochs"]'), "schedule.step()"),
        (
            'schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=cfg["epochs"])',
            "len(sizes) % len(loader) or schedule.step()",
        ),
        ("", ""),
    ],
    ids=["by the loader", "per pass", "none"],
)
def test_a_batch_size_that_contradicts_nothing_is_applied_without_a_warning(
    run: Callable[..., Any], schedule: str, step: str
) -> None:
    tuned = run(script(schedule, step=step), changes=[BATCH], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.err, tuned.faults) == (0, "", "")
    assert tuned.reported["sizes"] == [16] * 16


def test_with_accumulation_a_schedule_by_the_constant_is_right(run: Callable[..., Any]) -> None:
    text = script(BY_CONSTANT["one cycle"])
    own = run(text, bare=True).reported
    tuned = run(text, changes=[SMALL, PARTS], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.err, tuned.faults) == (0, "", "")
    assert tuned.reported["sizes"] == [4] * 64
    assert tuned.reported["rate"] == pytest.approx(own["rate"])


def test_with_accumulation_a_schedule_by_the_loader_ends_the_run_before_its_first_step(
    run: Callable[..., Any],
) -> None:
    text = script(ONE_CYCLE.format('len(loader) * cfg["epochs"]'))
    ended = run(text, changes=[SMALL, PARTS], measure=False, own={"batch_size": 8})
    assert (ended.code, ended.out) == (6, "")
    assert "accumulation=2 cannot be applied: OneCycleLR of 64 steps (train.py:" in ended.err


def test_strict_ends_before_the_first_step(run: Callable[..., Any]) -> None:
    text = script(BY_CONSTANT["one cycle"])
    ended = run(text, changes=[BATCH], measure=False, strict=True, own={"batch_size": 8})
    assert (ended.code, ended.out) == (6, "")
    assert "batch_size contradicts the run after step 0" in ended.err


def test_a_learning_rate_by_the_constant_keeps_the_batches_of_the_script(run: Callable[..., Any]) -> None:
    step = 'opt.param_groups[0]["lr"] = 0.1 * min(1.0, len(sizes) / (cfg["rows"] // cfg["batch_size"]))'
    own = run(script("", step=step), bare=True).reported
    tuned = run(script("", step=step), changes=[BATCH], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.reported == own
    assert "withdrawn after step 0: The script counts steps for the learning rate (train.py:" in tuned.err


def test_a_schedule_over_passes_that_a_function_is_given_is_no_schedule_over_batches(
    run: Callable[..., Any],
) -> None:
    """The script has requested the length of its loader, and the schedule's length is an argument."""
    text = script(
        "print(len(loader)); schedule = built(opt, 90)", step="len(sizes) % len(loader) or schedule.step()"
    )
    tuned = run(text, changes=[SMALL, PARTS], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.reported["sizes"] == [4] * 64


def test_a_schedule_over_batches_that_a_function_is_given_ends_the_run_before_its_first_step(
    run: Callable[..., Any],
) -> None:
    text = script('schedule = built(opt, len(loader) * cfg["epochs"])').replace(
        "CosineAnnealingLR(opt, total)", "CosineAnnealingLR(opt, T_max=total)"
    )
    ended = run(text, changes=[SMALL, PARTS], measure=False, own={"batch_size": 8})
    assert (ended.code, ended.out) == (6, "")
    assert "accumulation=2 cannot be applied: CosineAnnealingLR of 64 steps (train.py:" in ended.err


def test_a_batch_sampler_of_the_script_gives_the_length_of_a_pass(run: Callable[..., Any]) -> None:
    sampler = "torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 8, True)"
    text = script(ONE_CYCLE.format("28")).replace('"rows": 64', '"rows": 60')
    text = text.replace(
        'batch_size=cfg["batch_size"], shuffle=True, drop_last=True', f"batch_sampler={sampler}"
    )
    tuned = run(text, changes=[BATCH], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert "batch_size=16 withdrawn after step 1: The script counts OneCycleLR of 28 steps" in tuned.err

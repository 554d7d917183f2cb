"""Under `apply` nothing of ours stays in a step once all was read as applied, where nothing needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from trial_kit import PRELUDE, Ran

from autotune.model.change import Change, Env, Keyword, Patch
from autotune.trial.runtime.undo import Undo

pytestmark = pytest.mark.torch

SCRIPT = """
from torch.utils.data import dataloader

def ours():
    \"\"\"What of us a step comes by.\"\"\"
    places = {
        "fetch": dataloader._BaseDataLoaderIter.__next__,
        "start": dataloader._BaseDataLoaderIter.__init__,
        "backward": torch.Tensor.backward,
        "autograd": torch.autograd.backward,
        "zero_grad": torch.optim.Optimizer.zero_grad,
        "step": torch.optim.SGD.step,
        "clip": torch.nn.utils.clip_grad_norm_,
        "schedule": torch.optim.lr_scheduler.StepLR.step,
        "scale": torch.amp.GradScaler.scale,
    }
    return sorted(name for name, place in places.items() if "autotune" in place.__code__.co_filename)


torch.manual_seed(0)
before = ours()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
seen = []
for epoch in range(4):
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for x, y in loader:
        seen.append(len(x))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
reported(before=before, after=ours(), seen=seen, workers=loader.num_workers, weights=weights(model),
     fused=bool(torch.optim.SGD(model.parameters(), lr=0.1).defaults["fused"]))
"""

THREADS = Change(knob="threads", value=1, spelling=Env("OMP_NUM_THREADS"))
WORKERS = Change(
    knob="num_workers", value=1, spelling=Keyword("torch.utils.data.DataLoader", "num_workers"), site=""
)
FUSED = Change(knob="fused_optimizer", value=True, spelling=Patch())
ACCUMULATED = Change(knob="accumulation", value=2, spelling=Patch())
BF16 = Change(knob="precision", value="bf16", spelling=Patch())


@pytest.mark.parametrize("changes", [(), (THREADS,), (THREADS, FUSED), (WORKERS,)])
def test_what_is_carried_out_once_leaves_nothing_in_a_step(
    run: Callable[..., Ran], changes: Sequence[Change]
) -> None:
    ran = run(PRELUDE + SCRIPT, changes=changes, measure=False)
    assert ran.code == 0, ran.err
    assert not ran.faults
    reported = ran.reported
    assert "fetch" in reported["before"]
    assert "schedule" in reported["before"]
    # Whether the script changes what workers have a copy of is looked at to the end of the run.
    assert reported["after"] == (["fetch"] if WORKERS in changes else [])
    assert reported["workers"] == (1 if WORKERS in changes else 0), (
        "loaders that are built later are changed too"
    )
    assert reported["fused"] == (FUSED in changes), "and so are optimizers"
    bare = run(PRELUDE + SCRIPT, bare=True).reported
    assert reported["weights"] == pytest.approx(bare["weights"], rel=1e-4)


def test_what_is_reported_steps_alone_leaves_the_rest_alone(run: Callable[..., Ran]) -> None:
    frozen = Change(knob="gc_control", value="freeze", spelling=Patch())
    ran = run(
        PRELUDE + "import gc\n" + SCRIPT.replace("reported(", "reported(frozen=gc.get_freeze_count(), "),
        changes=(frozen,),
        measure=False,
    )
    assert ran.code == 0, ran.err
    assert not ran.faults
    assert ran.reported["after"] == ["step"]
    assert ran.reported["frozen"] > 2_000


COPIED = """
import functools
model = nn.Linear(4, 2)
torch.optim.SGD(model.parameters(), lr=0.1)

class Mine(torch.optim.SGD):
    @functools.wraps(torch.optim.SGD.step)
    def step(self, closure=None):
        taken.append(1)
        return super().step(closure)

taken = []
optimizer = Mine(model.parameters(), lr=0.1)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
reported(taken=len(taken), weights=weights(model))
"""


def test_an_optimizer_of_the_users_own_keeps_its_step(run: Callable[..., Ran]) -> None:
    ran = run(PRELUDE + COPIED, changes=(THREADS,), measure=False)
    assert ran.code == 0, ran.err
    assert ran.reported["taken"] == 40


@pytest.mark.parametrize("change", [ACCUMULATED, BF16])
def test_what_is_carried_out_at_every_step_stays(run: Callable[..., Ran], change: Change) -> None:
    ran = run(PRELUDE + SCRIPT, changes=(change,), measure=False)
    assert ran.code == 0, ran.err
    assert set(ran.reported["after"]) == {*ran.reported["before"], "step"}


def test_a_measured_run_is_watched_to_its_end(run: Callable[..., Ran]) -> None:
    ran = run(PRELUDE + SCRIPT, changes=(THREADS,))
    assert set(ran.reported["after"]) == {*ran.reported["before"], "step"}
    assert len(ran.rows) == 32


def test_what_somebody_else_has_put_around_ours_is_left_alone() -> None:
    class Place:
        value = "original"

    undo = Undo()
    back = undo.replace(Place, "value", "ours")
    Place.value = "theirs around ours"
    back()
    undo.undo_all()
    assert Place.value == "theirs around ours"


def test_it_may_be_taken_back_before_the_end_and_then_not_again() -> None:
    class Place:
        value = "original"

    undo = Undo()
    back = undo.replace(Place, "value", "ours")
    back()
    assert Place.value == "original"
    Place.value = "the script's"
    undo.undo_all()
    assert Place.value == "the script's"

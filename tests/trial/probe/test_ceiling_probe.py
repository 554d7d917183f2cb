"""Steps that are counted after a segment was sent, in real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.model.roofline import Remainder
from autotune.model.trial import AFTER_WINDOW_S, CEILINGS
from autotune.protocol.events import Closed, Probed

if TYPE_CHECKING:
    from collections.abc import Callable

    from trial_kit import Ran

pytestmark = [pytest.mark.torch, pytest.mark.slow]

COUNTING = replace(SHORT, probe=CEILINGS)

TRAINS = """
class Data(Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, i):
        {fetch}
        return torch.ones({size}), torch.tensor(i % 2)
def batches():
    yield from DataLoader(Data(), batch_size=8)
from torch.utils._python_dispatch import _get_current_dispatch_mode as counting
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(batches()):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    {before}
    optimizer.step()
"""


def script(*, fetch: str = "pass", size: str = "64", before: str = "pass") -> str:
    return PRELUDE + TRAINS.format(fetch=fetch, size=size, before=before)


def bounds(ran: Ran) -> Remainder | None:
    probed = ran.one(Probed)
    assert probed is not None, ran.err
    assert "ceilings" not in ran.faults
    return Remainder.of(probed.figures)


def test_a_segment_is_sent_before_steps_are_counted(run: Callable[..., Ran]) -> None:
    ran = run(script(), fidelity=COUNTING)
    kinds = [type(event) for event in ran.events if isinstance(event, (Closed, Probed))]
    assert kinds == [Closed, Probed]
    assert ran.closed is not None
    assert not [name for name in ran.closed.counters if name.startswith(("why_", "ceiling_"))]
    figures = ran.one(Probed).figures
    assert 0.0 < figures[AFTER_WINDOW_S] < 10.0
    forward = 2 * 8 * (64 * 64 + 64 * 2)
    assert figures["why_flops"] == pytest.approx(3 * forward - 2 * 8 * 64 * 64)
    found = bounds(ran)
    assert found is not None
    assert found.ops_s is not None
    assert found.outside_s is not None
    assert 0.0 < found.reduced_s < found.ops_s < 0.1
    assert found.outside_s > 0.0
    assert ran.done is not None
    assert ran.done.why == "measured"


def test_operations_that_prepare_data_are_no_part_of_a_step(run: Callable[..., Ran]) -> None:
    heavy = run(script(fetch="torch.randn(64, 64) @ torch.randn(64, 64)"), fidelity=COUNTING)
    light = run(script(), fidelity=COUNTING)
    assert heavy.one(Probed).figures["why_flops"] == light.one(Probed).figures["why_flops"]


def test_a_script_that_breaks_while_steps_are_counted_was_measured_all_the_same(
    run: Callable[..., Ran],
) -> None:
    breaks = "if counting() is not None: raise RuntimeError('seen')"
    ran = run(script(before=breaks), fidelity=COUNTING)
    assert ran.closed is not None
    assert ran.one(Probed) is None
    assert ran.broke is not None
    assert ran.broke.message == "seen"


def test_a_script_that_ends_while_steps_are_counted_is_sent_once(run: Callable[..., Ran]) -> None:
    ran = run(script(before="if counting() is not None: break"), fidelity=COUNTING)
    assert sum(isinstance(event, Closed) for event in ran.events) == 1
    assert ran.done is not None
    assert ran.done.code == 0


@pytest.mark.parametrize(
    "steps",
    [
        {"before": "(0.0 * model(torch.ones(8 * (1 + step % 2), 64)).sum()).backward()"},
        {"before": "import time; time.sleep(1.0) if step > 2 else None"},
    ],
    ids=["unlike each other", "too slow"],
)
def test_steps_that_differ_or_take_too_long_bound_nothing(
    run: Callable[..., Ran], steps: dict[str, str]
) -> None:
    assert bounds(run(script(**steps), fidelity=replace(COUNTING, min_steps=1))) is None


def test_compiled_code_is_not_counted(run: Callable[..., Ran]) -> None:
    compiled = script().replace("optimizer = ", "model = torch.compile(model, backend='eager')\noptimizer = ")
    assert bounds(run(compiled, fidelity=COUNTING)) is None


def test_nothing_is_counted_that_was_not_requested(run: Callable[..., Ran]) -> None:
    assert run(script(), fidelity=SHORT).one(Probed) is None

"""Real scripts in real processes: steps, samples, roles, ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

MLP = (
    PRELUDE
    + """
torch.manual_seed(3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 2)
    def forward(self, x):
        return self.b(self.a(x).relu())
model = Net()
data = TensorDataset(torch.randn(84, 8), torch.randint(0, 2, (84,)))
train = DataLoader(data, batch_size=16)
test = DataLoader(data, batch_size=16)
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
sizes = []
for epoch in range(EPOCHS):
    for x, y in train:
        sizes.append(len(x))
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
    with torch.no_grad():
        evals = [len(x) for x, y in test if model(x) is not None]
told(sizes=sizes, evals=evals, weights=weights(model), loss=float(loss))
"""
)


def test_a_plain_loop_is_counted_exactly_and_left_bit_equal(run: Callable[..., Any]) -> None:
    text = MLP.replace("EPOCHS", "3")
    ran, bare = run(text), run(text, bare=True)
    assert ran.faults == ""
    assert ran.done.why == "script_end"
    assert ran.code == 0
    assert ran.told == bare.told
    assert [r.samples for r in ran.rows] == bare.told["sizes"]
    assert ran.done.steps == len(bare.told["sizes"])
    facts = ran.facts
    assert facts.loader.site.startswith("train.py:")
    assert (facts.loader.batch_size, facts.loader.length, facts.loader.dataset_length) == (16, 6, 84)
    assert facts.samples_source == "loader"
    assert facts.effective_batch == 16
    assert facts.reduction == "mean"
    assert facts.zero_grad_seen
    assert not facts.own_autocast
    assert facts.model.name == "Net"
    assert facts.model.roots == 1
    assert facts.optimizer.name == "AdamW"
    assert facts.optimizer.can_fuse
    assert not facts.optimizer.closure
    assert facts.values["batch_size"] == 16
    assert facts.values["precision"] == "fp32"
    assert facts.values["compile_mode"] == "off"
    assert facts.values["num_workers"] == 0


def test_a_window_is_measured_and_the_process_ends_at_once(run: Callable[..., Any]) -> None:
    ran = run(MLP.replace("EPOCHS", "100000"), fidelity=SHORT)
    assert ran.code == 0
    assert ran.done.why == "measured"
    assert ran.out == ""
    closed = ran.closed
    assert closed.ended in ("tight", "limit")
    assert closed.end_ns - closed.begin_ns >= 0.1e9
    inside = [r for r in ran.rows if closed.begin_ns < r.t_ns <= closed.end_ns]
    assert len(inside) >= 5
    assert len(closed.loss) > 3
    assert closed.loss[-1].samples == sum(r.samples for r in ran.rows)

"""Real scripts in real processes: steps, samples, roles, ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.protocol.events import Steps

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
reported(sizes=sizes, evals=evals, weights=weights(model), loss=float(loss))
"""
)


def test_a_plain_loop_is_counted_exactly_and_left_bit_equal(run: Callable[..., Any]) -> None:
    text = MLP.replace("EPOCHS", "3")
    ran, bare = run(text), run(text, bare=True)
    assert ran.faults == ""
    assert ran.done.why == "script_end"
    assert ran.code == 0
    assert ran.reported == bare.reported
    assert [r.samples for r in ran.rows] == bare.reported["sizes"]
    assert ran.done.steps == len(bare.reported["sizes"])
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
    if closed.ended == "tight":
        assert closed.steady != "no_steady_state"
        assert closed.end_ns - closed.begin_ns >= SHORT.min_window_s * 1e9
    inside = [r for r in ran.rows if closed.begin_ns < r.t_ns <= closed.end_ns]
    assert len(inside) >= 5
    assert len(closed.loss) > 3
    assert closed.loss[-1].samples == sum(r.samples for r in ran.rows)


def test_a_window_that_is_still_settling_goes_on(run: Callable[..., Any]) -> None:
    """Half of the shortest window is slow: it is measured on, and the fast steps are what is reported."""
    settling = MLP.replace("EPOCHS", "100000").replace(
        "        opt.step()\n", "        opt.step()\n        time.sleep(0.02 if len(sizes) < 14 else 0.002)\n"
    )
    ran = run("import time\n" + settling, fidelity=replace(SHORT, min_window_s=0.4, max_window_s=8.0))
    assert ran.done.why == "measured"
    closed = ran.closed
    inside = [r for r in ran.rows if closed.begin_ns < r.t_ns <= closed.end_ns]
    if closed.ended == "tight":
        assert closed.steady != "no_steady_state"
        assert closed.end_ns - closed.begin_ns >= 0.4e9
    assert ran.rows.index(inside[0]) >= 8


def test_a_run_that_is_slower_beyond_doubt_ends_before_its_interval_is_tight(run: Callable[..., Any]) -> None:
    hopeless = replace(SHORT, max_window_s=30.0, target_width=1e-9, dominated_below=1e9)
    ran = run(MLP.replace("EPOCHS", "100000"), fidelity=hopeless)
    assert ran.done.why == "measured"
    assert ran.closed.ended == "dominated"
    assert (ran.closed.end_ns - ran.closed.begin_ns) / 1e9 < 0.5 * hopeless.max_window_s


def test_a_run_above_the_bar_is_measured_to_its_limit(run: Callable[..., Any]) -> None:
    hopeful = replace(SHORT, target_width=1e-9, dominated_below=1.0)
    assert run(MLP.replace("EPOCHS", "100000"), fidelity=hopeful).closed.ended == "limit"


def test_a_model_that_is_requested_with_a_shape_of_unknown_size_first_is_watched_all_the_same(
    run: Callable[..., Any],
) -> None:
    """Keras builds a model by calling it with a shape whose first dimension is None."""
    requested = MLP.replace(
        "    def forward(self, x):",
        "    def forward(self, x):\n        if not torch.is_tensor(x): return None",
    )
    requested = requested.replace(
        "sizes = []", "class Symbol: shape = (None, 8)\nmodel(Symbol())\nsizes = []"
    )
    ran = run(requested.replace("EPOCHS", "2"))
    assert ran.faults == ""
    assert [r.samples for r in ran.rows] == ran.reported["sizes"]


LOADERS = (
    PRELUDE
    + """
torch.manual_seed(0)
class Held(Dataset):
    def __init__(self): self.file = open(__file__, "rb")
    def __len__(self): return 24
    def __getitem__(self, i): return torch.ones(4) * i
def two_views(items): return torch.cat([torch.stack(items), torch.stack(items)])
few, many = TensorDataset(torch.ones(12, 4)), TensorDataset(torch.ones(84, 4))
a = DataLoader(few, batch_size=2)
if sys.argv[1] == "views": b = DataLoader(Held(), batch_size=6, collate_fn=two_views)
else: b = DataLoader(many, batch_size=14)
val = DataLoader(many, batch_size=4)
peek = next(iter(val))
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.001)
def rows(batch): return batch if torch.is_tensor(batch) else batch[0]
for epoch in range(3):
    pairs = zip(b, a) if sys.argv[1] == "zip" else ((x, x) for x in b)
    for x, y in pairs:
        opt.zero_grad(); model(torch.cat([rows(x), rows(y)])).sum().backward(); opt.step()
    import copy
    ema = copy.deepcopy(model).eval()
    with torch.no_grad():
        for x in val: ema(rows(x))
        for x in b: ema(rows(x))
"""
)


def test_of_two_loaders_in_step_the_larger_one_counts_and_once(run: Callable[..., Any]) -> None:
    ran = run(LOADERS, argv=["zip"])
    assert ran.faults == ""
    assert [r.samples for r in ran.rows[1:]] == [14] * 17
    assert ran.facts.loader.batch_size == 14
    assert ran.facts.loader.shared_handle == ""
    # One step after each evaluation, and no other, is marked.
    assert [i for i, r in enumerate(ran.rows) if r.mark & 1] == [6, 12]


def test_a_collate_that_changes_the_count_leaves_the_loaders_batch_size(run: Callable[..., Any]) -> None:
    ran = run(LOADERS, argv=["views"])
    assert ran.faults == ""
    assert [r.samples for r in ran.rows] == [6] * 12
    assert ran.facts.values["batch_size"] == 6
    assert ran.facts.loader.shared_handle == "BufferedReader"


SLOW_EVALUATION = (
    PRELUDE
    + """
import time
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.001)
train = DataLoader(TensorDataset(torch.ones(40, 4)), batch_size=4)
val = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
for epoch in range(1000):
    for (x,) in train:
        model(x).sum().backward(); opt.step(); time.sleep(0.005)
    with torch.no_grad():
        for (x,) in val: model(x); time.sleep(0.6 if epoch == 0 else 0.05)
"""
)


def test_evaluation_is_reported_as_a_sign_of_life_and_does_not_use_up_the_window(
    run: Callable[..., Any],
) -> None:
    from autotune.launch.result.host_samples import HostSamples
    from autotune.launch.result.measure import measure
    from autotune.launch.result.process_reports import ProcessReports

    ran = run(SLOW_EVALUATION, fidelity=SHORT)
    empty = [e for e in ran.events if isinstance(e, Steps) and not e.rows]
    assert len(empty) >= 1
    reported = ProcessReports()
    for event in ran.events:
        reported.take(event)
    found = measure(ran.closed, reported, HostSamples(start_ns=0))
    # 4 samples in little more than 5 ms; with the evaluation in it, at most 4 * 10 in 150 ms.
    assert found.throughput.value > 350


RESTARTS = (
    PRELUDE
    + """
import time
class Slow(TensorDataset):
    def __getitem__(self, i):
        if first: first.clear(); time.sleep(0.3)
        return super().__getitem__(i)
first = []
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.001)
train = DataLoader(Slow(torch.ones(40, 4)), batch_size=4)
val = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
for epoch in range(4):
    first.append(1)
    for (x,) in train:
        model(x).sum().backward(); opt.step()
    with torch.no_grad():
        for (x,) in val: model(x); time.sleep(0.25)
"""
)


def test_only_the_evaluation_itself_is_set_aside_not_the_loaders_new_start(run: Callable[..., Any]) -> None:
    ran = run(RESTARTS)
    ends = [r.t_ns for r in ran.rows]
    for i in (10, 20, 30):
        aside_s, period_s = ran.rows[i].aside_ns / 1e9, (ends[i] - ends[i - 1]) / 1e9
        assert 0.49 < aside_s < 0.7
        assert period_s - aside_s > 0.29
    assert all(r.aside_ns == 0 for i, r in enumerate(ran.rows) if i % 10)


CHECKPOINT = (
    PRELUDE
    + """
import io, time
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for i in range(4): model(torch.ones(2, 4)).sum().backward(); opt.step()
time.sleep(1.1)
torch.save(model.state_dict(), io.BytesIO())
time.sleep(0.3)
model(torch.ones(2, 4)).sum().backward(); opt.step()
"""
)


def test_a_checkpoint_is_reported_as_a_sign_of_life(run: Callable[..., Any]) -> None:
    ran = run(CHECKPOINT)
    assert ran.faults == ""
    assert sum(not e.rows for e in ran.events if isinstance(e, Steps)) == 1
    assert len(ran.rows) == 5

"""Under `apply`, knobs step aside for what contradicts the search, and the training goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.knobs.common import LOADER
from autotune.model.change import Change, Keyword, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


def patch(knob: str, value: Any) -> Change:
    return Change(knob=knob, value=value, spelling=Patch())


def keyword(name: str, value: Any) -> Change:
    return Change(knob=name, value=value, spelling=Keyword(LOADER, name))


LBFGS = (
    PRELUDE
    + """
torch.manual_seed(0)
x, y = torch.randn(128, 6), torch.randn(128, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
net = nn.Linear(6, 1)
adam = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(10):
    for a, b in loader:
        adam.zero_grad(); F.mse_loss(net(a), b).backward(); adam.step()
steps = int(next(iter(adam.state.values()))["step"])
second = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
sizes = []
for epoch in range(2):
    for a, b in loader:
        sizes.append(len(a))
        def closure():
            second.zero_grad()
            loss = F.mse_loss(net(a), b)
            loss.backward()
            return loss
        second.step(closure)
reported(steps=steps, sizes=sizes, last=weights(net))
"""
)


def test_an_optimizer_with_a_closure_ends_accumulation_and_the_batches_of_its_parts(
    run: Callable[..., Any],
) -> None:
    parts = [keyword("batch_size", 8), patch("accumulation", 4)]
    own = run(LBFGS, bare=True).reported
    tuned = run(LBFGS, changes=parts, measure=False, own={"batch_size": 32})
    assert tuned.code == 0, tuned.err
    assert tuned.faults == ""
    assert tuned.reported["steps"] == own["steps"] == 40
    # The batch that had been fetched when the closure came is a part; those after it are whole.
    assert tuned.reported["sizes"][:2] == [8, 32]
    assert set(tuned.reported["sizes"][2:]) <= {24, 32}
    assert tuned.err.count("autotune: warning: ") == 1
    assert "accumulation=4 and batch_size=8 withdrawn after step 40: The optimizer steps" in tuned.err


def test_strict_ends_with_6_before_the_optimizer_steps(run: Callable[..., Any]) -> None:
    parts = [keyword("batch_size", 8), patch("accumulation", 4)]
    ended = run(LBFGS, changes=parts, measure=False, strict=True)
    assert (ended.code, ended.out) == (6, "")
    assert "accumulation contradicts the run after step 40" in ended.err


CURRICULUM = (
    PRELUDE
    + """
class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.level, self.seen = 0.0, 0
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((4,), self.level)
how = sys.argv[1]
torch.manual_seed(0)
data, net = Data(), nn.Linear(4, 1)
loader = DataLoader(data, batch_size=8)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
seen, alive = [], []
for epoch in range(8):
    if how == "between" and epoch >= 5:
        data.level = float(epoch)
    for n, x in enumerate(loader):
        seen.append(x.mean().item())
        opt.zero_grad(); net(x).square().mean().backward(); opt.step()
        data.seen += 1
        if how == "inside" and (epoch, n) == (5, 0):
            data.level = 5.0
    alive.append(loader.num_workers)
reported(seen=seen[::8], alive=alive, last=weights(net))
"""
)
WORKERS = [keyword("num_workers", 2), keyword("persistent_workers", True)]


def test_workers_that_outlive_a_pass_are_started_anew_once_the_script_changes_what_they_read(
    run: Callable[..., Any],
) -> None:
    own = run(CURRICULUM, argv=["between"], bare=True).reported
    tuned = run(CURRICULUM, argv=["between"], changes=WORKERS, measure=False)
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.reported["last"] == own["last"]
    assert tuned.reported["seen"] == own["seen"] == [0.0] * 5 + [5.0, 6.0, 7.0]
    assert tuned.reported["alive"] == [2] * 8
    assert tuned.err.count("warning") == 1
    assert "persistent_workers=True withdrawn" in tuned.err
    assert "Data.level between two passes" in tuned.err


def test_after_a_change_inside_of_a_pass_the_next_one_has_no_workers(run: Callable[..., Any]) -> None:
    own = run(CURRICULUM, argv=["inside"], bare=True).reported
    tuned = run(CURRICULUM, argv=["inside"], changes=WORKERS[:1], measure=False)
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.reported["seen"] == own["seen"]
    assert tuned.reported["alive"] == [2] * 5 + [0] * 3
    assert tuned.err.count("warning") == 1
    assert "Data.level inside a pass" in tuned.err


def test_nothing_is_reported_of_attributes_that_no_worker_reads(run: Callable[..., Any]) -> None:
    tuned = run(CURRICULUM, argv=["never"], changes=WORKERS, measure=False)
    assert (tuned.code, tuned.err, tuned.faults) == (0, "", "")
    assert tuned.reported["alive"] == [2] * 8


KEPT = (
    PRELUDE
    + """
class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.kept, self.read = {}, {}
    def __len__(self):
        return 64
    def __getitem__(self, i):
        if how == "counter":
            self.read[i] = self.read.get(i, 0) + 1
            return torch.full((4,), i + 0.1 * self.read[i])
        if how == "labels":
            return torch.full((4,), self.kept.get(i, float(i)))
        if i not in self.kept:
            self.kept[i] = torch.full((4,), float(i))
        return self.kept[i]
how = sys.argv[1]
torch.manual_seed(0)
data, net = Data(), nn.Linear(4, 1)
loader = DataLoader(data, batch_size=8)
opt = torch.optim.SGD(net.parameters(), lr=1e-5)
seen, workers = [], []
for epoch in range(8):
    for n, x in enumerate(loader):
        seen.append(x.sum().item())
        opt.zero_grad(); net(x).square().mean().backward(); opt.step()
        if epoch > 3 and how == "labels":
            data.kept[n] = -1.0
        elif epoch > 3:
            shown = data[8 * n + epoch]
    workers.append(loader.num_workers)
reported(seen=seen, workers=workers, last=weights(net))
"""
)


def test_a_cache_that_the_training_process_fills_keeps_its_workers(run: Callable[..., Any]) -> None:
    own = run(KEPT, argv=["cache"])
    assert (own.faults, own.facts.loader.changed) == ("", "")
    tuned = run(KEPT, argv=["cache"], changes=WORKERS[:1], measure=False)
    assert (tuned.code, tuned.err, tuned.faults) == (0, "", "")
    assert tuned.reported == {**own.reported, "workers": [2] * 8}


@pytest.mark.parametrize(
    ("how", "workers", "reason"),
    [
        ("counter", [0] * 8, "Your dataset collects what it has fetched (read)"),
        ("labels", [2] * 4 + [0] * 4, "Data.kept inside a pass"),
    ],
)
def test_what_samples_depend_on_withdraws_workers(
    run: Callable[..., Any], how: str, workers: list[int], reason: str
) -> None:
    tuned = run(KEPT, argv=[how], changes=WORKERS[:1], measure=False)
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.reported["workers"] == workers, tuned.err
    assert reason in tuned.err


STAGES = (
    PRELUDE
    + """
torch.manual_seed(0)
x = torch.randn(96, 6)
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
sizes = []
for size, passes in ((32, 8), (16, 1)):
    loader = DataLoader(TensorDataset(x), batch_size=size, shuffle=True)
    for _ in range(passes):
        for (a,) in loader:
            opt.zero_grad(); F.mse_loss(net(a), torch.ones(len(a), 1)).backward(); opt.step()
            sizes.append(len(a))
reported(sizes=sizes, last=weights(net))
"""
)


def test_a_loader_of_another_size_keeps_it_and_its_steps(run: Callable[..., Any]) -> None:
    own = run(STAGES, bare=True).reported
    batch, parts = keyword("batch_size", 8), patch("accumulation", 4)
    tuned = run(STAGES, changes=[batch, parts], measure=False, own={"batch_size": 32})
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.reported["sizes"] == [8] * 96 + [16] * 6
    assert tuned.reported["last"] == pytest.approx(own["last"], abs=1e-5)
    assert "built at" in tuned.err
    assert "accumulation=4" in tuned.err


LATE = (
    PRELUDE
    + """
torch.manual_seed(0)
from torch.optim.swa_utils import update_bn
x = torch.randn(96, 6)
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
loader = DataLoader(TensorDataset(x), batch_size=32)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(4):
    for (a,) in loader:
        opt.zero_grad(); F.mse_loss(net(a), torch.ones(len(a), 1)).backward(); opt.step()
before = weights(net)
update_bn(loader, net)
mean = net[1].running_var.tolist()
sizes = [len(a) for (a,) in loader]
net.eval()
traced = torch.jit.trace(net, x[:4])
exported = torch.export.export(net, (x[:4],)).module()
formats = {str(p.dtype) for p in traced.parameters()} | {str(f(x[:4]).dtype) for f in (traced, exported)}
graphs = str(traced.inlined_graph) + str(exported.graph)
reported(before=before, mean=mean, sizes=sizes, formats=sorted(formats), half="16" in graphs)
"""
)


def test_traces_exports_and_batch_statistics_are_those_of_the_script(run: Callable[..., Any]) -> None:
    own = run(LATE, bare=True).reported
    for changes in ([keyword("batch_size", 16)], [patch("precision", "bf16")], [patch("pure_bf16", True)]):
        tuned = run(LATE, changes=changes, measure=False)
        assert (tuned.code, tuned.faults) == (0, ""), tuned.err
        assert (tuned.reported["formats"], tuned.reported["half"]) == (["torch.float32"], False)
        assert tuned.reported["sizes"] == ([16] * 6 if changes[0].knob == "batch_size" else own["sizes"])
        assert "torch.optim.swa_utils.update_bn" in tuned.err
    same = run(LATE, changes=[keyword("pin_memory", False)], measure=False)
    assert (same.reported, same.err) == (own, "")


def test_batch_statistics_are_taken_over_the_scripts_own_batches(run: Callable[..., Any]) -> None:
    frozen = LATE.replace("lr=0.01", "lr=0.0")
    own, tuned = run(frozen, bare=True), run(frozen, changes=[keyword("batch_size", 8)], measure=False)
    assert tuned.reported["before"] == own.reported["before"]
    assert tuned.reported["mean"] == own.reported["mean"]

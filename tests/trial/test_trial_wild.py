"""Loops as people write them, each with what it does that another batch or another loader would change.

Several sessions live one after the other in one process, so that torch is paid for once.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

WILD = (
    PRELUDE
    + """
import copy, itertools, time
from autotune import sdk
from autotune.model.change import Change, Flag
from autotune.protocol.plan import Plan
from autotune.trial.entry.trial_runtime import TrialRuntime as Session
torch.set_num_threads(1)
torch.manual_seed(0)
alive, kept = [], []

def own(kind=torch.optim.SGD):
    class Own(kind):
        # Of a class that a session has seen, torch keeps the step.
        def step(self, closure=None):
            return super().step(closure)
    return Own

def sgd(model):
    return own()([p for p in model.parameters() if p.requires_grad], lr=0.01)

def plain_loss(model, x):
    return F.mse_loss(model(x), x[:, :1])

def rows(n=32, size=8, **options):
    return DataLoader(TensorDataset(torch.randn(n, 4)), batch_size=size, **options)

def learn(batches, model=None, loss_of=plain_loss, then=None, epochs=3):
    model = model or nn.Linear(4, 1)
    opt = sgd(model)
    alive.append((model, opt, batches))
    for epoch in range(epochs):
        for batch in batches:
            opt.zero_grad()
            loss_of(model, batch[0]).backward()
            opt.step()
            if then is not None:
                then(opt)

# Random numbers of the loop's own

def noisy(model, x):
    noise, when = torch.randn_like(x), torch.randint(0, 10, (len(x), 1))
    return F.mse_loss(model(x + when * noise), noise[:, :1])

# Several loaders

class Pairs:
    def __init__(self, *loaders):
        self.loaders = loaders
    def __iter__(self):
        return (([x for (x,) in pair],) for pair in zip(*self.loaders))

class Turns(Pairs):
    def __iter__(self):
        sources = [iter(loader) for loader in self.loaders]
        for _ in range(4):
            yield from (next(source) for source in sources)

def several(kind, **options):
    first = rows()
    second = rows(16, 4)
    learn(kind(first, second), **options)

def peeking():
    # Every other step a batch of a loader for validation, with gradients on.
    held_out, model, steps = rows(16), nn.Linear(4, 1), itertools.count()
    kept.append(held_out)
    def peek(_):
        if next(steps) % 2:
            plain_loss(model, next(iter(held_out))[0])
    learn(rows(), model, then=peek)

# What a model keeps

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(4, 1), 0
    def forward(self, x):
        self.calls += 1
        return self.inner(x)

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.slow = copy.deepcopy(self.inner).requires_grad_(False)
    def forward(self, x):
        for slow, fast in zip(self.slow.parameters(), self.inner.parameters()):
            slow.data.mul_(0.9).add_(fast.data, alpha=0.1)
        return self.inner(x) + self.slow(x)

class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.register_buffer("bank", torch.zeros(100, 4))
    def forward(self, x):
        self.bank[50:50 + len(x)] = x.detach()
        return self.inner(x)

class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.seen = nn.BatchNorm1d(4), nn.Linear(4, 1), 0
        self.register_buffer("steps", torch.arange(4.0))
    def forward(self, x):
        self.seen = x.shape[0]
        return self.inner(self.norm(x)) + self.steps.sum()

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 1)
    def forward(self, x, h):
        y, h = self.inner(x[:, None], h)
        return self.out(y[:, 0]), (h,)

def remembering(carries):
    held = [torch.zeros(1, 8, 4)]
    def loss_of(model, x):
        out, (h,) = model(x, held[0])
        if carries:
            held[0] = h.detach()
        return F.mse_loss(out, x[:, :1])
    return loss_of

def echoing(model, x):
    return F.mse_loss(model(x)[0], x[:, :1])

class Echo(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)
    def forward(self, x):
        return self.inner(x), x

# What happens to gradients and rates

def cool(opt):
    opt.param_groups[0]["lr"] *= 0.99

def warmed_up():
    model = nn.Linear(4, 1)
    opt = own(torch.optim.AdamW)(model.parameters(), lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: step / 100)
    alive.append((model, opt))
    for (x,) in rows():
        opt.zero_grad()
        (plain_loss(model, x) / 2).backward()
        opt.step()
        schedule.step()

def by_hand(first):
    model = nn.Linear(4, 1)
    opt = own()([
        {"params": model.weight, "lr": 0.02}, {"params": model.bias, "weight_decay": torch.tensor(0.5)}
    ], lr=0.01)
    alive.append((model, opt))
    for step, (x,) in enumerate(rows()):
        opt.param_groups[1]["lr"] = 0.01 * (step + first)
        opt.zero_grad()
        plain_loss(model, x).backward()
        opt.step()

def hooked():
    model = nn.Linear(4, 1)
    model.weight.register_hook(lambda g: g.clamp(-1, 1))
    return model

def one_by_one(model, x):
    return sum(F.mse_loss(model(row[None]), row[None, :1]) for row in x)

def chosen(model, x):
    out = model(x)
    return F.mse_loss(out[:5], x[:5, :1])

# Data sets that change

class Growing(Dataset):
    def __init__(self):
        self.level, self.count, self.cached = 0, 0, None
    def __len__(self):
        return 32
    def __getitem__(self, i):
        self.count += 1
        return torch.full((4,), float(self.level)), 0

def growing(when):
    data = Growing()
    loader = DataLoader(data, batch_size=8)
    model = nn.Linear(4, 1)
    opt = sgd(model)
    alive.append((model, opt))
    for epoch in range(3):
        if when == "between":
            data.level = epoch
        for batch in loader:
            opt.zero_grad()
            plain_loss(model, batch[0]).backward()
            opt.step()
            data.cached = data.cached or [1]
            if when == "inside":
                data.level += 1

# Evaluations with gradients on, and batches that come again

def evaluating(apart):
    training = rows()
    held_out = rows(16) if apart else training
    model = nn.Linear(4, 1)
    opt = sgd(model)
    alive.append((model, opt))
    for epoch in range(5):
        model.train()
        for (x,) in training:
            opt.zero_grad()
            plain_loss(model, x).backward()
            opt.step()
        model.eval()
        for (x,) in held_out:
            plain_loss(model, x)
            time.sleep(0.01)

def again():
    batches = itertools.cycle(rows(16))
    learn([next(batches) for _ in range(2)] * 7, epochs=1)

def telling():
    learn(rows(), then=lambda opt: sdk.step(samples=99))

def without_loader(size, reported):
    model = nn.Linear(4, 1)
    opt = sgd(model)
    alive.append((model, opt))
    for i in range(8):
        opt.zero_grad()
        plain_loss(model, torch.ones(size, 4)).backward()
        opt.step()
        sdk.step(samples=reported)

def watched(action, batch=0, changes=()):
    alive.clear()
    paths = dict(script=__file__, argv=(), events_path="", trial_dir="")
    made = Session(Plan(nonce="n", batch=batch, changes=changes, **paths), None)
    steps = []
    made.recorder.step = lambda row, loss, batches: steps.append((row[2], row[5] & 1, row[6] / 1e9))
    made.begin()
    action()
    run, readings = made.facts(), made.readings.compute()
    made.patches.undo_all()
    made.boundary.release()
    loader, model, inputs = run.loader, run.model, run.inputs
    return dict(
        draws=run.loop_draws, hazards=run.loop_hazards, source=run.samples_source, reduction=run.reduction,
        scheduled=run.scheduler_per_step, moves=model.moves, dropout=model.dropout,
        beside=loader and loader.beside, changed=loader and loader.changed, steps=steps,
        rates=run.optimizer.rates, decays=run.optimizer.decays, scale=run.loss_scale,
        reported=inputs and inputs.reported_per_sample, place=inputs and inputs.place,
        faults=sorted(made.faults.off),
        requested=[(r.knob, r.status, r.reason) for r in readings if r.wanted is not None])

def batch_of(value, place):
    option = Flag(("--batch-size",))
    return (Change(knob="batch_size", value=value, spelling=option, delivered=str(value), site=place),)

found = dict(
    plain=watched(lambda: learn(rows(40))),
    noisy=watched(lambda: learn(rows(), loss_of=noisy)),
    in_step=watched(lambda: several(Pairs, loss_of=lambda model, pair: plain_loss(model, torch.cat(pair)))),
    in_turns=watched(lambda: several(Turns)),
    peeking=watched(peeking),
    warmed_up=watched(warmed_up),
    from_nothing=watched(lambda: by_hand(0)),
    from_some=watched(lambda: by_hand(1)),
    counting=watched(lambda: learn(rows(), Counting())),
    slow=watched(lambda: learn(rows(), Slow())),
    bank=watched(lambda: learn(rows(), Bank())),
    normed=watched(lambda: learn(rows(36), Normed())),
    carried=watched(lambda: learn(rows(), Recurrent(), remembering(True))),
    begun_anew=watched(lambda: learn(rows(), Recurrent(), remembering(False))),
    echoing=watched(lambda: learn([(torch.ones(8, 4),)] * 5, Echo(), echoing)),
    cooled=watched(lambda: learn(rows(), then=cool)),
    hooked=watched(lambda: learn(rows(), hooked())),
    one_by_one=watched(lambda: learn(rows(), loss_of=one_by_one)),
    chosen=watched(lambda: learn(rows(), loss_of=chosen)),
    between=watched(lambda: growing("between")),
    inside=watched(lambda: growing("inside")),
    unchanged=watched(lambda: growing("")),
    evaluating=watched(lambda: evaluating(True)),
    evaluating_all=watched(lambda: evaluating(False)),
    trained_asleep=watched(lambda: learn(rows(), nn.Linear(4, 1).eval())),
    again=watched(again),
    telling=watched(telling),
    reported=watched(lambda: without_loader(8, 8), batch=8),
    reports_still=watched(lambda: without_loader(16, 8), changes=batch_of(16, "input:0:0:8x4:1")),
    reports_along=watched(lambda: without_loader(16, 16), changes=batch_of(16, "input:0:0:8x4:1")),
)
reported(**found)
"""
)


@pytest.fixture(scope="module")
def wild(tmp_path_factory: Any) -> Any:
    from trial_kit import runner

    folder: Path = tmp_path_factory.mktemp("wild")
    ran = runner(folder)(WILD, bare=True, timeout_s=300)
    assert ran.code == 0, ran.err
    return {name: SimpleNamespace(**reported) for name, reported in ran.reported.items()}


def test_a_plain_loop_is_suspected_of_nothing(wild: Any) -> None:
    plain = wild["plain"]
    assert (plain.draws, plain.hazards, plain.source, plain.reduction) == ("", [], "loader", "mean")
    assert not any((plain.scheduled, plain.moves, plain.dropout, plain.beside, plain.changed))
    assert [samples for samples, _, _ in plain.steps] == [8] * 15
    assert {name: found.faults for name, found in wild.items() if found.faults} == {}


def test_noise_that_the_loop_draws_for_a_batch_is_seen(wild: Any) -> None:
    """As diffusion models are trained: the model itself draws nothing."""
    assert (wild["noisy"].draws, wild["noisy"].dropout) == ("host", False)


@pytest.mark.parametrize("kind", ["in_step", "in_turns"])
def test_other_loaders_that_train_as_well_are_seen(wild: Any, kind: str) -> None:
    assert wild[kind].beside == 1


def test_a_loader_that_is_evaluated_every_so_many_steps_does_not_train(wild: Any) -> None:
    assert wild["peeking"].beside == 0
    assert [samples for samples, _, _ in wild["peeking"].steps] == [8] * 12


def test_rates_and_decays_are_those_that_the_first_step_begins_from(wild: Any) -> None:
    """Whatever a warm-up, which may be counted in batches, makes of them."""
    seen = {
        kind: (wild[kind].rates, wild[kind].decays) for kind in ("warmed_up", "from_nothing", "from_some")
    }
    assert seen == {
        "warmed_up": ([0.01], [0.1]),
        "from_nothing": ([0.02, 0.01], [0, 0.5]),
        "from_some": ([0.02, 0.01], [0, 0.5]),
    }
    assert (wild["plain"].scale, wild["warmed_up"].scale) == (1.0, 0.5)


@pytest.mark.parametrize("kind", ["counting", "slow", "bank"])
def test_state_that_moves_at_each_call_is_seen(wild: Any, kind: str) -> None:
    """A counter, a momentum encoder that is written past autograd, a memory bank."""
    assert wild[kind].moves


@pytest.mark.parametrize("kind", ["plain", "normed", "carried"])
def test_what_a_model_merely_keeps_does_not_move(wild: Any, kind: str) -> None:
    assert not wild[kind].moves


def test_what_a_model_returned_for_one_batch_is_seen_in_its_next_call(wild: Any) -> None:
    assert wild["carried"].hazards == ["carried_state"]
    assert wild["begun_anew"].hazards == wild["echoing"].hazards == []


def test_a_rate_that_moves_before_every_step_is_a_schedule_whoever_moves_it(wild: Any) -> None:
    assert wild["cooled"].scheduled


def test_a_hook_of_the_script_on_a_weight_uses_its_gradient(wild: Any) -> None:
    assert wild["hooked"].hazards == ["own_gradient"]


@pytest.mark.parametrize("kind", ["one_by_one", "chosen"])
def test_means_that_are_not_over_the_whole_batch_are_no_mean_over_it(wild: Any, kind: str) -> None:
    assert wild[kind].reduction == "unknown"


def test_a_data_set_that_the_script_changes_is_seen(wild: Any) -> None:
    """What its own fetches change, and what is made when it is first requested, is no such change."""
    assert [wild[kind].changed for kind in ("between", "inside", "unchanged")] == ["between", "inside", ""]


def test_an_evaluation_with_gradients_on_is_set_aside(wild: Any) -> None:
    steps = wild["evaluating"].steps
    assert [samples for samples, _, _ in steps] == [8] * 20
    assert [n for n, (_, marked, _) in enumerate(steps) if marked] == [4, 8, 12, 16]
    assert all(steps[n][2] >= 0.02 for n in (4, 8, 12, 16)), "two batches of it, with 10 ms each"


def test_batches_that_were_only_evaluated_train_nothing_whatever_loader_they_are_of(wild: Any) -> None:
    assert [samples for samples, _, _ in wild["evaluating_all"].steps] == [8] * 20


def test_training_in_evaluation_mode_is_training(wild: Any) -> None:
    steps = wild["trained_asleep"].steps
    assert [samples for samples, _, _ in steps] == [8] * 12
    assert not any(marked for _, marked, _ in steps)


def test_batches_that_come_again_and_again_count_no_samples(wild: Any) -> None:
    assert wild["again"].source == "input"


def test_what_a_loader_hands_over_counts_whatever_the_script_says_of_it(wild: Any) -> None:
    assert wild["telling"].source == "loader"
    assert {samples for samples, _, _ in wild["telling"].steps[2:]} == {8}


def test_samples_that_are_reported_alike_at_another_batch_are_not_believed(wild: Any) -> None:
    assert (wild["reported"].reported, wild["reported"].place) == (1.0, "input:0:0:8x4:1")
    ((knob, status, reason),) = wild["reports_still"].requested
    assert (knob, status) == ("batch_size", "refused")
    assert "does not follow the batch" in reason
    assert wild["reports_along"].requested == [["batch_size", "applied", ""]]

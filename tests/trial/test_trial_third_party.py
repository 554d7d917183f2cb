"""Loops as packages ship them: learning from what is done, loaders and batches of their own, steps in hooks.

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

SCRIPT = (
    PRELUDE
    + """
import queue, threading, time
from torch.utils.data import IterableDataset
from autotune.protocol.plan import Plan
from autotune.trial.entry.trial_runtime import TrialRuntime as Session
torch.set_num_threads(1)
torch.manual_seed(0)
alive = []
spans = []

def sgd(model):
    class Own(torch.optim.SGD):
        # Of a class that a session has seen, torch keeps the step.
        def step(self, closure=None):
            return super().step(closure)
    return Own(model.parameters(), lr=0.01)

def learner():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = sgd(model)
    alive.append((model, opt))
    return model, opt

def update(model, opt, x):
    model.train()
    opt.zero_grad()
    model(x).square().mean().backward()
    opt.step()

# Learning from what is done

def evaluate_policy(model):
    model.eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(1, 4))
            time.sleep(0.01)

def collect_rollouts(model, callback=None):
    model.eval()
    for step in range(3):
        with torch.no_grad():
            model(torch.randn(2, 4))
        if callback is not None and not step:
            since = time.perf_counter()
            callback(model)
            spans.append(time.perf_counter() - since)
        time.sleep(0.2 if callback is not None else 0.01)

def on_policy(evaluates=False):
    # Rollouts in evaluation mode, then several passes of minibatches over them.
    model, opt = learner()
    for round in range(3):
        collect_rollouts(model, evaluate_policy if evaluates and round == 1 else None)
        for _ in range(4):
            update(model, opt, torch.randn(8, 4))

class Agent:
    # Switches the mode for every action that it takes, and learns at every second one.
    def __init__(self):
        self.model, self.opt = learner()
    def act(self, x):
        self.model.eval()
        with torch.no_grad():
            out = self.model(x)
        self.model.train()
        return out.argmax(1)
    def play(self):
        for step in range(12):
            self.act(torch.randn(1, 4))
            time.sleep(0.01)
            if step % 2:
                update(self.model, self.opt, torch.randn(8, 4))

def test_ppo():
    # As some libraries write their examples.
    on_policy()

class Game:
    def step(self, action):
        return action

def in_environment(games=True):
    # All in one function, without a name that shows it.
    from gymnasium.wrappers.common import OrderEnforcing
    env = OrderEnforcing(Game())
    model, opt = learner()
    for round in range(4):
        model.eval()
        for _ in range(3):
            with torch.no_grad():
                model(torch.randn(1, 4))
            if games:
                env.step(0)
            time.sleep(0.01)
        update(model, opt, torch.randn(8, 4))

def acting_in_training_mode():
    # Replayed batches of the option's size, one for every step of the environment.
    from gymnasium.wrappers.common import OrderEnforcing
    env = OrderEnforcing(Game())
    model, opt = learner()
    for step in range(6):
        update(model, opt, torch.randn(8, 4))
        with torch.no_grad():
            env.step(model(torch.randn(1, 4)))

# Evaluations that are none of this

def estimate_loss(model):
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 4))
    model.train()

def supervised():
    model, opt = learner()
    for step in range(8):
        if step % 3 == 2:
            estimate_loss(model)
        update(model, opt, torch.randn(8, 4))

def collect_samples(model, loader):
    model.eval()
    with torch.no_grad():
        return [model(x) for (x,) in loader]

def rows(n=32, size=8, **options):
    return DataLoader(TensorDataset(torch.randn(n, 4)), batch_size=size, **options)

def judged_by_features():
    training, held_out = rows(), rows(16)
    model, opt = learner()
    for epoch in range(3):
        for (x,) in training:
            update(model, opt, x)
        collect_samples(model, held_out)

# Loaders and batches

def learn(batches, epochs=2, of=lambda batch: batch[0]):
    model, opt = learner()
    alive.append(batches)
    for _ in range(epochs):
        for batch in batches:
            update(model, opt, of(batch))

class Prefetched:
    # A thread of its own reads ahead.
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        ahead = queue.Queue(4)
        def read():
            for batch in self.loader:
                ahead.put(batch)
            ahead.put(None)
        threading.Thread(target=read).start()
        while (batch := ahead.get()) is not None:
            yield batch

class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class Endless(DataLoader):
    # One iterator for all epochs, so that workers stay.
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

def endless():
    batches = Endless(TensorDataset(torch.randn(32, 4)), batch_size=8)
    model, opt = learner()
    alive.append(batches)
    for epoch in range(3):
        for n, (x,) in enumerate(batches):
            if epoch == 2 and n == 2:
                break
            update(model, opt, x)

def boxed(samples):
    # In the first batch there are as many boxes as images.
    images = torch.stack([x for x, _ in samples])
    return {"boxes": torch.zeros(sum(int(n) for _, n in samples), 4), "images": images}

def detecting():
    counts = torch.tensor([1] * 8 + [2] * 8 + [0] * 4 + [1] * 4 + [1] * 4)
    data = TensorDataset(torch.randn(28, 4), counts)
    learn(DataLoader(data, batch_size=8, collate_fn=boxed), of=lambda batch: batch["images"])

class Padded:
    # Tells its length, and keeps names of its fields before them.
    def __init__(self, samples):
        self.names = ["signal", "length", "label"]
        self.signal = (torch.stack([x for (x,) in samples]), torch.ones(len(samples)))
    def __len__(self):
        return len(self.signal[0])

class InPairs:
    def __iter__(self):
        yield from ([2 * n, 2 * n + 1] for n in range(8))
    def __len__(self):
        return 8

def padded():
    data = TensorDataset(torch.randn(16, 4))
    learn(DataLoader(data, batch_sampler=InPairs(), collate_fn=Padded), of=lambda batch: batch.signal[0])

def first(samples):
    return samples[0]

class Whole(Dataset):
    # Each item is a batch by itself.
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return torch.randn(3, 4), i

def taken_out():
    learn(DataLoader(Whole(), batch_size=1, collate_fn=first))

def stacked(samples):
    return [torch.stack([x for (x,) in samples])]

def by_worker(source):
    info = torch.utils.data.get_worker_info()
    return source if info is None else source

class Pipeline(IterableDataset):
    def __init__(self, *stages):
        self.pipeline = [*stages]
    def __iter__(self):
        yield from torch.randn(16, 4)

def share_of(n):
    info = torch.utils.data.get_worker_info()
    return range(n) if info is None else range(info.id, n, info.num_workers)

def drawn_by(source):
    info = torch.utils.data.get_worker_info()
    return source if info is None else info.seed

class Shared(IterableDataset):
    # Shares itself out by a helper of its module.
    def __iter__(self):
        for _ in share_of(16):
            yield torch.randn(4)

def piped(*stages):
    learn(DataLoader(Pipeline(*stages), batch_size=8), of=lambda batch: batch)

# Steps inside of a backward pass

def in_backward(threads):
    model = nn.Linear(4, 1)
    for parameter in model.parameters():
        opt = sgd(SimpleParameters(parameter))
        alive.append(opt)
        def hook(p, opt=opt):
            if threads:
                other = threading.Thread(target=opt.step)
                other.start()
                other.join()
            else:
                opt.step()
            opt.zero_grad()
        parameter.register_post_accumulate_grad_hook(hook)
    batches = rows()
    alive.append((model, batches))
    for _ in range(2):
        for (x,) in batches:
            model(x).square().mean().backward()

class SimpleParameters:
    def __init__(self, *parameters):
        self.held = parameters
    def parameters(self):
        return list(self.held)

# What a model is made of, and who sets threads

class Translation(nn.Module):
    def __init__(self):
        super().__init__()
        self.entities = nn.Embedding(20, 4)
    def forward(self, x):
        return self.entities(x)

def without_products():
    model = Translation()
    opt = sgd(model)
    alive.append((model, opt))
    for _ in range(6):
        opt.zero_grad()
        head, tail = model(torch.randint(0, 20, (8,))), model(torch.randint(0, 20, (8,)))
        (head - tail).abs().sum(1).mean().backward()
        opt.step()

class Packed(nn.Module):
    # As cellpose: convolutions in MKL-DNN's layout on a CPU.
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x):
        return self.conv(x.to_mkldnn()).to_dense()

def in_own_layout():
    model = Packed()
    opt = sgd(model)
    alive.append((model, opt))
    for _ in range(6):
        opt.zero_grad()
        model(torch.randn(4, 1, 8, 8)).mean().backward()
        opt.step()

def sets_threads():
    torch.set_num_threads(1)
    supervised()

def asks_for_threads():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    supervised()

def watched(action, batch=0):
    alive.clear()
    spans.clear()
    paths = dict(script=__file__, argv=(), events_path="", trial_dir="")
    made = Session(Plan(nonce="n", batch=batch, changes=(), **paths), None)
    steps = []
    made.recorder.step = lambda row, loss, batches: steps.append((row[2], row[5], row[6] / 1e9))
    made.begin()
    action()
    run = made.facts()
    record = made.torch_hooks.loader.train
    left = None if record is None else record.left
    made.patches.undo_all()
    made.boundary.release()
    made.hooks.remove()
    loader, model = run.loader, run.model
    return dict(
        steps=steps, gathers=run.gathers, source=run.samples_source, left=left, loader=loader is not None,
        in_thread=run.loader_in_thread, takes_one=loader and loader.takes_one,
        shards=loader and loader.shards,
        products=model and model.products, mkldnn=model and model.mkldnn,
        sets_threads=run.sets_threads, spans=[*spans],
        faults=sorted(made.faults.off))

here = os.path.dirname(os.path.abspath(__file__))
os.makedirs(os.path.join(here, "gymnasium", "wrappers"))
for name in ("__init__.py", os.path.join("wrappers", "__init__.py")):
    open(os.path.join(here, "gymnasium", name), "w").close()
with open(os.path.join(here, "gymnasium", "wrappers", "common.py"), "w") as file:
    print("class OrderEnforcing:", file=file)
    print("    def __init__(self, env): self.env = env", file=file)
    print("    def step(self, action): return self.env.step(action)", file=file)
sys.path.insert(0, here)

found = dict(
    on_policy=watched(on_policy),
    with_callback=watched(lambda: on_policy(True)),
    by_hand=watched(lambda: Agent().play()),
    scaffolded=watched(test_ppo),
    in_environment=watched(in_environment),
    without_environment=watched(lambda: in_environment(False)),
    replayed=watched(acting_in_training_mode, batch=8),
    supervised=watched(supervised),
    features=watched(judged_by_features),
    prefetched=watched(lambda: learn(Prefetched(rows()))),
    endless=watched(endless),
    detecting=watched(detecting),
    padded=watched(padded),
    taken_out=watched(taken_out),
    stacked=watched(lambda: learn(rows(8, 1, collate_fn=stacked))),
    collated=watched(lambda: learn(rows(8, 1))),
    piped=watched(lambda: piped(by_worker)),
    repeating=watched(lambda: piped(str, drawn_by)),
    by_helper=watched(lambda: learn(DataLoader(Shared(), batch_size=8), of=lambda batch: batch)),
    in_backward=watched(lambda: in_backward(False)),
    in_threads=watched(lambda: in_backward(True)),
    without_products=watched(without_products),
    in_own_layout=watched(in_own_layout),
    sets_threads=watched(sets_threads),
    asks_for_threads=watched(asks_for_threads),
)
reported(**found)
"""
)
EVALUATION, ROLLOUT = 1, 64


@pytest.fixture(scope="module")
def loops(tmp_path_factory: Any) -> Any:
    from trial_kit import runner

    folder: Path = tmp_path_factory.mktemp("packages")
    ran = runner(folder)(SCRIPT, bare=True, timeout_s=300)
    assert ran.code == 0, ran.err
    return {name: SimpleNamespace(**reported) for name, reported in ran.reported.items()}


def marked(loop: Any, bit: int) -> list[int]:
    """Numbers of the steps with this bit in their mark."""
    return [n for n, (_, mark, _) in enumerate(loop.steps) if mark & bit]


def samples(loop: Any) -> list[int]:
    return [count for count, _, _ in loop.steps]


def test_nothing_of_it_breaks_a_seam(loops: Any) -> None:
    assert {name: loop.faults for name, loop in loops.items() if loop.faults} == {}


def test_rollouts_in_evaluation_mode_are_training(loops: Any) -> None:
    """As stable-baselines3 learns: rollouts, then several passes of minibatches over them."""
    loop = loops["on_policy"]
    assert samples(loop) == [8] * 12
    assert marked(loop, EVALUATION) == []
    assert marked(loop, ROLLOUT) == [4, 8], "before the first step nobody knows which model trains"
    assert not any(aside_s for _, _, aside_s in loop.steps)
    assert (loop.gathers, loop.source) == (True, "input")


def test_an_evaluation_that_a_rollout_calls_back_is_taken_off_and_nothing_more(loops: Any) -> None:
    loop = loops["with_callback"]
    assert marked(loop, EVALUATION) == [4]
    (span_s,) = loop.spans
    # Until the next action, a fifth of a second later; twice as much belongs to the rollout.
    assert span_s <= loop.steps[4][2] <= span_s + 0.4


def test_an_agent_that_switches_the_mode_for_each_action_is_never_evaluated(loops: Any) -> None:
    loop = loops["by_hand"]
    assert (marked(loop, EVALUATION), marked(loop, ROLLOUT)) == ([], [1, 2, 3, 4, 5])


def test_a_training_in_a_function_called_test_is_one(loops: Any) -> None:
    assert marked(loops["scaffolded"], EVALUATION) == []
    assert marked(loops["scaffolded"], ROLLOUT) == [4, 8]


def test_what_steps_an_environment_gathers_whatever_it_is_called(loops: Any) -> None:
    loop, other = loops["in_environment"], loops["without_environment"]
    assert marked(loop, ROLLOUT) == [0, 1, 2, 3]
    assert marked(loop, EVALUATION) == []
    assert (marked(other, ROLLOUT), marked(other, EVALUATION)) == ([], [1, 2, 3])


def test_replayed_batches_are_known_by_the_environment_that_fills_their_memory(loops: Any) -> None:
    loop = loops["replayed"]
    assert (loop.gathers, loop.source, samples(loop)) == (True, "option", [8] * 6)


@pytest.mark.parametrize(("kind", "steps"), [("supervised", [2, 5]), ("features", [4, 8])])
def test_an_evaluation_is_one_as_before(loops: Any, kind: str, steps: list[int]) -> None:
    """By the mode alone, and by a loader without gradients, whatever the function is called."""
    assert (marked(loops[kind], EVALUATION), marked(loops[kind], ROLLOUT)) == (steps, [])
    assert not loops[kind].gathers


def test_a_loader_that_a_thread_reads_is_known_to_be_there(loops: Any) -> None:
    assert (loops["prefetched"].loader, loops["prefetched"].in_thread) == (False, True)
    assert not any(loop.in_thread for name, loop in loops.items() if name != "prefetched")


def test_an_iterator_for_all_epochs_is_at_the_place_in_its_epoch(loops: Any) -> None:
    assert samples(loops["endless"]) == [8] * 10
    assert loops["endless"].left == 1, "of four, after two epochs and three batches"


def test_boxes_that_were_as_many_as_images_are_not_counted_for_them(loops: Any) -> None:
    assert samples(loops["detecting"]) == [8, 8, 8, 4] * 2


def test_a_batch_reports_its_own_length(loops: Any) -> None:
    assert samples(loops["padded"]) == [2] * 16


def test_a_sample_that_is_taken_out_of_its_batch_is_noticed(loops: Any) -> None:
    assert [loops[kind].takes_one for kind in ("taken_out", "stacked", "collated", "endless")] == [
        *(True, False, False, False)
    ]


def test_data_share_themselves_out_by_a_stage_or_a_helper(loops: Any) -> None:
    assert [loops[kind].shards for kind in ("piped", "by_helper", "repeating")] == [True, True, False]


@pytest.mark.parametrize("kind", ["in_backward", "in_threads"])
def test_steps_inside_of_a_backward_pass_are_one_for_each(loops: Any, kind: str) -> None:
    """A device's own thread calls hooks on gradients, where steps cannot be followed."""
    assert len(loops[kind].steps) == 8
    assert samples(loops[kind])[1:] == [8] * 7


def test_a_model_without_a_product_is_known_as_one(loops: Any) -> None:
    assert [loops[kind].products for kind in ("without_products", "supervised")] == [False, True]


def test_layers_that_multiply_in_a_layout_of_their_own_are_known(loops: Any) -> None:
    assert {name for name, loop in loops.items() if loop.mkldnn} == {"in_own_layout"}


def test_who_sets_threads_is_reported_from_who_asks_for_their_number(loops: Any) -> None:
    assert {name for name, loop in loops.items() if loop.sets_threads} == {"sets_threads"}

"""What the source of a training loop says of deferred steps and of scaled gradients."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from autotune.source.loops import (
    COLLECTED,
    GROWN,
    OWN_AVERAGE,
    OWN_CLIPPING,
    OWN_DRAWS,
    OWN_GRADIENT,
    OWN_RATE,
    STEP_COUNTED,
    STEP_EVALUATED,
    UNREAD,
    Frame,
    is_only_pass,
    running_hazards,
    written_hazards,
)


def frame(text: str, mark: str = "backward()") -> Frame:
    """A frame that stands at the first line with the mark, in the function or lambda around it."""
    source = dedent(text)
    lines = source.splitlines()
    line = next(n for n, words in enumerate(lines) if mark in words)
    names = [w.split("def ")[1].split("(")[0] for w in lines[: line + 1] if w.lstrip().startswith("def ")]
    return Frame(source, line + 1, names[-1] if names else "<module>")


def hazards(*texts: str, modules: tuple[str, ...] = (), marks: tuple[str, ...] = ()) -> set[str]:
    frames = [frame(text, *marks[i - 1 : i] if i else ()) for i, text in enumerate(texts)]
    return set(running_hazards(frames, [dedent(module) for module in modules]))


EPOCHS = """
for epoch in range(args.epochs):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        {}
"""


@pytest.mark.parametrize(
    "line",
    [
        "pass",
        "total += loss.item()",
        "if i % args.log_interval == 0: print(i, loss.item())",
        "if not math.isfinite(loss.item()): sys.exit(1)",
        "x.requires_grad = False",
        "averaged.update_parameters(model)",
        "semantic(x).update(y)",
        "moving_loss.update(loss.item())",
        "set_momentum(optimizer, 0.9)",
        "if i % 10 == 0: check_retrieval(model)",
        "if i % 10 == 0: accuracies.append(accuracy(model, x, y))",
        "if evaluating: evaluate(model, held_out)",
    ],
)
def test_a_loop_over_epochs_may_be_accumulated(line: str) -> None:
    assert hazards(EPOCHS.format(line)) == set()


def test_the_end_of_a_dry_run_is_no_count() -> None:
    """As in PyTorch's MNIST example."""
    loop = """
    def train(args, model, device, train_loader, optimizer, epoch):
        model.train()
        for batch_idx, (data, target) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if batch_idx % args.log_interval == 0:
                print(epoch, batch_idx * len(data))
                if args.dry_run:
                    break
    """
    main = """
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        scheduler.step()
    """
    assert hazards(loop, main, marks=("train(args",)) == set()


@pytest.mark.parametrize(
    "text",
    [
        EPOCHS.format("if i >= args.max: break"),
        EPOCHS.format("if done == 100: raise StopIteration"),
        EPOCHS.format("if i > 3: sys.exit()"),
        EPOCHS.replace("loader", "islice(loader, n)"),
        EPOCHS.replace("enumerate(loader)", "zip(range(n), loader)"),
        EPOCHS.replace("for epoch in range(args.epochs)", "while k < n").format("k = k + 1"),
        EPOCHS.replace("range(args.epochs)", "range(max_steps // len(train_loader) + 1)"),
        EPOCHS.format("n += 1") + "    if n > limit:\n        break\n",
        "while True:\n    loss(next(batches)).backward()\n    if i >= n: break\n",
        "while True:\n    loss(next(batches)).backward()\n    stop(n)\ndef stop(n):\n    exit()\n",
        "try:\n    while True:\n        loss(next(batches)).backward()\nexcept StopIteration:\n    pass\n",
        "for i in itertools.count():\n    loss(next(batches)).backward()\n    if i == n:\n        break\n",
        "while i:\n    loss(next(batches)).backward()\n",
    ],
)
def test_a_loop_that_ends_by_a_count_of_steps_is_reported(text: str) -> None:
    assert STEP_COUNTED in hazards(text)


@pytest.mark.parametrize(
    "text",
    [
        "while True:\n    loss(next(batches)).backward()\n",
        "for i in itertools.count():\n    loss(next(batches)).backward()\n    if i % 100 == 0: print(i)\n",
    ],
)
def test_a_loop_that_nothing_ends_ends_by_no_count(text: str) -> None:
    assert hazards(text) == set()


@pytest.mark.parametrize(
    "line",
    [
        "if seen % args.eval_interval == 0: best = min(best, validate(model, held_out))",
        "if not (i + 1) % 50: run_evaluation()",
        "if i % 50 == 0: score(model)",
        "if i % 50 == 0:\n            model.eval(); print(total(model)); model.train()",
    ],
)
def test_an_evaluation_every_so_many_steps_is_reported(line: str) -> None:
    helpers = "def score(model):\n    model.eval()\n    return total(model)\n"
    assert hazards(EPOCHS.format(line), modules=(helpers,)) == {STEP_EVALUATED}
    assert hazards(EPOCHS.replace("        {}", "    {}").format("pass")) == set()


def test_the_loop_is_found_in_whatever_file_it_is() -> None:
    engine = """
    def fit(model, optimizer, loader, steps):
        done = 0
        while True:
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
                done += 1
                if done >= steps:
                    return
    """
    main = "def main():\n    fit(model, optimizer, loader, 80)\nmain()\n"
    assert written_hazards(ast.parse(main)) == set()
    assert hazards(engine, main, marks=("fit(model",)) == {STEP_COUNTED}


def test_what_a_step_counts_ends_the_loops_around_it() -> None:
    step = """
    class Trainer:
        def step(self, batch):
            self.loss(batch).backward()
            self.optimizer.step()
            self.seen += 1
    """
    ends = """
    def run(trainer, limit):
        while trainer.seen < limit:
            for batch in trainer.loader:
                trainer.step(batch)
    """
    assert hazards(step, ends, marks=("trainer.step(batch)",)) == {STEP_COUNTED}
    by_epoch = ends.replace("trainer.seen < limit", "trainer.epoch < limit")
    assert hazards(step, by_epoch, marks=("trainer.step(batch)",)) == set()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("for p in model.parameters(): p.grad.data.clamp_(-1, 1)", OWN_GRADIENT),
        ("norm = sum(p.grad.norm() for p in model.parameters())", OWN_GRADIENT),
        ("torch.nn.utils.clip_grads_with_norm_(params, 1.0, norm)", OWN_GRADIENT),
        ("helpers.clip_gradient(optimizer, 0.1)", OWN_GRADIENT),
        ("x = x + torch.randn(x.shape, generator=noise)", OWN_DRAWS),
        ("t = self.rng.integers(0, 10, len(x))", OWN_DRAWS),
        ("model_ema.update(model)", OWN_AVERAGE),
        ("update_momentum(model, slow, m=0.99)", OWN_AVERAGE),
        ("learner.update_moving_average()", OWN_AVERAGE),
        ("self._momentum_update_key_encoder()", OWN_AVERAGE),
        ("ModelEMA.update(self, model)", OWN_AVERAGE),
        ("for a, b in zip(slow.parameters(), model.parameters()): a.data.mul_(m).add_(b)", OWN_AVERAGE),
        ("helpers.soften(target, model)", OWN_AVERAGE),
        ("for g in optimizer.param_groups: g['lr'] = rate", OWN_RATE),
        ("helpers.adjust(optimizer, i)", OWN_RATE),
    ],
)
def test_code_that_does_more_than_step_is_reported_also_in_what_the_loop_calls(line: str, word: str) -> None:
    helpers = """
    def clip_gradient(optimizer, limit):
        inner(optimizer, limit)
    def inner(optimizer, limit):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.data.clamp_(-limit, limit)
    def soften(target, source):
        for k, v in target.state_dict().items():
            v *= 0.9
            v += 0.1 * source.state_dict()[k]
    def adjust(optimizer, i):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / i
    def never_called(p):
        p.grad = None
    """
    assert word in hazards(EPOCHS.format(line), modules=(helpers,))
    assert hazards(EPOCHS.format("pass"), modules=(helpers,)) == set()


def test_an_optimizer_of_the_scripts_own_is_an_optimizer() -> None:
    own = """
    class Mine(torch.optim.Optimizer):
        def step(self):
            for p in self.params:
                p.data.add_(p.grad)
        def zero_grad(self):
            for p in self.params:
                p.grad = None
    """
    assert hazards(EPOCHS.format("pass"), modules=(own,)) == set()


def test_lambdas_and_comprehensions_belong_to_the_loop_they_run_in() -> None:
    text = "for x in islice(loader, n):\n    call(lambda: loss(x).backward()); k = [a for a in b]\n"
    inner = Frame(text, 2, "<lambda>")
    assert set(running_hazards([inner, Frame(text, 2, "<module>")])) == {STEP_COUNTED}
    listed = "[loss(x).backward() for x in islice(loader, n)]\n"
    assert set(running_hazards([Frame(listed, 1, "<listcomp>")])) == {STEP_COUNTED}


@pytest.mark.parametrize(
    "text", ["loss.backward()\n", "def f():\n  loss.backward()\n", "for x in y\n backward()\n"]
)
def test_where_no_loop_is_seen_nothing_is_known(text: str) -> None:
    assert hazards(text) == {UNREAD}


@pytest.mark.parametrize(
    ("line", "clips"),
    [
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", True),
        ("accelerator.clip_grad_norm_(model.parameters(), 1.0)", True),
        ("if accelerator.sync_gradients: accelerator.clip_grad_norm_(model.parameters(), 1.0)", False),
        ("if limit and accelerator.sync_gradients: clip_all(model)", False),
        ("if accelerator.sync_gradients or limit: clip_all(model)", True),
        ("if not accelerator.sync_gradients: clip_all(model)", True),
        ("accelerator.sync_gradients and bar.update(1); clip_all(model)", True),
        ("clip_all(model)", True),
    ],
)
def test_clipping_where_gradients_may_not_be_whole_is_reported(line: str, clips: bool) -> None:
    helper = """
    def clip_all(model):
        clip_grad_value_(model.parameters(), 1.0)
    """
    library = """
    class Accelerator:
        def clip_grad_norm_(self, parameters, norm):
            return get_total_norm([p.grad for p in parameters])
    """
    found = hazards(EPOCHS.format(line), modules=(helper, *((library,) if "accelerator." in line else ())))
    assert found == ({OWN_CLIPPING} if clips else set())
    assert OWN_CLIPPING not in written_hazards(ast.parse(EPOCHS.format(line)))


# What is trained on is collected by the loop


def acts(step: str, begin: str = "state = env.reset()") -> str:
    return f"""
    for t in range(steps):
        {step}
        x, y = batch()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if over:
            {begin}
    """


REMEMBERED = """
class Agent:
    def remember(self, *values):
        self.memory.append(values)
    def replay(self, size):
        batch = {}
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
"""
PLAYED = """
for episode in range(n):
    state = world.begin()
    while True:
        agent.remember(state, 1)
        agent.replay(32)
"""


@pytest.mark.parametrize(
    "step",
    [
        "state, reward, over = env.step(action)",
        "state, reward, over, cut, info = env.step(action)",
        "memory.append((state, action)); batch = random.sample(memory, size)",
        "memory.push(state); batch = memory.sample(size)",
        "pool += [1]; pool.extend(new()); x = torch.stack(random.choices(pool, k=size))",
        "data.append(new()); places = torch.randint(0, len(data), (size,))",
        "buffer.add(new()); places = rng.integers(len(buffer), size=size)",
    ],
)
def test_a_loop_that_fills_what_it_draws_from_or_steps_an_environment_collects(step: str) -> None:
    assert COLLECTED in hazards(acts(step))


@pytest.mark.parametrize(
    "draws", ["random.sample(self.memory, size)", "self.memory[np.random.choice(len(self.memory))]"]
)
def test_a_memory_that_functions_fill_and_read_is_found_from_the_loop_around_them(draws: str) -> None:
    assert COLLECTED in hazards(REMEMBERED.format(draws), PLAYED, marks=("agent.replay",))


ROUNDS = """
for round in range(10):
    {}
    for x, y in DataLoader({}, batch_size=8):
        model(x).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("line", "data", "grows"),
    [
        ("buffer.rows.append(play(model))", "buffer", True),
        ("buffer.add(play(model))", "dataset=buffer", True),
        ("self.data.extend(label(model))", "self.data", True),
        ("losses.append(round)", "buffer", False),
        ("buffering.rows.append(round)", "buffer", False),
    ],
)
def test_samples_that_are_added_to_the_data_set_of_a_loader_are_found(
    line: str, data: str, grows: bool
) -> None:
    assert (GROWN in hazards(ROUNDS.format(line, data))) is grows


@pytest.mark.parametrize(
    ("step", "begin"),
    [
        ("losses.append(loss.item())", "pass"),
        ("places = torch.randint(0, len(data) - block, (size,))", "losses.append(1)"),
        ("loss, accuracy, count = trainer.step(batch)", "pass"),
        ("optimizer.step(closure)", "metric.reset()"),
        ("noise = normal.sample(shape); seen.add(i)", "meter.reset()"),
        ("evaluate()", "meter.reset()"),
    ],
)
def test_other_loops_collect_nothing(step: str, begin: str) -> None:
    """In the last one an environment is stepped to see how good the model is."""
    judged = "def evaluate():\n    state = env.reset()\n    state, reward, over = env.step(1)\n"
    assert COLLECTED not in hazards(acts(step, begin), modules=(judged,))


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("for e in range(9):\n    for i in range(0, n, size):\n        loss.backward()", True),
        ("for x in batches():\n    if step > limit: break\n    loss.backward()", False),
        ("while True:\n    loss.backward()", False),
        ("for x in batches():\n    loss.backward()\nfor y in others():\n    loss.backward()", False),
        ("while steps < n:\n    for x in batches():\n        loss.backward()\n        steps += 1", False),
    ],
)
def test_a_loop_over_passes_alone_is_reported_from_one_that_a_count_of_steps_ends(text, is_one):
    assert is_only_pass([frame(text)]) is is_one


def test_a_function_with_the_backward_pass_is_called_from_one_loop():
    step = frame("def step(x):\n    loss(x).backward()")
    once = "for x in batches():\n    step(x)"
    twice = f"{once}\nfor x in range(9):\n    step(x)"
    assert is_only_pass([step, frame(once, "step(x)")])
    assert not is_only_pass([step, frame(twice, "step(x)")])

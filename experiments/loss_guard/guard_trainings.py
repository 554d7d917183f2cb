"""Small trainings of a few tenths of a second, as they should be, harmlessly changed, or broken on purpose.

Plain PyTorch on the CPU with data made here: a perceptron, a convolutional net, a transformer. The
seed sets weights, order and augmentation, so that a run and its changed twin see the same samples.
"""

import functools
import math

import torch
from torch import nn
from torch.func import functional_call

STEPS, BATCH, MICRO = 96, 32, 4
WORKLOADS = ("mlp", "cnn", "text")

BENIGN = ("same", "bf16", "channels_last", "fused", "accumulation", "workers", "order")
"""Changes that may not be refused: nothing; rounding; memory layout; another kernel of the optimizer;
micro-batches; augmentation drawn from other random streams, or samples in another order, both judged by
distribution (with another order two runs of one seed share the first weights alone)."""

HARMS = (
    "delay_1", "delay_2", "delay_5", "delay_10",
    "fp16_overflow", "fp16_skips", "fp16_underflow", "saturation",
    "accumulation_sum", "accumulation_twice", "dropped_samples",
    "frozen_first", "frozen_all_but_last", "stale_weights", "stale_weights_10",
)  # fmt: skip
"""delay_N: N of 100 updates are lost. fp16_overflow: gradients leave the range of the format. fp16_skips: a
scaler skips two of three updates. fp16_underflow: small gradients become zero. saturation: activations are
cut as by a badly scaled 8-bit format. accumulation_sum and _twice: gradients of micro-batches are added, or
divided once too often. dropped_samples: half of every batch is left out. frozen: parameters the optimizer
does not know. stale_weights: forwards run on half-precision copies of the weights made at the start, or
made anew every tenth step only."""

REDEALS = frozenset({"workers", "order"})


def _data(workload):
    made = torch.Generator().manual_seed(20)
    if workload == "mlp":
        x = torch.randn(2048, 20, generator=made)
        teacher = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 8))
        for p in teacher.parameters():
            p.data = torch.randn(p.shape, generator=made) * (1.5 / math.sqrt(p.shape[-1]))
        with torch.no_grad():
            y = (3.0 * teacher(x)).argmax(1)
        return x, y
    if workload == "cnn":
        y = torch.randint(0, 6, (2048,), generator=made)
        shapes = torch.randn(6, 1, 12, 12, generator=made)
        return shapes[y] + 1.6 * torch.randn(2048, 1, 12, 12, generator=made), y
    table = torch.softmax(2.5 * torch.randn(16, 16, 16, generator=made), -1)
    x = torch.randint(0, 16, (1024, 26), generator=made)
    for k in range(2, 26):
        x[:, k] = torch.multinomial(table[x[:, k - 2], x[:, k - 1]], 1, generator=made)[:, 0]
    return x[:, :-1], x[:, 1:]


class _Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(16, 32), nn.Parameter(0.02 * torch.randn(25, 32))
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.wide = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 16)

    def forward(self, x):
        h = self.token(x) + self.place
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(h + self.wide(self.norm2(h)))


def _model(workload):
    if workload == "mlp":
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    if workload == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
            nn.Linear(144, 6),
        )  # fmt: skip
    return _Text()


def _optimizer(workload, parameters, *, fused):
    if workload == "cnn":
        return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, fused=fused)
    return torch.optim.AdamW(parameters, lr=3e-3, fused=fused)


@functools.cache
def _held(workload):
    return _data(workload)


def _augmented(workload, x, stream):
    if workload == "text":
        lost = torch.rand(x.shape, generator=stream) < 0.03
        return torch.where(lost, torch.randint(0, 16, x.shape, generator=stream), x)
    return x + 0.1 * torch.randn(x.shape, generator=stream)


class _Training:
    def __init__(self, workload, change, seed):
        self.workload, self.change = workload, change
        torch.manual_seed(seed)
        self.model = _model(workload)
        if change == "channels_last":
            self.model = self.model.to(memory_format=torch.channels_last)
        if change == "saturation":
            for module in self.model.modules():
                if isinstance(module, (nn.Linear, nn.Conv2d)):
                    module.register_forward_hook(lambda _m, _i, out: out.clamp(-0.4, 0.4))
        self.order = torch.Generator().manual_seed(1000 + seed + (500_000 if change == "order" else 0))
        self.stream = torch.Generator().manual_seed(2000 + seed + (500_000 if change in REDEALS else 0))
        parameters = list(self.model.parameters())
        if change == "frozen_first":
            parameters = parameters[2:]
        elif change == "frozen_all_but_last":
            parameters = parameters[-2:]
        self.optimizer = _optimizer(workload, parameters, fused=True if change == "fused" else None)
        self.copies = None
        self.x, self.y = _held(workload)
        self.left = torch.empty(0, dtype=torch.long)

    def _batch(self):
        if len(self.left) < BATCH:
            self.left = torch.randperm(len(self.x), generator=self.order)
        index, self.left = self.left[:BATCH], self.left[BATCH:]
        x, y = _augmented(self.workload, self.x[index], self.stream), self.y[index]
        if self.change == "dropped_samples":
            return x[: BATCH // 2], y[: BATCH // 2]
        if self.change == "channels_last" and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y

    def _loss(self, x, y, number):
        if self.change in ("stale_weights", "stale_weights_10"):
            every = 10 if self.change == "stale_weights_10" else STEPS
            if number % every == 0:
                self.copies = {
                    n: p.detach().to(torch.bfloat16).float().requires_grad_()
                    for n, p in self.model.named_parameters()
                }
            for copy in self.copies.values():
                copy.grad = None
            out = functional_call(self.model, self.copies, (x,))
        else:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.change == "bf16"):
                out = self.model(x)
        return nn.functional.cross_entropy(out.float().flatten(0, -2), y.flatten())

    def step(self, number):
        """One update; the mean loss of its micro-batches."""
        x, y = self._batch()
        self.optimizer.zero_grad()
        split = MICRO if self.change.startswith("accumulation") else 1
        share = {"accumulation_sum": 1.0, "accumulation_twice": 1.0 / split**2}.get(self.change, 1.0 / split)
        losses = []
        for part_x, part_y in zip(x.chunk(split), y.chunk(split), strict=True):
            loss = self._loss(part_x, part_y, number)
            (loss * share).backward()
            losses.append(loss.item())
        if self.copies is not None:
            for name, parameter in self.model.named_parameters():
                parameter.grad = self.copies[name].grad
        self._spoil_gradients()
        if not self._loses_update(number):
            self.optimizer.step()
        return math.fsum(losses) / len(losses)

    def _spoil_gradients(self):
        scale = {"fp16_overflow": 2.0**24, "fp16_underflow": 2.0**-18}.get(self.change)
        if scale is None:
            return
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = (parameter.grad * scale).half().float() / scale

    def _loses_update(self, number):
        if self.change == "fp16_skips":
            return number % 3 != 0
        every = {"delay_1": 100, "delay_2": 50, "delay_5": 20, "delay_10": 10}.get(self.change)
        # In the middle of each stretch: also one in a hundred happens inside a short run.
        return every is not None and number % every == every // 2


@functools.lru_cache(maxsize=256)
def losses(workload, change, seed):
    """The loss of every step; what is no number ends the run there."""
    torch.set_num_threads(1)
    training = _Training(workload, change, seed)
    found = []
    for number in range(STEPS):
        found.append(training.step(number))
        if not math.isfinite(found[-1]):
            break
    return tuple(found)


def applies(workload, change):
    """Whether a change does anything there."""
    return change != "channels_last" or workload == "cnn"

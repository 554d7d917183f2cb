"""A short training run that reports which kernels it launched; run by knobs.py, with a knob or without.

python profiled.py conv|attention[-zeros|-uneven]

`-zeros` fills gradients with zeros where the others let them go; `-uneven` trains on batches of two more sizes
before the reported steps.
"""

import json
import sys
from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
            for _ in range(4)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(dim=(2, 3)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, dim=2)
        q, k, v = (p.view(batch, length, 4, width // 4).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(batch, length, width)
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Attention(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


kind, _, variant = sys.argv[1].partition("-")
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
count, side, length, batch = (2048, 32, 128, 64) if device == "cuda" else (64, 8, 8, 8)
if variant == "uneven":
    batch = 48  # like no other size: the compiler takes equal ones for the same
images = torch.randn(count, 3, side, side) if kind == "conv" else torch.randn(count, length, 64)
data = TensorDataset(images, torch.randint(0, 10, (count,)))
loader = DataLoader(data, batch_size=batch, drop_last=True)
model = (Conv() if kind == "conv" else Attention()).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(x, y):
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad(set_to_none=variant != "zeros")
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def steps(wanted):
    done = 0
    while True:
        for x, y in loader:
            loss = step(x, y)
            done += 1
            if done == wanted:
                return loss.item()


def graphs():
    """Pieces of code that the compiler was given so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["stats"]["unique_graphs"] if dynamo else 0


steps(16)
if variant == "uneven":
    for size in (batch - 1, batch - 2):
        step(*data[:size])
if device == "cuda":
    torch.cuda.reset_peak_memory_stats()
activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
with profile(activities=activities) as profiler:
    loss = steps(3)
kernels, calls, copies = Counter(), Counter(), Counter()
for event in profiler.events():
    if str(event.device_type).endswith("CUDA"):
        (copies if event.name.startswith(("Memcpy", "Memset")) else kernels)[event.name] += 1
    elif event.name.startswith(("cuda", "cu")):
        calls[event.name] += 1
segments = torch.cuda.memory_snapshot() if device == "cuda" else []
reported = {
    "loss": loss,
    "kernels": dict(kernels),
    "calls": {name: n for name, n in calls.items() if "Launch" in name or "Graph" in name},
    "copies": dict(copies),
    "launched": sum(kernels.values()),
    "waits": calls["cudaStreamSynchronize"],
    "graphs": graphs(),
    "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    "expandable": sum(bool(segment.get("is_expandable")) for segment in segments),
    "backend": torch.cuda.get_allocator_backend() if device == "cuda" else None,
}
print("REPORTED " + json.dumps(reported), flush=True)

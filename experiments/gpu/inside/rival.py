"""Let pytorch-autotune 2.0 tune the model of a workload on one of its batches; prints its choice as JSON.

    python rival.py gpt2 --budget 300 [--small] [--device cpu]

It is given what its README asks for: the model, a batch of the shape that is trained at, the loss. The batch lies
on the device already, so that neither loading nor copying is part of what it measures.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workloads"))

import torch
from torch.nn import functional as F


def made(name, small):
    """Model, batch, loss, optimizer's name and rate, as the script of this name has them."""
    torch.manual_seed(0)
    if name in ("resnet50", "vit_b16"):
        size, classes = (32, 10) if small else (224, 100)
        batch = 16 if small else 64
        pictures = torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
        if name == "resnet50":
            from resnet50 import ResNet

            model = ResNet([1, 1, 1, 1], 8, classes) if small else ResNet([3, 4, 6, 3], 64, classes)
            return model, pictures, F.cross_entropy, "sgd", 0.05
        from vit_b16 import ViT

        model = ViT(32, 8, 2, 2, 32, classes) if small else ViT(224, 16, 12, 12, 768, classes)
        return model, pictures, F.cross_entropy, "adamw", 3e-4
    if name == "gpt2":
        from gpt2 import GPT

        vocabulary, layers, heads, width = (512, 2, 2, 32) if small else (50_304, 12, 12, 768)
        length, batch = (32, 4) if small else (1024, 8)
        window = torch.randint(0, vocabulary, (batch, length + 1))
        given = {"x": window[:, :-1].contiguous(), "targets": window[:, 1:].contiguous()}
        return GPT(vocabulary, length, layers, heads, width), given, lambda out: out[1], "adamw", 3e-4
    from small_steps import Net

    table = torch.randn(256, 32), torch.randn(256)
    return Net(32, 64, 4 if small else 32), table, F.mse_loss, "adamw", 1e-3


parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("--budget", type=float, default=300.0)
parser.add_argument("--small", action="store_true")
parser.add_argument("--device", default="cuda")
args = parser.parse_args()

from pytorch_autotune import autotune

model, batch, loss_fn, optimizer, lr = made(args.name, args.small)
began = time.monotonic()
found = autotune(
    model,
    batch,
    loss_fn=loss_fn,
    optimizer=optimizer,
    lr=lr,
    budget=args.budget,
    device=args.device,
    cache=False,
    verbose=False,
)
print("REPORTED " + json.dumps({"seconds": time.monotonic() - began, **found.report.to_dict()}), flush=True)

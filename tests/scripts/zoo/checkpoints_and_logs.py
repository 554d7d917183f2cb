"""Saves the best and the last weights, a history as CSV and JSON, and the optimizer's state."""
import argparse
import csv
import json
import pickle
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "runs" / "exp1")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

torch.manual_seed(0)
x = torch.randn(1600, 20)
y = (x[:, :5].sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
history, best = [], float("inf")

for epoch in range(args.epochs):
    total = 0.0
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item()
    history.append({"epoch": epoch, "loss": total / len(loader)})
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out / "last.pt")
    if total < best:
        best = total
        np.savez(args.out / "best.npz", **{k: v.numpy() for k, v in model.state_dict().items()})
    (args.out / "history.json").write_text(json.dumps(history))
    with open("metrics.csv", "a", newline="") as f:
        csv.writer(f).writerow([epoch, total / len(loader)])

with open(args.out / "rng.pkl", "wb") as f:
    pickle.dump(np.random.get_state(), f)
print(json.dumps(history[-1]))

"""Train a tiny network on scikit-learn's breast cancer table.

    python tabular_mlp.py --epochs 40000 --batch-size 456

569 tumours, 30 measured features each, benign or malignant. A fifth of them is held out; accuracy on it is
printed now and then. Every step sees the 456 others, the learning rate is small and the run long.
"""

import argparse

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def accuracy(model, features, labels):
    model.eval()
    right = (model(features).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40000)
    parser.add_argument("--batch-size", type=int, default=456)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--eval-every", type=int, default=1000, help="epochs")
    args = parser.parse_args()

    torch.manual_seed(0)
    features, labels = load_breast_cancer(return_X_y=True)
    features, labels = torch.tensor(features, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(labels))
    train, test = order[len(labels) // 5 :], order[: len(labels) // 5]
    mean, spread = features[train].mean(0), features[train].std(0)
    features = (features - mean) / spread
    loader = DataLoader(
        TensorDataset(features[train], labels[train]), batch_size=args.batch_size, shuffle=True
    )

    model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)

    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if (epoch + 1) % args.eval_every == 0:
            held_out = accuracy(model, features[test], labels[test])
            print(f"epoch {epoch} loss {loss.item():.4f} held-out accuracy {held_out:.3f}", flush=True)
    torch.save(model.state_dict(), "tumours.pt")


if __name__ == "__main__":
    main()

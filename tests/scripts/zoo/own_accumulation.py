"""Trains with gradient accumulation; schedule lengths follow from the number of updates."""
import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=16)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--num_train_epochs", type=int, default=5)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--dataloader_num_workers", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(77)
    x = torch.randn(1600, 36)
    y = torch.cos(x[:, :1] * 2) + x[:, 1:2]
    loader = DataLoader(TensorDataset(x, y), shuffle=True, batch_size=args.per_device_train_batch_size,
                        num_workers=args.dataloader_num_workers)
    model = nn.Sequential(nn.Linear(36, 192), nn.SiLU(), nn.Linear(192, 192), nn.SiLU(), nn.Linear(192, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    updates = args.num_train_epochs * math.ceil(len(loader) / args.gradient_accumulation_steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: max(0.0, 1 - s / updates))
    completed = 0
    for epoch in range(args.num_train_epochs):
        for step, (inputs, target) in enumerate(loader):
            loss = nn.functional.mse_loss(model(inputs), target) / args.gradient_accumulation_steps
            loss.backward()
            if (step + 1) % args.gradient_accumulation_steps == 0 or step == len(loader) - 1:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                completed += 1
        print(f"epoch {epoch}: {completed}/{updates} updates, loss {loss.item() * args.gradient_accumulation_steps:.4f}")


if __name__ == "__main__":
    main()

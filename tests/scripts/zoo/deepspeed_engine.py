import argparse
import os

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset

CONFIG = {
    "train_batch_size": 32,
    "steps_per_print": 1000,
    "zero_optimization": {"stage": 0},
    "zero_allow_untested_optimizer": True,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(20, 170)
        self.fc2 = nn.Linear(170, 1)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def main():
    parser = argparse.ArgumentParser(description="DeepSpeed on one process")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    deepspeed.init_distributed(dist_backend="gloo")

    torch.manual_seed(5)
    x = torch.randn(1600, 20)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    engine, optimizer, trainloader, _ = deepspeed.initialize(
        model=net, optimizer=optimizer, training_data=TensorDataset(x, x[:, 1:2] * x[:, :1]), config=CONFIG
    )
    for epoch in range(args.epochs):
        running = 0.0
        for inputs, targets in trainloader:
            loss = nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            running += loss.item()
        print(f"epoch {epoch}: {running:.4f}")


if __name__ == "__main__":
    main()

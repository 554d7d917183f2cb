"""Settings in a nested dictionary, an attribute of the trainer's class."""
import torch
from torch import nn


class Trainer:
    config = {
        "data": {"rows": 1600, "batch_size": 40},
        "optim": {"lr": 2e-3, "epochs": 6},
    }

    def __init__(self):
        torch.manual_seed(12)
        self.x = torch.rand(self.config["data"]["rows"], 10)
        self.y = (self.x.max(1).values > 0.92).float().unsqueeze(1)
        self.net = nn.Sequential(nn.Linear(10, 80), nn.GELU(), nn.Linear(80, 1))
        self.optim = torch.optim.AdamW(self.net.parameters(), lr=self.config["optim"]["lr"])

    def batches(self):
        size = self.config["data"]["batch_size"]
        for rows in torch.randperm(len(self.x)).split(size):
            yield self.x[rows], self.y[rows]

    def train(self):
        for epoch in range(self.config["optim"]["epochs"]):
            for x, y in self.batches():
                loss = nn.functional.binary_cross_entropy_with_logits(self.net(x), y)
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
            print(epoch, round(loss.item(), 4))


Trainer().train()

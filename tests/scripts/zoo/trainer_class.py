import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("trainer")


@dataclass
class History:
    losses: list = field(default_factory=list)

    def add(self, value):
        self.losses.append(value)


class Trainer:
    """Owns the model, the optimizer and the data."""

    def __init__(self, epochs=5, batch_size=25, lr=1e-3, device=None):
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.epochs = epochs
        self.history = History()
        torch.manual_seed(10)
        self.loader = self.build_data(batch_size)
        self.model = self.build_model().to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.loss_fn = nn.CrossEntropyLoss()

    def build_data(self, batch_size):
        x = torch.randn(1500, 40)
        y = x[:, :6].abs().argmax(1)
        return DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)

    def build_model(self):
        return nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 6))

    def train_step(self, batch):
        x, y = (t.to(self.device) for t in batch)
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.loss_fn(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self):
        self.model.train()
        for epoch in range(self.epochs):
            for batch in self.loader:
                self.history.add(self.train_step(batch))
            log.info("epoch %d loss %.4f", epoch, sum(self.history.losses[-60:]) / 60)
        return self.model


if __name__ == "__main__":
    Trainer().train()

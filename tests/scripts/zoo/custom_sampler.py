import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class HardFirst(Sampler):
    """Goes through the examples from the hardest on; shuffles those of one class of difficulty."""

    def __init__(self, difficulty, seed=0):
        self.difficulty, self.seed, self.epoch = difficulty, seed, 0

    def __len__(self):
        return len(self.difficulty)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        self.epoch += 1
        noise = torch.rand(len(self.difficulty), generator=g)
        return iter((-(self.difficulty + noise)).argsort().tolist())


class Net(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.l1 = nn.Linear(d_in, 150)
        self.l2 = nn.Linear(150, d_out)

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x)))


def fit():
    torch.manual_seed(2)
    x = torch.randn(1200, 24)
    y = x[:, :3].argmax(1)
    difficulty = (x.norm(dim=1)).round()
    loader = DataLoader(TensorDataset(x, y), batch_size=24, sampler=HardFirst(difficulty), drop_last=True)
    model = Net(24, 3)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    ce = nn.CrossEntropyLoss()
    for epoch in range(5):
        for xb, yb in loader:
            opt.zero_grad()
            loss = ce(model(xb), yb)
            loss.backward()
            opt.step()
        print("epoch %d loss %.4f" % (epoch, loss.item()))


fit()

"""Short rows in large batches first, whole rows in small ones later: both sizes come from one constant."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE = 32
STAGES = ((8, 2, 3), (32, 1, 3))  # length of a row, factor of the batch, passes


class Rows(Dataset):
    def __init__(self, n, length):
        self.x, self.length = torch.randn(n, 32, generator=torch.Generator().manual_seed(4)), length

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i, : self.length, None], self.x[i, :4].mean(0, keepdim=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.out = nn.Linear(1, 64), nn.Linear(64, 1)

    def forward(self, x):
        return self.out(torch.relu(self.wide(x)).mean(1))


torch.manual_seed(0)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for length, factor, passes in STAGES:
    loader = DataLoader(Rows(1600, length), batch_size=BATCH_SIZE * factor, shuffle=True)
    for _ in range(passes):
        for a, b in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(a), b)
            loss.backward()
            opt.step()
    print(length, loss.item())

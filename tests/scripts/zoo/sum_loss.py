import argparse
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader

# Autoencoder whose loss is a sum over pixels and examples, as in many papers.
parser = argparse.ArgumentParser()
parser.add_argument('--epochs', type=int, default=4)
parser.add_argument('--batch_size', type=int, default=32)
args = parser.parse_args()


class AE(nn.Module):
    def __init__(self):
        super(AE, self).__init__()
        self.fc1 = nn.Linear(144, 100)
        self.fc2 = nn.Linear(100, 12)
        self.fc3 = nn.Linear(12, 100)
        self.fc4 = nn.Linear(100, 144)

    def encode(self, x):
        return self.fc2(F.relu(self.fc1(x)))

    def decode(self, z):
        return self.fc4(F.relu(self.fc3(z)))

    def forward(self, x):
        return self.decode(self.encode(x.view(-1, 144)))


def loss_function(recon_x, x):
    return F.mse_loss(recon_x, x.view(-1, 144), reduction='sum')


torch.manual_seed(1)
base = torch.rand(6, 1, 12, 12)
images = [(base * torch.rand(6, 1, 1, 1)).sum(0) for _ in range(1600)]
loader = DataLoader(images, batch_size=args.batch_size, shuffle=True)
model = AE()
optimizer = optim.SGD(model.parameters(), lr=2e-5, momentum=0.9)

for epoch in range(1, args.epochs + 1):
    model.train()
    train_loss = 0
    for data in loader:
        optimizer.zero_grad()
        loss = loss_function(model(data), data)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print('====> Epoch: {} Average loss: {:.4f}'.format(epoch, train_loss / len(loader.dataset)))

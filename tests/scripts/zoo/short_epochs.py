"""A data set of five batches, many times over."""
import torch
from sklearn.datasets import load_iris
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Iris(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 64)
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


torch.manual_seed(0)
features, target = load_iris(return_X_y=True)
data = TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(target))
loader = DataLoader(data, batch_size=30, shuffle=True)
model = Iris()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for epoch in range(80):
    running = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item()
    if epoch % 20 == 19:
        print(epoch + 1, running / len(loader))

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1111)
data = torch.randn(1600, 30)
loader = DataLoader(TensorDataset(data, data.flip(1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(30, 160), nn.Tanh(), nn.Linear(160, 30))
optimizer = optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()


def train():
    total = 0.
    for batch, (x, y) in enumerate(loader):
        model.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


# At any point you can hit Ctrl + C to break out of training early.
try:
    for epoch in range(1, 6):
        print('| end of epoch {:3d} | loss {:5.3f}'.format(epoch, train()))
except KeyboardInterrupt:
    print('-' * 40)
    print('Exiting from training early')
except BaseException as error:
    print('stopped by', type(error).__name__)
    raise
torch.save(model, 'model.pt')

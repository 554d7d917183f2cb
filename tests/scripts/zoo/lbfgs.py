import torch
import torch.nn as nn
import torch.optim as optim


class Wave(nn.Module):
    """Predicts a sine from its past, one step in time after the other."""

    def __init__(self):
        super().__init__()
        self.cell1, self.cell2 = nn.LSTMCell(1, 20), nn.LSTMCell(20, 20)
        self.linear = nn.Linear(20, 1)

    def forward(self, signal):
        n = signal.size(0)
        h1, c1 = torch.zeros(n, 20), torch.zeros(n, 20)
        h2, c2 = torch.zeros(n, 20), torch.zeros(n, 20)
        outputs = []
        for x in signal.split(1, dim=1):
            h1, c1 = self.cell1(x, (h1, c1))
            h2, c2 = self.cell2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


if __name__ == '__main__':
    torch.manual_seed(0)
    phase = torch.randint(0, 80, (24, 1))
    data = torch.sin((torch.arange(12) + phase) / 6.0)
    inputs, target = data[:, :-1], data[:, 1:]
    seq = Wave()
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.5, max_iter=4, max_eval=5)
    for i in range(60):
        def closure():
            optimizer.zero_grad()
            loss = criterion(seq(inputs), target)
            loss.backward()
            return loss
        loss = optimizer.step(closure)
        if i % 10 == 0:
            print('STEP', i, 'loss:', loss.item())

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run_dir = sys.argv[1] if len(sys.argv) > 1 else "run_0"
os.makedirs(run_dir, exist_ok=True)
os.chdir(run_dir)
os.makedirs("weights", exist_ok=True)

torch.manual_seed(0)
x = torch.randn(1600, 26)
y = x.pow(3).mean(1, keepdim=True)
dataloader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(26, 190), nn.ReLU(), nn.Linear(190, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
log = open("loss.txt", "w")
for epoch in range(5):
    for inputs, labels in dataloader:
        loss = ((model(inputs) - labels) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    log.write(f"{epoch} {loss.item()}\n")
    torch.save(model.state_dict(), "weights/last.pt")
log.close()
model.load_state_dict(torch.load("weights/last.pt"))
print("done in", os.getcwd())

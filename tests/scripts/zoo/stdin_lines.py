"""One example a line from standard input: zcat table.csv.gz | python stdin_lines.py"""
import fileinput

import torch
from torch import nn

rows = [list(map(float, line.split(","))) for line in fileinput.input(files="-") if line.strip()]
table = torch.tensor(rows)
model = nn.Linear(table.shape[1] - 1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(50):
    for part in table.split(16):
        loss = nn.functional.mse_loss(model(part[:, :-1]), part[:, -1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())

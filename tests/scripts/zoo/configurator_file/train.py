"""Globals as options, some of them expressions: python train.py config/small.py --max_iters=50"""
import os

import torch
from torch import nn

# options
batch_size = 4 * 5
block_size = 18
gradient_accumulation_steps = 2 * 2
max_iters = 60
learning_rate = 6e-4
seed = 13
exec(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "configurator.py")).read())
# what follows is no option
vocab_size = 50
hidden = 80

torch.manual_seed(seed)
tokens = torch.randint(vocab_size, (9000,)).cumsum(0) % vocab_size


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden)
        self.mix = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, vocab_size))

    def forward(self, idx, target):
        return nn.functional.cross_entropy(self.mix(self.embed(idx)).flatten(0, 1), target.flatten())


def get_batch():
    at = torch.randint(len(tokens) - block_size - 1, (batch_size,))
    rows = at[:, None] + torch.arange(block_size)
    return tokens[rows], tokens[rows + 1]


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
for it in range(max_iters):
    for _ in range(gradient_accumulation_steps):
        loss = model(*get_batch()) / gradient_accumulation_steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if it % 20 == 0:
        print(it, loss.item() * gradient_accumulation_steps)

"""Learns the letters of what is piped in: python stdin_corpus.py < corpus.txt"""
import sys

import torch
from torch import nn

text = sys.stdin.read()
if not text:
    sys.exit("nothing to learn from")
codes = torch.tensor([min(ord(c), 255) for c in text])
torch.manual_seed(4)
model = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(200):
    at = torch.randint(len(codes) - 1, (16,))
    loss = nn.functional.cross_entropy(model(codes[at]), codes[at + 1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

"""Character model; every setting is one of the constants below."""
import torch
import torch.nn as nn
from torch.nn import functional as F

batch_size = 16      # independent sequences per forward pass
block_size = 24
accumulation_steps = 2
max_iters = 150
eval_interval = 50
learning_rate = 2e-3
n_embd = 64

torch.manual_seed(1337)
text = "".join("abcdefghij klmnopqrst uvwxyz"[(i * i + i // 7) % 28] for i in range(12000))
stoi = {c: i for i, c in enumerate(sorted(set(text)))}
data = torch.tensor([stoi[c] for c in text])
train_data, val_data = data[:10000], data[10000:]


def get_batch(split):
    source = train_data if split == "train" else val_data
    ix = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([source[i:i + block_size] for i in ix])
    y = torch.stack([source[i + 1:i + block_size + 1] for i in ix])
    return x, y


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(len(stoi), n_embd)
        self.position = nn.Embedding(block_size, n_embd)
        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.head = nn.Linear(n_embd, len(stoi))

    def forward(self, idx, targets):
        x = self.token(idx) + self.position(torch.arange(idx.size(1)))
        x = x + self.net(x.cumsum(1) / torch.arange(1, idx.size(1) + 1)[:, None])
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


model = CharModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
for it in range(max_iters):
    if it % eval_interval == 0:
        with torch.no_grad():
            print(it, sum(model(*get_batch("val")).item() for _ in range(4)) / 4)
    optimizer.zero_grad()
    for _ in range(accumulation_steps):
        loss = model(*get_batch("train")) / accumulation_steps
        loss.backward()
    optimizer.step()
print("done", loss.item() * accumulation_steps)

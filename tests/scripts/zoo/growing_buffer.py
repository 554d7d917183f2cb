"""Each round adds what the present model has chosen to a buffer, and trains on passes over all of it."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Buffer(Dataset):
    def __init__(self):
        self.rows = []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Walk:
    def __init__(self):
        self.place = torch.zeros(8)

    def step(self, action):
        self.place = 0.9 * self.place + 0.1 * torch.randn(8)
        self.place[action] += 0.2
        return self.place.clone(), float(self.place[0])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
buffer, env = Buffer(), Walk()
state = env.place.clone()
for round_ in range(10):
    for _ in range(64):
        with torch.no_grad():
            action = int(model(state).argmax())
        after, reward = env.step(action)
        buffer.rows.append((state, action, torch.tensor(reward)))
        state = after
    for states, actions, rewards in DataLoader(buffer, batch_size=16, shuffle=True):
        chosen = model(states).gather(1, actions[:, None]).squeeze(1)
        loss = nn.functional.mse_loss(chosen, rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(round_, loss.item())

"""A value network: before each update as many new transitions are collected as a quarter of the batch."""
import random
from collections import deque

import torch
from torch import nn

BATCH_SIZE = 64
memory = deque(maxlen=4000)


class Pole:
    def reset(self):
        self.state = torch.zeros(6)
        return self.state

    def step(self, action):
        self.state = 0.9 * torch.roll(self.state, 1)
        self.state[action] += 1.0
        return self.state.clone(), float(action == 1), self.state.sum().item() > 5


def collect(env, state, net, count):
    for _ in range(count):
        with torch.no_grad():
            action = random.randrange(3) if random.random() < 0.2 else net(state).argmax().item()
        following, reward, ended = env.step(action)
        memory.append((state.clone(), action, reward, following))
        state = env.reset() if ended else following
    return state


random.seed(0)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
env = Pole()
state = collect(env, env.reset(), net, BATCH_SIZE)
for update in range(300):
    state = collect(env, state, net, BATCH_SIZE // 4)
    states, actions, rewards, later = zip(*random.sample(memory, BATCH_SIZE))
    with torch.no_grad():
        target = torch.tensor(rewards) + 0.9 * net(torch.stack(later)).max(1).values
    value = net(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(value, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 50 == 0:
        print(update, loss.item())

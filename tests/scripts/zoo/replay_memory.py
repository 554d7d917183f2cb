"""Q-learning with a replay memory, in the shape of PyTorch's tutorial: one update after each action."""
import argparse
import random
from collections import deque, namedtuple
from itertools import count

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--updates", type=int, default=400)
args = parser.parse_args()

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *values):
        self.memory.append(Transition(*values))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class Corridor:
    def reset(self):
        self.place, self.time = 4, 0
        return self.look()

    def look(self):
        return np.eye(9, dtype=np.float32)[self.place]

    def step(self, action):
        self.place = min(8, max(0, self.place + (1 if action else -1)))
        self.time += 1
        return self.look(), float(self.place == 8), self.place in (0, 8) or self.time > 30, {}


random.seed(0), torch.manual_seed(0)
policy_net = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3)
memory, env, updates = ReplayMemory(2000), Corridor(), 0


def optimize_model():
    global updates
    if len(memory) < args.batch_size:
        return
    batch = Transition(*zip(*memory.sample(args.batch_size)))
    state = torch.from_numpy(np.stack(batch.state))
    with torch.no_grad():
        ahead = policy_net(torch.from_numpy(np.stack(batch.next_state))).max(1).values
    values = policy_net(state).gather(1, torch.tensor(batch.action)[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(values, torch.tensor(batch.reward) + 0.9 * ahead)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    updates += 1


while updates < args.updates:
    state = env.reset()
    for t in count():
        action = random.randrange(2)
        following, reward, done, _ = env.step(action)
        memory.push(state, action, following, reward)
        state = following
        optimize_model()
        if done or updates == args.updates:
            break
print("updates", updates, "transitions", len(memory))

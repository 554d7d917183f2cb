"""A policy collects a rollout, then trains on minibatches of it; the size of a minibatch is a constant."""
import torch
from torch import nn

BATCH_SIZE = 32
ROLLOUT = 256
ROUNDS = 12

torch.manual_seed(6)
policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)


class Corridor:
    def reset(self):
        self.state = torch.zeros(8)
        return self.state

    def step(self, action):
        self.state = torch.roll(self.state, 1) * 0.9
        self.state[action] += 1.0
        return self.state, float(action == 2), self.state.sum().item() > 6, {}


env = Corridor()
state = env.reset()
for round in range(ROUNDS):
    states, actions, rewards = [], [], []
    for _ in range(ROLLOUT):
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=policy(state)).sample().item()
        following, reward, done, info = env.step(action)
        states.append(state)
        actions.append(action)
        rewards.append(reward)
        state = env.reset() if done else following
    seen, taken, gained = torch.stack(states), torch.tensor(actions), torch.tensor(rewards)
    gained = gained - gained.mean()
    for start in range(0, ROLLOUT, BATCH_SIZE):
        part = slice(start, start + BATCH_SIZE)
        chosen = torch.log_softmax(policy(seen[part]), 1).gather(1, taken[part, None]).squeeze(1)
        loss = -(chosen * gained[part]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(round, sum(rewards) / ROLLOUT)

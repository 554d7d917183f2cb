"""A few labelled samples beside many unlabelled ones: one option sizes the batches of both."""
import argparse
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def forever(loader):
    while True:
        yield from loader


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--ratio", type=int, default=3)
    args = p.parse_args()
    torch.manual_seed(0)
    xl, xu = torch.randn(400, 24), torch.randn(3000, 24)
    few = DataLoader(TensorDataset(xl, xl[:, :4].argmax(1)), args.batch_size, shuffle=True, drop_last=True)
    many = DataLoader(TensorDataset(xu), args.batch_size * args.ratio, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(24, 160), nn.ReLU(), nn.Linear(160, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    unlabelled = forever(many)
    for epoch in range(10):
        for x, y in few:
            (u,) = next(unlabelled)
            out = model(torch.cat([x, u]))
            wanted = out[len(x) :].detach().argmax(1)
            loss = F.cross_entropy(out[: len(x)], y) + 0.1 * F.cross_entropy(out[len(x) :], wanted)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())


main()

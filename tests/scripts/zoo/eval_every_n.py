import argparse
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument('-b', '--batch-size', default=32, type=int, dest='bs')
    p.add_argument('-j', '--workers', default=0, type=int)
    p.add_argument('--epochs', default=5, type=int)
    p.add_argument('--eval-interval', default=20, type=int, help='steps between two evaluations')
    return p.parse_args()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total = sum(nn.functional.mse_loss(model(x), y, reduction='sum').item() for x, y in loader)
    model.train()
    return total / len(loader.dataset)


def main():
    args = get_args()
    torch.manual_seed(8)
    w = torch.randn(25, 2)
    xs, xv = torch.randn(1600, 25), torch.randn(256, 25)
    train = DataLoader(TensorDataset(xs, xs @ w), batch_size=args.bs, shuffle=True, num_workers=args.workers)
    val = DataLoader(TensorDataset(xv, xv @ w), batch_size=64, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(25, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    global_step, best = 0, float('inf')
    for epoch in range(args.epochs):
        for x, y in train:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            global_step += 1
            if global_step % args.eval_interval == 0:
                best = min(best, validate(model, val))
        print('epoch', epoch, 'best', best)


if __name__ == '__main__':
    main()

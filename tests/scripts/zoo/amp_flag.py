"""Mixed precision on request."""
import argparse
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=40)
parser.add_argument("--iters-per-print", type=int, default=20)
parser.add_argument("--bf16", action="store_true", help="run the forward pass in bfloat16")
parser.add_argument("--channels-last", action="store_true")


class ConvNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.c1 = nn.Conv2d(3, width, 3, padding=1)
        self.c2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.fc = nn.Linear(2 * width, 4)

    def forward(self, x):
        x = torch.relu(self.c1(x))
        x = torch.relu(self.c2(x))
        return self.fc(x.mean((2, 3)))


def main(args):
    torch.manual_seed(12)
    images = torch.randn(1000, 3, 12, 12)
    labels = (images.mean((1, 2, 3)) * 100).long() % 4
    loader = DataLoader(TensorDataset(images, labels), batch_size=args.bs, shuffle=True)
    model = ConvNet()
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(5):
        for i, (x, y) in enumerate(loader):
            x = x.to(memory_format=layout)
            amp = torch.autocast("cpu", dtype=torch.bfloat16) if args.bf16 else contextlib.nullcontext()
            with amp:
                loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if i % args.iters_per_print == 0:
                print(epoch, i, loss.item())


if __name__ == "__main__":
    main(parser.parse_args())

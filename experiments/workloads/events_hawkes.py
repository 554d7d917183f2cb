"""Train a small recurrent model of events that set off others, on streams that are simulated.

    python events_hawkes.py --epochs 150 --batch-size 16 --grad-accum 4

Events of six kinds; each makes others more likely for a while (Hawkes 1971), and the streams are drawn by
thinning (Ogata 1981). The model keeps a state for every kind that fades between events, in the manner of the
neural Hawkes process (Mei and Eisner 2017), made small; it is trained on the likelihood of kinds and times.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

KINDS = 6


def simulate(count, length, seed):
    """Gaps and kinds (count x length each) of streams in which every kind mostly sets off the next one."""
    draw = torch.Generator().manual_seed(seed)
    base = torch.tensor([0.25, 0.15, 0.10, 0.10, 0.05, 0.05])
    sets_off = 0.3 * torch.eye(KINDS) + 0.9 * torch.eye(KINDS).roll(1, dims=1)
    fade = 2.0
    excited = torch.zeros(count, KINDS)
    gaps = torch.zeros(count, length)
    kinds = torch.zeros(count, length, dtype=torch.long)
    for place in range(length):
        waits = torch.ones(count, dtype=torch.bool)
        while waits.any():
            bound = (base + excited).sum(1)
            gap = torch.empty(count).exponential_(generator=draw) / bound
            gap = torch.where(waits, gap, torch.zeros(count))
            gaps[:, place] += gap
            excited = excited * torch.exp(-fade * gap)[:, None]
            rates = base + excited
            happens = waits & (torch.rand(count, generator=draw) * bound < rates.sum(1))
            kind = torch.multinomial(rates, 1, generator=draw)[:, 0]
            kinds[:, place] = torch.where(happens, kind, kinds[:, place])
            excited = excited + happens[:, None] * sets_off[kind]
            waits = waits & ~happens
    return gaps, kinds


class Events(nn.Module):
    """Negative log-likelihood per event of each stream."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.kinds = nn.Embedding(KINDS, width)
        self.fades = nn.Parameter(torch.zeros(KINDS, width))
        self.reads = nn.Parameter(torch.randn(KINDS, width) / width**0.5)
        self.base = nn.Parameter(torch.zeros(KINDS))
        self.update = nn.Linear(2 * width + 1, width)

    def rates(self, states):
        return F.softplus((states * self.reads).sum(2) + self.base) + 1e-4

    def forward(self, gaps, kinds):
        rows = torch.arange(len(gaps), device=gaps.device)
        states = gaps.new_zeros(len(gaps), KINDS, self.width)
        fades = F.softplus(self.fades)
        likelihood = gaps.new_zeros(len(gaps))
        for place in range(gaps.shape[1]):
            gap, kind = gaps[:, place], kinds[:, place]
            after_last = self.rates(states)
            states = states * torch.exp(-fades * gap[:, None, None])
            before_this = self.rates(states)
            # What was expected meanwhile is the area under the rates, by trapezoids.
            expected = gap * (after_last + before_this).sum(1) / 2
            likelihood = likelihood + torch.log(before_this[rows, kind]) - expected
            happened = torch.cat([states.mean(1), self.kinds(kind), gap[:, None]], dim=1)
            states = states.index_put((rows, kind), torch.tanh(self.update(happened)))
        return -likelihood / gaps.shape[1]


@torch.no_grad()
def held_out_loss(model, loader, device):
    model.eval()
    losses = [model(gaps.to(device), kinds.to(device)).sum().item() for gaps, kinds in loader]
    model.train()
    return sum(losses) / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--grad-accum", type=int, default=4, help="batches per step of the optimizer")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--streams", type=int, default=4096)
    parser.add_argument("--length", type=int, default=20, help="events of a stream")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = TensorDataset(*simulate(args.streams, args.length, seed=1))
    test = TensorDataset(*simulate(args.streams // 8, args.length, seed=2))
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test, batch_size=512)

    model = Events(args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        total = 0.0
        for i, (gaps, kinds) in enumerate(train_loader):
            loss = model(gaps.to(device), kinds.to(device)).mean()
            (loss / args.grad_accum).backward()
            total += loss.item()
            if (i + 1) % args.grad_accum == 0:
                optimizer.step()
                optimizer.zero_grad()
        held_out = held_out_loss(model, test_loader, device)
        print(f"epoch {epoch} loss {total / len(train_loader):.4f} held-out loss {held_out:.4f}", flush=True)
        torch.save(model.state_dict(), "events.pt")


if __name__ == "__main__":
    main()

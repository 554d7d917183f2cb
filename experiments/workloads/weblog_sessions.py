"""Train a small convolutional network to tell robots from people by the lines they leave in a server's log.

    python weblog_sessions.py --epochs 200 --batch-size 24

The log is made up when the script starts: visits of 6 to 40 lines in the usual "combined" format, half of
them by robots, some of which take pains to look like people. Lines are read as they stand, again in every
epoch: taken apart, their words hashed. Batches are filled up to their longest visit. A sixth is held out.
"""

import argparse
import math
import random
import re
import zlib
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qsl, urlsplit

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/138.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5",
)
LINE = re.compile(r'(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) (\S+)" (\d{3}) (\d+|-) "([^"]*)" "([^"]*)"')
SITE = "https://shop.example"
WORDS = 12
BUCKETS = 4096


# The log ---------------------------------------------------------------------------------------


def visit(draw, robot):
    """The lines of one visit."""
    at = datetime(2026, 3, 1, tzinfo=timezone.utc) + timedelta(seconds=draw.random() * 2e6)
    address = f"203.0.113.{draw.randrange(256)}"
    agent = draw.choice(AGENTS) if not robot or draw.random() < 0.8 else "Spider/1.0"
    careful = robot and draw.random() < 0.5
    item, came_from, lines = draw.randrange(100, 2000), "-", []
    for _ in range(draw.randrange(6, 41)):
        if robot and not careful:
            at += timedelta(seconds=1 + 2 * draw.random())
            item += 1
        else:
            at += timedelta(seconds=1 + draw.expovariate(1 / 12))
            item += draw.choice((1, 1, 2, -1, draw.randrange(-50, 50)))
        kind = draw.random()
        if kind < (0.12 if robot else 0.3):
            target, status = f"/static/{draw.choice(('site.css', 'app.js', 'logo.png'))}?v={item % 7}", 200
        elif kind < 0.5:
            target, status = f"/search?q=word{draw.randrange(40)}&page={draw.randrange(1, 5)}&sort=price", 200
        else:
            target = f"/item/{item}?ref=list&lang=en"
            status = 404 if draw.random() < (0.12 if robot else 0.03) else 200
        method = "HEAD" if robot and draw.random() < 0.05 else "GET"
        size = draw.randrange(200, 60000) if status == 200 else 512
        stamp = at.strftime("%d/%b/%Y:%H:%M:%S %z")
        lines.append(
            f'{address} - - [{stamp}] "{method} {target} HTTP/1.1" {status} {size} "{came_from}" "{agent}"'
        )
        came_from = SITE + target if draw.random() < (0.4 if robot else 0.9) else "-"
    return lines


def log(count, seed):
    """Pairs (lines, whether a robot left them)."""
    draw = random.Random(seed)
    return [(visit(draw, robot=n % 2 == 1), n % 2) for n in range(count)]


# Reading it ------------------------------------------------------------------------------------


def words(line, before):
    """What one line says, as words, and (time, item) for the next line."""
    _, time, method, target, _, status, size, referer, agent = LINE.fullmatch(line).groups()
    at = datetime.strptime(time, "%d/%b/%Y:%H:%M:%S %z").timestamp()
    url, came_from = urlsplit(target), urlsplit(referer)
    parts = url.path.strip("/").split("/")
    item = int(parts[1]) if parts[0] == "item" else None
    last_at, last_item = before
    gap = 0 if last_at is None else min(20, round(4 * math.log1p(at - last_at)))
    step = "none" if item is None or last_item is None else max(-3, min(3, item - last_item))
    found = [
        f"method={method}",
        f"status={status}",
        f"part={parts[0]}",
        f"ending={parts[-1].rpartition('.')[2] if '.' in parts[-1] else ''}",
        f"size={int(math.log2(int(size))) if size != '-' else ''}",
        f"from={came_from.path.strip('/').split('/')[0]}",
        f"agent={re.sub(r'[^a-z ]', '', agent.lower())[:40]}",
        f"gap={gap}",
        f"step={step}",
        *(f"asks={name}" for name, _ in parse_qsl(url.query)),
    ]
    return found, (at, last_item if item is None else item)


def codes(lines):
    """The visit as numbers, lines x words; 0 where a line has fewer words."""
    rows, before = [], (None, None)
    for line in lines:
        found, before = words(line, before)
        row = [1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in found[:WORDS]]
        rows.append(row + [0] * (WORDS - len(row)))
    return torch.tensor(rows)


class Visits(IterableDataset):
    """One pass over the log, in another order each time; workers share it out among themselves."""

    def __init__(self, visits, shuffle):
        self.visits = visits
        self.shuffle = shuffle

    def __len__(self):
        return len(self.visits)

    def __iter__(self):
        worker = get_worker_info()
        share = self.visits if worker is None else self.visits[worker.id :: worker.num_workers]
        order = torch.randperm(len(share)).tolist() if self.shuffle else range(len(share))
        for n in order:
            lines, robot = share[n]
            yield codes(lines), robot


def padded(batch):
    rows, robots = zip(*batch)
    lengths = torch.tensor([len(visit) for visit in rows])
    return pad_sequence(rows, batch_first=True), lengths, torch.tensor(robots)


# Learning from it ------------------------------------------------------------------------------


class Judge(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(BUCKETS, width, padding_idx=0)
        self.conv1 = nn.Conv1d(width, 2 * width, 3, padding=1)
        self.conv2 = nn.Conv1d(2 * width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, codes, lengths):
        there = torch.arange(codes.shape[1], device=codes.device) < lengths[:, None]
        x = self.words(codes).sum(2).transpose(1, 2)
        x = F.relu(self.conv1(x)) * there[:, None]
        x = F.relu(self.conv2(x)) * there[:, None]
        return self.head(x.sum(2) / lengths[:, None])


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = sum((model(x.to(device), n.to(device)).argmax(1).cpu() == y).sum().item() for x, n, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--visits", type=int, default=2880)
    parser.add_argument("--eval-every", type=int, default=5, help="epochs")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    visits = log(args.visits, seed=0)
    split = len(visits) // 6
    train_loader = DataLoader(
        Visits(visits[split:], shuffle=True), batch_size=args.batch_size, collate_fn=padded
    )
    test_loader = DataLoader(Visits(visits[:split], shuffle=False), batch_size=96, collate_fn=padded)

    model = Judge(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        total = 0.0
        for rows, lengths, robots in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows.to(device), lengths.to(device)), robots.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item() * len(robots)
        if (epoch + 1) % args.eval_every == 0:
            held_out = accuracy(model, test_loader, device)
            mean = total / len(train_loader.dataset)
            print(f"epoch {epoch} loss {mean:.4f} held-out accuracy {held_out:.3f}", flush=True)
            torch.save(model.state_dict(), "robots.pt")


if __name__ == "__main__":
    main()

"""Train a recurrent network to tell nine speakers apart by how they say one pair of vowels.

    python speech_vowels.py --epochs 400 --batch-size 32

JapaneseVowels: 640 utterances of /ae/, each 7 to 29 frames of 12 cepstral coefficients; 270 of them train,
the other 370 are held out, as their collectors split them. Accuracy on these is printed now and then.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

DATA = Path(__file__).resolve().parent / "data"


def read_ts(path):
    """Series (frames x coefficients) and labels of a .ts file: coefficients by colons, values by commas."""
    series, labels, begun = [], [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        if begun and line.strip():
            *coefficients, label = line.strip().split(":")
            rows = [[float(value) for value in row.split(",")] for row in coefficients]
            series.append(torch.tensor(rows).T.contiguous())
            labels.append(int(label) - 1)
        begun = begun or line.strip().lower() == "@data"
    return series, labels


class Utterances(Dataset):
    """Coefficients less their mean over the utterance, with first and second differences beside them."""

    def __init__(self, path):
        self.series, self.labels = read_ts(path)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        frames = self.series[index]
        frames = frames - frames.mean(0)
        slope = torch.gradient(frames, dim=0)[0]
        bend = torch.gradient(slope, dim=0)[0]
        return torch.cat([frames, slope, bend], dim=1), self.labels[index]


def padded(batch):
    """One batch, filled up with zeros to its longest utterance."""
    series, labels = zip(*batch)
    lengths = torch.tensor([len(frames) for frames in series])
    return pad_sequence(series, batch_first=True), lengths, torch.tensor(labels)


class Speakers(nn.Module):
    def __init__(self, width, depth=2, num_speakers=9):
        super().__init__()
        self.gru = nn.GRU(36, width, num_layers=depth, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, num_speakers)

    def forward(self, frames, lengths):
        packed = pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        return self.head(torch.cat([last[-2], last[-1]], dim=1))


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = sum((model(x.to(device), n).argmax(1).cpu() == y).sum().item() for x, n, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--eval-every", type=int, default=20, help="epochs")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = Utterances(DATA / "JapaneseVowels_TRAIN.ts")
    test = Utterances(DATA / "JapaneseVowels_TEST.ts")
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, collate_fn=padded)
    test_loader = DataLoader(test, batch_size=128, collate_fn=padded)

    model = Speakers(args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        total = 0.0
        for frames, lengths, speakers in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(frames.to(device), lengths), speakers.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item() * len(speakers)
        if (epoch + 1) % args.eval_every == 0:
            held_out = accuracy(model, test_loader, device)
            print(f"epoch {epoch} loss {total / len(train):.4f} held-out accuracy {held_out:.3f}", flush=True)
            torch.save(model.state_dict(), "speakers.pt")


if __name__ == "__main__":
    main()

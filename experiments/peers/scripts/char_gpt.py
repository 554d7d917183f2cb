"""Train a small character-level transformer on made-up words.

    python char_gpt.py --batch-size 8

A word is drawn from a vocabulary of 400, each of which is a few syllables; the next word depends on the one
before. Windows of 64 characters are cut from the text beforehand: nothing is left to load.
"""

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WINDOWS, LENGTH = 8192, 64
WIDTH, DEPTH, HEADS = 128, 3, 4
SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
CODES = {character: code for code, character in enumerate(" abcdefghijklmnopqrstuvwxyz")}
BATCH_SIZE = 8


def make_dataset():
    """Pairs (64 characters, the characters that follow them)."""
    draw = random.Random(0)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 3))) for _ in range(400)]
    followers = [draw.choices(range(len(words)), k=5) for _ in words]
    text, word = [], 0
    while len(text) <= WINDOWS * LENGTH:
        word = draw.choice(followers[word]) if draw.random() < 0.8 else draw.randrange(len(words))
        text.extend(words[word] + " ")
    codes = torch.tensor([CODES[character] for character in text[: WINDOWS * LENGTH + 1]])
    return TensorDataset(codes[:-1].view(WINDOWS, LENGTH), codes[1:].view(WINDOWS, LENGTH))


class CharGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(len(CODES), WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, DEPTH, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(CODES))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, codes):
        hidden = self.characters(codes) + self.positions
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))


def make_model():
    return CharGPT()


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


def loss_of(model, batch):
    codes, following = batch
    return F.cross_entropy(model(codes).flatten(0, 1), following.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--prefetch-factor", type=int, default=None)
    parser.add_argument("--persistent-workers", action="store_true")
    parser.add_argument("--threads", type=int, default=None, help="of an operator")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    model = make_model()
    optimizer = make_optimizer(model)
    forward = torch.compile(model) if args.compile else model
    options = {
        "num_workers": args.num_workers,
        "prefetch_factor": args.prefetch_factor,
        "persistent_workers": args.persistent_workers,
    }
    loader = DataLoader(make_dataset(), args.batch_size, shuffle=True, drop_last=True, **options)
    step = 0
    for _ in range(args.epochs):
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                loss = loss_of(forward, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 200 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Train a transformer of the size of GPT-2 (124 million parameters) on a language that is made up.

    python gpt2.py --batch-size 8 --length 1024

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), pre-norm, tied embeddings; the
model returns its loss, as many such scripts have it.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def language(tokens, vocabulary):
    """Mostly each token follows from the one before, sometimes any comes: loss falls towards what is chance."""
    generator = torch.Generator().manual_seed(0)
    follows = torch.randperm(vocabulary, generator=generator)
    jumps = torch.randint(0, vocabulary, (tokens,), generator=generator)
    stays = torch.rand(tokens, generator=generator) < 0.9
    text = torch.empty(tokens, dtype=torch.int64)
    now = 0
    for n in range(tokens):
        now = int(follows[now]) if stays[n] else int(jumps[n])
        text[n] = now
    return text


class Windows(Dataset):
    def __init__(self, text, length, count):
        self.text = text
        self.length = length
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        start = (index * 7919) % (len(self.text) - self.length - 1)
        window = self.text[start : start + self.length + 1]
        return window[:-1].clone(), window[1:].clone()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary, length, layers, heads, width):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._init)
        self.head.weight = self.tokens.weight

    def _init(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x, targets):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        return logits, loss


@torch.no_grad()
def held_out(model, loader, device):
    model.eval()
    losses = [model(x.to(device), y.to(device))[1] for x, y in loader]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--samples", type=int, default=40_000, help="windows in an epoch")
    parser.add_argument("--small", action="store_true", help="a model for a try on a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    vocabulary, layers, heads, width = (512, 2, 2, 32) if args.small else (50_304, 12, 12, 768)
    text = language(20_000 if args.small else 200_000, vocabulary)
    train = DataLoader(
        Windows(text, args.length, args.samples),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
    )
    test = DataLoader(Windows(text[1:], args.length, 4 * args.batch_size), batch_size=args.batch_size)

    model = GPT(vocabulary, args.length, layers, heads, width).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(train):
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            _, loss = model(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch} held-out loss {held_out(model, test, device):.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Train a small character-level GPT on one play by Shakespeare.

    python text_chargpt.py --epochs 20 --batch-size 16

The model is that of nanoGPT, made small: learned positions, pre-norm blocks, tied embeddings. The last tenth
of the play is held out; the loss on it is printed now and then.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

PLAY = Path(__file__).resolve().parent / "data" / "hamlet.txt"


class Windows(Dataset):
    """Pairs (characters, the characters that follow them), `length` of each, a new pair every `stride`."""

    def __init__(self, text, codes, length, stride):
        self.text = text
        self.codes = codes
        self.length = length
        self.starts = range(0, len(text) - length, stride)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        start = self.starts[index]
        window = torch.tensor([self.codes[c] for c in self.text[start : start + self.length + 1]])
        return window[:-1], window[1:]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    def __init__(self, num_codes, length, width, depth, heads):
        super().__init__()
        self.characters = nn.Embedding(num_codes, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_codes, bias=False)
        self.apply(self.start)
        self.head.weight = self.characters.weight

    def start(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, codes):
        places = torch.arange(codes.shape[1], device=codes.device)
        x = self.characters(codes) + self.positions(places)
        return self.head(self.norm(self.blocks(x)))


def loss_of(model, codes, following):
    logits = model(codes)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), following.reshape(-1))


@torch.no_grad()
def held_out_loss(model, loader, device):
    model.eval()
    losses = [loss_of(model, x.to(device), y.to(device)).item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def weight_decay_groups(model, decay):
    """Matrices shrink, biases and norms do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--grad-clip", type=float, default=1.0)
    parser.add_argument("--length", type=int, default=64, help="characters that the model sees")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--eval-every", type=int, default=400, help="steps")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = PLAY.read_text(encoding="utf-8")
    codes = {character: code for code, character in enumerate(sorted(set(text)))}
    split = int(0.9 * len(text))
    train = Windows(text[:split], codes, args.length, args.length // 2)
    test = Windows(text[split:], codes, args.length, args.length)
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=64)

    model = CharGPT(len(codes), args.length, args.width, args.depth, args.heads).to(device)
    groups = weight_decay_groups(model, args.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))

    step = 0
    for epoch in range(args.epochs):
        for x, y in train_loader:
            loss = loss_of(model, x.to(device), y.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if step % args.eval_every == 0:
                held_out = held_out_loss(model, test_loader, device)
                print(f"epoch {epoch} step {step} held-out loss {held_out:.4f}", flush=True)
        torch.save(model.state_dict(), "chargpt.pt")


if __name__ == "__main__":
    main()

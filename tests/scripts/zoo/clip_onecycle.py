"""Gradient clipping and a learning rate that changes with every batch."""
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset, random_split

EPOCHS, BATCH = 5, 32
torch.manual_seed(3)

x = torch.randn(2000, 30)
y = (x @ torch.randn(30, 5)).argmax(1)
train_set, val_set = random_split(TensorDataset(x, y), [1600, 400])
train_dl = DataLoader(train_set, batch_size=BATCH, shuffle=True)
val_dl = DataLoader(val_set, batch_size=BATCH * 2)

model = nn.Sequential(nn.Linear(30, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 5))
optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
scheduler = OneCycleLR(optimizer, max_lr=5e-3, steps_per_epoch=len(train_dl), epochs=EPOCHS)


def evaluate():
    model.eval()
    hits = 0
    with torch.inference_mode():
        for xb, yb in val_dl:
            hits += (model(xb).argmax(-1) == yb).sum().item()
    model.train()
    return hits / len(val_set)


for epoch in range(EPOCHS):
    for xb, yb in train_dl:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(xb), yb, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    print(f"epoch {epoch}: lr {scheduler.get_last_lr()[0]:.2e} accuracy {evaluate():.3f}")

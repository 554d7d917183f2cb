"""AMP recipe: autocast, GradScaler, unscale before clipping."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_loader(batch_size):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(1280, 64, generator=gen)
    return DataLoader(TensorDataset(x, x.roll(1, 1)[:, :8]), batch_size=batch_size, shuffle=True)


def train(use_amp=True, max_norm=0.5):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(device, enabled=use_amp)
    loss_fn = nn.MSELoss()
    half = torch.float16 if device == "cuda" else torch.bfloat16
    for epoch in range(5):
        for data, target in get_loader(32):
            data, target = data.to(device), target.to(device)
            with torch.autocast(device_type=device, dtype=half, enabled=use_amp):
                loss = loss_fn(net(data), target)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=max_norm)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        print("epoch", epoch, "loss", loss.item(), "scale", scaler.get_scale())


train()

import torch
from torch.utils.data import DataLoader, TensorDataset


def train_loader(batch_size, workers):
    x = torch.randn(1600, 21)
    return DataLoader(TensorDataset(x, x.argmax(1) % 3), batch_size=batch_size, shuffle=True, num_workers=workers)

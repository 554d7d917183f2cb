"""Settings in a tree; any of them may be given as --a.b=value."""
import sys
from ast import literal_eval

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class CfgNode:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)

    def merge_from_args(self, args):
        for arg in args:
            key, val = arg.split('=', 1)
            assert key[:2] == '--'
            try:
                val = literal_eval(val)
            except ValueError:
                pass
            *path, leaf = key[2:].split('.')
            obj = self
            for k in path:
                obj = getattr(obj, k)
            assert hasattr(obj, leaf), f"{key[2:]} is not an attribute that exists in the config"
            setattr(obj, leaf, val)


def get_config():
    C = CfgNode()
    C.system = CfgNode(seed=3407)
    C.model = CfgNode(width=160)
    C.trainer = CfgNode(batch_size=32, num_workers=0, learning_rate=1e-3, epochs=4)
    return C


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x, targets=None):
        y = self.net(x)
        return y, (None if targets is None else nn.functional.mse_loss(y, targets))


if __name__ == '__main__':
    config = get_config()
    config.merge_from_args(sys.argv[1:])
    torch.manual_seed(config.system.seed)
    x = torch.randn(1600, 16)
    model = Net(config.model.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.trainer.learning_rate)
    loader = DataLoader(TensorDataset(x, x.amax(1, keepdim=True)), shuffle=True,
                        batch_size=config.trainer.batch_size, num_workers=config.trainer.num_workers)
    for epoch in range(config.trainer.epochs):
        for batch in loader:
            logits, loss = model(*batch)
            model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch}; train loss {loss.item():.5f}")

import config
import model as models
import torch
from torch.utils.data import DataLoader, Dataset


class Curves(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 10)
        self.y = self.x.exp().mean(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def main():
    torch.manual_seed(config.SEED)
    loader = DataLoader(
        Curves(1600), batch_size=config.BATCH_SIZE, shuffle=True, num_workers=config.NUM_WORKERS, pin_memory=False
    )
    model = models.build()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.LEARNING_RATE)
    loss_fn = torch.nn.HuberLoss()
    for epoch in range(config.EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitRegressor(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(24, 160), nn.ReLU(), nn.Linear(160, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def loader(n, seed, shuffle):
    x = torch.randn(n, 24, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, x[:, :3].prod(1, keepdim=True)), batch_size=32, shuffle=shuffle)


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(max_epochs=5, accelerator="cpu", enable_progress_bar=False)
    trainer.fit(LitRegressor(), loader(1600, 1, True), loader(256, 2, False))

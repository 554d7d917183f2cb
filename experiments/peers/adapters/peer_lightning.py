"""Lightning's batch-size finder on the script named by its argument; prints the size it settles on.

python peer_lightning.py char_gpt
"""

import importlib
import json
import sys
import time
from pathlib import Path

import lightning
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))


class Data(lightning.LightningDataModule):
    def __init__(self, script):
        super().__init__()
        self.script, self.batch_size = script, script.BATCH_SIZE

    def setup(self, stage):
        self.dataset = self.script.make_dataset()

    def train_dataloader(self):
        return DataLoader(self.dataset, self.batch_size, shuffle=True, drop_last=True)


class Module(lightning.LightningModule):
    def __init__(self, script):
        super().__init__()
        self.script, self.model = script, script.make_model()

    def training_step(self, batch, index):
        return self.script.loss_of(self.model, batch)

    def configure_optimizers(self):
        return self.script.make_optimizer(self.model)


def main():
    script = importlib.import_module(sys.argv[1])
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    began = time.monotonic()
    found = Tuner(trainer).scale_batch_size(
        Module(script), datamodule=Data(script), mode="power", max_trials=10
    )
    print("FOUND " + json.dumps({"batch_size": found, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()

"""The script named by its argument, registered by fournex's SDK, obeying the variables that it sets.

    frx tune --safe -- python peer_fournex.py input_cnn

The script itself reads none of these variables, so fournex cannot change it.
"""

import importlib
import os
import sys
from pathlib import Path

import fournex as frx
import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))


def main():
    script = importlib.import_module(sys.argv[1])
    frx.init(job_name=sys.argv[1])
    torch.manual_seed(0)
    workers = int(os.environ.get("FRX_NUM_WORKERS", "0"))
    options = {}
    if workers:
        options["persistent_workers"] = os.environ.get("FRX_PERSISTENT_WORKERS") == "true"
        options["prefetch_factor"] = int(os.environ.get("FRX_PREFETCH_FACTOR", "2"))
    loader = DataLoader(
        script.make_dataset(),
        batch_size=int(os.environ.get("FRX_BATCH_SIZE", script.BATCH_SIZE)),
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=os.environ.get("FRX_PIN_MEMORY") == "true" and torch.cuda.is_available(),
        **options,
    )
    model = script.make_model()
    optimizer = script.make_optimizer(model)
    last = int(os.environ.get("FRX_TUNE_MAX_STEPS", "200"))
    for step, batch in enumerate(frx.instrument_dataloader(loader)):
        with frx.step_context(step, batch, model=model):
            loss = script.loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step + 1 >= last:
            break
    frx.shutdown()


if __name__ == "__main__":
    main()

"""The script named by PEERS_SCRIPT as loadtune wants to have it: it owns the loader and calls one step."""

import importlib
import os
import sys
from pathlib import Path

from loadtune.workload import Workload

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))
script = importlib.import_module(os.environ["PEERS_SCRIPT"])


def train_step(model, optimizer, batch, _device):
    loss = script.loss_of(model, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def get_workload():
    return Workload(
        name=os.environ["PEERS_SCRIPT"],
        make_dataset=script.make_dataset,
        make_model=script.make_model,
        train_step=train_step,
        make_optimizer=script.make_optimizer,
        default_batch_size=script.BATCH_SIZE,
    )

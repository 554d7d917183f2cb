import torch.nn as nn

import config


def build():
    return nn.Sequential(
        nn.Linear(10, config.HIDDEN),
        nn.ELU(),
        nn.Linear(config.HIDDEN, config.HIDDEN),
        nn.ELU(),
        nn.Linear(config.HIDDEN, 1),
    )

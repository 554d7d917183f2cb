"""Every setting of the training."""
from dataclasses import dataclass


@dataclass
class Settings:
    batch_size: int = 40
    epochs: int = 5
    lr: float = 3e-3
    hidden: int = 72
    seed: int = 3

"""Two noisy volumes with a bright ball, one to train on and one to validate on."""

import h5py
import numpy as np

draw = np.random.default_rng(0)
axes = np.meshgrid(*(np.linspace(-1, 1, size) for size in (32, 64, 64)), indexing="ij")
for name in ("train.h5", "val.h5"):
    ball = sum(axis**2 for axis in axes) < 0.4
    with h5py.File(name, "w") as file:
        file["raw"] = (ball + draw.normal(0, 0.5, ball.shape)).astype("float32")
        file["label"] = ball.astype("uint8")

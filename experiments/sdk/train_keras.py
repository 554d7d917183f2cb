"""A small convolutional network in Keras on TensorFlow; the lines with autotune's name connect it."""

import argparse

import keras
import numpy as np

import autotune

IMAGES, CLASSES = 8192, 10


class Steps(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        autotune.step(samples=self.batch, loss=logs["loss"])


def images(rng):
    """Ten blurred patterns in noise."""
    patterns = rng.normal(size=(CLASSES, 16, 16, 1))
    labels = rng.integers(CLASSES, size=IMAGES)
    noise = rng.normal(scale=1.5, size=(IMAGES, 16, 16, 1))
    return (patterns[labels] + noise).astype("float32"), labels.astype("int32")


def network():
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(CLASSES, dtype="float32"),
        ]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()

    batch = autotune.value("batch", 32)
    keras.mixed_precision.set_global_policy(autotune.value("policy", "float32"))

    x, y = images(np.random.default_rng(0))
    model = network()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=autotune.value("jit", False),
    )
    model.fit(x, y, batch_size=batch, epochs=args.epochs, verbose=0, callbacks=[Steps(batch)])
    print("trained")


if __name__ == "__main__":
    main()

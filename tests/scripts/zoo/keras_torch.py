import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(812)
rng = np.random.default_rng(0)
x_train = rng.normal(size=(1600, 20)).astype("float32")
y_train = (x_train[:, :4].sum(axis=1) > 0).astype("int64")

model = keras.Sequential([keras.Input((20,)), layers.Dense(128, activation="relu"), layers.Dense(2)])
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    metrics=["accuracy"],
)
model.fit(x_train, y_train, batch_size=32, epochs=4, verbose=2)

"""A classifier in plain JAX, with momentum written by hand; the lines with autotune's name connect it."""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np

import autotune

ROWS, FEATURES, CLASSES, WIDTH = 16384, 256, 10, 512


def data(rng):
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    hidden = np.tanh(x @ rng.normal(size=(FEATURES, 32)) / 8)
    return x, np.argmax(hidden @ rng.normal(size=(32, CLASSES)), axis=1).astype(np.int32)


def parameters(rng):
    sizes = itertools.pairwise((FEATURES, WIDTH, WIDTH, CLASSES))
    made = [(rng.normal(size=(m, n)) * np.sqrt(2 / m), np.zeros(n)) for m, n in sizes]
    return jax.tree.map(jnp.float32, made)


def loss_of(params, x, y, dtype):
    h = x.astype(dtype)
    for w, b in params[:-1]:
        h = jax.nn.relu(h @ w.astype(dtype) + b.astype(dtype))
    w, b = params[-1]
    logits = (h @ w.astype(dtype) + b.astype(dtype)).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()

    batch = autotune.value("batch", 64)
    dtype = getattr(jnp, autotune.value("dtype", "float32"))
    gradient = jax.jit(jax.value_and_grad(lambda params, x, y: loss_of(params, x, y, dtype)))

    def update(params, speed, x, y):
        loss, grads = gradient(params, x, y)
        speed = jax.tree.map(lambda v, g: 0.9 * v + g, speed, grads)
        return jax.tree.map(lambda p, v: p - 0.01 * v, params, speed), speed, loss

    if autotune.value("jit_update", False):
        update = jax.jit(update)

    rng = np.random.default_rng(0)
    x, y = data(rng)
    params = parameters(rng)
    speed = jax.tree.map(jnp.zeros_like, params)
    for _ in range(args.steps):
        rows = rng.integers(ROWS, size=batch)
        params, speed, loss = update(params, speed, x[rows], y[rows])
        autotune.step(samples=batch, loss=loss)
    print("trained to", float(loss))


if __name__ == "__main__":
    main()

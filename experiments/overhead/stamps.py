"""The hooks' own time, one by one: stamps around each hook, less the stamps around what it wraps.

    python stamps.py --step-ms 1.2        # microseconds a step, three times 2 s

The loop is that of `run.py`. What stamps cost is in the figures; so is what a hook loses because the training
has thrown its code out of the caches.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import run as overhead
import torch
from torch.utils.data import DataLoader, TensorDataset

CLOCK = time.perf_counter_ns


def timed(function, book, key):
    """The function, its time added to the book."""
    book[key] = 0

    def stamped(*args, **kwargs):
        since = CLOCK()
        try:
            return function(*args, **kwargs)
        finally:
            book[key] += CLOCK() - since

    return stamped


def stamp(owner, name, wrapped, books, key):
    """Stamps around a hook, and around what it calls by this name in its closure."""
    hook = vars(owner)[name]
    names = hook.__code__.co_freevars
    cell = hook.__closure__[names.index(wrapped)]
    cell.cell_contents = timed(cell.cell_contents, books[1], key)
    setattr(owner, name, timed(hook, books[0], key))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step-ms", type=float, default=1.2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        hooks = overhead.Hooks(Path(folder))
        count, width = overhead.BATCH, overhead.WIDTH
        data = TensorDataset(torch.randn(64 * count, width), torch.randn(64 * count, 1))
        loader = DataLoader(data, batch_size=count, shuffle=True)
        model = overhead.Loop()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        while not hooks.measures:
            overhead.steps(model, optimizer, loader, 100)
        hooks.out()
        overhead.tuned(model, optimizer, loader, options.step_ms / 1e3)
        hooks.back()
        books = {}, {}
        iterator = vars(sys.modules[DataLoader.__module__])["_BaseDataLoaderIter"]
        stamp(iterator, "__next__", "original_next", books, "fetch")
        stamp(torch.Tensor, "backward", "original", books, "backward")
        stamp(torch.autograd, "backward", "direct", books, "autograd")
        stamp(torch.optim.Optimizer, "zero_grad", "original", books, "zero_grad")
        stamp(type(optimizer), "step", "inner", books, "step")
        call = type(vars(hooks.session)["_root"].calls[0])
        called = vars(torch.nn.Module)["_call_impl"].__get__(model)
        vars(model)["_call_impl"] = timed(called, books[1], "call")
        call.__call__ = timed(call.__call__, books[0], "call")
        wanted = max(2, round(2000 / options.step_ms))
        for _ in range(3):
            for book in books:
                book.update(dict.fromkeys(book, 0))
            wall_s = overhead.steps(model, optimizer, loader, wanted)[1]
            own = {key: round((books[0][key] - books[1][key]) / wanted / 1e3, 1) for key in books[0]}
            print(f"{wall_s / wanted * 1e3:.2f} ms a step: {sum(own.values()):.1f} us, {own}")


if __name__ == "__main__":
    main()

"""A stopwatch that knows nothing of autotune: put this folder on PYTHONPATH and set STAMPS_FILE.

After torch is imported, it counts the samples that the script takes from its DataLoaders while gradients
are on, and stamps each optimizer step. `STAMPS_WARM_S` seconds after the first step ended a window of
`STAMPS_WINDOW_S` seconds of training begins; after it one JSON object is written and the process ended: the
script need not finish. Time inside loops over a DataLoader while gradients are off is evaluation; it is
summed up beside and does not shorten the window.
Work on a batch (from its arrival to the end of its step) that takes five times as long as the median, and a
quarter of a second at least, is a thing done once, as a compile for a new shape is: what it took beyond a
step's usual time is written as `once_s`, to be charged once and not as a rate. Waiting for a batch
is never that.
Where the script has started CUDA, the device is waited for where the window begins and ends and nowhere else;
with STAMPS_SYNC=step after every step, to show what that costs.
Where STAMPS_BEGAN says when the process was started (time.monotonic of the whole machine), it also has how
long the first step was in coming: interpreter, imports, model, compile.
"""

import json
import os
import sys
import time


def beyond(works):
    """Seconds that were spent once, beyond the usual time of the steps they fell into."""
    usual = sorted(works)[len(works) // 2] if works else 0.0
    return sum(work - usual for work in works if work > max(0.25, 5 * usual))


def watch(torch):
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader

    warm_s, window_s = float(os.environ["STAMPS_WARM_S"]), float(os.environ["STAMPS_WINDOW_S"])
    target = os.environ["STAMPS_FILE"]
    owner = os.getpid()
    pending = 0
    first = begin = None
    steps = samples = 0
    arrived = None
    works = []
    evaluation = 0.0
    start_s = None
    plain_iter = DataLoader.__iter__
    each_step = os.environ.get("STAMPS_SYNC") == "step"

    def settled():
        """Now that the device has done all that was launched."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()

    def size(batch):
        while isinstance(batch, (list, tuple)):
            batch = batch[0]
        while isinstance(batch, dict):
            batch = next(iter(batch.values()))
        return len(batch)

    def counted(batches, began):
        nonlocal pending, evaluation, arrived
        for batch in batches:
            if torch.is_grad_enabled():
                pending += size(batch)
                arrived = arrived or time.perf_counter()
            yield batch
        if not torch.is_grad_enabled():
            evaluation += time.perf_counter() - began

    def stepped(*_):
        nonlocal pending, first, begin, steps, samples, evaluation, start_s, arrived
        if os.getpid() != owner:
            return
        now = settled() if each_step else time.perf_counter()
        taken, pending = pending, 0
        since, arrived = arrived, None
        if first is None:
            first = now
            if os.environ.get("STAMPS_BEGAN"):
                start_s = time.monotonic() - float(os.environ["STAMPS_BEGAN"])
        if begin is None:
            begin = settled() if now - first >= warm_s else None
            evaluation = 0.0
            return
        steps += 1
        samples += taken
        if since is not None:
            works.append(now - since)
        if now - begin - evaluation < window_s:
            return
        now = settled()
        figures = {"steps": steps, "samples": samples, "seconds": now - begin, "evaluation_s": evaluation}
        figures["once_s"] = beyond(works)
        if start_s is not None:
            figures["start_s"] = start_s
        with open(target + ".part", "w") as stream:
            json.dump(figures, stream)
        os.replace(target + ".part", target)
        sys.stdout.flush()
        os._exit(0)

    def iterate(self):
        began = time.perf_counter()
        return counted(plain_iter(self), began)

    DataLoader.__iter__ = iterate
    register_optimizer_step_post_hook(stepped)


class AfterTorch:
    """Calls `watch` once torch's own import has ended; finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            watch(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("STAMPS_FILE"):
    sys.meta_path.insert(0, AfterTorch())

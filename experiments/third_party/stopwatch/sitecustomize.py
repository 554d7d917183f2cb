"""A stopwatch that knows nothing of autotune: put this folder on PYTHONPATH and set STOPWATCH_FILE.

Once torch is imported, every optimizer step that took effect adds one `RECORD` to STOPWATCH_FILE.PID: when
it ended (`time.perf_counter_ns`), which optimizer it was (0 for the first one that ever stepped), how many
samples were taken from DataLoaders with gradients on since the last record, and how many nanoseconds of it
went by in loops over DataLoaders with gradients off. Records are written at once: the process may be ended at
any moment. What the process really is after a dozen steps (threads, workers, fused kernels, formats) goes to
STOPWATCH_FILE.PID.json; formats only with STOPWATCH_FORMATS=1, since a hook on every module has a price.

Samples are the number of indices that the loader's sampler drew for a batch, whatever the batch then looks
like; of a dataset without indices it is the length of the first tensor in the batch.
"""
# ruff: noqa: SLF001 - the hooks of torch's loaders have no public names

import contextlib
import gc
import json
import os
import struct
import sys
import time
import weakref
from collections import Counter, deque
from importlib.machinery import PathFinder

RECORD = struct.Struct("<qqqq")
LOOK_AT = 12
DEPTH = 8


class Watch:
    """The state of one process; forked children leave it alone."""

    def __init__(self, torch, target):
        self.torch = torch
        self.owner = os.getpid()
        self.target = f"{target}.{self.owner}"
        self.file = -1
        self.optimizers = {}
        self.drawn = weakref.WeakKeyDictionary()
        self.samples = 0
        self.evaluation_ns = 0
        self.evaluates_since = None
        self.last_looked_ns = 0
        self.formats = Counter()
        self.anchored = 0

    def install(self):
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data import dataloader

        self.iterable = dataloader._DatasetKind.Iterable
        self.wrap_iterators(dataloader._BaseDataLoaderIter)
        register_optimizer_step_post_hook(self.stepped)
        if os.environ.get("STOPWATCH_FORMATS"):
            from torch.nn.modules.module import register_module_forward_hook

            register_module_forward_hook(self.forwarded)

    def wrap_iterators(self, base):
        plain_index, plain_next, plain_reset = base._next_index, base.__next__, base._reset

        def next_index(iterator):
            index = plain_index(iterator)
            count = len(index) if isinstance(index, (list, tuple)) else 0
            self.drawn.setdefault(iterator, deque()).append(count)
            return index

        def reset(iterator, *args, **kwargs):
            self.drawn.pop(iterator, None)
            return plain_reset(iterator, *args, **kwargs)

        def advance(iterator):
            if os.getpid() != self.owner:
                return plain_next(iterator)
            training = self.torch.is_grad_enabled()
            self.fetches(training=training)
            batch = plain_next(iterator)
            if not training:
                self.last_looked_ns = time.perf_counter_ns()
                return batch
            counts = self.drawn.get(iterator)
            count = counts.popleft() if counts else 0
            if not count or iterator._dataset_kind == self.iterable:
                count = size(batch)
            self.samples += count
            return batch

        base._next_index, base.__next__, base._reset = next_index, advance, reset

    def fetches(self, *, training):
        """A batch is requested; evaluation lasts from the first one without gradients to one with."""
        now = time.perf_counter_ns()
        if not training and self.evaluates_since is None:
            self.evaluates_since = now
        elif training and self.evaluates_since is not None:
            self.evaluation_ns += now - self.evaluates_since
            self.evaluates_since = None

    def stepped(self, optimizer, *_):
        if os.getpid() != self.owner:
            return
        now = time.perf_counter_ns()
        if self.evaluates_since is not None:
            # No training batch was fetched since: what came after the last look is training.
            self.evaluation_ns += max(0, self.last_looked_ns - self.evaluates_since)
            self.evaluates_since = None
        # The optimizer is kept, so that no later one gets its id.
        number, _ = self.optimizers.setdefault(id(optimizer), (len(self.optimizers), optimizer))
        if self.file < 0:
            self.file = os.open(self.target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(self.file, RECORD.pack(now, number, self.samples, self.evaluation_ns))
        self.samples = self.evaluation_ns = 0
        self.anchored += number == 0
        if number == 0 and self.anchored == LOOK_AT:
            self.look(optimizer)

    def forwarded(self, module, _inputs, output):
        nn = self.torch.nn
        kinds = (nn.Linear, nn.modules.conv._ConvNd)
        known = isinstance(module, kinds) and self.torch.is_grad_enabled()
        if known and isinstance(output, self.torch.Tensor):
            self.formats[str(output.dtype).removeprefix("torch.")] += 1

    def look(self, optimizer):
        """What is so now, for all to see."""
        processes = sys.modules.get("multiprocessing")
        dynamo = sys.modules.get("torch._dynamo.utils")
        found = {
            "threads": self.torch.get_num_threads(),
            "fused": [bool(group.get("fused")) for group in optimizer.param_groups],
            "workers": len(processes.active_children()) if processes is not None else 0,
            "frozen": gc.get_freeze_count(),
            "graphs": dynamo.counters["stats"]["unique_graphs"] if dynamo is not None else 0,
            "formats": dict(self.formats),
        }
        file = os.open(f"{self.target}.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(file, json.dumps(found).encode())
        os.close(file)


def size(batch):
    """Length of the first tensor in a batch; of a batch of graphs their number; 0 where there is neither."""
    for _ in range(DEPTH):
        graphs = getattr(batch, "num_graphs", None)
        if isinstance(graphs, int):
            return graphs
        if isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        elif isinstance(batch, dict) and batch:
            batch = next(iter(batch.values()))
        else:
            break
    shape = getattr(batch, "shape", ())
    return int(shape[0]) if len(shape) else 0


class AfterTorch:
    """Starts the stopwatch once torch's own import has ended; finds nothing itself.

    It stays where it is until then: programs ask whether there is a torch before they import it.
    """

    def __init__(self):
        self.started = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.started:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.started = True
            # A torch that has no such hooks is not timed; the script must not notice.
            with contextlib.suppress(AttributeError, ImportError):
                Watch(module, os.environ["STOPWATCH_FILE"]).install()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("STOPWATCH_FILE"):
    sys.meta_path.insert(0, AfterTorch())

"""Runs a script, bare or as the trial that the environment's plan describes, and writes what happened.

``python -m zoo_observer bare SCRIPT ARGS``, ``... bare -m MODULE ARGS`` or ``... trial``. What is seen is
torch's own state, by wrappers that lie below those of a trial: sizes and formats in forward passes, batches
of loaders, worker processes, steps that took effect, backward passes, compiled graphs, parameters. It goes as
JSON to the file that ``ZOO_OBSERVED`` names. Nothing of torch is imported before the script does.

``ZOO_STEPS`` ends the process after that many steps; ``ZOO_FORWARD=0`` leaves forward passes alone, where the
compiler would trip over us. ``ZOO_ROUNDING=1`` moves every parameter by about one rounding error before the
first step, which shows how far rounding alone takes a script.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import importlib
import json
import os
import runpy
import sys
import threading
import types
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

_SAMPLES = 400
_STREAM = 4096
"""Samples whose values are compared between two runs; more would cost more than the run itself."""
_LEAVES = ("Linear", "Conv2d", "LSTM", "GRU", "LSTMCell", "Embedding")
_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
_really_exit = os._exit


class Observer:
    """Counts in one process; forked children are left alone."""

    def __init__(self) -> None:
        path, rank = Path(os.environ["ZOO_OBSERVED"]), os.environ.get("RANK", "0")
        self.path = path if rank == "0" else path.with_suffix(f".{rank}.json")
        self.last_step = int(os.environ.get("ZOO_STEPS", "0"))
        self.forwards = os.environ.get("ZOO_FORWARD") != "0"
        self.pid = os.getpid()
        self.torch: Any = None
        self.optimizers: list[Any] = []
        self.stepped: list[int] = []
        self.anchor = 0
        self.silent = 0
        self.steps = 0
        self.backwards = 0
        self.fresh = True
        self.sizes: Counter[str] = Counter()
        self.formats: Counter[str] = Counter()
        self.batches: Counter[int] = Counter()
        self.samples = 0
        self.content = hashlib.sha256()
        self.stream: dict[str, str] = {}
        """Number of samples, a power of two -> digest of the values of so many, in their order."""
        self.cleared: Counter[str] = Counter()
        self.children: Counter[int] = Counter()
        self.iterators: list[dict[str, Any]] = []
        self.starts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Loader -> iterators with workers that were made for it."""
        self.modules: dict[int, Any] = {}
        self.leaves: list[Any] = []
        """Parameters of a model that is made of no layers of torch's."""
        self.first: list[float] | None = None
        self.way: dict[str, list[float]] = {}
        self.rounds = os.environ.get("ZOO_ROUNDING") == "1"
        self.losses: list[float] = []
        self.variables: dict[str, str | None] = {}
        self.collector: list[Any] = []

    # Where it looks

    def here(self) -> bool:
        return os.getpid() == self.pid and threading.current_thread() is threading.main_thread()

    def attach(self, torch: Any) -> None:
        self.torch = torch
        self.variables = {name: os.environ.get(name) for name in _VARIABLES}
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_post_hook(lambda opt, _args, _kwargs: self.took_effect(opt))
        if self.rounds:
            optimizer.register_optimizer_step_pre_hook(lambda opt, _args, _kwargs: self.round_once(opt))
        self._around(torch.autograd, "backward", after=self.after_backward, before=self.before_backward)
        self._around(optimizer.Optimizer, "zero_grad", after=self.after_zero_grad)
        data = importlib.import_module("torch.utils.data.dataloader")
        self._around(data._BaseDataLoaderIter, "__next__", after=self.after_batch)
        self._around(data._MultiProcessingDataLoaderIter, "__init__", after=self.after_iterator)
        if self.forwards:
            for name in _LEAVES:
                self._around(getattr(torch.nn, name), "forward", after=self.after_leaf)
            # Models that multiply by hand mostly call this.
            self._around(torch.nn.functional, "relu", after=self.after_function)

    def _around(self, owner: Any, name: str, *, after: Any, before: Any = None) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None and self.here():
                before(*args, **kwargs)
            out = original(*args, **kwargs)
            if self.here():
                after(out, *args, **kwargs)
            return out

        if isinstance(original, types.FunctionType):
            # Scripting reads the source of the original, and looks its names up in the wrapper's module.
            wrapped = types.FunctionType(
                wrapped.__code__, original.__globals__, name, None, wrapped.__closure__
            )
        wrapped.__name__, wrapped.__doc__ = name, original.__doc__
        wrapped.__wrapped__ = original  # type: ignore[attr-defined]
        setattr(owner, name, wrapped)

    def round_once(self, optimizer: Any) -> None:
        if not self.rounds or not self.here():
            return
        self.rounds = False
        torch, draws = self.torch, self.torch.Generator().manual_seed(1)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    noise = torch.randn(p.shape, generator=draws, dtype=torch.float64)
                    p.copy_(p.double() * (1 + torch.finfo(p.dtype).eps * noise))

    # What it sees

    def after_leaf(self, out: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if not self.torch.is_grad_enabled() or not args:
            return
        self.modules.setdefault(id(module), module)
        if self.fresh:
            self.fresh = False
            self.sizes[str(tuple(args[0].shape))] += 1
        found = out[0] if isinstance(out, tuple) else out
        if type(module).__name__ != "Embedding":
            self.formats[str(found.dtype).removeprefix("torch.")] += 1

    def after_function(self, out: Any, *_: Any, **__: Any) -> None:
        if self.torch.is_grad_enabled():
            self.formats[str(out.dtype).removeprefix("torch.")] += 1

    def after_batch(self, batch: Any, *_: Any) -> None:
        if self.torch.is_grad_enabled():
            size = self._size(batch)
            if size is not None:
                self.batches[size] += 1
                self.note_content(batch, size)

    def note_content(self, batch: Any, size: int) -> None:
        columns = [part for part in self._tensors(batch) if part.dim() and part.shape[0] == size]
        for row in range(size):
            self.samples += 1
            if self.samples > _STREAM:
                continue
            for column in columns:
                values = column[row].detach().cpu().contiguous().reshape(-1)
                # Without trailing zeros: the width of a padded row depends on the others in its batch.
                text = values.view(self.torch.uint8).numpy().tobytes().rstrip(b"\0")
                self.content.update(len(text).to_bytes(8, "big") + text)
            if self.samples & (self.samples - 1) == 0:
                self.stream[str(self.samples)] = self.content.hexdigest()[:16]

    def _tensors(self, batch: Any) -> list[Any]:
        if isinstance(batch, self.torch.Tensor):
            return [batch]
        parts = (
            batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
        )
        return [tensor for part in parts for tensor in self._tensors(part)]

    def _size(self, batch: Any) -> int | None:
        if isinstance(batch, self.torch.Tensor):
            return int(batch.shape[0]) if batch.dim() else None
        parts = (
            batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
        )
        return next((size for part in parts if (size := self._size(part)) is not None), None)

    def after_iterator(self, _: Any, iterator: Any, loader: Any, *__: Any) -> None:
        if self.torch.is_grad_enabled():
            self.starts[loader] = self.starts.get(loader, 0) + 1
            self.iterators.append(
                {
                    "workers": iterator._num_workers,
                    "prefetch": iterator._prefetch_factor,
                    "persistent": bool(iterator._persistent_workers),
                }
            )

    def before_backward(self, tensors: Any, *_: Any, **__: Any) -> None:
        """Look into forward passes that were compiled, where they could not be watched."""
        if self.forwards:
            return
        for start in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
            for node in _compiled_calls(start.grad_fn):
                name = _kept_format(node)
                if name:
                    self.formats[name] += 1

    def after_backward(self, _: Any, tensors: Any, *__: Any, **___: Any) -> None:
        self.backwards += 1
        self.fresh = True
        first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        if len(self.losses) < 5000:
            self.losses.append(float(first.detach().mean()))
        if not self.optimizers and self.losses:
            if not self.modules and not self.leaves:
                self.leaves = _leaves(first.grad_fn)
            self.look(self.backwards)

    def after_zero_grad(self, _: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.cleared["none" if all(g is None for g in gradients) else "zeros"] += 1

    def took_effect(self, optimizer: Any) -> None:
        if not self.here():
            return
        at = next((i for i, known in enumerate(self.optimizers) if known is optimizer), None)
        if at is None:
            at = len(self.optimizers)
            self.optimizers.append(optimizer)
            self.stepped.append(0)
        self.stepped[at] += 1
        if at == self.anchor:
            self.steps += 1
            self.silent = 0
        else:
            self.silent += 1
            if self.silent > 8:  # the first one has ended: another phase, with an optimizer of its own
                self.anchor, self.steps, self.silent = at, self.steps + self.silent, 0
        if self.steps == 1:
            self.first, self.way = None, {}  # what was seen before any optimizer is not of its parameters
        self.look(self.steps)
        if self.last_step and self.steps >= self.last_step:
            self.write()
            _really_exit(0)

    def look(self, step: int) -> None:
        """What there is after a step; after a backward pass where no optimizer of torch steps."""
        if self.first is None:
            self.first = self.parameters()
        if step & (step - 1) == 0:
            self.way[str(step)] = self.parameters()
        self.children[self._alive()] += 1
        self.collector = [gc.isenabled(), *gc.get_threshold(), gc.get_freeze_count() > 0]

    def _alive(self) -> int:
        try:
            tasks = list(Path("/proc/self/task").iterdir())
            return sum(len((task / "children").read_text().split()) for task in tasks)
        except OSError:
            return 0

    # What comes of it

    def parameters(self) -> list[float]:
        held = [p for opt in self.optimizers[:1] for group in opt.param_groups for p in group["params"]]
        if not held:
            held = [p for module in self.modules.values() for p in module.parameters()] or self.leaves
        values: list[float] = []
        for p in held:
            flat = p.detach().double().reshape(-1)
            values += flat[:: max(1, flat.numel() // _SAMPLES)].tolist()
        return values

    def summary(self) -> dict[str, Any]:
        torch = self.torch
        if torch is None:
            return {"torch": False}
        groups = [group for opt in self.optimizers for group in opt.param_groups]
        images = [p for group in groups for p in group["params"] if p.dim() == 4]
        compiled = sys.modules.get("torch._dynamo.utils")
        counters = compiled.counters if compiled is not None else {}
        return {
            "torch": True,
            "steps": self.steps,
            "steps_by_optimizer": self.stepped,
            "backwards": self.backwards,
            "sizes": dict(self.sizes),
            "formats": dict(self.formats),
            "batches": {str(k): v for k, v in self.batches.items()},
            "samples": self.samples,
            "stream": self.stream,
            "cleared": dict(self.cleared),
            "children": {str(k): v for k, v in self.children.items()},
            "iterators": self.iterators[-3:],
            "worker_starts": max(self.starts.values(), default=0),
            # L-BFGS and others have no such kernel, nor a word for it.
            "fused": [bool(group["fused"]) for group in groups if "fused" in group],
            "channels_last": [p.is_contiguous(memory_format=torch.channels_last) for p in images],
            "graphs": int(counters["stats"]["unique_graphs"]) if counters else 0,
            "frames": dict(counters["frames"]) if counters else {},
            "threads": torch.get_num_threads(),
            "variables": self.variables,
            "gc": self.collector,
            "losses": self.losses[:3] + self.losses[-3:],
            "first": self.first,
            "path": self.way,
            "last": self.parameters(),
        }

    def write(self) -> None:
        if self.torch is None and os.environ.get("WORLD_SIZE", "1") != "1":
            return  # it has started those that train, and nothing else
        if os.getpid() != self.pid:
            return
        try:
            text = json.dumps(self.summary())
        except Exception as error:  # noqa: BLE001 - the script goes on whatever we could not read
            text = json.dumps({"error": repr(error)})
        self.path.write_text(text, encoding="utf-8")


def _leaves(node: Any) -> list[Any]:
    """The tensors that a backward pass gives gradients to, in the order of its graph."""
    found: dict[int, Any] = {}
    known, todo = set(), [node]
    while todo:
        at = todo.pop()
        if at is None or at in known:
            continue
        known.add(at)
        if hasattr(at, "variable"):
            found.setdefault(id(at.variable), at.variable)
        todo += [after for after, _ in at.next_functions]
    return list(found.values())


def _compiled_calls(node: Any) -> list[Any]:
    """The calls of compiled forward passes that a value was made by, as autograd recorded them."""
    known, todo, found = set(), [node], []
    while todo:
        at = todo.pop()
        if at is None or at in known:
            continue
        known.add(at)
        if "CompiledFunction" in type(at).__name__:
            found.append(at)
        todo += [after for after, _ in at.next_functions]
    return found


def _kept_format(call: Any) -> str:
    """The format of most of what a compiled forward pass left for its backward pass, weights apart.

    What lies inside of it cannot be watched while it runs; but what it computed on the way is there, in
    the format in which it was computed, whatever its results were turned to afterwards.
    """
    elements: Counter[str] = Counter()
    for tensor in call.saved_tensors:
        if tensor is not None and tensor.is_floating_point() and not tensor.requires_grad:
            elements[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return max(elements, key=lambda name: elements[name], default="")


class Finder:
    """Calls back once torch's body has run; asks the other finders for it."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = next((s for f in sys.meta_path if (s := f.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.callback(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def main() -> None:
    observer = Observer()

    def leave(code: int) -> None:
        observer.write()
        _really_exit(code)

    os._exit = leave  # type: ignore[assignment]
    atexit.register(observer.write)
    if "torch" in sys.modules:
        observer.attach(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, Finder(observer.attach))  # type: ignore[arg-type]
    mode, rest = sys.argv[1], sys.argv[2:]
    if mode == "trial":
        sys.argv = [sys.argv[0]]
        importlib.import_module("autotune.trial.__main__").main()
    elif rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        sys.path[0] = str(Path(rest[0]).resolve().parent)
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main()

"""Properties of the script's datasets: open files, randomness, sharding among workers, changes."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.hooks.data.object_walk import Walk
from autotune.trial.records.objects import WIDE, attribute_of, held_by

if TYPE_CHECKING:
    from collections.abc import Iterator

_HANDLES: Final = (
    ("zipfile", "ZipFile"),
    ("tarfile", "TarFile"),
    ("numpy.lib.npyio", "NpzFile"),
    ("sqlite3", "Connection"),
    ("h5py", "File"),
    ("h5py", "Group"),
    ("h5py", "Dataset"),
    ("lmdb", "Environment"),
    ("lmdb", "Transaction"),
    ("tables", "File"),
    ("netCDF4", "Dataset"),
    ("rasterio", "DatasetReader"),
    ("cv2", "VideoCapture"),
    ("decord", "VideoReader"),
    ("socket", "socket"),
    ("psycopg2.extensions", "connection"),
    ("psycopg", "Connection"),
    ("pymysql.connections", "Connection"),
    ("pymongo", "MongoClient"),
)
_POOLS: Final = (
    ("concurrent.futures.thread", "ThreadPoolExecutor", "_threads"),
    ("concurrent.futures.process", "ProcessPoolExecutor", "_executor_manager_thread"),
    ("multiprocessing.pool", "Pool", "_pool"),
)
"""Pools, each with an attribute that is empty before its threads have started."""
_HANDLE_MODULES: Final = frozenset({"_dbm", "_gdbm"})
"""Modules with types of open databases that have no public name."""


def shared_handle(*holders: Any) -> str:
    """Return the class of an open file, connection or running pool reachable from a dataset.

    Forked workers share the position of such a file, or a connection that must not cross a fork. They do not
    have the threads of a pool, and would wait for them forever. The search
    is made before the first fetch: files that a dataset opens at its first read are opened in each worker.

    Returns:
        Empty without one.
    """
    for node in Walk({str(place): holder for place, holder in enumerate(holders)}).nodes:
        # Attribute access on objects may raise any error.
        with contextlib.suppress(Exception):
            if _is_handle(node.value):
                return type(node.value).__name__
    return ""


def _is_handle(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        # A write-only file is a log.
        is_none = isinstance(value, (io.BytesIO, io.StringIO)) or value in (sys.stdin, sys.stdout, sys.stderr)
        return not is_none and not value.closed and value.readable()
    if type(value).__name__ == "_TemporaryFileWrapper":
        return _is_handle(value.file)
    for module, name in _HANDLES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return not _is_closed(value)
    for module, name, started in _POOLS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return bool(attribute_of(value, started))
    return type(value).__module__ in _HANDLE_MODULES


def _is_closed(value: Any) -> bool:
    """Return whether a file is closed; an archive drops its file on closing."""
    name = {"ZipFile": "fp", "NpzFile": "zip"}.get(type(value).__name__)
    return name is not None and attribute_of(value, name) is None


@functools.lru_cache(maxsize=16)
def source_of(kind: type) -> str:
    """Return the source of a class and of its base classes in the script, as far as readable."""
    parts: list[str] = []
    for cls in kind.__mro__[:4]:
        if cls.__module__.startswith("torch.utils.data"):
            break
        try:
            parts.append(inspect.getsource(cls))
        except (OSError, TypeError):
            continue
    return "\n".join(parts)


def shares_out(dataset: Any, source: str) -> bool:
    """Return whether an iterable dataset shards itself among workers: in itself, a helper, or a stage."""
    if "get_worker_info" in source:
        return True
    held = list(held_by(dataset).values())
    held += [stage for group in held if isinstance(group, (list, tuple)) for stage in group[:WIDE]]
    functions = [func if callable(func := attribute_of(stage, "func")) else stage for stage in held]
    codes = [attribute_of(function, "__code__") for function in (*functions, *_helpers(type(dataset)))]
    return any(isinstance(code, CodeType) and _shares_by(code) for code in codes)


def _shares_by(code: CodeType) -> bool:
    """Return whether a function reads its worker's id and their number; some read only the id, for seeds."""
    has_info = any("worker_info" in name for name in code.co_names)
    return "by_worker" in code.co_name or (has_info and "num_workers" in (*code.co_names, *code.co_varnames))


def _helpers(kind: type) -> Iterator[Any]:
    """Yield functions of a module that the methods of a class in it name."""
    for cls in kind.__mro__[:4]:
        if cls.__module__.startswith("torch.utils.data"):
            break
        for method in vars(cls).values():
            code, known = attribute_of(method, "__code__"), attribute_of(method, "__globals__")
            if isinstance(code, CodeType) and isinstance(known, dict):
                named = (known.get(name) for name in code.co_names)
                yield from (function for function in named if isinstance(function, FunctionType))


def holds_cuda(dataset: Any, torch: Any) -> bool:
    """Return whether its tensors are on a CUDA device."""
    held = list(held_by(dataset).values())
    held += [t for group in held if isinstance(group, (list, tuple)) for t in group[:8]]
    return any(isinstance(item, torch.Tensor) and item.is_cuda for item in held)


def looks_random(dataset: Any, source: str) -> bool:
    """Return whether its source or its transforms name random functions, as far as known."""
    words = ("random.", "torch.rand", "torch.bernoulli", "default_rng")
    if any(word in source for word in words):
        return True
    text = " ".join(repr(value)[:2000] for key, value in _members(dataset) if "transform" in key.lower())
    return any(word in text for word in ("Random", "Jitter", "Augment", "MixUp", "CutMix"))


def _members(dataset: Any) -> list[tuple[str, Any]]:
    return [*held_by(dataset).items(), *held_by(attribute_of(dataset, "dataset")).items()]

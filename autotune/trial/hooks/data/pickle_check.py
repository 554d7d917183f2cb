"""Test whether a dataset can be sent to a non-forked worker, in a child without side effects."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import pickle
import sys
from dataclasses import dataclass
from typing import Any

from autotune.trial.records.forked_probe import answer_of
from autotune.trial.runtime.state import is_user_file

LIMIT_S = 2.0
LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class Sent:
    """Result of the test.

    Args:
        refusal: Why it cannot be sent, a whole sentence; empty if it can, None if unknown.
        own_code: Classes or functions of the user are included.
    """

    refusal: str | None = None
    own_code: bool = False


def try_sending(what: Any, torch: Any) -> Sent:
    """Pickle an object in a forked child, within time and size limits; never in this process.

    Pickling runs code of the dataset, which may close files that it still needs.

    Args:
        what: Dataset and functions, as a loader would send them.
        torch: The module; tensors use shared memory and are not pickled.
    """
    answer = answer_of(lambda: _try(what, torch), limit_s=LIMIT_S)
    if answer is None:
        return Sent(f"Sending the dataset to a worker took more than {LIMIT_S:.0f} seconds, or failed.")
    refusal, own_code = answer
    return Sent(str(refusal), bool(own_code))


def _try(what: Any, torch: Any) -> tuple[str, bool]:
    """Return why it cannot be sent, and whether the user's code is included; runs in the child."""
    pickler = _Pickler(_Sink(), torch)
    refusal = ""
    try:
        pickler.dump(what)
    except _TooLarge:
        refusal = (
            f"The dataset is more than {LIMIT_BYTES >> 20} MiB large, and every worker would receive a copy."
        )
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        what_failed = f"{type(error).__name__}: {reason[:200]}"
        refusal = f"The dataset, or a function of its loader, cannot be sent to a worker: {what_failed}."
    missing = sorted(name for name in pickler.from_main if name not in importable_names())
    if not refusal and missing:
        refusal = f"{missing[0]} exists only where the script runs as a program, not where it is imported."
    return refusal, pickler.own_code


class _TooLarge(Exception):
    pass


class _Sink(io.RawIOBase):
    """Counts bytes and discards them."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self.add(size)
        return size

    def add(self, size: int) -> None:
        self.bytes += size
        if self.bytes > LIMIT_BYTES:
            raise _TooLarge


class _Pickler(pickle.Pickler):
    """Pickler of worker arguments that counts tensors by their name only."""

    def __init__(self, sink: _Sink, torch: Any) -> None:
        super().__init__(sink, protocol=5, buffer_callback=lambda part: sink.add(part.raw().nbytes))
        self._tensor = torch.Tensor
        self.own_code = False
        self.from_main: set[str] = set()

    def reducer_override(self, obj: Any, /) -> Any:
        if isinstance(obj, self._tensor):
            return (int, ())
        module = getattr(obj, "__module__", None)
        if isinstance(obj, type) or callable(obj):
            # An instance that can be called has no name of its own; its class follows.
            if module == "__main__" and (name := getattr(obj, "__qualname__", "")):
                self.from_main.add(str(name).partition(".")[0])
            file = getattr(sys.modules.get(str(module)), "__file__", None)
            self.own_code = self.own_code or (file is not None and is_user_file(file))
        return NotImplemented


def importable_names() -> set[str]:
    """Return the names that the main script defines on import in a worker: those outside its main guard."""
    try:
        with io.open_code(str(sys.modules["__main__"].__file__)) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, KeyError, AttributeError):
        return set()
    return _bound(tree.body)


def _bound(body: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            if any(alias.name == "*" for alias in node.names) and isinstance(node, ast.ImportFrom):
                with contextlib.suppress(Exception):
                    found |= set(vars(importlib.import_module(node.module or "")))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.If) and not _guards(node.test):
            found |= _bound(node.body) | _bound(node.orelse)
        elif isinstance(node, ast.Try):
            found |= _bound(node.body) | _bound(node.orelse) | _bound(node.finalbody)
            found |= {name for handler in node.handlers for name in _bound(handler.body)}
    return found


def _guards(test: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(test))

"""Whether a dataset could be sent to a worker: tried in a child, bounded in time and size."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest

from autotune.launch.guard import process_tree
from autotune.trial.hooks.data import pickle_check
from autotune.trial.hooks.data.pickle_check import Sent, importable_names, try_sending


class Tensor:
    """Stands for a tensor, which goes through shared memory."""

    def __reduce__(self):
        raise TypeError("a tensor is not pickled here")


TORCH = SimpleNamespace(Tensor=Tensor)


class Slow:
    def __getstate__(self):
        time.sleep(30)
        return {}


class Dies:
    def __getstate__(self):
        os._exit(3)


class Changes:
    held = 1

    def __getstate__(self):
        self.held = 2
        return {}


def test_data_and_library_code_can_be_sent() -> None:
    assert try_sending(([1, "two", Tensor()], threading.Thread), TORCH) == Sent("")


def test_code_of_the_users_own_is_reported(monkeypatch) -> None:
    assert try_sending(Changes(), TORCH) == Sent("", own_code=True)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda: 0, "PicklingError"),
        (threading.Lock(), "cannot pickle '_thread.lock' object"),
    ],
)
def test_what_cannot_be_pickled_is_a_sentence(what, words) -> None:
    refusal = try_sending([what], TORCH).refusal
    assert refusal is not None
    assert words in refusal
    assert refusal.startswith("The dataset, or a function of its loader, cannot be sent to a worker: ")
    assert refusal.endswith(".")


def test_size_and_time_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(pickle_check, "LIMIT_BYTES", 1 << 20)
    assert "more than 1 MiB" in (try_sending(bytes(2 << 20), TORCH).refusal or "")
    monkeypatch.setattr(pickle_check, "LIMIT_S", 0.3)
    begin = time.monotonic()
    assert "took more than" in (try_sending(Slow(), TORCH).refusal or "")
    assert time.monotonic() - begin < 10


def test_what_happens_in_the_child_stays_there() -> None:
    before = set(process_tree.descendants(os.getpid()))
    mine = Changes()
    try_sending(mine, TORCH)
    assert mine.held == 1
    assert ", or failed" in (try_sending(Dies(), TORCH).refusal or "")
    assert set(process_tree.descendants(os.getpid())) <= before


def test_names_under_the_main_guard_are_not_importable(tmp_path, monkeypatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os as system\nfrom os.path import *\n"
        "try:\n    import fast\nexcept ImportError:\n    fast = None\n"
        "class Rows: pass\ndef collate(x): pass\nif True:\n    A, B = 1, 2\n"
        "if __name__ == '__main__':\n    class Hidden: pass\n"
    )
    main = ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    names = importable_names()
    assert {"system", "join", "fast", "Rows", "collate", "A", "B"} <= names
    assert "Hidden" not in names


def test_an_instance_that_can_be_called_is_no_name_that_is_missing(tmp_path, monkeypatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("class Noise:\n    def __call__(self, x): return x\n")
    main = ModuleType("__main__")
    main.__file__ = str(script)
    exec(compile(script.read_text(), str(script), "exec"), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert try_sending([main.Noise()], TORCH).refusal == ""

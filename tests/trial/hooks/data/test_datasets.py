"""Open files, databases and connections that forked workers would share, at any depth."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing.pool
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.trial.hooks.data.datasets import shared_handle

if TYPE_CHECKING:
    from pathlib import Path


class Held:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def deep(handle: Any) -> Any:
    """Four objects deep, as in a dataset that wraps another one, with a store that a reader holds."""
    return Held(dataset=Held(reader=Held(store={"train": [handle]})))


def test_an_open_handle_is_found_at_any_depth_and_a_closed_one_is_none(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with tarfile.open(tmp_path / "a.tar", "w"):
        pass
    opened = {
        "NpzFile": np.load(tmp_path / "a.npz"),
        "ZipFile": zipfile.ZipFile(tmp_path / "a.npz"),
        "TarFile": tarfile.TarFile(tmp_path / "a.tar"),
        "Connection": sqlite3.connect(":memory:"),
        "socket": socket.socket(),
        "BufferedReader": (tmp_path / "a.npz").open("rb"),
    }
    for name, handle in opened.items():
        assert shared_handle(deep(handle)) == name
        assert shared_handle(Held(), functools.partial(print, handle)) == name, "held by a collate function"
        assert shared_handle(lambda held=handle: held) == name
        handle.close()
    for name in ("NpzFile", "ZipFile", "BufferedReader"):
        assert shared_handle(deep(opened[name])) == ""


@pytest.mark.parametrize(
    ("module", "name"),
    [("h5py", "File"), ("lmdb", "Environment"), ("netCDF4", "Dataset"), ("cv2", "VideoCapture")],
)
def test_handles_of_libraries_are_known_by_their_class(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    kind = type(name, (), {})
    handle = deep(kind())
    assert shared_handle(handle) == ""
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: kind}))
    assert shared_handle(handle) == name


def test_a_store_is_known_by_the_archive_in_it(tmp_path: Path) -> None:
    """As a ZipStore of zarr has its archive, and a pipe its process."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        assert shared_handle(Held(array=Held(store=Held(zf=archive)))) == "ZipFile"
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as child:
        assert shared_handle(Held(decoder=child)) == "BufferedReader"


def test_a_pool_is_a_handle_while_its_threads_run() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert shared_handle(deep(pool)) == "", "it has not started: each worker would start its own"
        pool.submit(int).result()
        assert shared_handle(deep(pool)) == "ThreadPoolExecutor"
    with multiprocessing.pool.ThreadPool(1) as threads:
        assert shared_handle(deep(threads)) == "ThreadPool"


def test_logs_standard_streams_and_temporary_folders_are_no_handles(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, tempfile.TemporaryDirectory() as folder:
        held = Held(log=log, out=sys.stdout, folder=folder, stdin=sys.stdin)
        assert shared_handle(held) == ""
    with tempfile.NamedTemporaryFile() as file:
        assert shared_handle(Held(rows=file)) == "_TemporaryFileWrapper"

"""A whole search whose screening runs are forked, and whose fork server is killed on the way."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.launch.guard import process_tree
from autotune.launch.workspace import isolation

pytestmark = [pytest.mark.torch, pytest.mark.mlflow, pytest.mark.slow, pytest.mark.timeout(400)]


def reported(place: Any) -> list[dict[str, Any]]:
    return [entry.data for entry in place.journal() if entry.kind == "finished"]


def fork_servers(pid: int) -> list[int]:
    """Children of the search that were started to be forked from."""
    found = []
    for child in process_tree.descendants(pid):
        try:
            is_one = b"\0AUTOTUNE_FORKS=" in b"\0" + Path(f"/proc/{child}/environ").read_bytes()
        except OSError:
            continue
        if is_one and int(process_tree.stat_fields(child)[1]) == pid:
            found.append(child)
    return found


def test_a_search_forks_what_it_screens_and_outlives_its_fork_server(place: Any) -> None:
    if isolation.available() != "overlay":
        pytest.skip("no overlay can be made here")
    words = ("--start", "fork", "--budget", "3m", "--set", "num_workers=0,1,2,4", "--knob", "num_workers")
    search = place.begin("slow_loader.py", *words)
    try:
        end = time.monotonic() + 150
        while not any(row["start"] == "FORK" for row in reported(place)):
            assert search.poll() is None, search.communicate()
            assert time.monotonic() < end, reported(place)
            time.sleep(0.2)
        killed = fork_servers(search.pid)
        for server in killed:
            os.kill(server, signal.SIGKILL)
        _out, err = search.communicate(timeout=300)
    finally:
        search.kill()
    assert killed
    assert search.returncode in (0, 1, 8), err
    assert all(map(process_tree.is_zombie, killed))
    stages = {
        e.data["trial"]["number"]: e.data["trial"]["stage"] for e in place.journal() if e.kind == "proposed"
    }
    starts = {(stages[row["number"]], row["start"]) for row in reported(place)}
    assert {start for stage, start in starts if stage not in ("START", "REFINE")} == {"COLD"}
    assert ("START", "FORK") in starts
    assert any(
        row["outcome"]["_"] == "Measurement" and stages[row["number"]] == "CONFIRM" for row in reported(place)
    )

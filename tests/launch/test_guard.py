"""Parts of the guard that need no process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.launch import guard, sweep
from autotune.launch.guard import CHUNK_BYTES, Drain


def drained(path: Path, data: bytes, size: int, **more: int) -> Drain:
    """Everything, written in pieces of this size, each taken off by itself."""
    drain = Drain(str(path), **more)
    for place in range(0, len(data), size):
        os.write(drain.write_fd, data[place : place + size])
        while drain.pump():
            pass
    os.close(drain.write_fd)
    return drain


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_output_in_small_pieces_takes_no_more_than_in_large_ones(tmp_path: Path, size: int) -> None:
    data = bytes(n % 251 for n in range(30_000))
    drain = drained(tmp_path / "log", data, size, head_bytes=100, tail_bytes=20_000)
    assert len(drain._tail) <= 1 + len(data) // CHUNK_BYTES
    drain.close()
    log = (tmp_path / "log").read_bytes()
    assert log.startswith(data[:100])
    assert log.endswith(data[-20_000:])


def test_of_many_pieces_only_the_last_are_kept(tmp_path: Path) -> None:
    data = bytes(n % 251 for n in range(6 * CHUNK_BYTES))
    drain = drained(tmp_path / "log", data, CHUNK_BYTES // 2, head_bytes=0, tail_bytes=2 * CHUNK_BYTES)
    assert sum(map(len, drain._tail)) <= 3 * CHUNK_BYTES
    drain.close()
    left_out = f"\n[{4 * CHUNK_BYTES} bytes left out]\n".encode()
    assert (tmp_path / "log").read_bytes() == left_out + data[-2 * CHUNK_BYTES :]


def test_a_verdict_is_written_past_a_link_that_a_trial_has_put_there(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("as it was")
    (tmp_path / "result.json.part").symlink_to(theirs)
    guard._write_atomically(str(tmp_path / "result.json"), {"why": "exit"})
    assert (tmp_path / "result.json").read_text() == '{"why":"exit"}'
    assert theirs.read_text() == "as it was"


def test_a_group_is_killed_only_where_groups_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "root" / "autotune-t1"
    place.mkdir(parents=True)
    (place / "cgroup.kill").touch()
    sweep.kill_group(str(place))
    assert (place / "cgroup.kill").read_text() == ""
    monkeypatch.setattr(sweep, "GROUP_ROOTS", (str(tmp_path / "root"),))
    sweep.kill_group(str(place))
    assert (place / "cgroup.kill").read_text() == "1"
    (tmp_path / "root" / "autotune-t2").symlink_to(place)
    (place / "cgroup.kill").write_text("")
    sweep.kill_group(str(tmp_path / "root" / "autotune-t2"))
    assert (place / "cgroup.kill").read_text() == ""

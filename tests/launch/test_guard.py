"""Parts of the guard that need no process."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.launch import guard, sweep
from autotune.launch.guard import CHUNK_BYTES, STOOD_STILL, Drain


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


def test_a_group_of_version_1_is_emptied_process_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "GROUP_ROOTS", ())
    folder = sweep.make_group(f"v1-{os.getpid()}")
    if not folder:
        pytest.skip("no group of version 1 can be made here")
    forks = "import os, time\nfor _ in range(3): os.fork()\ntime.sleep(60)"
    try:
        with subprocess.Popen(
            [sys.executable, "-S", "-c", "import sys; sys.stdin.read(); " + f"exec({forks!r})"],
            stdin=subprocess.PIPE,
        ) as one:
            Path(folder, "cgroup.procs").write_text(str(one.pid))
            assert one.stdin is not None
            one.stdin.close()
            sweep.end_group(folder)
            assert one.wait() == -signal.SIGKILL
        assert not Path(folder).exists()
    finally:
        sweep.end_group(folder)


def test_a_process_outside_of_this_namespace_is_not_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed as 0, which would mean our own process group."""
    sent: list[int] = []
    place = tmp_path / "autotune-t1"
    place.mkdir()
    (place / "cgroup.procs").write_text("0\n0\n")
    monkeypatch.setattr(sweep, "OLD_GROUP_ROOTS", {"pids": str(tmp_path)})
    monkeypatch.setattr(sweep.os, "kill", lambda pid, number: sent.append(pid))
    sweep.kill_group(str(place))
    assert sent == []


MB = 1 << 20


class Tree:
    """Processes whose pages are shared: a parent of 3,200 MB and the workers that it forked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.readings = 0
        self.workers: dict[int, int] = {}
        """Pid -> MB of its own."""
        monkeypatch.setattr(guard, "_pss", self.share)
        monkeypatch.setattr(guard.sweep, "stat_fields", lambda pid: [b"S", b"1" if pid > 1 else b"0"])
        monkeypatch.setattr(guard.time, "monotonic", lambda: self.now_s)

    def share(self, pid: int) -> int:
        self.readings += pid == 1
        self.now_s += 0.02
        return (3200 * MB) // (len(self.workers) + 1) + self.workers.get(pid, 0) * MB

    def rss(self) -> dict[int, int]:
        return {1: 3200 * MB, **{pid: (3200 + own) * MB for pid, own in self.workers.items()}}


def test_workers_that_are_forked_anew_for_each_epoch_do_not_count_their_parents_pages_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, footprint = Tree(monkeypatch), guard.Footprint()
    found: list[int] = []
    for epoch in range(20):
        tree.workers = {100 * epoch + 2 + n: 20 for n in range(8)}
        tree.now_s += 0.25
        found.append(footprint.of(tree.rss(), limit_bytes=20_000 * MB) // MB)
    assert min(found) >= 3350
    assert max(found) <= 3200 + 2 * 160, "what has ended counts at most until the next reading"
    assert tree.readings == 1, "a reading of nine processes takes 0.18 s here, and none is due for 9 s"


def test_an_estimate_above_the_limit_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, footprint = Tree(monkeypatch), guard.Footprint()
    footprint.of(tree.rss())
    # They were started by another process of the tree than it seems, and share all of their pages.
    monkeypatch.setattr(guard.sweep, "stat_fields", lambda _pid: [])
    tree.workers = dict.fromkeys(range(2, 10), 20)
    assert footprint.of(tree.rss()) > 28_000 * MB
    assert footprint.of(tree.rss(), limit_bytes=6000 * MB) <= 3360 * MB
    assert tree.readings == 2


def test_what_a_process_has_taken_since_the_last_reading_counts_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, footprint = Tree(monkeypatch), guard.Footprint()
    tree.workers = {2: 20}
    before = footprint.of(tree.rss())
    tree.workers = {2: 500}
    assert footprint.of(tree.rss()) - before == 480 * MB
    tree.now_s += 60.0
    assert footprint.of(tree.rss()) // MB == 3700
    assert tree.readings == 2


def test_pages_shared_by_fork_count_once_in_a_sample(tmp_path: Path) -> None:
    """A real tree: a parent with 200 MB, and three children that hold nothing of their own."""
    text = (
        "import os, time\n"
        "held = b'x' * (200 << 20)\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(60)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, process_group=0) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"ready\n"
            samples = guard.Samples()
            samples.take()
            samples.take()
            assert 200 * MB < samples.peak_bytes < 320 * MB
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def stops(count: int, *stopped: int) -> list[list[float | int | None]]:
    """Samples one second apart; before these the script stood still."""
    return [[n, 0, None, 0.0, None, None, None, int(n in stopped)] for n in range(count)]


def still(rows: list[list[float | int | None]]) -> list[tuple[int, int]]:
    """Stretches from one sample to the next in which the script stood still."""
    return [(int(a[0] or 0), int(b[0] or 0)) for a, b in itertools.pairwise(rows) if b[STOOD_STILL]]


@pytest.mark.parametrize("count", [6, 7])
def test_samples_that_are_thinned_keep_every_stop(count: int) -> None:
    for stopped in range(1, count):
        thinned = guard._thinned(stops(count, stopped))
        assert thinned[-1][0] == count - 1
        assert len(thinned) == (count + 1) // 2
        if thinned[0][0] < stopped:
            ((begin, end),) = still(thinned)
            assert begin < stopped <= end


def test_a_sample_after_a_gap_or_a_sleep_says_that_the_trial_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = guard.Samples()
    asleep = [0.0, 0.0, 30.0, 30.0]
    monkeypatch.setattr(guard, "_asleep_s", lambda: asleep.pop(0))
    samples._asleep_s = asleep[0]
    second = 1_000_000_000
    found: list[bool] = []
    for t_ns in (0, second // 4, second // 2, 60 * second):
        found.append(samples._stood_still(t_ns, 0))
        samples.rows.append([t_ns])
    assert found == [False, False, True, True], "suspended, then held up with all that it watches"


def test_a_process_is_seen_to_be_stopped() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert not guard.is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert guard.is_stopped(child.pid)
    finally:
        child.kill()
        child.wait()
    assert not guard.is_stopped(0)

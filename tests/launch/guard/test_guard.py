"""Parts of the guard that need no process."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.launch.guard import guard, process_tree
from autotune.launch.guard.guard import CHUNK_BYTES, STOOD_STILL, Drain


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
    process_tree.kill_group(str(place))
    assert (place / "cgroup.kill").read_text() == ""
    monkeypatch.setattr(process_tree, "GROUP_ROOTS", (str(tmp_path / "root"),))
    process_tree.kill_group(str(place))
    assert (place / "cgroup.kill").read_text() == "1"
    (tmp_path / "root" / "autotune-t2").symlink_to(place)
    (place / "cgroup.kill").write_text("")
    process_tree.kill_group(str(tmp_path / "root" / "autotune-t2"))
    assert (place / "cgroup.kill").read_text() == ""


def test_a_group_of_version_1_is_emptied_process_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "GROUP_ROOTS", ())
    folder = process_tree.make_group(f"v1-{os.getpid()}")
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
            process_tree.end_group(folder)
            assert one.wait() == -signal.SIGKILL
        assert not Path(folder).exists()
    finally:
        process_tree.end_group(folder)


def test_a_process_outside_of_this_namespace_is_not_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed as 0, which would mean our own process group."""
    sent: list[int] = []
    place = tmp_path / "autotune-t1"
    place.mkdir()
    (place / "cgroup.procs").write_text("0\n0\n")
    monkeypatch.setattr(process_tree, "OLD_GROUP_ROOTS", {"pids": str(tmp_path)})
    monkeypatch.setattr(process_tree.os, "kill", lambda pid, number: sent.append(pid))
    process_tree.kill_group(str(place))
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
        monkeypatch.setattr(guard.process_tree, "stat_fields", lambda pid: [b"S", b"1" if pid > 1 else b"0"])
        monkeypatch.setattr(guard.time, "monotonic", lambda: self.now_s)

    def share(self, pid: int) -> int:
        self.readings += pid == 1
        self.now_s += 0.01
        return (3200 * MB) // (len(self.workers) + 1) + self.workers.get(pid, 0) * MB

    def rss(self) -> dict[int, int]:
        return {1: 3200 * MB, **{pid: (3200 + own) * MB for pid, own in self.workers.items()}}


def test_workers_that_are_forked_anew_for_each_epoch_do_not_count_their_parents_pages_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, footprint = Tree(monkeypatch), guard.Footprint()
    found: list[int] = []
    for epoch in range(16):
        tree.workers = {100 * epoch + 2 + n: 20 for n in range(8)}
        tree.now_s += 0.25
        found.append(footprint.of(tree.rss(), limit_bytes=20_000 * MB) // MB)
    assert min(found) >= 3350
    assert max(found) <= 3200 + 2 * 160, "what has ended counts at most until the next reading"
    assert tree.readings == 1, "a reading of nine processes takes 0.09 s here, and none is due for 4.5 s"


def test_an_estimate_above_the_limit_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, footprint = Tree(monkeypatch), guard.Footprint()
    footprint.of(tree.rss())
    # They were started by another process of the tree than it seems, and share all of their pages.
    monkeypatch.setattr(guard.process_tree, "stat_fields", lambda _pid: [])
    tree.workers = dict.fromkeys(range(2, 10), 20)
    assert footprint.of(tree.rss()) > 28_000 * MB
    assert not footprint.is_read
    tree.now_s += 0.25
    assert footprint.of(tree.rss(), limit_bytes=6000 * MB) <= 3360 * MB
    assert footprint.is_read
    assert tree.readings == 2


def test_a_reading_of_thousands_of_processes_is_taken_in_parts_and_ends_nothing_before_it_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, footprint = Tree(monkeypatch), guard.Footprint()
    monkeypatch.setattr(guard.process_tree, "stat_fields", lambda _pid: [])
    tree.workers = dict.fromkeys(range(2, 1502), 0)
    limit = 6000 * MB
    found: list[int] = []
    while not footprint.is_read:
        before_s = tree.now_s
        found.append(footprint.of(tree.rss(), limit_bytes=limit))
        assert tree.now_s - before_s <= guard.READ_S + 0.011
    assert len(found) > 100
    assert set(found[:-1]) == {limit}, "5,000 GB is an upper bound and no reason to end anything"
    assert found[-1] // MB in range(3199, 3201)
    footprint.of(tree.rss(), limit_bytes=limit)
    assert not footprint.is_read, "the next one is not due for a while"


def test_a_tree_that_really_takes_too_much_is_read_to_do_so_within_a_few_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, footprint = Tree(monkeypatch), guard.Footprint()
    tree.workers = dict.fromkeys(range(2, 26), 20)
    footprint.of(tree.rss(), limit_bytes=6000 * MB)
    while not footprint.is_read:
        footprint.of(tree.rss(), limit_bytes=6000 * MB)
    tree.workers = dict.fromkeys(range(2, 26), 200)
    for _sample in range(8):
        tree.now_s += 0.25
        if footprint.of(tree.rss(), limit_bytes=6000 * MB) > 6000 * MB:
            break
    assert footprint.is_read
    assert footprint.of(tree.rss(), limit_bytes=6000 * MB) >= 6000 * MB


def test_workers_that_end_during_a_long_reading_leave_at_least_the_largest_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, footprint = Tree(monkeypatch), guard.Footprint()
    tree.workers = dict.fromkeys(range(2, 22), 20)
    footprint.of(tree.rss())
    assert not footprint.is_read
    tree.workers = dict.fromkeys(range(102, 122), 20)
    footprint.of(tree.rss())
    while not footprint.is_read:
        footprint.of(tree.rss())
    assert footprint.of(tree.rss()) // MB in range(3200, 3220 + 20 * 20 + 1)


@pytest.mark.parametrize("limit_bytes", [0, 30_000 * MB])
def test_the_peak_is_what_was_read_and_no_estimate(monkeypatch: pytest.MonkeyPatch, limit_bytes: int) -> None:
    """Workers read a tensor in shared memory page by page: their resident sizes grow, its size does not."""
    seen_mb, now_s = 0, 100.0

    def share(pid: int) -> int:
        nonlocal now_s
        now_s += 0.01
        return 3200 * MB - 8 * seen_mb * MB // 9 if pid == 1 else seen_mb * MB // 9

    monkeypatch.setattr(guard, "_pss", share)
    monkeypatch.setattr(guard, "_rss", lambda pid: (3200 if pid == 1 else seen_mb) * MB)
    monkeypatch.setattr(guard.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(guard.process_tree, "descendants", lambda _root: list(range(1, 10)))
    monkeypatch.setattr(guard.process_tree, "stat_fields", lambda pid: [b"S", b"1" if pid > 1 else b"0"])
    samples = guard.Samples()
    highest = 0
    while seen_mb <= 3200:
        highest = max(highest, samples.take(limit_bytes=limit_bytes))
        seen_mb, now_s = seen_mb + 200, now_s + 0.25
    assert highest > 4000 * MB, "what the tree holds is estimated from above between two readings"
    assert samples.peak_bytes // MB in range(3190, 3201)


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
    # Other tests may have left processes below this one.
    before = guard.Samples()
    before.take()
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, process_group=0) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"ready\n"
            samples = guard.Samples()
            samples.take()
            samples.take()
            assert 200 * MB < samples.peak_bytes - before.peak_bytes < 320 * MB
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_idle_forks_by_the_hundred_are_not_taken_for_memory() -> None:
    """A real tree: a parent with 64 MB, and 300 forks of it that hold nothing of their own."""
    text = (
        "import os, time\n"
        "held = b'x' * (64 << 20)\n"
        "for _ in range(300):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(60)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    limit = 500 * MB
    with subprocess.Popen(
        [sys.executable, "-S", "-c", text], stdout=subprocess.PIPE, process_group=0
    ) as parent:
        try:
            assert parent.stdout is not None
            samples = guard.Samples()
            found = [samples.take(limit_bytes=limit)]
            assert parent.stdout.readline() == b"ready\n"
            found += [samples.take(limit_bytes=limit) for _ in range(8)]
            assert max(found) <= limit, "their resident sizes are 19 GB together"
            assert 64 * MB < samples.peak_bytes < limit
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


def test_the_guards_own_work_on_a_large_tree_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = guard.Samples()
    worked = [0, 3_000_000_000, 3_000_000_000]
    monkeypatch.setattr(guard.time, "process_time_ns", lambda: samples._worked_ns + worked.pop(0))
    found: list[bool] = []
    for t_ns in (0, 4_000_000_000, 8_000_000_000 + 4_000_000_000):
        found.append(samples._stood_still(t_ns, 0))
        samples.rows.append([t_ns])
    assert found == [False, False, True]


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

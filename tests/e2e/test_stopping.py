"""Searches that are stopped from outside: answer so far, exit code, and going on without loss."""

import contextlib
import re
import signal
import sqlite3
import time

import pytest

from autotune.launch.guard import process_tree

pytestmark = [pytest.mark.torch, pytest.mark.mlflow, pytest.mark.timeout(300)]

LONG = ("--budget", "10m", "--knob", "fused_optimizer", "--trials", "3")


@pytest.mark.parametrize(
    ("driver", "number", "code", "why"),
    [
        ("inline", signal.SIGINT, 130, "interrupted"),
        pytest.param("ray", signal.SIGTERM, 75, "signal", marks=pytest.mark.ray),
        pytest.param("inline", signal.SIGTERM, 75, "signal", marks=pytest.mark.slow),
        pytest.param("ray", signal.SIGINT, 130, "interrupted", marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
)
def test_a_signal_ends_it_soon_with_the_answer_so_far_and_it_goes_on(place, driver, number, code, why):
    process = place.begin("slow_loader.py", *LONG, driver=driver)
    try:
        place.wait_for_finished(1)
        time.sleep(1.0)  # into the second trial
        process.send_signal(number)
        out, err = process.communicate(timeout=40)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert "autotune resume" in out
    assert (place.folder / "best.yaml").exists()
    assert place.show()["stopped"] == why
    resumed = place.run("resume", "--json")
    assert resumed.has_no_gain, resumed
    reported = [entry.data["number"] for entry in place.journal() if entry.kind == "finished"]
    assert reported == [0, 1, 2]


def test_after_a_kill_nothing_that_ended_is_lost_or_run_again(place):
    process = place.begin("slow_loader.py", *LONG, "--json")
    try:
        before = place.wait_for_finished(2)
    finally:
        process.kill()
        process.communicate()
    resumed = place.run("resume", "--json")
    assert resumed.has_no_gain, resumed
    entries = place.journal()
    reported = [entry.data["number"] for entry in entries if entry.kind == "finished"]
    assert reported == [0, 1, 2]
    assert reported[: len(before)] == before
    requested = [entry.data["trial"] for entry in entries if entry.kind == "proposed"]
    # A reading beside other processes is repeated at once, under the next attempt of its number.
    first = [trial["number"] for trial in requested if trial["attempt"] == 1]
    assert all(first.count(number) == 1 for number in before)
    assert [entry.kind for entry in entries].count("opened") == 2
    with contextlib.closing(sqlite3.connect(place.home / "mlflow.db")) as store:
        (runs,) = store.execute("select count(*) from runs").fetchone()
    assert runs == 1 + 3


@pytest.mark.slow
def test_a_whole_job_that_is_stopped_for_a_while_shows_no_absurd_ratio(place):
    """A scheduler suspends the driver and its trial; that time is no training time."""
    process = place.begin("plain_loop.py", *LONG)
    try:
        until = time.monotonic() + 90
        while not has_stepped(place):
            assert time.monotonic() < until, "no trial trains"
            time.sleep(0.1)
        time.sleep(1.0)
        job = [process.pid, *process_tree.descendants(process.pid)]
        process_tree.send(job, signal.SIGSTOP)
        time.sleep(8.0)
        process_tree.send(job, signal.SIGCONT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
        process.communicate()
    outcomes = [entry.data["outcome"] for entry in place.journal() if entry.kind == "finished"]
    rates = [outcome["throughput"]["value"] for outcome in outcomes if "throughput" in outcome]
    assert len(rates) == 3, (out, err)
    assert max(rates) < 4 * min(rates), "8 s without a step in a window of a few seconds"
    ratios = [float(text) for text in re.findall(r"(\d+\.\d+)x", out + err)]
    assert all(ratio < 4 for ratio in ratios), ratios


def has_stepped(place):
    steps = b'"e":"Steps","d":[['
    return any(steps in path.read_bytes() for path in place.home.glob("studies/*/trials/*/events.jsonl"))

"""What Ctrl-C and a scheduler's signals do, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from autotune.driver.loop.signals import PressedAgain, breakable, polite_ending

WAITING = """
import signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
from autotune.driver.loop.signals import PressedAgain, breakable, polite_ending
ended = threading.Event()
def stop(why):
    print(why, flush=True)
    {then}
with polite_ending(stop):
    print("ready", flush=True)
    ended.wait(60)
print("after", flush=True)
"""


def started(then: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(then=then)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "signal"),
        (signal.SIGUSR1, "signal"),
        (signal.SIGHUP, "signal"),
    ],
)
def test_the_first_signal_asks_to_stop_and_lets_it_end_by_itself(number: int, why: str) -> None:
    process = started("ended.set()")
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert out == f"{why}\nafter\n"
    assert process.returncode == 0


def test_the_second_ctrl_c_ends_at_once_with_130() -> None:
    process = started("pass")
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")


def test_an_interrupt_of_the_drivers_own_is_nobodys_first_ctrl_c() -> None:
    text = WAITING.replace(
        "polite_ending(stop)", "polite_ending(stop, breaks_off=lambda: bool(own and own.pop()))"
    )
    text = text.replace("ended = threading", "import _thread\nown = [True]\nended = threading")
    text = text.replace('print("ready"', '_thread.interrupt_main()\n    print("ready"')
    process = subprocess.Popen(
        [sys.executable, "-c", text.format(then="ended.set()")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "interrupted\nafter\n")


def test_a_repeated_signal_is_reported_again_and_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    reported: list[str] = []
    with polite_ending(reported.append):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert reported == ["signal", "signal"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_nothing_is_touched() -> None:
    before, inside = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with polite_ending(lambda why: None):
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert inside == [before]


def test_in_a_program_that_is_not_ours_a_second_ctrl_c_comes_through_and_ends_nothing() -> None:
    text = WAITING.format(then="pass").replace(
        "polite_ending(stop)", "polite_ending(stop, owns_process=False)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"interrupted\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert err.rstrip().endswith(b"PressedAgain")


def test_in_a_program_that_is_not_ours_a_schedulers_signals_are_its_own() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with polite_ending(lambda why: None, owns_process=False):
        assert signal.getsignal(signal.SIGTERM) is before
        assert signal.getsignal(signal.SIGINT) is not before


def test_a_broken_loop_is_silent_and_an_insisting_person_is_heard() -> None:
    with breakable():
        raise KeyboardInterrupt
    with pytest.raises(PressedAgain), breakable():
        raise PressedAgain


def test_a_hang_up_that_was_to_be_ignored_from_the_start_stays_so() -> None:
    """As under `nohup`: a search goes on when its user logs out."""
    reported: list[str] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with polite_ending(reported.append) as arm:
            os.kill(os.getpid(), signal.SIGHUP)
            # As a library may do meanwhile.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            arm()
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert reported == ["signal"]

"""The first trial runs while another driver starts; it keeps what every driver promises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_worlds import WORLDS, open_session

from autotune.clock import SimulatedClock
from autotune.driver.backends import head_start
from autotune.driver.backends.head_start import DEVICES, HeadStart, on_first_devices
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.loop.session import Session
from autotune.errors import RayUnavailable
from autotune.launch.fake import FakeRunner
from autotune.model.study import Study
from autotune.model.trial import TrialState
from autotune.store.journal import Entry
from autotune.testing.drivers import DriverContract

LONG_S = 60.0
"""Until a test that waits for a thread has failed."""


class Later(InlineDriver):
    """The driver that starts; notes in which thread and order it is used."""

    def __init__(self, session: Session, world: str, clock: SimulatedClock) -> None:
        super().__init__(session, FakeRunner(WORLDS[world], clock))
        self.used: list[str] = []
        self.thread = threading.current_thread()
        self.first = -1

    def run(self, arm: Callable[[], None] = lambda: None) -> None:
        self.used.append("run")
        self.first = len(self._session.study.trials)
        super().run(arm)

    def close(self) -> None:
        assert self.thread.is_alive(), "Linux has killed what that thread had started"
        self.used.append("close")


class Made:
    """A session with a head start of its own; `release` lets the later driver have started."""

    def __init__(self, folder: Path, script: str = "good", *, error: Exception | None = None) -> None:
        self.clock = SimulatedClock()
        self.session, self.journal = open_session(folder, clock=self.clock, budget_s=120.0)
        self.release = threading.Event()
        self.announced: list[str] = []
        self.later: list[Later] = []
        self.is_starting: Callable[[], bool] = bool
        self.first: FakeRunner | None = None

        def runner(is_starting: Callable[[], bool]) -> FakeRunner:
            self.is_starting = is_starting
            self.first = FakeRunner(WORLDS[script], self.clock)
            stop = self.first.stop

            def stopped() -> None:
                stop()
                self.ended.set()

            self.first.stop = stopped  # type: ignore[method-assign]
            return self.first

        def start() -> Later:
            assert self.release.wait(LONG_S)
            if error is not None:
                raise error
            self.later.append(Later(self.session, script, self.clock))
            return self.later[-1]

        self.ended = threading.Event()
        self.driver = HeadStart(self.session, runner, start, announce=self.announced.append)

    def during_the_first_trial(self, do: Callable[[], None]) -> None:
        assert self.first is not None
        run = self.first.run

        def running(assignment: Any) -> Iterator[Any]:
            do()
            yield from run(assignment)

        self.first.run = running  # type: ignore[method-assign]

    def closed(self) -> tuple[Study, list[Entry]]:
        study = self.session.close()
        entries = list(self.journal.entries())
        self.journal.close()
        return study, entries


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Made]]:
    every: list[Made] = []

    def make(*args: Any, **more: Any) -> Made:
        every.append(Made(tmp_path, *args, **more))
        return every[-1]

    yield make
    for one in every:
        one.release.set()
        one.driver._started.release()


class TestHeadStart(DriverContract):
    def drive(self, folder: Path, *, script: str, budget_s: float) -> tuple[Study, list[Entry]]:
        one = Made(folder, script)
        one.release.set()
        one.driver.connect()
        one.driver.run()
        one.driver.close()
        return one.closed()


def test_the_first_trial_does_not_wait_for_the_driver(made: Callable[..., Made]) -> None:
    one = made()
    seen: list[bool] = []

    def running() -> None:
        seen.append(one.is_starting())
        one.release.set()
        assert one.driver._started.wait(LONG_S)
        seen.append(one.is_starting())

    one.during_the_first_trial(running)
    one.driver.connect()
    one.driver.run()
    one.driver.close()
    study, _ = one.closed()
    (later,) = one.later
    assert seen == [True, False]
    assert (later.used, later.first) == (["run", "close"], 1)
    assert len(study.trials) > 2
    later.thread.join(LONG_S)
    assert not later.thread.is_alive(), "the thread ends with the driver"


def test_a_driver_that_takes_longer_than_the_first_trial_is_announced(
    made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made()
    monkeypatch.setattr(head_start, "QUIET_S", 0.0)

    def announce(text: str) -> None:
        one.announced.append(text)
        one.release.set()

    one.driver._announce = announce
    one.driver.connect()
    one.driver.run()
    one.driver.close()
    assert one.announced == ["starting Ray"]
    assert one.later[0].used == ["run", "close"]
    one.closed()


def test_a_driver_that_cannot_start_ends_the_first_trial_and_leaves_it_open(
    made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(error=RayUnavailable("a local Ray could not be reached", hint=""))

    sleep = one.clock.sleep

    def asleep(seconds: float) -> None:
        one.release.set()
        assert one.ended.wait(LONG_S)
        sleep(seconds)

    monkeypatch.setattr(one.clock, "sleep", asleep)
    one.driver.connect()
    with pytest.raises(RayUnavailable, match="could not be reached"):
        one.driver.run()
    one.driver.close()
    study, _ = one.closed()
    assert study.stopped == "backend"
    assert [(t.number, t.state) for t in study.trials] == [(0, TrialState.WAITING)]


def test_an_interrupt_during_the_start_waits_for_no_driver(made: Callable[..., Made]) -> None:
    one = made()

    def press() -> None:
        one.session.stop("interrupted")
        one.driver.interrupt()

    one.during_the_first_trial(press)
    one.driver.connect()
    one.driver.run()
    assert not one.driver.breaks_off()
    one.release.set()
    one.driver.close()
    study, _ = one.closed()
    assert study.stopped == "interrupted"
    assert one.later[0].used == ["close"], "what started in the end is ended"


def test_a_script_that_fails_waits_for_no_driver(made: Callable[..., Made]) -> None:
    one = made("fails")
    one.driver.connect()
    one.driver.run()
    one.release.set()
    one.driver.close()
    study, _ = one.closed()
    assert study.stopped == "no_baseline"
    assert one.later[0].used == ["close"]


@pytest.mark.parametrize(
    ("visible", "there", "ranks", "given"),
    [
        (None, 0, 1, None),
        (None, 4, 1, "0"),
        (None, 4, 2, "0,1"),
        ("3, 2", 4, 1, "3"),
        ("", 4, 1, ""),
    ],
)
def test_the_first_trial_gets_the_devices_of_the_pairs(
    tmp_path: Path, visible: str | None, there: int, ranks: int, given: str | None
) -> None:
    environ = {} if visible is None else {DEVICES: visible}
    session, journal = open_session(tmp_path, clock=SimulatedClock(), budget_s=120.0, environ=environ)
    assignment = session.ask()
    assert assignment is not None
    journal.close()
    if ranks > 1:
        object.__setattr__(assignment.launch, "ranks", ranks)
    assert on_first_devices(assignment, there).launch.env.get(DEVICES) == given

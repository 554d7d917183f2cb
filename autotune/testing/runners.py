"""Contract of every runner, as tests: subclass `RunnerContract` and provide a runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from autotune.model.trial import Failure, Measurement

if TYPE_CHECKING:
    from autotune.launch.runner import Runner
    from autotune.model.trial import Assignment


class RunnerContract(ABC):
    """Override the three makers; pytest collects the tests."""

    @abstractmethod
    def make_runner(self) -> Runner:
        """Return the runner under test."""

    @abstractmethod
    def make_good(self) -> Assignment:
        """Return an assignment whose script can be measured."""

    @abstractmethod
    def make_failing(self) -> Assignment:
        """Return an assignment whose script ends with an error."""

    def test_one_end_per_segment(self) -> None:
        """Exactly one outcome, and it carries the trial's number."""
        good = self.make_good()
        ended = list(self.make_runner().run(good))
        assert [e.trial for e in ended] == [s.trial for s in good.segments]

    def test_a_good_script_is_measured(self) -> None:
        """Check a measurement: its throughput is positive and inside its own interval."""
        (ended,) = self.make_runner().run(self.make_good())
        assert isinstance(ended.outcome, Measurement), ended.outcome
        figure = ended.outcome.throughput
        assert 0 < figure.low <= figure.value <= figure.high
        assert ended.seconds > 0

    def test_a_failing_script_is_a_value(self) -> None:
        """Check that a failure is returned, with a kind and a message."""
        (ended,) = self.make_runner().run(self.make_failing())
        assert isinstance(ended.outcome, Failure)
        assert ended.outcome.message

    def test_a_runner_can_be_used_again_after_a_failure(self) -> None:
        """No state of a failed run reaches the next."""
        runner = self.make_runner()
        list(runner.run(self.make_failing()))
        (ended,) = runner.run(self.make_good())
        assert isinstance(ended.outcome, Measurement), ended.outcome

    def test_stop_without_a_process_does_nothing(self) -> None:
        """Signal handlers may call it at any moment."""
        self.make_runner().stop()

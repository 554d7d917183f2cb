"""Costs of trials in wall time, window lengths, and time reserved for the end; pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.compare.alpha_spending import FEWEST_PAIRS
from autotune.compare.disturbances import undisturbed
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.objective import ENERGY
from autotune.model.trial import PAIRED, Fidelity, Stage, StartMode
from autotune.search.models.compile_times import CompileTimes
from autotune.search.trial_limit import CYCLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial

_LONGEST_WINDOW_S, _MOST_S = 4.5, 20.0
"""Longest window, in seconds, of a baseline run in a budget of `_USUAL_BUDGET_S`, and in any. It grows with
the square root of the budget, so a longer budget gives longer windows and more runs (decision 102)."""
_USUAL_BUDGET_S = 900.0
_SHORTEST_SHARE = 1.0 / 3.0
"""Share of the longest window after which one may end if its interval is narrow."""
_LEAST_S = (0.75, 1.5)
"""Least seconds of the shortest and longest window: blocks and loader queues take so long to show a rate."""
_SCREENED = (0.5, 0.4)
"""Shares of the shortest and longest window for screening runs, whose noise between runs is larger."""
_PAIRED_SHARE = 1.5
"""Share of the longest window that a run of a pair measures."""
_USUAL_STEPS, _FEWEST_STEPS = 10, 4
"""Steps of a window, and the fewest of a screening run where steps are slow."""
_MANY_CYCLES_S = 1200.0
"""Budget in seconds above which an ablation has two more rounds."""
_EXPLORE_WIDTH = 0.05
_CONFIRM_WIDTH = 0.02
_WARM_COMPILE = 0.2
PLANNED_CYCLES = 5
PLANNED_SHARE = 0.4
"""Share of the budget: rounds beyond the fewest are reserved for confirmation as far as they fit it."""
_ABLATION_SHARE = 0.25
_MARGIN_S = 2.0
_SLACK_SHARE = 0.15
"""Share of a run that is allowed as slack over its expected duration."""
_COLD_START = 1.3
"""Ratio of start times above which the first process counts as started from a cold disk."""
_TRAINING_SAMPLES = 1.5
_CHOOSING = (Stage.INITIAL, Stage.REFINE, Stage.DRIFT_CHECK)


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one study at one moment, in seconds of wall time; built by `Costs.of`.

    Start costs are learned per start mode: `plain_s` is the cost of a cold start.
    """

    study: Study
    plain_s: float
    startup_s: float
    compiles: CompileTimes
    screen_s: float = 0.0
    """Seconds like `plain_s`, for screening trials in their current start mode."""

    @classmethod
    def of(cls, study: Study) -> Costs:
        """Learn from the durations of every process so far."""
        forked: list[float] = []
        for trial in study.finished():
            m = trial.measurement
            if m is None or trial.seconds <= 0:
                continue
            if trial.start is StartMode.FORK:
                forked.append(trial.own_s - m.all_compile_s)
        # Runs slowed by other processes do not predict the cost of later runs.
        calm = [t for t in undisturbed(study, study.finished()) if t.measurement]
        starts = [t.measurement.startup_s for t in calm if t.measurement]
        plain_s = _recent(_cold_start_runs(calm) or forked)
        screened = [t for t in study.finished(Stage.INITIAL, Stage.REFINE) if t.measurement]
        forks = bool(screened) and screened[-1].start is StartMode.FORK
        costs = cls(
            study=study,
            plain_s=plain_s,
            screen_s=_recent(forked) if forks else plain_s,
            startup_s=max(starts, default=0.0),
            compiles=CompileTimes.of(study),
        )
        return costs if screened else replace(costs, screen_s=plain_s - costs._shorter_s(calm))

    def _shorter_s(self, trials: Sequence[Trial]) -> float:
        """Return by how many seconds a screening run measures less than these did; much if steps are slow."""
        windows = [t.measurement.window_s for t in trials if t.measurement]
        if not windows:
            return 0.0
        return max(0.0, statistics.fmean(windows) - self._window(Stage.INITIAL)[1])

    def cold_compile(self, config: Config) -> float:
        """Return the expected seconds of a first compile; 0 for a config that does not compile."""
        return self.compiles.first(config)

    def screening(self, config: Config) -> float:
        """Return the expected seconds of a screening trial."""
        return self.screen_s + self.cold_compile(config)

    def confirming(self, config: Config) -> float:
        """Return the expected seconds of a confirmation run with a warm compile cache."""
        own = [t.seconds for t in self.study.of(config, *PAIRED) if t.measurement]
        if own:
            return statistics.fmean(own)
        seen = [
            t.own_s - t.measurement.all_compile_s + self._saved(t) + self._longer_s(t.stage)
            for t in self.study.of(config)
            if t.measurement and t.seconds > 0
        ]
        unseen_s = self.plain_s + self._longer_s(Stage.REFINE)
        warm_s = max((t.measurement.compile_s for t in self.study.of(config) if t.measurement), default=0.0)
        return (statistics.fmean(seen) if seen else unseen_s) + _WARM_COMPILE * warm_s

    def _longer_s(self, stage: Stage) -> float:
        """Return by how many seconds confirmation likely measures longer than a run of this stage."""
        return 0.5 * (self._window(Stage.CONFIRM)[1] - self._window(stage)[1])

    def _saved(self, trial: Trial) -> float:
        """Return the start time that a forked trial saved; claimed configs use a cold start."""
        if trial.start is StartMode.COLD or trial.measurement is None:
            return 0.0
        finished = self.study.finished()
        cold = [t.measurement.startup_s for t in finished if t.measurement and t.start is StartMode.COLD]
        return max(0.0, statistics.fmean(cold) - trial.measurement.startup_s) if cold else 0.0

    def next_run(self, config: Config) -> float:
        """Return the expected seconds of the next run in a round; includes a first compile."""
        unseen = all(t.measurement is None for t in self.study.of(config))
        return self.confirming(config) + (self.cold_compile(config) if unseen else 0.0)

    def cycle(self, members: Sequence[Config]) -> float:
        """Return the expected seconds of one confirmation round: the baseline and these members."""
        return self.confirming(Config()) + sum(self.next_run(c) for c in members)

    def fits(self, seconds: float, left_s: float) -> bool:
        """Return whether runs with this expected duration end in time.

        Allows for the scatter of the last run: a run cut off at the end of the budget would count as a
        failure of its config. After a first run, which may have started from a cold disk, only half of its
        start is expected again.
        """
        runs = sum(t.measurement is not None for t in self.study.finished())
        slack_s = _SLACK_SHARE * self.plain_s if runs > 1 else -0.5 * self.startup_s
        return seconds + slack_s + 0.5 * _MARGIN_S <= left_s

    def fewest(self, config: Config) -> float:
        """Return the expected seconds of the fewest pairs with which this config can be claimed faster."""
        return FEWEST_PAIRS * self.cycle([config])

    def reserve(self, members: Sequence[Config], remaining_s: float) -> float:
        """Return the seconds that screening leaves for confirmation.

        Args:
            members: Likely finalists, best first.
            remaining_s: Budget left, in seconds.

        Returns:
            0 if there is nothing to confirm, or if the fewest pairs of no finalist fit any more: the
            time then goes to other configs.
        """
        fewest_s = min((self.fewest(c) for c in members), default=0.0) + _MARGIN_S
        if not members or fewest_s > remaining_s:
            return 0.0
        budget_s, cycle_s = self.study.spec.budget.seconds, self.cycle(members)
        # Whole rounds only: a partial one confirms nothing.
        planned = min(PLANNED_CYCLES, round(PLANNED_SHARE * budget_s / max(0.1, cycle_s)))
        planned_s = planned * cycle_s + _SLACK_SHARE * self.plain_s + _MARGIN_S
        ablation_s = self.ablation(members[0], len(members[0]))
        # An ablation is worth a limited share of the budget, and explains throughput alone.
        if ablation_s > _ABLATION_SHARE * budget_s or self.study.spec.objective == ENERGY:
            ablation_s = 0.0
        return max(fewest_s, planned_s + ablation_s)

    def ablation(self, config: Config, variants: int) -> float:
        """Return the expected seconds of an ablation and of confirming its result; 0 for a single change."""
        if variants < 2:
            return 0.0
        cycles = self.ablation_cycles
        runs = cycles * (1 + variants) * self.confirming(config)
        return runs + CYCLES * self.cycle([config, config])

    @property
    def ablation_cycles(self) -> int:
        """Return the rounds of an ablation, more in a long budget: three detect five percent, two do not."""
        return CYCLES if self.study.spec.budget.seconds <= _MANY_CYCLES_S else CYCLES + 2

    def fidelity(self, stage: Stage, config: Config, *, remaining_s: float, reserve_s: float) -> Fidelity:
        """Return the limits of a trial of this stage on start-up, measurement and total duration."""
        low, high = self._window(stage)
        compile_s = self.cold_compile(config)
        left = max(1.0, remaining_s - _MARGIN_S / 2)
        if stage is Stage.BASELINE:
            share = 0.7 if not self.plain_s else 0.5
            deadline = max(1.0, min(left, max(share * remaining_s, 8.0 * self.plain_s)))
            setup = deadline
        else:
            expected = self.plain_s + compile_s
            wanted = max(4.0 * self.plain_s, 20.0) + max(120.0, 3.0 * compile_s) * (compile_s > 0)
            room = max(left - reserve_s, 1.5 * expected)
            deadline = min(left, wanted, room)
            setup = min(
                deadline, max(20.0, 4.0 * self.startup_s) + max(120.0, 3.0 * compile_s) * (compile_s > 0)
            )
        return Fidelity(
            min_window_s=low,
            max_window_s=high,
            min_steps=self._steps(stage, high),
            target_width=_CONFIRM_WIDTH if stage.is_paired else _EXPLORE_WIDTH,
            setup_s=setup,
            deadline_s=deadline,
            loss_samples=self._loss_samples(config) if stage is Stage.CONFIRM else 0,
        )

    @property
    def min_window_s(self) -> float:
        """Return the shortest window, in seconds, of a run outside screening."""
        return self._window(Stage.BASELINE)[0]

    def _window(self, stage: Stage) -> tuple[float, float]:
        """Return the shortest and longest window of a run of this stage, in seconds."""
        budget_s = self.study.spec.budget.seconds
        high = min(_LONGEST_WINDOW_S * math.sqrt(budget_s / _USUAL_BUDGET_S), _MOST_S)
        low = _SHORTEST_SHARE * high
        if stage in _CHOOSING:
            low, high = low * _SCREENED[0], high * _SCREENED[1]
        elif stage.is_paired:
            high *= _PAIRED_SHARE
        low, high = max(low, _LEAST_S[0]), max(high, _LEAST_S[1])
        slow_steps_s = self._steps(stage, high) * self._step_s
        return low, max(high, min(slow_steps_s, 0.05 * budget_s))

    def _steps(self, stage: Stage, window_s: float) -> int:
        """Return the steps that a window waits for: fewer if steps are slow and the run only screens."""
        if stage not in _CHOOSING or not self._step_s:
            return _USUAL_STEPS
        return max(_FEWEST_STEPS, min(_USUAL_STEPS, int(window_s / self._step_s)))

    @property
    def _step_s(self) -> float:
        """Return the seconds of the baseline's slowest optimizer step so far; 0 before it was measured."""
        runs = [t.measurement for t in undisturbed(self.study, self.study.baseline) if t.measurement]
        return max((m.step_time_s.value for m in runs), default=0.0)

    def _loss_samples(self, config: Config) -> int:
        """Return the samples whose loss traces overlap with those of the baseline's first runs."""
        traces = [t.measurement.loss for t in self.study.baseline if t.measurement and t.measurement.loss]
        if not traces:
            return 0
        wanted = min(t[-1].samples for t in traces)
        space = self.study.space
        if space is not None and space.effect(config) is Effect.TRAINING:
            return int(_TRAINING_SAMPLES * wanted)
        return wanted


def _cold_start_runs(trials: Sequence[Trial]) -> list[float]:
    """Return the seconds, without compiling, of every cold-start run, in order.

    The first process of a study may start without page cache. Its extra start time over later runs is
    removed, as no later run pays it.
    """
    runs = [(t, t.measurement) for t in trials if t.measurement and t.start is StartMode.COLD]
    seconds = [t.own_s - m.all_compile_s for t, m in runs if t.seconds > 0]
    later = [m.startup_s for _, m in runs[1:]]
    if later and seconds and runs[0][1].startup_s > _COLD_START * (usual_s := statistics.median(later)):
        seconds[0] -= runs[0][1].startup_s - usual_s
    return seconds


def _recent(seconds: Sequence[float]) -> float:
    return statistics.fmean(seconds[-8:]) if seconds else 0.0

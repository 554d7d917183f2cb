"""What a recorded table knows to be true, and how a replayed search did by it."""

import bisect
import math
from dataclasses import dataclass, field, replace
from statistics import fmean

from autotune.answer.pick import answer_or_none
from autotune.compare.amortised_rate import amortised, screened
from autotune.compare.comparison import compare
from autotune.compare.failed_configs import broken
from autotune.compare.finalists import may_win
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate, Measurement
from autotune.model.study import Budget, Study, StudySpec
from autotune.model.trial import Stage
from autotune.search.confirmation.challengers import foremost
from autotune.search.confirmation.racing import excluded
from autotune.search.feature_flags import DEFAULT
from autotune.search.screening.shortlist import shortlist
from autotune.statistics.intervals import window_estimate
from autotune.testing.replay import RecordedPlanner

WITHIN = (5, 2, 1)
"""Per cent below the oracle that count as having arrived."""

RULES = {
    "by_model": "by what each would confirm",
    "by_reading": "by what has read fastest for each",
}
"""By which a search is judged -> in words."""

FALSE_WIN_BELOW = 0.995
"""A claimed winner is a false one where the table has it slower than this share of the unchanged script."""


@dataclass(frozen=True)
class Truth:
    """Rates of every feasible config of a table, by all of its runs, and the rate that an oracle has.

    Feasible is what ran through in more than half of its recorded runs and does not change the training.
    The largest of many noisy means is lucky as well as fast, so the oracle's rate is cross-validated: the
    fastest by all repeats but one, rated by that one, in turn. Slow drift is taken out by the runs of the
    unchanged script within each repeat. A lucky config can then be faster than the oracle; its quality is 1.

    With a single repeat nothing is left to rate by. `worlds.py` then makes a table whose rates are what all
    runs together say, and replays a world in which they are the true ones.
    """

    rates: dict
    oracle: Config
    oracle_rate: float
    base: float
    peaks: dict = field(default_factory=dict)

    @classmethod
    def of(cls, table):
        header = table.header
        spec = StudySpec(
            study_id="truth",
            label="truth",
            script="",
            args=header.workload.args,
            cwd="",
            python="",
            space=header.request,
            budget=Budget(seconds=0),
            effective_batch="keep",
        )
        space, _ = RecordedPlanner(table).space(spec, header.facts)
        study = Study(spec=spec, facts=header.facts, space=space)
        rows = {}
        for row in table.settled().values():
            rows.setdefault(row.config, []).append(row)
        logs, peaks = {}, {}
        for config in dict.fromkeys((Config(), *header.configs)):
            mine = rows.get(config, [])
            fine = [r for r in mine if r.is_ok and len(r.blocks)]
            if 2 * len(fine) <= len(mine) or not space.contains(config):
                continue
            if space.effect(config) is Effect.TRAINING:
                continue
            quiet = [r for r in fine if not r.is_disturbed] or fine
            cold_s = max((r.compile_s or 0.0 for r in fine), default=0.0)
            each = {}
            for row in quiet:
                rate = amortised(study, _measured(row, header, cold_s))
                each.setdefault(row.repeat, []).append(math.log(rate))
            logs[config] = {repeat: fmean(values) for repeat, values in each.items()}
            peaks[config] = fmean(row.memory.peak_bytes or 0 for row in quiet)
        return replace(cls.by(_without_drift(logs)), peaks=peaks)

    @classmethod
    def by(cls, logs):
        """From ln rates by config and repeat."""
        means = {config: fmean(each.values()) for config, each in logs.items()}
        oracle = max(means, key=lambda c: (means[c], c.canonical()))
        held = []
        for repeat in sorted({r for each in logs.values() for r in each}):
            others = {
                c: fmean([x for r, x in each.items() if r != repeat])
                for c, each in logs.items()
                if repeat in each and len(each) > 1
            }
            if others:
                held.append(logs[max(others, key=lambda c: (others[c], c.canonical()))][repeat])
        oracle_rate = math.exp(fmean(held) if held else means[oracle])
        rates = {config: math.exp(mean) for config, mean in means.items()}
        return cls(rates, oracle, max(oracle_rate, rates[Config()]), rates[Config()])

    def quality(self, config):
        """Share of the oracle's rate; 0 for what is not feasible."""
        return min(1.0, self.rates.get(config, 0.0) / self.oracle_rate)

    def within(self, percent):
        """How many configs count as having arrived, were they recommended."""
        return sum(self.quality(config) >= 1 - percent / 100 for config in self.rates)

    def dominated(self, configs):
        """Share of the area, of rate by memory spared, that the table's front dominates and these do too.

        Rates count from 0, memory spared from the largest peak of the table; None where no peak is known.
        """
        most = max(self.peaks.values(), default=0)
        whole = self._area(self.peaks) if most else 0.0
        return self._area(configs) / whole if whole else None

    def _area(self, configs):
        most = max(self.peaks.values())
        found = [(self.rates[c], 1 - self.peaks[c] / most) for c in configs if c in self.peaks]
        area = spared = 0.0
        for rate, spares in sorted(found, reverse=True):
            area += rate * max(0.0, spares - spared)
            spared = max(spared, spares)
        return area


def _without_drift(logs):
    base = logs[Config()]
    whole = fmean(base.values())
    return {c: {r: x - (base.get(r, whole) - whole) for r, x in each.items()} for c, each in logs.items()}


def _measured(row, header, cold_s):
    produced = 1.0 if row.produced_frac is None else row.produced_frac
    rate = row.throughput(header.workload.unit)
    step = window_estimate(row.blocks.plain(), unit="s", per_step=True)
    return Measurement(
        throughput=rate,
        step_time_s=Estimate(value=step.value / produced, low=step.low, high=step.high, n=step.n, unit="s"),
        data_wait_frac=0.0,
        memory=row.memory,
        compile_s=cold_s,
        steps=sum(row.blocks.num_steps),
        effective_batch=row.effective_batch or 0.0,
        extra=dict(row.counters),
    )


class Course:
    """Follows a replayed search: what it would recommend, trial after trial.

    `by_model` is what the search itself would confirm, or what it has confirmed; `by_reading` the fastest
    single figure. Both are taken for every sampler in the search's frame alike. A bare rival has no
    model and confirms nothing: what read fastest is its word by both.
    """

    def __init__(self, truth, parts=DEFAULT, *, is_bare=False):
        self.truth, self.parts, self.is_bare = truth, parts, is_bare
        self.points = []
        self.trial_s = 0.0
        self.front, self.seen = [], set()

    def __call__(self, study, trial):
        self.trial_s += trial.seconds
        self._widen(trial)
        if study.space is None:
            return
        by_reading = read_fastest(study)
        by_model = by_reading if self.is_bare else recommended(study, self.parts)
        self._add(study.elapsed_s, by_model, by_reading)

    def close(self, study):
        """The answer itself is the last word; None of a bare rival, which has no other than before."""
        if self.is_bare:
            return None
        found = answer_or_none(study)
        config = found.best.config if found is not None else Config()
        self._add(study.elapsed_s, config, read_fastest(study))
        return found

    def _widen(self, trial):
        """How much of the front of rate and memory is known: configs count by what is true of them."""
        if trial.measurement is None or trial.config in self.seen:
            return
        self.seen.add(trial.config)
        share = self.truth.dominated(self.seen)
        if share is not None and (not self.front or share > self.front[-1][1]):
            self.front.append((self.trial_s, share))

    def _add(self, t_s, by_model, by_reading):
        point = (t_s, self.trial_s, self.truth.quality(by_model), self.truth.quality(by_reading))
        if self.points and self.points[-1][2:] == point[2:]:
            return
        self.points.append(point)


def recommended(study, parts=DEFAULT):
    """The confirmed winner, else who is foremost of those being confirmed, else the first that would be.

    Without any the unchanged script. A planner whose finalists are not overtaken has no foremost.
    """
    confirmed = dict.fromkeys(t.config for t in study.finished(Stage.CONFIRM) if not t.config.is_baseline)
    out = frozenset()
    if confirmed:
        found = answer_or_none(study)
        if found is not None and found.is_better:
            return found.best.config
        if parts.overtakes:
            out = excluded(study, compare(study), parts)
    chosen = shortlist(study, parts, out=out)
    if confirmed and parts.overtakes:
        gone = out | broken(study).keys()
        there = [c for c in confirmed if c not in gone and may_win(study, c)]
        chosen = foremost(study, tuple(dict.fromkeys((*chosen, *there))), parts)
    training_preserving = [c for c in chosen if study.space.effect(c) is not Effect.TRAINING]
    return training_preserving[0] if training_preserving else Config()


def read_fastest(study):
    """The config with the highest mean reading, of those that leave the training unchanged.

    Whether another one trains as well is what the guard of the loss says, and no reading of a rate.
    """
    rates = screened(study)
    if study.space is not None:
        rates = {c: r for c, r in rates.items() if study.space.effect(c) is not Effect.TRAINING}
    return max(rates, key=lambda c: (rates[c], c.canonical()), default=Config())


def reached(points, percent, column=2):
    """(wall, trial-seconds) from which on the quality stays within so many per cent, or None."""
    found = None
    for point in points:
        if point[column] < 1 - percent / 100:
            found = None
        elif found is None:
            found = (point[0], point[1])
    return found


def regret_at(points, trial_s, column=2):
    """1 - quality of what is recommended after so many trial-seconds; 1 before there is anything."""
    place = bisect.bisect_right([p[1] for p in points], trial_s)
    return 1 - points[place - 1][column] if place else 1.0


def front_regret_at(front, trial_s):
    """1 - share of the front's area that was known after so many trial-seconds."""
    place = bisect.bisect_right([p[0] for p in front], trial_s)
    return 1 - front[place - 1][1] if place else 1.0


def judged(truth, found):
    """What the answer claims, beside what the table says.

    Rates of a table pay a cold compile within the planned run. Pairs have paid the shortest that was seen,
    and the answer says apart what their ratio is over that run: with the compile added to both of its ends
    an interval holds or not.
    """
    if found is None:
        return {"config": None}
    best, true = found.best, truth.rates.get(found.best.config, 0.0) / truth.base
    # Seconds that a compile adds to the planned run are added whatever the ratio of the rest is.
    compiling = 0.0 if best.over_run is None else 1.0 / best.over_run - 1.0 / best.speedup.value
    low, high = (1.0 / (1.0 / x + compiling) for x in (best.speedup.low, best.speedup.high))
    return {
        "config": dict(best.config),
        "is_better": found.is_better,
        "speedup": [round(x, 5) for x in (best.speedup.value, best.speedup.low, best.speedup.high)],
        "true_speedup": round(true, 5),
        "over_run": [round(x, 5) for x in (low, high)],
        "covered": low <= true <= high if found.is_better else None,
        "false_win": bool(found.is_better and true < FALSE_WIN_BELOW),
    }


def failures(study):
    """Failures met, by kind; machine trouble and refusals before a start are none."""
    count = {}
    for trial in study.trials:
        if trial.failure is not None and trial.failure.kind.teaches:
            count[trial.failure.kind.label] = count.get(trial.failure.kind.label, 0) + 1
    return count

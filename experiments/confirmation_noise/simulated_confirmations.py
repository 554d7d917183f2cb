"""Confirmations on simulated runs: screening picks two finalists, cycles of fresh runs follow.

Noise is drawn from recorded runs (`../claims/results/series.json`) or from adversarial distributions.
"""

import math
from dataclasses import dataclass, replace
from unittest import mock

import claim_noise
import claim_studies

from autotune.compare import alpha_spending, comparison
from autotune.model.config import Config
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Stage, Trial, TrialState
from autotune.search.trial_limit import BASELINES

CANDIDATES = 6
"""Configurations that screening measures once; the two fastest are measured once more."""
FINALISTS = 2
LOOKS = (3, 5, 8)
"""Pairs at which a claim may end a confirmation; the end of the budget is one interim analysis more."""
VERIFY_LOOKS = (3, 5)
"""The same of `autotune verify` (`autotune.search.confirmation.verification`)."""
SCATTER = 0.05
"""Standard deviation of ln rate of one run, for the noise that is not recorded."""
JUMP = 10.0

SPACE = SearchSpace(
    dimensions={
        "threads": Dimension(knob="threads", values=tuple(range(1, CANDIDATES + 2)), own=CANDIDATES + 1)
    }
)
FIDELITY = Fidelity(
    min_window_s=4.0, max_window_s=8.0, min_steps=10, target_width=0.02, setup_s=60.0, deadline_s=120.0
)
BASE = Config()
HELPS = Config({"threads": 1})


class Normal:
    """Independent normal noise.

    Args:
        random: Source of chance.
        sd: Standard deviation of ln rate of one run.
    """

    def __init__(self, random, sd=SCATTER):
        self._random, self._sd = random, sd

    def run(self):
        return self._random.gauss(0.0, self._sd), 0.0


class HeavyTails(Normal):
    """Student's t with 2 degrees of freedom: the variance is infinite."""

    def run(self):
        chi = math.fsum(self._random.gauss(0.0, 1.0) ** 2 for _ in range(2)) / 2.0
        value = self._random.gauss(0.0, self._sd / 2.0) / math.sqrt(chi)
        return max(-3.0, min(3.0, value)), 0.0


class Bimodal(Normal):
    """One run in four is 25 % slower, beside a scatter of 1 %."""

    def run(self):
        slow = math.log(0.75) if self._random.random() < 0.25 else 0.0
        return slow + self._random.gauss(0.0, 0.01), 0.0


@dataclass(frozen=True)
class Setting:
    """One kind of noise.

    Args:
        make: (random, series) -> object with ``run() -> (ln rate, foreign cores)``.
        jump: Where the scatter grows: ``""``, ``screening`` (after it) or ``cycles`` (in the middle).
        factor: By how much; below 1 it shrinks.
        drift: ln rate lost with each run.
        uneven: Factor on the scatter of the first finalist alone.
    """

    make: object
    jump: str = ""
    factor: float = 1.0
    drift: float = 0.0
    scale: float = 1.0
    uneven: float = 1.0
    restless: bool = False


def _normal(random, _):
    return Normal(random)


def _recorded(random, series):
    return claim_noise.Draw(series, random)


SETTINGS = {
    "recorded": Setting(_recorded),
    "recorded, doubled": Setting(_recorded, scale=2.0),
    "recorded, restless machines": Setting(_recorded, restless=True),
    "recorded, 10x after screening": Setting(_recorded, jump="screening", factor=JUMP),
    "recorded, 10x in mid-confirmation": Setting(_recorded, jump="cycles", factor=JUMP),
    "recorded, a tenth after screening": Setting(_recorded, jump="screening", factor=1.0 / JUMP),
    "normal 5 %": Setting(_normal),
    "normal 5 %, 2x after screening": Setting(_normal, jump="screening", factor=2.0),
    "normal 5 %, 3x after screening": Setting(_normal, jump="screening", factor=3.0),
    "normal 5 %, 10x after screening": Setting(_normal, jump="screening", factor=JUMP),
    "normal 5 %, 10x in mid-confirmation": Setting(_normal, jump="cycles", factor=JUMP),
    "normal 5 %, drift of 1 % a run": Setting(_normal, drift=0.01),
    "normal 5 %, one configuration scatters 3x": Setting(_normal, uneven=3.0),
    "heavy tails (t, 2 degrees of freedom)": Setting(lambda r, _: HeavyTails(r)),
    "bimodal (1 run in 4 is 25 % slower)": Setting(lambda r, _: Bimodal(r)),
}


class Confirmation:
    """One simulated search.

    Args:
        setting: Kind of noise.
        random: Source of chance.
        series: Recorded runs.
        gain: True ln ratio of one configuration; 0 where nothing differs.
        last: Pairs after which the budget ends.
        verifies: One given configuration is compared, as `autotune verify` does: nothing is screened but the
            baseline, and a verdict needs three pairs.
    """

    def __init__(self, setting, random, series, gain, last, *, verifies=False):
        self.setting, self.random, self.gain, self.last = setting, random, gain, last
        self._noise = setting.make(random, series)
        self._factor, self._runs = setting.scale, 0
        self._uneven = Config({"threads": 2}) if setting.uneven != 1.0 else None
        self.study = Study(spec=claim_studies.SPEC, space=SPACE)
        self._looks = VERIFY_LOOKS if verifies else LOOKS
        self._fewest = VERIFY_LOOKS[0] if verifies else 1
        self.members = [HELPS]
        for _ in range(BASELINES):
            self._run(BASE, Stage.BASELINE)
        if not verifies:
            self._screen()
        self._jump_at = random.randint(1, max(1, last - 1)) if setting.jump == "cycles" else 0

    def worth(self, config):
        """True ln ratio to the baseline."""
        return self.gain if config == HELPS else 0.0

    def _run(self, config, stage, group=0):
        value, foreign = self._noise.run()
        self._runs += 1
        value *= self._factor * (self.setting.uneven if config == self._uneven else 1.0)
        # Without a loss: it would decide nothing here, and judging it takes most of the time.
        rate = claim_studies.RATE * math.exp(value - self.setting.drift * self._runs + self.worth(config))
        seed = group or self._runs
        trial = Trial(
            number=len(self.study.trials),
            config=config,
            stage=stage,
            fidelity=FIDELITY,
            seed=seed,
            group=group,
            state=TrialState.FINISHED,
            outcome=replace(claim_studies.measured(rate, foreign, seed), loss=()),
            seconds=claim_studies.TRIAL_S,
            finished_s=self._runs * claim_studies.TRIAL_S,
        )
        self.study = replace(self.study, trials=(*self.study.trials, trial), elapsed_s=trial.finished_s)
        return math.log(rate)

    def _screen(self):
        configs = [Config({"threads": k}) for k in range(1, CANDIDATES + 1)]
        self.random.shuffle(configs)
        read = {c: [self._run(c, Stage.INITIAL)] for c in configs}
        for config in self._fastest(read, FINALISTS):
            read[config].append(self._run(config, Stage.REFINE))
        self.members = self._fastest(read, FINALISTS)

    @staticmethod
    def _fastest(read, count):
        return sorted(read, key=lambda c: -sum(read[c]) / len(read[c]))[:count]

    def cycle(self, group):
        """One run of the baseline and of each finalist, in turning order."""
        jump = self.setting.jump
        if (jump == "screening" and group == 1) or (jump == "cycles" and group == self._jump_at + 1):
            self._factor *= self.setting.factor
        order = [BASE, *self.members]
        shift = group % len(order)
        for config in order[shift:] + order[:shift]:
            self._run(config, Stage.CONFIRM, group)

    def ended(self):
        """The comparisons with which the confirmation ends: at a claim, or with the budget."""
        for group in range(1, self.last + 1):
            self.cycle(group)
            if group in self._looks and group < self.last:
                found = comparison.compare(self.study)
                if any(c.is_early and self.claims(c) for c in found):
                    return found
        return comparison.compare(self.study)

    def claims(self, compared):
        """Whether a gain is claimed; without the bar of the control, so this errs on the safe side."""
        return compared.wins and compared.speedup.n >= self._fewest

    def plain(self):
        """The same comparisons with intervals of 95 % confidence."""
        # An equal study of another identity, so that no cached comparison is returned.
        same = replace(self.study, spec=replace(self.study.spec))
        with mock.patch.object(alpha_spending, "_confidence", return_value=0.95):
            return comparison.compare(same)

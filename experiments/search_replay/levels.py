"""How fast is each configuration of a table truly, where every run is noisy and most were run once?

The mean of one run is as lucky as it is fast, and the largest of a hundred such means mostly lucky. A mixed
model of all runs tells the one from the other, as far as they do: the log rate of a run is

    what the values of its knobs do, knob by knob and in pairs, of sizes that the runs decide
    + what its configuration does beyond that
    + how fast the machine was at that time, which changes slowly
    + noise.

The standard deviations of these parts are those under which the recorded runs are likeliest; the level of a
configuration is its expectation under them (the best linear unbiased prediction of mixed models). Where runs
of one configuration agree with each other and not with its neighbours, its own part is large and its level
stays at its mean; where runs of one configuration differ as all others do, its level moves to its neighbours.
"""

import datetime
import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

# Standard deviations in ln rate throughout, but for `minutes`.
_FIRST = {"knob": 0.1, "pairs": 0.3, "own": 0.03, "drift": 0.05, "minutes": 20.0, "noise": 0.05}
_USUAL = {"knob": 0.3, "pairs": 1.0, "own": 0.02, "drift": 0.1, "noise": 0.1}
"""Half-normal beliefs about the sizes: few runs hardly tell noise from a configuration's own part."""
_LEAST, _MOST = 1e-3, 3.0
_FROM_MINUTES, _TO_MINUTES = 0.3, 240.0
_ROUND = 5


@dataclass(frozen=True)
class Levels:
    """What a table says of its configurations and of the machine.

    Args:
        of: Configuration -> ln rate of it, on the machine as it was on average.
        sd: Configuration -> how uncertain that is, beside what is common to all.
        places: Of the runs, as they were given.
        machine: By how much the machine was faster in each of them, in ln rate.
        rest: What is left of each, in ln rate: noise, a little too small, as levels follow it.
        sizes: Part -> its standard deviation; ``minutes`` over which the machine changes.
    """

    of: dict
    sd: dict
    places: tuple
    machine: tuple
    rest: tuple
    sizes: dict


def levels(runs, knobs):
    """Fit.

    Args:
        runs: (place, configuration as a mapping, minutes at which it began, ln rate), in any order.
        knobs: Names of what is varied.
    """
    return Model(runs, knobs).fitted()


def minutes(began):
    """Minutes of a time as rows have it; a row without one gives 0."""
    if not began:
        return 0.0
    return datetime.datetime.fromisoformat(began.replace("Z", "+00:00")).timestamp() / 60.0


def _alike(values):
    """1 where two have the same value, else 0; 1 and True are two."""
    typed = [(type(value), value) for value in values]
    return np.array([[float(a == b) for b in typed] for a in typed])


class Model:
    """The covariance of runs by the sizes of its parts."""

    def __init__(self, runs, knobs):
        self.configs = list(dict.fromkeys(config for _, config, _, _ in runs))
        place = {config: k for k, config in enumerate(self.configs)}
        self.at = np.array([place[config] for _, config, _, _ in runs])
        when = np.array([at for _, _, at, _ in runs])
        self.apart = np.abs(when[:, None] - when[None, :])
        values = np.array([y for _, _, _, y in runs])
        self.places = tuple(place for place, _, _, _ in runs)
        self.middle = float(values.mean())
        self.y = values - self.middle
        alike = [_alike([config.get(knob) for config in self.configs]) for knob in knobs]
        # A knob that nothing varies is no part of it.
        self.alike = [matrix for matrix in alike if not matrix.all()]
        by_knob = len(self.alike)
        each = (_USUAL["pairs"], _USUAL["own"], _USUAL["drift"], math.inf, _USUAL["noise"])
        self.usual = np.array([_USUAL["knob"]] * by_knob + list(each))

    def fit(self):
        """Logarithms of the likeliest sizes."""
        return minimize(self.cost, self.start(), method="L-BFGS-B", bounds=self.bounds()).x

    def unlike(self, x, sd):
        """The same machine and noise, and levels that have nothing in common: means decide."""
        alone = np.array(x)
        alone[: len(self.alike) + 1] = math.log(_LEAST)
        alone[len(self.alike) + 1] = math.log(sd)
        return alone

    def left_out(self, x):
        """(by how much each run is missed by all others, standard deviation foretold for it), in ln rate."""
        inverse = np.linalg.inv(self.whole(x))
        return (inverse @ self.y) / np.diag(inverse), 1.0 / np.sqrt(np.diag(inverse))

    def whole(self, x):
        """Covariance of the runs."""
        level, machine, noise = self.parts(x)
        return level[np.ix_(self.at, self.at)] + machine + noise * np.eye(len(self.y))

    def start(self):
        """Logarithms of the sizes at which the search for the likeliest begins."""
        first = [_FIRST["knob"]] * len(self.alike)
        first += [_FIRST[name] for name in ("pairs", "own", "drift", "minutes", "noise")]
        return np.log(first)

    def bounds(self):
        """Of the logarithms of sizes."""
        size = (math.log(_LEAST), math.log(_MOST))
        minutes_ = (math.log(_FROM_MINUTES), math.log(_TO_MINUTES))
        return [size] * (len(self.alike) + 3) + [minutes_, size]

    def parts(self, x):
        """(covariance of levels, of the machine, variance of noise)."""
        sizes = np.exp(x)
        n = len(self.alike)
        pairs, own, drift, length, noise = sizes[n:]
        once, squared = 0.0, 0.0
        for size, matrix in zip(sizes, self.alike, strict=False):
            each = size**2 * matrix
            once, squared = once + each, squared + each**2
        # Two knobs do together what their own sizes let expect: pairs of idle ones are idle.
        total = max(float(np.sum(sizes[:n] ** 2)), 1e-12)
        both = pairs**2 * 0.5 * (once**2 - squared) / total
        level = once + both + own**2 * np.eye(len(self.configs)) + 1.0
        return level, drift**2 * np.exp(-self.apart / length), noise**2

    def cost(self, x):
        """Minus the log of likelihood and beliefs."""
        try:
            factor = cho_factor(self.whole(x), lower=True)
        except np.linalg.LinAlgError:
            return 1e12
        fit = 0.5 * self.y @ cho_solve(factor, self.y) + np.log(np.diag(factor[0])).sum()
        return float(fit + 0.5 * np.sum((np.exp(x) / self.usual) ** 2))

    def fitted(self):
        """Levels under the likeliest sizes."""
        x = self.fit()
        level, machine, _ = self.parts(x)
        factor = cho_factor(self.whole(x), lower=True)
        weights = cho_solve(factor, self.y)
        told = level[:, self.at]
        mean = told @ weights
        left = level - told @ cho_solve(factor, told.T)
        centred = np.eye(len(mean)) - 1.0 / len(mean)
        sd = np.sqrt(np.maximum(0.0, np.diag(centred @ left @ centred)))
        drift = machine @ weights
        drift -= drift.mean()
        rest = self.y - mean[self.at] - drift
        names = [*(f"knob {k}" for k in range(len(self.alike))), "pairs", "own", "drift", "minutes", "noise"]
        return Levels(
            of={c: round(float(m) + self.middle, _ROUND) for c, m in zip(self.configs, mean, strict=True)},
            sd={c: round(float(s), _ROUND) for c, s in zip(self.configs, sd, strict=True)},
            places=self.places,
            machine=tuple(round(float(v), _ROUND) for v in drift),
            rest=tuple(round(float(v), _ROUND) for v in rest),
            sizes=dict(zip(names, (round(float(v), _ROUND) for v in np.exp(x)), strict=True)),
        )

"""How fast is each configuration of a table truly, where every run is noisy and most were run once?

The mean of one run is as lucky as it is fast, and the largest of a hundred such means mostly lucky. A mixed
model of all runs separates the two, as far as they can: the log rate of a run is

    what the values of its knobs do, knob by knob and in pairs, of sizes that the runs decide
    + what its configuration does beyond that
    + how fast the machine was at that time, which changes slowly
    + noise.

The sizes of these parts are those under which the recorded runs are likeliest; the level of a configuration
is its expectation under them (the best linear unbiased prediction of mixed models). What configurations do
beyond their knobs has one size for all. Single runs hardly separate it from noise, and the likeliest size is
often none at all, which would hold every surprise for luck, however often it came again; so it is believed to
be some two per cent, by a belief that is nothing at nothing (as Chung and others propose for the variance of
groups, Psychometrika 78, 2013). A level then follows the runs of its configuration the further the more
there are.
"""

import datetime
import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

# Standard deviations in ln rate, but for `pairs`, a multiple of what its two knobs do, and `minutes`.
_FIRST = {"knob": 0.1, "pairs": 0.3, "own": 0.03, "drift": 0.05, "minutes": 20.0, "noise": 0.05}
_USUAL = {"knob": 0.3, "pairs": 1.0, "own": 0.02, "drift": 0.1, "noise": 0.1}
"""Half-normal beliefs about the sizes; of `own` this is the likeliest, and none is as good as impossible."""
_STARTS = ({}, {"own": 0.1, "noise": 0.02}, {"drift": 0.005, "noise": 0.1}, {"minutes": 2.0})
"""Where the search for the likeliest sizes begins, beside `_FIRST`: a likelihood may have several tops."""
_LEAST, _MOST = 1e-3, 3.0
_FROM_MINUTES, _TO_MINUTES = 0.3, 240.0
_UNTIL = {"maxiter": 500, "ftol": 1e-12, "gtol": 1e-7}
_FLAT = 1e-2
"""Slope of the cost for the log of a size that counts as none."""
_ROUND = 5


@dataclass(frozen=True)
class Levels:
    """What a table says of its configurations and of the machine.

    Args:
        of: Configuration -> ln rate of it, on the machine as it was on average.
        sd: Configuration -> how uncertain that is, beside what is common to all, the sizes taken for known.
        places: Of the runs, as they were given.
        machine: By how much the machine was faster in each of them, in ln rate.
        rest: What is left of each, in ln rate: noise, a little too small, as levels follow it.
        sizes: Part -> its size; ``minutes`` over which the machine changes.
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
        alike = {knob: _alike([config.get(knob) for config in self.configs]) for knob in knobs}
        # A knob that nothing varies is no part of it.
        alike = {knob: matrix for knob, matrix in alike.items() if not matrix.all()}
        self.alike = list(alike.values())
        self.names = [*(f"knob {knob}" for knob in alike), "pairs", "own", "drift", "minutes", "noise"]
        by_knob = len(self.alike)
        each = (_USUAL["pairs"], _USUAL["own"], _USUAL["drift"], math.inf, _USUAL["noise"])
        self.usual = np.array([_USUAL["knob"]] * by_knob + list(each))

    def fit(self, bounds=None):
        """Logarithms of the likeliest sizes.

        Args:
            bounds: Of each, other than `bounds`.

        Raises:
            ArithmeticError: No start led to a top.
        """
        bounds = bounds or self.bounds()
        starts = [np.clip(self.start(other), *np.transpose(bounds)) for other in _STARTS]
        how = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": _UNTIL}
        found = [minimize(self.cost, start, **how) for start in starts]
        best = min(found, key=lambda each: each.fun)
        # Bounds hold the rest: there the slope may point outwards.
        inside = [low < x < high for x, (low, high) in zip(best.x, bounds, strict=True)]
        if not np.isfinite(best.fun) or np.abs(best.jac[inside]).max(initial=0.0) > _FLAT:
            raise ArithmeticError(f"no likeliest sizes were found: {best.message}")
        return best.x

    def fit_alone(self, sd):
        """The same where levels have nothing in common, and that standard deviation: means decide."""
        low, n = math.log(_LEAST), len(self.alike)
        bounds = self.bounds()
        bounds[: n + 1] = [(low, low)] * (n + 1)
        bounds[n + 1] = (math.log(sd), math.log(sd))
        return self.fit(bounds)

    def left_out(self, x):
        """(by how much each run is missed by all others, standard deviation predicted for it), in ln rate."""
        inverse = np.linalg.inv(self.whole(x))
        return (inverse @ self.y) / np.diag(inverse), 1.0 / np.sqrt(np.diag(inverse))

    def whole(self, x):
        """Covariance of the runs."""
        return self._whole(*self.parts(x))

    def _whole(self, level, machine, noise):
        return level[np.ix_(self.at, self.at)] + machine + noise * np.eye(len(self.y))

    def start(self, other):
        """Logarithms of the sizes at which the search for the likeliest begins."""
        sizes = {**_FIRST, **other}
        return np.log([sizes["knob" if name.startswith("knob ") else name] for name in self.names])

    def bounds(self):
        """Of the logarithms of sizes."""
        size = (math.log(_LEAST), math.log(_MOST))
        minutes_ = (math.log(_FROM_MINUTES), math.log(_TO_MINUTES))
        return [size] * (len(self.alike) + 3) + [minutes_, size]

    def parts(self, x):
        """(covariance of levels, of the machine, variance of noise)."""
        once, both, _ = self._by_knobs(x)
        return self._parts(x, once, both)

    def _parts(self, x, once, both):
        _, own, drift, length, noise = np.exp(x[len(self.alike) :])
        level = once + both + own**2 * np.eye(len(self.configs)) + 1.0
        return level, drift**2 * np.exp(-self.apart / length), noise**2

    def _by_knobs(self, x):
        """(what knobs do one by one, what in pairs, slope of both for the log of each knob's size)."""
        n = len(self.alike)
        squares, pairs = np.exp(2.0 * x[:n]), np.exp(x[n])
        size = len(self.configs)
        once, squared = np.zeros((size, size)), np.zeros((size, size))
        for square, matrix in zip(squares, self.alike, strict=True):
            once += square * matrix
            squared += square**2 * matrix
        # Two knobs do together what their own sizes let expect: pairs of idle ones are idle.
        total = max(float(squares.sum()), 1e-12)
        both = pairs**2 * 0.5 * (once**2 - squared) / total
        slopes = [
            2.0 * square * (matrix * (1.0 + pairs**2 * (once - square) / total) - both / total)
            for square, matrix in zip(squares, self.alike, strict=True)
        ]
        return once, both, slopes

    def cost(self, x):
        """(minus the log of likelihood and beliefs, its slope)."""
        once, both, by_knob = self._by_knobs(x)
        level, machine, noise = self._parts(x, once, both)
        try:
            factor = cho_factor(self._whole(level, machine, noise), lower=True)
        except np.linalg.LinAlgError:
            return 1e12, np.zeros(len(x))
        weights = cho_solve(factor, self.y)
        fit = 0.5 * self.y @ weights + np.log(np.diag(factor[0])).sum()
        beliefs = (np.exp(x) / self.usual) ** 2
        cost = fit + 0.5 * beliefs.sum() - x[self.names.index("own")]
        left = cho_solve(factor, np.eye(len(self.y))) - np.outer(weights, weights)
        of_knobs = [*by_knob, 2.0 * both]
        slope = 0.5 * np.array([np.sum(a * b) for a, b in self._slopes(x, left, of_knobs, machine, noise)])
        slope += beliefs
        slope[self.names.index("own")] -= 1.0
        return float(cost), slope

    def _slopes(self, x, left, of_knobs, machine, noise):
        """For each size: (what weighs, the covariance's slope for its log), over configurations or runs."""
        _, own, _, length, _ = np.exp(x[len(self.alike) :])
        of = np.zeros((len(self.configs), len(self.y)))
        of[self.at, np.arange(len(self.y))] = 1.0
        by_config = of @ left @ of.T
        yield from ((by_config, slope) for slope in of_knobs)
        yield np.diag(by_config), 2.0 * own**2
        yield left, 2.0 * machine
        yield left, machine * self.apart / length
        yield np.diag(left), 2.0 * noise

    def fitted(self):
        """Levels under the likeliest sizes."""
        x = self.fit()
        level, machine, _ = self.parts(x)
        factor = cho_factor(self.whole(x), lower=True)
        weights = cho_solve(factor, self.y)
        reported = level[:, self.at]
        mean = reported @ weights
        left = level - reported @ cho_solve(factor, reported.T)
        centred = np.eye(len(mean)) - 1.0 / len(mean)
        sd = np.sqrt(np.maximum(0.0, np.diag(centred @ left @ centred)))
        drift = machine @ weights
        # Levels are those on the machine as it was on average.
        mean, drift = mean + drift.mean(), drift - drift.mean()
        rest = self.y - mean[self.at] - drift
        return Levels(
            of={c: round(float(m) + self.middle, _ROUND) for c, m in zip(self.configs, mean, strict=True)},
            sd={c: round(float(s), _ROUND) for c, s in zip(self.configs, sd, strict=True)},
            places=self.places,
            machine=tuple(round(float(v), _ROUND) for v in drift),
            rest=tuple(round(float(v), _ROUND) for v in rest),
            sizes=dict(zip(self.names, (round(float(v), _ROUND) for v in np.exp(x)), strict=True)),
        )

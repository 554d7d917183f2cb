"""Streams of step times whose true throughput is known in closed form."""

import math

from coverage_process import BATCH, Step

STEP_S = 0.05
TRUTH = BATCH / STEP_S
"""Samples per second of all of them, in the long run."""
KINDS = ("steady", "warm_up", "stalls", "bursts", "heavy_tails", "autocorrelated", "autocorrelated_more")
DRIFTS = (0.05, 0.10, 0.20, 0.40)
"""How much slower the end of a window is than its begin."""
RARE_S = {"bursts": 0.06, "heavy_tails": 0.075}
"""A step this long is one of the rare ones of that kind: a window without any cannot know of them."""


def _lognormal(draw, cv):
    """Mean 1."""
    s = math.sqrt(math.log1p(cv * cv))
    return math.exp(draw.gauss(-s * s / 2.0, s))


def steady(draw):
    """Steps that differ by chance alone."""
    cv = draw.choice((0.05, 0.1, 0.2))
    while True:
        yield Step(period_s=STEP_S * _lognormal(draw, cv))


def warm_up(draw):
    """Twice as slow at first, as caches fill and clocks rise."""
    tau_s, at = draw.uniform(0.2, 1.0), 0.0
    while True:
        period_s = STEP_S * (1.0 + math.exp(-at / tau_s)) * _lognormal(draw, 0.1)
        at += period_s
        yield Step(period_s=period_s)


def stalls(draw, workers):
    """Bound by its loader: every step that comes round to the first worker waits."""
    k = draw.randrange(workers)
    short_s = 0.4 * STEP_S
    long_s = STEP_S * workers - short_s * (workers - 1)
    while True:
        own_s = short_s * _lognormal(draw, 0.1)
        wait_s = (long_s - short_s) * _lognormal(draw, 0.1) if k % workers == 0 else 0.0
        yield Step(period_s=own_s + wait_s, wait_s=wait_s, ready=0)
        k += 1


def bursts(draw):
    """Every now and then some steps in a row are slower by three fifths: two states, known shares."""
    enters, leaves, slower = 0.03, 0.2, 1.6
    share = enters / (enters + leaves)
    base_s = STEP_S / (1.0 + share * (slower - 1.0))
    slow = draw.random() < share
    while True:
        yield Step(period_s=base_s * (slower if slow else 1.0) * _lognormal(draw, 0.05))
        slow = draw.random() >= leaves if slow else draw.random() < enters


def heavy_tails(draw):
    """One step in thirty takes longer by a Pareto variable with infinite third moment."""
    share, alpha, least = 1 / 30, 2.5, 1.0
    mean = share * least * alpha / (alpha - 1.0)
    base_s = STEP_S / (1.0 + mean)
    while True:
        extra = least * draw.paretovariate(alpha) if draw.random() < share else 0.0
        yield Step(period_s=base_s * (_lognormal(draw, 0.1) + extra))


def autocorrelated(draw, tau_s, cv=0.15):
    """Neighbouring steps are alike: a first-order process in ln time that forgets within `tau_s`."""
    s = math.sqrt(math.log1p(cv * cv))
    phi = math.exp(-STEP_S / tau_s)
    x = draw.gauss(0.0, 1.0)
    while True:
        yield Step(period_s=STEP_S * math.exp(s * x - s * s / 2.0))
        x = phi * x + math.sqrt(1.0 - phi * phi) * draw.gauss(0.0, 1.0)


def drift(draw, amount, window_s):
    """Slower and slower, by `amount` over a window."""
    at = 0.0
    while True:
        period_s = STEP_S * (1.0 + amount * at / window_s) * _lognormal(draw, 0.1)
        at += period_s
        yield Step(period_s=period_s)


def of(kind, draw):
    """(steps without end, workers of the loader)."""
    if kind == "stalls":
        workers = draw.choice((2, 4, 8))
        return stalls(draw, workers), workers
    if kind == "autocorrelated":
        return autocorrelated(draw, 0.2), 0
    if kind == "autocorrelated_more":
        return autocorrelated(draw, 0.5), 0
    return {"steady": steady, "warm_up": warm_up, "bursts": bursts, "heavy_tails": heavy_tails}[kind](draw), 0

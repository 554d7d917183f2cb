"""What other tools conclude from the pairs of a verification: a plain timing, and a paired comparison.

Both read the machine's course where `autotune verify` reads it: two runs that are in no pair, then pairs of
which the odd ones begin with the script. The first times ten steps of either half of the first pair.

The second does as `train-doctor compare` 0.2.0 does by default (read in its source): one run of each arm is
discarded, five pairs in turning order follow. A run is a stall if it lies below its arm's median by more
than a factor of two and four scaled median deviations, or by a factor of four; one pair in four with a
stall is set aside at most. The interval is the range of the pairs' ratios, and it has to clear one by two
per cent. This is an emulation on simulated runs, not that program.
"""

import math
import statistics

PAIRS = 5
STALL, HARD_STALL = math.log(2.0), math.log(4.0)
STALL_MADS = 4.0
MAD_TO_SD = 1.4826
LEAST_EFFECT = 0.02


def same_pairs(draw, gain):
    """(script, config) of ln rates, in the places of the course that a verification gives them."""
    for _ in ("a", "b"):
        draw.run()
    pairs = []
    for k in range(PAIRS):
        first, second = draw.run()[0], draw.run()[0]
        base, ours = (first, second) if k % 2 == 0 else (second, first)
        pairs.append((base, gain + ours))
    return pairs


def ten_steps(draw, pairs, chance):
    """ln ratio of the first pair by ten steps of either half; `chance` deals what first steps differ by."""
    base, ours = pairs[0]
    return ours + draw.start(chance) - base - draw.start(chance)


def paired(pairs):
    """(low, middle, high) of ln ratios, after setting stalls aside."""
    ratios = sorted(b - a for a, b in _without_stalls(pairs))
    return ratios[0], statistics.median(ratios), ratios[-1]


def says_faster(low):
    """Whether a comparison with this lower end of ln ratios counts as a gain."""
    return low > math.log1p(LEAST_EFFECT)


def _without_stalls(pairs):
    arms = list(zip(*pairs, strict=True))
    bad = {k for arm in arms for k, stalls in enumerate(_stalls(arm)) if stalls}
    if len(bad) > len(pairs) // 4:
        return pairs
    return [pair for k, pair in enumerate(pairs) if k not in bad]


def _stalls(logs):
    middle = statistics.median(logs)
    deviation = MAD_TO_SD * statistics.median(abs(v - middle) for v in logs)
    limit = min(max(STALL, STALL_MADS * deviation), HARD_STALL)
    return [middle - v > limit for v in logs]

"""Communication: the most that its knobs can gain, by a run of the script without it. Pure.

The processes of such a run keep their gradients to themselves. They diverge, so the run is never ranked and
its loss means nothing; its rate bounds what any faster exchange of gradients could reach (decision 131).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from autotune.compare.amortised_rate import baseline_runs, screened
from autotune.model.config import Config
from autotune.model.trial import NO_COMMUNICATION, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial

FAMILY: Final = "communication"
WORTH: Final = 1.03
"""A smaller ceiling is not worth a search of the family (decision 131)."""


def silent_runs(study: Study) -> Sequence[Trial]:
    """Return the requested runs without communication, whatever their outcome."""
    return [t for t in study.trials if t.stage is Stage.DIAGNOSE and t.fidelity.probe == NO_COMMUNICATION]


def communication_ratio(study: Study) -> float | None:
    """Return the largest ratio of the rate without communication to the script's own that the runs allow.

    Returns:
        The upper ends of the run without, over the lower end of the script's first run; None without both.
    """
    measured = [t.measurement for t in silent_runs(study) if t.measurement is not None]
    own = [t.measurement for t in baseline_runs(study) if t.measurement is not None]
    if not measured or not own or own[0].throughput.low <= 0.0:
        return None
    return max(1.0, max(m.throughput.high for m in measured) / own[0].throughput.low)


def is_dropped(study: Study) -> bool:
    """Return whether the ceiling excludes a gain worth having, beside the fastest configuration as well.

    Where the rest of a step has become faster, the same communication takes a larger share of it.
    """
    ratio = communication_ratio(study)
    if ratio is None:
        return False
    rates = screened(study)
    own = rates.get(Config())
    gained = max(rates.values(), default=1.0) / own if own else 1.0
    left = 1.0 - (1.0 - 1.0 / ratio) * max(1.0, gained)
    return (1.0 / left if left > 0.0 else math.inf) < WORTH


def dropped_text(study: Study) -> str:
    """Return the sentence on the dropped family; empty if the family is searched."""
    ratio = communication_ratio(study)
    if ratio is None or not is_dropped(study):
        return ""
    return (
        f"Without any exchange of gradients your script would be at most {ratio:.2f} times as fast, so the "
        "knobs of communication were left out."
    )

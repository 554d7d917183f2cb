"""Length of the user's real run in optimizer steps, as far as script and baseline show. Pure."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.facts import ScriptFlag
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study

SHORT = "short"
"""Flag of a run of which only a few steps were timed, without the usual warm-up before them."""
_STEPS_WANTED = 12
"""Timed steps, of all runs of a config together, that a usual window has at the least."""
_WIDTH_WANTED = 0.1
"""Relative width of an interval that needs no second run to choose by."""
_MOST_REPEATS = 5
_EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "nepochs", "num_train_epochs", "niter")
_STEPS = ("max_steps", "num_steps", "max_iters", "num_iterations", "train_steps", "total_steps")


def planned_steps(study: Study) -> int | None:
    """Optimizer steps of the real run at the script's own effective batch; None where unknown.

    The user's value (`StudySpec.run_steps`) has priority. Next are the script's own option for steps, and its
    option for epochs times the length of the training loader in the baseline. Last is the total of a short
    script.
    """
    if study.spec.run_steps is not None:
        return study.spec.run_steps
    facts = study.facts
    if facts is None or facts.run is None:
        return None
    steps = _number(_option(facts.script.flags, _STEPS), study.spec.args)
    if steps is not None:
        return steps
    epochs = _number(_option(facts.script.flags, _EPOCHS), study.spec.args)
    per_epoch = steps_per_epoch(study)
    if epochs is not None and per_epoch is not None:
        return max(1, round(epochs * per_epoch))
    return max(m.warmup_steps + m.steps for m in _measured(study)) if is_short(study) else None


def planned_seconds(study: Study) -> float | None:
    """Return the seconds of the real run with the unchanged script; None if its length is unknown."""
    steps, runs = planned_steps(study), _measured(study)
    return steps * runs[0].step_time_s.value if steps is not None and runs else None


def steps_per_epoch(study: Study) -> float | None:
    """Return the optimizer steps of one pass of the unchanged script over its data; None if unknown."""
    facts = study.facts
    if facts is None or facts.run is None or facts.run.loader is None or not facts.run.loader.length:
        return None
    per_step = max(1.0, facts.run.backward_per_step) if facts.run.own_accumulation else 1.0
    return facts.run.loader.length / per_step


def is_short(study: Study) -> bool:
    """Return whether the script ends by itself before the usual warm-up and window are over.

    Args:
        study: As of now; False before the first run of the script was measured.
    """
    runs = _measured(study)
    return bool(runs) and all(m.ended == "script_end" and SHORT in m.contamination.flags for m in runs)


def useful_repeats(study: Study) -> int:
    """Return how many processes of one config give as much evidence as one run of a longer script.

    They have twelve timed steps together, or the interval of their mean is some 10 % wide, whichever takes
    fewer. Five at most; one if a single run suffices.

    Args:
        study: As of now.
    """
    if not is_short(study):
        return 1
    runs = _measured(study)
    by_steps = math.ceil(_STEPS_WANTED / max(1.0, statistics.median(m.steps for m in runs)))
    width = statistics.median(m.throughput.relative_width for m in runs)
    by_width = math.ceil((width / _WIDTH_WANTED) ** 2) if math.isfinite(width) else _MOST_REPEATS
    return max(1, min(by_steps, by_width, _MOST_REPEATS))


def _measured(study: Study) -> list[Measurement]:
    return [trial.measurement for trial in study.baseline if trial.measurement is not None]


def _option(flags: Sequence[ScriptFlag], names: Sequence[str]) -> ScriptFlag | None:
    known = {flag.dest.replace("-", "_").lower(): flag for flag in flags}
    return next((known[name] for name in names if name in known), None)


def _number(option: ScriptFlag | None, args: Sequence[str]) -> int | None:
    """Return the value that was given, else the default; None unless it is a positive whole number."""
    if option is None:
        return None
    value: object = option.default
    for position, word in enumerate(args):
        name, given, text = word.partition("=")
        if name in option.names:
            value = text if given else (args[position + 1] if position + 1 < len(args) else value)
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if number > 0 else None

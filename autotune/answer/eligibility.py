"""Whether a compared config may be recommended, and the reason if not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.bounds import fits, is_within_budget
from autotune.compare.break_even import break_even
from autotune.compare.comparison import spent_by_cycle
from autotune.compare.control import against_itself, claim_bar
from autotune.compare.failed_configs import broken
from autotune.compare.loss_verdicts import loss_traces
from autotune.compare.rounds import confirmation_cycles
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.objective import ENERGY
from autotune.model.trial import PAIRED, Family

if TYPE_CHECKING:
    from autotune.compare.comparison import Comparison
    from autotune.model.study import Study

_BASE = Config()
_FEWEST_SAVING_PAIRS = 3
"""Pairs required to claim an energy saving; unlike throughput, joules have no prior on their scatter."""


def is_eligible(study: Study, compared: Comparison) -> bool:
    """Return whether runs, loss, memory and compile time allow a recommendation."""
    if compared.config in broken(study):
        return False
    if not fits(study, compared.peak_bytes) or not is_within_budget(study, compared.config):
        return False
    if _late(study, compared):
        return False
    if compared.loss.passed:
        return True
    blind = not loss_traces(study, _BASE)
    unclear = compared.loss.verdict == "unclear" and not compared.loss.rule
    return blind and compared.effect is Effect.EXACT and unclear


def saves(study: Study, compared: Comparison) -> bool:
    """Return whether it certainly takes less energy per sample; True for other objectives."""
    if study.spec.objective != ENERGY:
        return True
    saving = compared.saving
    if saving is None or saving.n < _FEWEST_SAVING_PAIRS:
        return False
    spent = spent_by_cycle(study, confirmation_cycles(study))
    own = [spent[g][_BASE] for g in sorted(spent) if _BASE in spent[g]]
    return saving.low > claim_bar(against_itself(own))


def why_not(study: Study, compared: Comparison, bar: float) -> str:
    """Return why a certainly faster config is not recommended, as the end of a sentence.

    Args:
        study: The study so far.
        compared: A config that wins.
        bar: From `claim_bar`.
    """
    if broke := how_it_broke(study, compared.config):
        return broke
    if not fits(study, compared.peak_bytes):
        return "it needs more memory than allowed"
    if not is_within_budget(study, compared.config):
        return "it takes more energy per sample than allowed, or its energy was not counted"
    if late := _late(study, compared):
        return late
    if compared.speedup.low <= bar:
        return f"your script differs from itself by up to {bar:.2f} times here"
    if not saves(study, compared):
        return "it is not shown to take less energy per sample than your script"
    if compared.loss.rule:
        return compared.loss.reason[0].lower() + compared.loss.reason[1:].rstrip(".")
    if not compared.loss.passed:
        return "its loss is not shown to be as good: " + compared.loss.reason.rstrip(".")
    return "it was found by ablation of a configuration that is not a winner"


def how_it_broke(study: Study, config: Config) -> str:
    """Return which failure excludes a config, as the end of a sentence; empty without one."""
    trial = broken(study).get(config)
    if trial is None or trial.failure is None:
        return ""
    if trial.failure.kind.family is Family.DIVERGED:
        return f"its loss became nan in trial {trial.number}"
    runs = len(study.of(config, *PAIRED))
    return f"trial {trial.number}, one of its {runs} runs in pairs, failed ({trial.failure.kind.words})"


def late_compile(study: Study, config: Config) -> str:
    """Return that its compile does not pay back within the planned run, or an empty string.

    The text is the end of a sentence.
    """
    paid = break_even(study, config)
    if paid is None or not paid.is_late or paid.run_s is None:
        return ""
    back = "never pays back" if paid.seconds is None else f"pays back after {_time(paid.seconds)}"
    return f"its compile of {_time(paid.compile_s)} {back}, and your run is about {_time(paid.run_s)}"


def _late(study: Study, compared: Comparison) -> str:
    return "" if compared.effect is Effect.TRAINING else late_compile(study, compared.config)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"

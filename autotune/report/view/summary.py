"""Text on a study for every renderer: names, headlines, commands, numbers. Pure.

Every claim comes from an `Answer`; the text reports a missing answer or gain.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Final

from autotune.answer.answer import SearchOutcome
from autotune.answer.outcome import candidate_text
from autotune.answer.reasons import unbounded_text
from autotune.answer.unmeasured import budget_wanted, ended_by_budget, ran_s
from autotune.compare.break_even import is_late
from autotune.compare.control import weakness
from autotune.compare.disturbances import baseline_is_steady, undisturbed
from autotune.model.config import FIRST_KNOBS, Config, config_text, in_order, value_text
from autotune.model.distributed_launch import launch_words
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate
from autotune.model.trial import Family, Stage, Trial
from autotune.text.redact import redact_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.answer.answer import Answer, Recommendation
    from autotune.model.config import Value
    from autotune.model.study import Study

GIB = 1024**3

_HARDLY: Final = 0.01
"""Share of a planned run below which a compile is not worth mentioning."""
LOSS_WORDS: Final = {"pass": "loss holds", "fail": "loss worse", "unclear": "loss not shown"}
"""Verdict of the loss guard in two words."""

_SHOWN_ELSEWHERE = ("It trains ", "It reaches the same loss ", "Its peak memory is ")
"""Beginnings of reasons that repeat a figure shown beside them; `autotune.answer.reasons` words them."""
_WAITS = 0.1
FEWEST_PAIRS: Final = 3
"""Pairs below which an interval is not informative."""


def significant(value: float, digits: int = 4) -> float:
    """Round to significant digits; not-finite values and zero are returned unchanged."""
    if not math.isfinite(value) or value == 0:
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def number_text(value: float, digits: int = 4) -> str:
    """Format significant digits: ``1505``, ``12.34``, ``0.0021``; no exponent for ordinary sizes."""
    rounded = significant(value, digits)
    if not math.isfinite(rounded):
        return "unknown"
    if abs(rounded) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{rounded:.{digits}g}"


def bytes_text(size: int | None) -> str:
    """Format bytes as ``6.8 GiB`` or ``512 MiB``; ``unknown`` for None."""
    if size is None:
        return "unknown"
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 1024**2:.0f} MiB"


def duration_text(seconds: float) -> str:
    """Format seconds as ``105 s``, ``12 min``, ``1 h 58 min``."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def plural(count: int, noun: str) -> str:
    """Return ``1 trial``, ``3 trials``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ratio_text(ratio: Estimate) -> str:
    """Return ``2.41x [2.34, 2.48]``; words for uninformative ends, no interval for one run."""
    if ratio.is_bounded:
        return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
    if ratio.n < 2:
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.2f}x ({unbounded_text(ratio)})"


def likely_text(likely: Recommendation) -> str:
    """Return ``2.18x in 3 runs, not confirmed``."""
    return candidate_text(likely.speedup, likely.runs)


def over_run_text(pick: Recommendation) -> str:
    """Return ``, 5.53x as fast with it included``; empty if a compile is negligible in the planned run."""
    whole = pick.over_run
    if whole is None or whole > (1.0 - _HARDLY) * pick.speedup.value:
        return ""
    return f", {whole:.2f}x as fast with it included"


def control_text(ratio: Estimate) -> str:
    """Return the script against itself; an interval from two pairs is not informative."""
    if ratio.n < FEWEST_PAIRS:
        return f"{ratio.value:.2f}x in {plural(ratio.n, 'pair')}, too few for an interval"
    return ratio_text(ratio)


def script_name(study: Study) -> str:
    """Return ``train_gpt.py``, or ``package.train`` for ``python -m``."""
    return study.spec.title


def user_command(study: Study) -> str:
    """Return the user's own command for their directory, quoted, without secrets."""
    spec = study.spec
    start = launch_words(spec.launcher, spec.python_unless(sys.executable))
    script = os.path.relpath(spec.script, spec.cwd) if spec.cwd else spec.script
    run = ("-m", spec.module) if spec.module else (spec.script if script.startswith("..") else script,)
    # Before quoting, as quotes hide a secret from the patterns of `redact`.
    return shlex.join(redact_args([*start, *spec.options, *run, *spec.args]))


def apply_command(study: Study, pick: str = "best") -> str:
    """Return ``autotune apply best.yaml -- python train.py``, with ``--pick`` for other picks than `best`."""
    spec = study.spec
    out = spec.out or "best.yaml"
    if spec.cwd and (near := os.path.relpath(out, spec.cwd)) and not near.startswith(".."):
        out = near
    chosen = "" if pick == "best" else f"--pick {pick} "
    return f"autotune apply {shlex.quote(out)} {chosen}-- {user_command(study)}"


def failed_baseline(study: Study) -> Trial | None:
    """Return the failed baseline trial if none was measured; else None."""
    if any(t.measurement for t in study.baseline):
        return None
    return next((t for t in study.baseline if t.failure is not None), None)


def status(study: Study, answer: Answer | None) -> str:
    """Return ``running``, ``found``, ``no_gain``, ``inconclusive``, ``stopped`` (no answer) or ``failed``."""
    if failed_baseline(study) is not None:
        return "failed"
    if not study.stopped:
        return "running"
    if answer is None:
        return "stopped"
    if answer.is_better:
        return "found"
    return "no_gain" if answer.outcome is SearchOutcome.NOTHING_FASTER else "inconclusive"


def is_early(study: Study) -> bool:
    """Return whether the search was ended from outside before its budget."""
    return study.stopped in ("interrupted", "signal", "disk")


def baseline_rate(study: Study, *, up_to: int | None = None) -> float | None:
    """Return the geometric mean of the baseline's throughput, of its undisturbed runs if it has any.

    Args:
        study: Study to summarize.
        up_to: Count only baseline trials up to this number, so that later trials do not change the figure;
            None for all.
    """
    known = [
        t
        for t in study.baseline
        if t.measurement is not None
        and t.measurement.throughput.value > 0
        and (up_to is None or t.number <= up_to or t.number == study.baseline[0].number)
    ]
    rates = [t.measurement.throughput.value for t in undisturbed(study, known) if t.measurement is not None]
    return math.exp(sum(map(math.log, rates)) / len(rates)) if rates else None


def speedup_of(study: Study, trial: Trial) -> Estimate | None:
    """Return one trial's throughput over the baseline's: a single run, not a confirmed claim.

    Uses the baseline run of the same confirmation round if there is one, for the same state of the machine.
    """
    mine = trial.measurement
    if mine is None:
        return None
    base = _paired_rate(study, trial) or baseline_rate(study, up_to=trial.number)
    if not base:
        return None
    rate = mine.throughput
    return Estimate(
        value=rate.value / base, low=rate.low / base, high=rate.high / base, n=rate.n, unit="ratio"
    )


def _paired_rate(study: Study, trial: Trial) -> float | None:
    if not trial.group or trial.config.is_baseline:
        return None
    partner = next(
        (
            t
            for t in study.finished(Stage.CONFIRM)
            if t.group == trial.group and t.config.is_baseline and t.number < trial.number
        ),
        None,
    )
    return partner.measurement.throughput.value if partner and partner.measurement else None


def best_other(study: Study) -> tuple[float, Trial] | None:
    """Return the largest unconfirmed single-run ratio of a training-preserving config.

    Configs that change the training, or whose compile the planned run does not pay back, are never
    recommended as best, so their gain would contradict the answer.
    """
    found = [
        (ratio.value, t)
        for t in study.finished()
        if not t.config.is_baseline
        and not changes_training(study, t)
        and not is_late(study, t.config)
        and (ratio := speedup_of(study, t)) is not None
    ]
    return max(found, key=lambda pair: (pair[0], -pair[1].number), default=None)


def changes_training(study: Study, trial: Trial) -> bool:
    """Return whether its config changes the training itself; False if unknown."""
    return study.space is not None and study.space.effect(trial.config) is Effect.TRAINING


def _faster_so_far(study: Study) -> float | None:
    """Return the ratio of `best_other` during a search; None if nothing is shown to be faster."""
    best = best_other(study)
    return best[0] if best is not None and best[0] > 1.0 and baseline_is_steady(study) else None


_SHORT_COMMAND: Final = 40
"""Characters; a longer path widens the column of names."""


def run_name(study: Study, answer: Answer | None) -> str:
    """Return a name for the study's run: gain, configuration, and the command that applies it.

    ``2.41x [2.34, 2.48] · precision=bf16 num_workers=8 · autotune apply best.yaml``. In a narrow window,
    MLflow shows nothing else of the answer. It wraps between words only and is as wide as the longest word,
    so the name has short words and omits a script named by the experiment.
    """
    stem, trials = study.spec.stem, plural(len(study.finished()), "trial")
    state = status(study, answer)
    if state == "failed":
        broken = failed_baseline(study)
        is_short = broken is not None and ended_by_budget(study, broken)
        return f"{'budget too short' if is_short else 'baseline failed'} · {stem}"
    if state == "running":
        best = _faster_so_far(study)
        seen = "" if best is None else f" best {best:.1f}x"
        return f"searching...{seen} · {stem}"
    early = " · stopped early" if is_early(study) else ""
    early = f" · {found}{early}" if (found := _weak(study, answer)) else early
    if answer is None:
        return f"stopped before the baseline · {stem}"
    if state == "inconclusive":
        likely = answer.likely
        seen = f" · likely {likely.speedup.value:.2f}x {config_text(likely.config)}" if likely else ""
        return f"inconclusive{seen} · {stem} · {trials}{early}"
    if not answer.is_better:
        return f"no gain · {stem} · {trials}{early}"
    best_pick = answer.best
    whose = f"{stem} · " if study.spec.experiment else ""
    applied = apply_command(study).partition(" -- ")[0]
    next_step = applied if len(applied) <= _SHORT_COMMAND else trials
    return f"{ratio_text(best_pick.speedup)} · {config_text(best_pick.config)} · {whose}{next_step}{early}"


def _weak(study: Study, answer: Answer | None) -> str:
    """Return a weakness of the claim itself; empty without one."""
    return weakness(study, answer.best.speedup) if answer is not None and answer.is_better else ""


def headline(study: Study, answer: Answer | None, *, interval: bool = False) -> str:
    """Return the answer in one line of plain words, without a heading mark.

    Args:
        study: Study to summarize.
        answer: Answer; None without one.
        interval: Put the interval after the speedup.
    """
    early = " (stopped early)" if is_early(study) else ""
    early = f" ({found}){early}" if (found := _weak(study, answer)) else early
    failed = failed_baseline(study)
    if failed is not None and ended_by_budget(study, failed):
        seconds = ran_s(failed)
        return (
            f"The budget ended before {script_name(study)} was measured once: one run takes more than "
            f"{duration_text(seconds)}; --budget {budget_wanted(seconds)}"
        )
    if failed is not None and failed.failure is not None:
        return f"{script_name(study)} fails unmodified: {failure_line(failed)}"
    if not study.stopped:
        best = _faster_so_far(study)
        far = "nothing faster" if best is None else f"best single run {best:.2f}x, not confirmed"
        return f"Searching... so far {far}"
    if answer is None:
        return f"Stopped before {script_name(study)} was measured"
    if answer.outcome is SearchOutcome.INCONCLUSIVE and not answer.is_better:
        return f"Inconclusive: {_undecided(study, answer)}{early}"
    if not answer.is_better:
        count = other_configs(study)
        if not count:
            return f"No gain: no configuration of {script_name(study)} but its own was tried{early}"
        tried = plural(count, "other configuration")
        return f"No gain: none of {tried} was shown to be faster than {script_name(study)}{early}"
    best_pick, safe = answer.best, answer.safe
    fast = f"{best_pick.speedup.value:.2f}x faster"
    if interval:
        fast = ratio_text(best_pick.speedup).replace("x", "x faster", 1)
    if best_pick.config == safe.config:
        return f"{fast}, training unchanged: {config_text(best_pick.config)}{early}"
    words = "safe" if interval else "safe pick"
    aside = f"no {words} is faster" if safe.config.is_baseline else f"{words} {safe.speedup.value:.2f}x"
    return f"{fast}: {config_text(best_pick.config)} ({aside}){early}"


def other_configs(study: Study) -> int:
    """Return the number of tried configurations besides the script's own."""
    return len({t.config for t in study.finished() if not t.config.is_baseline})


def _undecided(study: Study, answer: Answer) -> str:
    """Return the likely candidate, or that there is none."""
    if answer.likely is not None:
        return f"{config_text(answer.likely.config)} reads {likely_text(answer.likely)}"
    count = other_configs(study)
    if not count:
        return f"no configuration of {script_name(study)} but its own was tried"
    return (
        f"{plural(count, 'other configuration')} of {script_name(study)} tried, none is confirmed to be "
        "faster"
    )


def loss_sentence(pick: Recommendation) -> str:
    """Return the loss guard's verdict on a pick."""
    verdict = pick.loss
    if verdict.reason:
        return verdict.reason
    if not verdict.passed:
        return "It was not shown that the loss is kept."
    if verdict.level == 0:
        return "The loss stays finite and falls; it was not compared further."
    noise = f" (the script's own noise: {100 * verdict.noise_frac:.1f} %)" if verdict.noise_frac > 0 else ""
    behind = (
        f"at most {100 * verdict.delay_frac_upper95:.1f} % of {plural(verdict.steps, 'step')} behind{noise}"
    )
    return f"Not inferior to your script: {behind}."


def further_reasons(pick: Recommendation) -> list[str]:
    """Return its reasons without ratio, loss and memory, which are shown elsewhere."""
    return [r for r in pick.reasons if r != pick.loss.reason and not r.startswith(_SHOWN_ELSEWHERE)]


def own_values(study: Study) -> dict[str, Value]:
    """Return the script's own value of each knob, as far as it was read."""
    run = study.facts.run if study.facts is not None else None
    own = dict(run.values) if run is not None else {}
    if study.space is not None:
        own.update({k: d.own for k, d in study.space.dimensions.items() if d.own is not None})
    return own


def changes_text(study: Study, config: Mapping[str, Value]) -> str:
    """Return changes, with old values if known: ``precision fp32 -> bf16, num_workers 0 -> 2``."""
    own = own_values(study)
    words: list[str] = []
    for knob, value in in_order(config):
        was = value_text(own.get(knob))
        words.append(f"{knob} {was} -> {value_text(value)}" if was else f"{knob} {value_text(value)}")
    return ", ".join(words) or "your unchanged script"


def trial_name(trial: Trial, *, picks: Sequence[str] = (), knobs: Mapping[str, Value] | None = None) -> str:
    """Return the name of a trial's run: ``t06 precision=bf16``, ``BEST t06 ...``, ``baseline t00 ...``.

    Args:
        trial: Trial whose config follows the number.
        picks: ``best``, ``safe``, ``fastest``, ``likely``, as far as this trial represents them.
        knobs: Resolved values, for the baseline's name.
    """
    mark = "+".join(p.upper() for p in picks)
    number = f"t{trial.number:02d}"
    if trial.config.is_baseline:
        shown = {k: v for k, v in (knobs or {}).items() if k in FIRST_KNOBS}
        return " ".join(filter(None, [mark, "baseline", number, config_text(shown) if shown else ""]))
    return " ".join(filter(None, [mark, number, config_text(trial.config)]))


def status_word(trial: Trial) -> str:
    """Return ``ok``, or the failure's family in lower case; ``open`` without an outcome."""
    if trial.failure is not None:
        return trial.failure.kind.family.value
    return "ok" if trial.measurement is not None else "open"


def picks_of(answer: Answer | None) -> dict[int, list[str]]:
    """Return the picks that a trial represents, by trial number; without a gain only the likely one."""
    found: dict[int, list[str]] = {}
    if answer is None:
        return found
    confirmed = (answer.best, answer.safe, answer.fastest) if answer.is_better else ()
    for pick in (*confirmed, answer.likely):
        if pick is not None and not pick.config.is_baseline:
            found.setdefault(pick.trial, []).append(pick.pick)
    return found


def failed_count(study: Study) -> int:
    """Return the number of failed trials, without those that the user cancelled."""
    return sum(
        1 for t in study.finished() if t.failure is not None and t.failure.kind.family is not Family.CANCELLED
    )


def waits_text(study: Study, best: Recommendation) -> str:
    """Return the script's wait for data, unchanged and with the pick; empty if small."""
    own = [t.measurement.data_wait_frac for t in study.of(Config()) if t.measurement]
    new = [t.measurement.data_wait_frac for t in study.of(best.config) if t.measurement]
    if not own or not new or best.config.is_baseline or max(own) < _WAITS:
        return ""
    before, after = 100 * sum(own) / len(own), 100 * sum(new) / len(new)
    return f"your script waits for data {before:.0f} % of its time, with this config {after:.0f} %"


def space_text(study: Study) -> str:
    """Return ``cpu, as training runs on the CPU``; empty if the user named the search space."""
    space = study.spec.space
    return f"{space.name}, as {space.reason}" if space.reason else ""


def failure_line(trial: Trial) -> str:
    """Return the last line that a failed trial wrote, else its message."""
    failure = trial.failure
    if failure is None:
        return ""
    tail = [line for line in str(failure.evidence.get("log_tail", "")).splitlines() if line.strip()]
    return plain((tail or [failure.message])[-1])[:200]


def plain(text: str) -> str:
    """Return one line without characters that would start markup, for text of a script."""
    return re.sub(r"\s+", " ", text).strip().replace("<", "&lt;")

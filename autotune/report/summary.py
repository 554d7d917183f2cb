"""What is said about a study, whoever shows it: names, first lines, the note, numbers. Pure text.

Every claim comes from an `Answer`; without one, or without a gain, the text says so.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.core.ablation import ablated
from autotune.core.advice import advice_of, advice_text
from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.launched import launch_words
from autotune.core.measurement import Estimate
from autotune.core.pick import knob_gains, screened, without_idle
from autotune.core.redact import redact_args
from autotune.core.transfer import beliefs
from autotune.core.trial import Family, Stage, Trial
from autotune.report.effects import parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.config import Value
    from autotune.core.pick import Answer, Recommendation
    from autotune.core.study import Study

GIB = 1024**3

LOSS_WORDS: Final = {"pass": "loss holds", "fail": "loss worse", "unclear": "loss not shown"}
"""The loss guard's verdict in two words."""

_SHORT = {
    "batch_size": "bs{}",
    "num_workers": "w{}",
    "accumulation": "acc{}",
    "precision": "{}",
    "compile_mode": "compile={}",
    "threads": "threads={}",
    "prefetch_factor": "prefetch={}",
    "effective_batch": "eff{}",
}
_LONG = {
    "batch_size": "batch {}",
    "num_workers": "{} workers",
    "accumulation": "accumulation {}",
    "precision": "{}",
    "compile_mode": "compile {}",
    "threads": "{} threads",
    "prefetch_factor": "prefetch {}",
    "effective_batch": "effective batch {}",
}
_ORDER = ("precision", "batch_size", "num_workers", "compile_mode", "accumulation")
_TOLD_ELSEWHERE = ("It trains ", "It reaches the same loss ", "Its peak memory is ")
"""Reasons that begin so say what stands beside them as a figure; `autotune.core.pick` words them."""
_LEAST_SHARE = 0.01
_SCREEN_NOISE = 0.03
"""Two single runs of a config differ by this much by themselves."""
_WAITS = 0.1
_TOP_REASONS = 3
FEWEST_PAIRS: Final = 3
"""Fewer give an interval that says nothing."""
_FEWEST_TRIALS = 9
"""Two baselines, one other run, three pairs."""
_FEWEST_RUNS = 10
"""Two baselines, one other config, three cycles of it and the script, and what starting and ending take."""
_GOOD_RUNS = 30


def significant(value: float, digits: int = 4) -> float:
    """The value with so many significant digits; not-finite values and zero as they are."""
    if not math.isfinite(value) or value == 0:
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def number_text(value: float, digits: int = 4) -> str:
    """``1505``, ``12.34``, ``0.0021``: significant digits, never an exponent for ordinary sizes."""
    rounded = significant(value, digits)
    if not math.isfinite(rounded):
        return "unknown"
    if abs(rounded) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{rounded:.{digits}g}"


def bytes_text(size: int | None) -> str:
    """``6.8 GiB`` or ``512 MiB``; ``unknown`` for None."""
    if size is None:
        return "unknown"
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 1024**2:.0f} MiB"


def duration_text(seconds: float) -> str:
    """``45 s``, ``12 min``, ``1 h 58 min``."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def plural(count: int, noun: str) -> str:
    """``1 trial``, ``3 trials``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ratio_text(ratio: Estimate) -> str:
    """``2.41x [2.34, 2.48]``, without the interval where one run cannot give any."""
    if ratio.n == 0 or not (math.isfinite(ratio.low) and math.isfinite(ratio.high)):
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


def control_text(ratio: Estimate) -> str:
    """The script against itself; two pairs give an interval that says nothing."""
    if ratio.n < FEWEST_PAIRS:
        return f"{ratio.value:.2f}x in {plural(ratio.n, 'pair')}, too few for an interval"
    return ratio_text(ratio)


def value_text(value: Value | None) -> str:
    """A knob's value: ``on`` and ``off`` for switches, an empty string for an unread one."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return number_text(value, 6) if isinstance(value, float) else str(value)


def in_order(config: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """The items, those that people look for first in front."""
    rank = {knob: place for place, knob in enumerate(_ORDER)}
    return sorted(config.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0]))


def short_config(config: Mapping[str, Value]) -> str:
    """``bf16 bs256 w8 compile=default``; ``as it is`` for the baseline."""
    words = [_SHORT.get(k, k + "={}").format(value_text(v)) for k, v in in_order(config)]
    return " ".join(words) or "as it is"


def long_config(config: Mapping[str, Value]) -> str:
    """``bf16, batch 256, 8 workers, compile default``; ``your script as it is`` for the baseline."""
    words = [_LONG.get(k, k.replace("_", " ") + " {}").format(value_text(v)) for k, v in in_order(config)]
    words = [w.removesuffix("s") if w.startswith("1 ") else w for w in words]
    return ", ".join(words) or "your script as it is"


def script_name(study: Study) -> str:
    """``train_gpt.py``, or ``package.train`` of ``python -m``."""
    return study.spec.title


def user_command(study: Study) -> str:
    """The user's own command as they would type it in their directory, quoted, without secrets."""
    spec = study.spec
    start = launch_words(spec.launcher, spec.python_unless(sys.executable))
    script = os.path.relpath(spec.script, spec.cwd) if spec.cwd else spec.script
    run = ("-m", spec.module) if spec.module else (spec.script if script.startswith("..") else script,)
    # Before it is quoted: quotes hide a secret from the patterns of `redact`.
    return shlex.join(redact_args([*start, *spec.options, *run, *spec.args]))


def apply_command(study: Study, pick: str = "best") -> str:
    """``autotune apply best.yaml -- python train.py``, with ``--pick`` for another than `best`."""
    spec = study.spec
    out = spec.out or "best.yaml"
    if spec.cwd and (near := os.path.relpath(out, spec.cwd)) and not near.startswith(".."):
        out = near
    chosen = "" if pick == "best" else f"--pick {pick} "
    return f"autotune apply {shlex.quote(out)} {chosen}-- {user_command(study)}"


def failed_baseline(study: Study) -> Trial | None:
    """The baseline trial that failed, where none was measured; else None."""
    if any(t.measurement for t in study.baseline):
        return None
    return next((t for t in study.baseline if t.failure is not None), None)


def status(study: Study, answer: Answer | None) -> str:
    """``running``, ``found``, ``no_gain``, ``stopped`` (before there was anything) or ``failed``."""
    if failed_baseline(study) is not None:
        return "failed"
    if not study.stopped:
        return "running"
    if answer is None:
        return "stopped"
    return "found" if answer.is_better else "no_gain"


def is_early(study: Study) -> bool:
    """The search was ended from outside before its budget was."""
    return study.stopped in ("interrupted", "signal", "disk")


def baseline_rate(study: Study, *, up_to: int | None = None) -> float | None:
    """Geometric mean of the throughput of the script as it is.

    Args:
        study: Any.
        up_to: Count only baseline trials up to this number, so that a figure made from it does
            not change when more is known; None for all.
    """
    rates = [
        t.measurement.throughput.value
        for t in study.baseline
        if t.measurement is not None
        and t.measurement.throughput.value > 0
        and (up_to is None or t.number <= up_to or t.number == study.baseline[0].number)
    ]
    return math.exp(sum(map(math.log, rates)) / len(rates)) if rates else None


def speedup_of(study: Study, trial: Trial) -> Estimate | None:
    """One trial's throughput against the baseline's: a single run, not a confirmed claim.

    Against the baseline run of the same confirmation cycle where there is one, so that both saw
    the same state of the machine.
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
            for t in study.told(Stage.CONFIRM)
            if t.group == trial.group and t.config.is_baseline and t.number < trial.number
        ),
        None,
    )
    return partner.measurement.throughput.value if partner and partner.measurement else None


def best_so_far(study: Study, *, up_to: int | None = None) -> tuple[float, Trial] | None:
    """The largest single-run ratio and its trial, unconfirmed; None before the baseline was measured.

    Args:
        study: Any.
        up_to: Leave out trials behind this number.
    """
    found = [
        (ratio.value, t)
        for t in study.told()
        if (up_to is None or t.number <= up_to) and (ratio := speedup_of(study, t)) is not None
    ]
    return max(found, key=lambda pair: (pair[0], -pair[1].number), default=None)


def contributions(study: Study, config: Config) -> dict[str, Estimate]:
    """Knob -> how much faster this config is with it than without, largest first.

    Measured, not modelled. Where the config was taken apart, that says it, in pairs. Else single runs
    of screening on both sides (n = 1, no interval), as far as they differ by more than their noise: the
    runs that confirm the config are not mixed with the ones that chose it.
    """
    if config in (ablated(study), without_idle(study)):
        return {knob: gain for knob, gain in knob_gains(study).items() if knob in config}
    ranked = screened(study)
    mine = ranked.get(config)
    found: dict[str, Estimate] = {}
    for knob in config:
        # Without its only knob a config is the baseline.
        without = ranked.get(config.without(knob))
        if mine and without and abs(math.log(mine / without)) > _SCREEN_NOISE:
            found[knob] = Estimate(value=mine / without, low=0.0, high=math.inf, n=1, unit="ratio")
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one knob brings within a configuration, or several that were never changed apart.

    Args:
        knobs: Those that people look for first in front.
        ratio: How many times as fast with them as without.
        low, high: The interval; None where a single run on each side cannot give one.
        pairs: That measured it; 0 where none did.
        how: ``pairs``, ``single runs`` (one with it, one without) or ``estimated`` from all single runs.
    """

    knobs: tuple[str, ...]
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    how: str


def shares(study: Study, config: Config) -> list[Share]:
    """What each knob of a configuration brings, largest first.

    Where the configuration was taken apart, pairs say it, and nothing else is mixed in. Else it is what all
    single runs of the search let one expect, as far as that is clear; knobs of which they say nothing clear
    are left out.
    """
    measured = contributions(study, config)
    found = [
        Share(
            knobs=(knob,),
            ratio=gain.value,
            low=gain.low if gain.n > 1 else None,
            high=gain.high if gain.n > 1 else None,
            pairs=gain.n if gain.n > 1 else 0,
            how="pairs" if gain.n > 1 else "single runs",
        )
        for knob, gain in measured.items()
    ]
    if any(share.pairs for share in found):
        return found
    weighed = parts(study, config)
    judged = {knob for part in weighed for knob in part.knobs}
    estimated = [
        Share(
            knobs=tuple(knob for knob, _ in in_order(dict.fromkeys(part.knobs, 0))),
            ratio=part.ratio,
            low=part.low,
            high=part.high,
            pairs=0,
            how="estimated",
        )
        for part in weighed
        if part.is_clear
    ]
    rest = [share for share in found if share.knobs[0] not in judged]
    return sorted([*estimated, *rest], key=lambda share: -share.ratio)


def share_text(share: Share) -> str:
    """``+58 %`` where pairs measured it, ``about +58 %`` where single runs let one expect it."""
    return f"{'' if share.pairs else 'about '}{100 * (share.ratio - 1.0):+.0f} %"


def share_of(found: Sequence[Share], knob: str) -> tuple[Share, str] | None:
    """The share that a knob has a part in, and the same in words; None where there is none."""
    share = next((one for one in found if knob in one.knobs), None)
    if share is None:
        return None
    others = " and ".join(name for name in share.knobs if name != knob)
    return share, share_text(share) + (f" with {others}" if others else "")


def run_name(study: Study, answer: Answer | None) -> str:
    """The study's run: ``2.41x · bf16 bs256 w8 · train_gpt · 41 trials``."""
    stem, trials = study.spec.stem, plural(len(study.told()), "trial")
    state = status(study, answer)
    if state == "failed":
        return f"baseline failed · {stem}"
    if state == "running":
        best = best_so_far(study)
        seen = f" best {best[0]:.1f}x" if best and best[0] > 1 and not best[1].config.is_baseline else ""
        return f"searching...{seen} · {stem}"
    early = " · stopped early" if is_early(study) else ""
    if answer is None:
        return f"stopped before the baseline · {stem}"
    if not answer.is_better:
        return f"no gain · {stem} · {trials}{early}"
    best_pick = answer.best
    return f"{best_pick.speedup.value:.2f}x · {short_config(best_pick.config)} · {stem} · {trials}{early}"


def headline(study: Study, answer: Answer | None, *, interval: bool = False) -> str:
    """The answer in one line of plain words, without a heading mark.

    Args:
        study: As it is.
        answer: None where there is none.
        interval: Put the interval behind the speed-up.
    """
    early = " (stopped early)" if is_early(study) else ""
    failed = failed_baseline(study)
    if failed is not None and failed.failure is not None:
        return f"{script_name(study)} fails unmodified: {_last_line(failed)}"
    if not study.stopped:
        best = best_so_far(study)
        seen = best is not None and best[0] > 1 and not best[1].config.is_baseline
        far = (
            f"best single run so far {best[0]:.2f}x, not confirmed"
            if best and seen
            else "nothing faster so far"
        )
        return f"Searching... {far}"
    if answer is None:
        return f"Stopped before {script_name(study)} was measured"
    if not answer.is_better:
        count = len({t.config for t in study.told() if not t.config.is_baseline})
        if not count:
            return f"No gain: no configuration of {script_name(study)} but its own was tried{early}"
        tried = plural(count, "other configuration")
        return f"No gain: none of {tried} was shown to beat {script_name(study)} as it is{early}"
    best_pick, safe = answer.best, answer.safe
    fast = f"{best_pick.speedup.value:.2f}x faster"
    if interval:
        fast = ratio_text(best_pick.speedup).replace("x", "x faster", 1)
    if best_pick.config == safe.config:
        return f"{fast}, training unchanged: {long_config(best_pick.config)}{early}"
    words = "safe" if interval else "safe pick"
    aside = f"no {words} is faster" if safe.config.is_baseline else f"{words} {safe.speedup.value:.2f}x"
    return f"{fast}: {long_config(best_pick.config)} ({aside}){early}"


def budget_hint(study: Study) -> str:
    """A sentence where the budget was too short for a search of this script, else empty."""
    runs = [t.own_s for t in study.baseline if t.measurement]
    limit = study.spec.budget.trials
    if limit is not None and limit < _FEWEST_TRIALS:
        said = "is" if limit == 1 else "are"
        return f"{plural(limit, 'trial')} {said} too few to show anything: --trials {_FEWEST_TRIALS} at least"
    if study.stopped != "finished" or study.told(Stage.CONFIRM) or not runs:
        return ""
    run_s = statistics.fmean(runs)
    if study.spec.budget.seconds >= _FEWEST_RUNS * run_s:
        return ""
    minutes = math.ceil(_GOOD_RUNS * run_s / 60)
    return (
        f"The budget was short: one run of your script takes {duration_text(run_s)}, and a search wants "
        f"{_FEWEST_RUNS} of them at the very least. Give it more time: --budget {minutes}m"
    )


def experiment_note(study: Study, answer: Answer | None, *, run_link: str = "") -> str:
    """The note of the experiment: its first line is shown on every tab, cut behind it."""
    # No heading: in one, two lines of it lie over each other in the height that MLflow leaves it.
    lines = [headline(study, answer), ""]
    if answer is not None and answer.is_better:
        lines += [f"Apply: `{apply_command(study)}`", ""]
    where = f"[{study.spec.label}]({run_link})" if run_link else study.spec.label
    lines.append(f"Study {where}, {plural(len(study.told()), 'trial')} in {duration_text(study.elapsed_s)}.")
    return "\n".join(lines) + "\n"


def loss_sentence(pick: Recommendation) -> str:
    """The loss guard's verdict on a pick."""
    verdict = pick.loss
    if verdict.reason:
        return verdict.reason
    if not verdict.passed:
        return "It could not be shown that the loss holds."
    if verdict.level == 0:
        return "The loss stays finite and falls; it was not compared further."
    noise = f" (the script's own noise: {100 * verdict.noise_frac:.1f} %)" if verdict.noise_frac > 0 else ""
    behind = (
        f"at most {100 * verdict.delay_frac_upper95:.1f} % of {plural(verdict.steps, 'step')} behind{noise}"
    )
    return f"Not inferior to your script: {behind}."


def costs_text(pick: Recommendation) -> str:
    """``359.9 samples/s, 1009 MiB, loss holds``: what a pick does and what it costs."""
    rate, loss = pick.throughput, LOSS_WORDS[pick.loss.verdict]
    return f"{number_text(rate.value)} {rate.unit}, {bytes_text(pick.peak_bytes)}, {loss}"


def further_reasons(pick: Recommendation) -> list[str]:
    """Its reasons but for its ratio, its loss and its memory, which have a place of their own."""
    return [r for r in pick.reasons if r != pick.loss.reason and not r.startswith(_TOLD_ELSEWHERE)]


def own_values(study: Study) -> dict[str, Value]:
    """Knob -> what the script itself has, as far as it was read."""
    run = study.facts.run if study.facts is not None else None
    own = dict(run.values) if run is not None else {}
    if study.space is not None:
        own.update({k: d.own for k, d in study.space.dimensions.items() if d.own is not None})
    return own


def changes_text(study: Study, config: Mapping[str, Value]) -> str:
    """``precision fp32 -> bf16, num_workers 0 -> 2``: what was, where it was read, and what becomes of it."""
    own = own_values(study)
    words: list[str] = []
    for knob, value in in_order(config):
        was = value_text(own.get(knob))
        words.append(f"{knob} {was} -> {value_text(value)}" if was else f"{knob} {value_text(value)}")
    return ", ".join(words) or "your script as it is"


def note(
    study: Study,
    answer: Answer | None,
    *,
    links: Mapping[int, str] | None = None,
    held_back: Sequence[str] = (),
) -> str:
    """The note of the study's run, in Markdown; two lines of it are seen at once, so they say it all.

    Args:
        study: As it is.
        answer: None where there is none yet.
        links: Trial number -> address of its own run.
        held_back: What the script and the winner are bound by, as lines.
    """
    if answer is None or not study.stopped or failed_baseline(study) is not None:
        return _short_note(study, answer)
    best, safe = answer.best, answer.safe
    why = _why(study, best, held_back)
    lines = [f"## {headline(study, answer, interval=True)}"]
    if answer.is_better:
        lines += [f"**Apply:** `{apply_command(study)}`" + (f" **Why:** {why}" if why else "")]
    else:
        lines += [f"**Keep your script as it is.** {answer.sentence}".rstrip()]
    lines += ["", *_knob_table(study, best, safe), ""]
    lines += _picks(study, answer)
    lines += ["", f"- **Memory:** {_memory(answer)}"]
    lines += [f"- **Loss:** {loss_sentence(best)}" if answer.is_better else f"**Baseline:** {_rate(answer)}"]
    lines += [f"- **Failures survived:** {_failures(answer.failures)}"]
    if held_back:
        lines += ["", "### What holds it back", "", *(f"- {_plain(line)}" for line in held_back)]
    lines += ["", "### How it was measured", "", *_method(study, answer)]
    if answer.front:
        lines += ["", "### Pareto front", "", *_front(answer, links or {})]
    if answer.caveats:
        lines += ["", "### Caveats", "", *(f"- {_plain(c)}" for c in answer.caveats)]
    if hints := advice_of(study):
        lines += ["", "### In your own code", "", *(f"- {_plain(advice_text(hint))}" for hint in hints)]
    if study.refusals:
        lines += ["", "### Left alone", "", *(f"- `{k}`: {_plain(r)}" for k, r in study.refusals.items())]
    return "\n".join(lines) + "\n"


def trial_name(trial: Trial, *, picks: Sequence[str] = (), knobs: Mapping[str, Value] | None = None) -> str:
    """The name of a trial's run: ``t06 bf16 bs256 w8``, ``BEST t06 ...``, ``baseline t00 ...``.

    Args:
        trial: Its config is what stands behind the number.
        picks: ``best``, ``safe``, ``fastest`` as far as this trial stands for them.
        knobs: Resolved values, for the baseline's name.
    """
    mark = "+".join(p.upper() for p in picks)
    number = f"t{trial.number:02d}"
    if trial.config.is_baseline:
        shown = {k: v for k, v in (knobs or {}).items() if k in _ORDER}
        return " ".join(filter(None, [mark, "baseline", number, short_config(shown) if shown else ""]))
    return " ".join(filter(None, [mark, number, short_config(trial.config)]))


def status_word(trial: Trial) -> str:
    """``ok``, or the failure's family in lower case; ``open`` without an outcome."""
    if trial.failure is not None:
        return trial.failure.kind.family.value
    return "ok" if trial.measurement is not None else "open"


def picks_of(answer: Answer | None) -> dict[int, list[str]]:
    """Trial number -> the picks it stands for; empty where nothing beats the baseline."""
    found: dict[int, list[str]] = {}
    if answer is None or not answer.is_better:
        return found
    for pick in (answer.best, answer.safe, answer.fastest):
        if pick is not None and not pick.config.is_baseline:
            found.setdefault(pick.trial, []).append(pick.pick)
    return found


def failed_count(study: Study) -> int:
    """Trials that ended as failures, those that the user cancelled aside."""
    return sum(
        1 for t in study.told() if t.failure is not None and t.failure.kind.family is not Family.CANCELLED
    )


def _short_note(study: Study, answer: Answer | None) -> str:
    lines = [f"## {headline(study, answer)}", f"`{user_command(study)}`", ""]
    failed = failed_baseline(study)
    if failed is not None and failed.failure is not None:
        tail = str(failed.failure.evidence.get("log_tail", ""))
        lines += [_plain(failed.failure.message), "", *_fenced(tail)]
    elif study.stopped:
        lines += [f"It ended by: {study.stopped}. Go on with `autotune resume {study.spec.label}`."]
    else:
        lines += [
            f"{plural(len(study.told()), 'trial')} so far; the answer stands here when the search is over."
        ]
    return "\n".join(lines) + "\n"


def gains_text(study: Study, best: Recommendation) -> str:
    """What brings it, largest first, and how that is known; empty where nothing is.

    ``precision +58 % (each taken out, 3 pairs)``, or ``num_workers with threads about +59 % (estimated from
    single runs)``.
    """
    found = [share for share in shares(study, best.config) if share.ratio >= 1.0 + _LEAST_SHARE]
    if len(best.config) < 2 or not found:
        return ""
    kinds = {share.how for share in found}
    if "pairs" in kinds:
        how = f"each taken out, {plural(max(share.pairs for share in found), 'pair')}"
    elif kinds == {"single runs"}:
        how = "in single runs"
    else:
        how = "estimated from single runs"
    said = ", ".join(f"{' with '.join(share.knobs)} {share_text(share)}" for share in found[:_TOP_REASONS])
    return f"{said} ({how})"


def waits_text(study: Study, best: Recommendation) -> str:
    """How much of its time the script waits for data, as it is and with the pick; empty if hardly at all."""
    own = [t.measurement.data_wait_frac for t in study.of(Config()) if t.measurement]
    new = [t.measurement.data_wait_frac for t in study.of(best.config) if t.measurement]
    if not own or not new or best.config.is_baseline or max(own) < _WAITS:
        return ""
    before, after = 100 * sum(own) / len(own), 100 * sum(new) / len(new)
    return f"your script waits for data {before:.0f} % of its time, with this config {after:.0f} %"


def space_text(study: Study) -> str:
    """``cpu, as training runs on the CPU``; empty where the user named the search space."""
    space = study.spec.space
    return f"{space.name}, as {space.reason}" if space.reason else ""


def _why(study: Study, best: Recommendation, held_back: Sequence[str]) -> str:
    """The first that is known: what brings it, what held the script back, what it waited for."""
    bound = held_back[0] if held_back else ""
    why = gains_text(study, best) or _plain(bound) or waits_text(study, best)
    return why or next(map(_plain, further_reasons(best)), "")


def _knob_table(study: Study, best: Recommendation, safe: Recommendation) -> list[str]:
    found, own = shares(study, best.config), own_values(study)
    changed = [k for k, _ in in_order({**safe.config, **best.config})]
    kept = [
        k
        for k, _ in in_order(own)
        if k not in changed and (study.space is None or k in study.space.dimensions)
    ]
    if not changed and not kept:
        return []
    rows = ["| knob | your script | best | safe | contributes |", "|---|---|---|---|---|"]
    for knob in [*changed, *kept]:
        mine = value_text(own.get(knob)) or "not read"
        cells = [
            f"**{value_text(pick.config[knob])}**" if knob in pick.config else mine for pick in (best, safe)
        ]
        share = share_of(found, knob)
        brings = share[1] if share is not None else "not measured" if knob in best.config else ""
        rows.append("| " + " | ".join(_cell(c) for c in (knob, mine, *cells, brings)) + " |")
    return rows


def _picks(study: Study, answer: Answer) -> list[str]:
    lines: list[str] = []
    safe, fastest = answer.safe, answer.fastest
    if not answer.is_better:
        return [_fastest_line(study, fastest)] if fastest is not None else []
    if safe.config == answer.best.config:
        lines.append("- **safe** is the same: nothing in it changes the training.")
    elif safe.config.is_baseline:
        lines.append("- **safe**: nothing that leaves the training unchanged was shown to beat your script.")
    else:
        lines.append(
            f"- **safe**, {ratio_text(safe.speedup)}, training unchanged: {long_config(safe.config)} "
            f"({costs_text(safe)}). "
            f"`{apply_command(study, 'safe')}`"
        )
    if fastest is not None:
        lines.append(_fastest_line(study, fastest))
    lines += [f"- {_plain(reason)}" for reason in further_reasons(answer.best)]
    if answer.best.break_even_steps:
        back_s, run_s = answer.best.pays_back_s, answer.best.run_s
        after = f" ({duration_text(back_s)})" if back_s is not None else ""
        run = f"; your run is about {duration_text(run_s)}" if run_s is not None else ""
        lines.append(
            f"- Compiling takes {duration_text(answer.best.compile_s)} once; it is paid back after "
            f"{answer.best.break_even_steps} steps{after}{run}."
        )
    return lines


def _fastest_line(study: Study, fastest: Recommendation) -> str:
    flag = "changes the training" if fastest.effect is Effect.TRAINING else fastest.effect.value
    said = [text for text in (*fastest.reasons, fastest.advice) if text]
    return (
        f"- **fastest**, {ratio_text(fastest.speedup)}, {flag}: {long_config(fastest.config)} "
        f"({costs_text(fastest)}). "
        f"`{apply_command(study, 'fastest')}` {' '.join(map(_plain, said))}".rstrip()
    )


def _memory(answer: Answer) -> str:
    mine, base = answer.best.peak_bytes, answer.baseline_peak_bytes
    if not answer.is_better or mine is None or base is None:
        return f"{bytes_text(base)} at peak (your script)"
    more = f", {mine / base:.2f} times your script's {bytes_text(base)}" if base else ""
    return f"{bytes_text(mine)} at peak{more}"


def _rate(answer: Answer) -> str:
    rate = answer.baseline_throughput
    return f"{number_text(rate.value)} {rate.unit}"


def _failures(failures: Mapping[str, int]) -> str:
    if not failures:
        return "none"
    return ", ".join(f"{count} {label}" for label, count in failures.items())


def _method(study: Study, answer: Answer) -> list[str]:
    confirmed = study.told(Stage.CONFIRM)
    trials, took = plural(len(study.told()), "trial"), duration_text(study.elapsed_s)
    lines = [f"- {trials}, each a process of its own unless marked `segment`, in {took}."]
    if confirmed and answer.is_better:
        lines.append(
            f"- The speed-up rests on {plural(answer.best.speedup.n, 'pair')} of runs made after the search, "
            "each next to a run of your script as it is; the runs that chose the configuration are not "
            f"in it. Interval: {100 * answer.best.speedup.confidence:.4g} %, allowing for the number of "
            "finalists and looks."
        )
    elif not confirmed:
        lines.append("- Nothing was confirmed by paired runs, so nothing is claimed.")
        if hint := budget_hint(study):
            lines.append(f"- {hint}")
    if answer.identical is not None:
        lines.append(f"- Control, your script against itself: {control_text(answer.identical)}.")
    lines.append(f"- Your script as it is: {_rate(answer)}, {bytes_text(answer.baseline_peak_bytes)}.")
    if study.facts is not None:
        host = study.facts.host
        device = ", ".join(d.name for d in host.devices) or host.cpu_model or f"{host.cpus} CPUs"
        versions = ", ".join(f"{k} {v}" for k, v in sorted(host.versions.items()))
        lines.append(f"- On {_plain(device)}" + (f"; {_plain(versions)}." if versions else "."))
    lines.append(f"- Effective batch: {study.spec.effective_batch}.")
    if space := space_text(study):
        lines.append(f"- Search space: {_plain(space)}.")
    lines += [f"- Earlier studies: {_plain(text)}." for text in beliefs(study).told]
    return lines


def _front(answer: Answer, links: Mapping[int, str]) -> list[str]:
    rows = ["| trial | configuration | throughput | peak memory | loss |", "|---|---|---|---|---|"]
    for member in answer.front:
        number = f"t{member.trial:02d}"
        where = f"[{number}]({links[member.trial]})" if member.trial in links else number
        loss = "" if member.loss is None else number_text(member.loss)
        cells = (
            where,
            short_config(member.config),
            number_text(member.throughput),
            bytes_text(member.peak_bytes),
            loss,
        )
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    return rows


def _last_line(trial: Trial) -> str:
    failure = trial.failure
    if failure is None:
        return ""
    tail = [line for line in str(failure.evidence.get("log_tail", "")).splitlines() if line.strip()]
    return _plain((tail or [failure.message])[-1])[:200]


def _plain(text: str) -> str:
    """One line, without characters that would begin markup where a script's text goes."""
    return re.sub(r"\s+", " ", text).strip().replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _fenced(text: str) -> list[str]:
    # A fence longer than any in the text cannot be closed by it.
    longest = max((len(m) for m in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, text.strip("\n"), fence] if text.strip() else []

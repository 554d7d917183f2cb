"""Markdown notes of a study: of its run, and of the experiment. Pure text.

Every claim comes from an `Answer`; the text reports a missing answer or gain.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.answer.advice import advice_of, advice_text
from autotune.answer.answer import SearchOutcome
from autotune.answer.contributions import contributions
from autotune.compare.transfer import beliefs
from autotune.model.config import config_text, in_order, value_text
from autotune.model.effect import Effect
from autotune.model.trial import Stage
from autotune.report.view.answer_view import AnswerView, PickView
from autotune.report.view.contribution_text import gains_text, knob_text
from autotune.report.view.summary import (
    apply_command,
    bytes_text,
    control_text,
    duration_text,
    failed_baseline,
    further_reasons,
    headline,
    likely_text,
    number_text,
    over_run_text,
    own_values,
    plain,
    plural,
    ratio_text,
    space_text,
    user_command,
    waits_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.answer.answer import Answer, Recommendation
    from autotune.model.study import Study


def note(
    study: Study,
    answer: Answer | None,
    *,
    links: Mapping[int, str] | None = None,
    held_back: Sequence[str] = (),
) -> str:
    """Return the note of the study's run in Markdown; its first two lines, always visible, summarize it.

    Args:
        study: Current study.
        answer: Current answer; None without one.
        links: Address of a trial's own run, by trial number.
        held_back: Bottlenecks of the script and the winner, as lines.
    """
    if answer is None or not study.stopped or failed_baseline(study) is not None:
        return _short_note(study, answer)
    best, safe = answer.best, answer.safe
    why = _why(study, best, held_back)
    lines = [f"## {headline(study, answer, interval=True)}"]
    if answer.is_better:
        lines += [f"**Apply:** `{apply_command(study)}`" + (f" **Why:** {why}" if why else "")]
    elif answer.outcome is SearchOutcome.NOTHING_FASTER:
        lines += [f"**Keep your script unchanged.** {answer.sentence}".rstrip()]
    else:
        lines += [f"**Not decided.** {' '.join(answer.unsettled) or answer.sentence}".rstrip()]
        lines += [f"**Continue:** `{answer.resume}`"] if answer.resume else []
    lines += ["", *_knob_table(study, best, safe), ""]
    lines += _picks(study, answer)
    lines += ["", f"- **Memory:** {_memory(answer)}"]
    lines += [
        f"- **Loss:** {PickView.of(best).loss_sentence}"
        if answer.is_better
        else f"**Baseline:** {AnswerView.of(answer).own_rate}"
    ]
    lines += [f"- **Failures survived:** {_failures(answer.failures)}"]
    if held_back:
        lines += ["", "### What holds it back", "", *(f"- {plain(line)}" for line in held_back)]
    lines += ["", "### How it was measured", "", *_method(study, answer)]
    if answer.front:
        lines += ["", "### Pareto front", "", *_front(answer, links or {})]
    if answer.caveats:
        lines += ["", "### Caveats", "", *(f"- {plain(c)}" for c in answer.caveats)]
    if hints := advice_of(study):
        lines += ["", "### In your own code", "", *(f"- {plain(advice_text(hint))}" for hint in hints)]
    if study.refusals:
        lines += ["", "### Left alone", "", *(f"- `{k}`: {plain(r)}" for k, r in study.refusals.items())]
    return "\n".join(lines) + "\n"


def experiment_note(study: Study, answer: Answer | None, *, run_link: str = "") -> str:
    """Return the note of the experiment: its first line is shown on every tab, cut after that."""
    # No heading: two lines of one overlap in the height that MLflow reserves.
    lines = [headline(study, answer), ""]
    if answer is not None and answer.is_better:
        lines += [f"Apply: `{apply_command(study)}`", ""]
    elif answer is not None and answer.resume:
        lines += [f"Continue: `{answer.resume}`", ""]
    where = f"[{study.spec.label}]({run_link})" if run_link else study.spec.label
    lines.append(
        f"Study {where}, {plural(len(study.finished()), 'trial')} in {duration_text(study.elapsed_s)}."
    )
    return "\n".join(lines) + "\n"


def _short_note(study: Study, answer: Answer | None) -> str:
    lines = [f"## {headline(study, answer)}", f"`{user_command(study)}`", ""]
    failed = failed_baseline(study)
    if failed is not None and failed.failure is not None:
        tail = str(failed.failure.evidence.get("log_tail", ""))
        lines += [plain(failed.failure.message), "", *_fenced(tail)]
    elif study.stopped:
        lines += [f"It ended by: {study.stopped}. Continue with `autotune resume {study.spec.label}`."]
    else:
        count = plural(len(study.finished()), "trial")
        lines += [f"{count} so far; the answer appears here when the search has ended."]
    return "\n".join(lines) + "\n"


def _why(study: Study, best: Recommendation, held_back: Sequence[str]) -> str:
    """Return the first available reason: contributions, bottleneck, or wait for data."""
    bound = held_back[0] if held_back else ""
    known = gains_text(study, best) if contributions(study, best).parts else ""
    why = known or plain(bound) or waits_text(study, best)
    return why or next(map(plain, further_reasons(best)), "")


def _knob_table(study: Study, best: Recommendation, safe: Recommendation) -> list[str]:
    found, own = contributions(study, best), own_values(study)
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
        rows.append("| " + " | ".join(map(_cell, (knob, mine, *cells, knob_text(found, knob)))) + " |")
    return rows


def _picks(study: Study, answer: Answer) -> list[str]:
    lines: list[str] = []
    safe, fastest = answer.safe, answer.fastest
    if not answer.is_better:
        lines += [_likely_line(study, answer.likely)] if answer.likely is not None else []
        return [*lines, _fastest_line(study, fastest)] if fastest is not None else lines
    if safe.config == answer.best.config:
        lines.append("- **safe** is the same: nothing in it changes the training.")
    elif safe.config.is_baseline:
        lines.append(
            "- **safe**: nothing that leaves the training unchanged was shown to be faster than your script."
        )
    else:
        lines.append(
            f"- **safe**, {ratio_text(safe.speedup)}, training unchanged: {config_text(safe.config)} "
            f"({PickView.of(safe).costs}). "
            f"`{apply_command(study, 'safe')}`"
        )
    if fastest is not None:
        lines.append(_fastest_line(study, fastest))
    lines += [f"- {plain(reason)}" for reason in further_reasons(answer.best)]
    if answer.best.break_even_steps:
        back_s, run_s = answer.best.pays_back_s, answer.best.run_s
        after = f" ({duration_text(back_s)})" if back_s is not None else ""
        whole = over_run_text(answer.best)
        run = f"; your run is about {duration_text(run_s)}{whole}" if run_s is not None else ""
        lines.append(
            f"- Compiling takes {duration_text(answer.best.compile_s)} once; it is paid back after "
            f"{answer.best.break_even_steps} steps{after}{run}."
        )
    return lines


def _likely_line(study: Study, likely: Recommendation) -> str:
    return (
        f"- **likely**, {likely_text(likely)}: {config_text(likely.config)} ({PickView.of(likely).costs}). "
        f"`{apply_command(study, 'likely')}`"
    )


def _fastest_line(study: Study, fastest: Recommendation) -> str:
    flag = "changes the training" if fastest.effect is Effect.TRAINING else fastest.effect.value
    texts = [text for text in (*fastest.reasons, fastest.advice) if text]
    return (
        f"- **fastest**, {ratio_text(fastest.speedup)}, {flag}: {config_text(fastest.config)} "
        f"({PickView.of(fastest).costs}). "
        f"`{apply_command(study, 'fastest')}` {' '.join(map(plain, texts))}".rstrip()
    )


def _memory(answer: Answer) -> str:
    view = AnswerView.of(answer)
    if not answer.is_better or not view.memory_ratio:
        return f"{view.own_memory} at peak (your script)"
    return f"{view.picks['best'].memory} at peak, {view.memory_ratio} your script's {view.own_memory}"


def _failures(failures: Mapping[str, int]) -> str:
    if not failures:
        return "none"
    return ", ".join(f"{count} {label}" for label, count in failures.items())


def _method(study: Study, answer: Answer) -> list[str]:
    confirmed = study.finished(Stage.CONFIRM)
    trials, took = plural(len(study.finished()), "trial"), duration_text(study.elapsed_s)
    lines = [f"- {trials}, each in a process of its own, in {took}."]
    if confirmed and answer.is_better:
        lines.append(
            f"- The speed-up is from {plural(answer.best.speedup.n, 'pair')} of runs made after the search, "
            "each next to a run of your unchanged script; runs that selected the configuration are not "
            f"included. Interval: {100 * answer.best.speedup.confidence:.4g} %, adjusted for the number "
            "of finalists and interim analyses."
        )
    elif not confirmed:
        lines.append("- Nothing was confirmed by paired runs, so nothing is claimed.")
    if answer.identical is not None:
        lines.append(f"- Control, your script against itself: {control_text(answer.identical)}.")
    lines.append(
        f"- Your unchanged script: {AnswerView.of(answer).own_rate}, {AnswerView.of(answer).own_memory}."
    )
    if study.facts is not None:
        host = study.facts.host
        device = ", ".join(d.name for d in host.devices) or host.cpu_model or f"{host.cpus} CPUs"
        versions = ", ".join(f"{k} {v}" for k, v in sorted(host.versions.items()))
        lines.append(f"- On {plain(device)}" + (f"; {plain(versions)}." if versions else "."))
    lines.append(f"- Effective batch: {study.spec.effective_batch}.")
    if space := space_text(study):
        lines.append(f"- Search space: {plain(space)}.")
    lines += [f"- Earlier studies: {plain(text)}." for text in beliefs(study).notes]
    return lines


def _front(answer: Answer, links: Mapping[int, str]) -> list[str]:
    rows = ["| trial | configuration | throughput | peak memory | loss |", "|---|---|---|---|---|"]
    for member in answer.front:
        number = f"t{member.trial:02d}"
        where = f"[{number}]({links[member.trial]})" if member.trial in links else number
        loss = "" if member.loss is None else number_text(member.loss)
        cells = (
            where,
            config_text(member.config) + (", measured beside others" if member.is_disturbed else ""),
            number_text(member.throughput),
            bytes_text(member.peak_bytes),
            loss,
        )
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    return rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _fenced(text: str) -> list[str]:
    # A fence longer than any in the text cannot be closed by it.
    longest = max((len(m) for m in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, text.strip("\n"), fence] if text.strip() else []

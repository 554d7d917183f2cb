"""Comparison of two studies: the result of each, and whether they differ. Pure.

A difference is claimed on two conditions: the figures are from the same kind of machine, and their intervals
do not overlap. Everything else is reported as two separate results.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autotune.compare.transfer import beliefs
from autotune.model.config import config_text
from autotune.report.view import summary
from autotune.report.view.answer_view import AnswerView, PickView, rate_text
from autotune.report.view.picks import picks
from autotune.report.view.report_data import estimate_data
from autotune.text.redact import redact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.answer.answer import Answer, Recommendation
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study

SCHEMA: Final = "autotune.compare/v1"

_PICKS: Final = ("best", "safe", "fastest")
"""Picks with a claim; ``likely`` has none and is listed alone."""
_NARROWEST: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySide:
    """One of the two studies.

    Args:
        letter: ``A`` or ``B``.
    """

    letter: str
    study: Study
    answer: Answer | None

    def pick(self, name: str) -> Recommendation | None:
        """Return the pick of that name if it changes something."""
        found = picks(self.answer).get(name) if self.answer is not None else None
        return None if found is None or found.config.is_baseline else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Supported statement about one pair of figures.

    Args:
        about: Subject: the speedup of ``best``, ``safe`` or ``fastest``, or the rate, ``baseline`` or
            ``throughput``.
        verdict: ``a`` or ``b`` if that one is shown to be higher, ``same`` if intervals overlap,
            ``incomparable`` if no interval can decide it or the two measure different things.
        sentence: The verdict in words.
    """

    about: str
    verdict: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Both studies, their different conditions, and the supported statements."""

    a: StudySide
    b: StudySide
    differences: tuple[tuple[str, str, str], ...]
    same_script: bool
    same_machine: bool
    statements: tuple[Statement, ...]


def compare_studies(first: tuple[Study, Answer | None], second: tuple[Study, Answer | None]) -> Compared:
    """Compare two studies.

    Args:
        first: Study and answer of A.
        second: Study and answer of B.
    """
    a = StudySide(letter="A", study=first[0], answer=first[1])
    b = StudySide(letter="B", study=second[0], answer=second[1])
    differences = tuple(
        (name, left, right)
        for (name, left), (_, right) in zip(_around(a.study), _around(b.study), strict=True)
        if left != right
    )
    named = {name for name, _, _ in differences}
    same_script = not {"script", "arguments"} & named
    same_machine = not {"device", "driver", "CPU", "CPUs", "memory", "PyTorch", "Python"} & named
    return Compared(
        a=a,
        b=b,
        differences=differences,
        same_script=same_script,
        same_machine=same_machine,
        statements=tuple(
            _statements(
                a,
                b,
                same_script=same_script,
                same_machine=same_machine,
                same_length="planned steps" not in named,
            )
        ),
    )


def comparison_text(found: Compared, *, columns: int = 0) -> str:
    """Return the comparison as one screen of text.

    Args:
        found: Comparison of both studies.
        columns: Columns of the terminal, at which cells and sentences are wrapped; 0 leaves them whole.
    """
    rows = [("", found.a.study.spec.label, found.b.study.spec.label), *_table(found)]
    return two_columns(rows, [statement.sentence for statement in found.statements], columns=columns)


def two_columns(rows: Sequence[tuple[str, str, str]], sentences: Sequence[str], *, columns: int = 0) -> str:
    """Return two sides in columns, followed by sentences.

    Args:
        rows: Name, and a cell for each side.
        sentences: Complete sentences.
        columns: Columns of the terminal, at which cells and sentences are wrapped; 0 leaves them whole.
    """
    head, *widths = (max(1, *(len(row[i]) for row in rows)) for i in range(3))
    if columns:
        room = max(_NARROWEST, (columns - head - 4) // 2)
        widths = [min(width, room) for width in widths]
    lines: list[str] = []
    for name, *cells in rows:
        parts = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for number, (left, right) in enumerate(itertools.zip_longest(*parts, fillvalue="")):
            label = "" if number else name
            lines.append(f"{label:<{head}}  {left:<{widths[0]}}  {right}".rstrip())
    lines.append("")
    for sentence in sentences:
        lines += _folded(sentence, columns) if columns else [sentence]
    return "\n".join(lines) + "\n"


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def comparison_data(found: Compared) -> dict[str, Any]:
    """Return the object of schema ``autotune.compare/v1``."""
    return {
        "schema": SCHEMA,
        "a": _side_data(found.a),
        "b": _side_data(found.b),
        "differences": [{"what": n, "a": left, "b": right} for n, left, right in found.differences],
        "same_script": found.same_script,
        "same_machine": found.same_machine,
        "statements": [
            {"about": s.about, "verdict": s.verdict, "sentence": s.sentence} for s in found.statements
        ],
    }


def _around(study: Study) -> list[tuple[str, str]]:
    """Return the conditions in which two studies can differ."""
    spec, facts = study.spec, study.facts
    rows = [
        ("script", f"{spec.title} {facts.script.sha256[:12]}".rstrip() if facts is not None else spec.title),
        ("arguments", redact(" ".join(spec.args))),
        ("space", spec.space.name),
        ("budget", summary.duration_text(spec.budget.seconds)),
        ("effective batch", spec.effective_batch),
        ("memory bound", summary.bytes_text(spec.max_memory_bytes) if spec.max_memory_bytes else ""),
        ("planned steps", str(spec.run_steps or "")),
        ("autotune", spec.version),
        ("earlier studies", "; ".join(beliefs(study).notes) or "none"),
    ]
    names = ("device", "driver", "CPU", "CPUs", "memory", "PyTorch", "Python")
    if facts is None:
        return rows + [(name, "unknown") for name in names]
    host, run = facts.host, facts.run
    devices = (run.devices if run is not None else ()) or host.devices
    torch = (run.versions.get("torch", "") if run is not None else "") or host.versions.get("torch", "")
    values = (
        ", ".join(sorted(d.name for d in devices)) or "none",
        ", ".join(sorted({d.driver for d in devices if d.driver})),
        host.cpu_model or "unknown",
        f"{host.cpus} of {host.physical_cores} physical cores",
        summary.bytes_text(host.memory_bytes or None),
        torch or "unknown",
        host.python,
    )
    return rows + list(zip(names, values, strict=True))


def _statements(
    a: StudySide, b: StudySide, *, same_script: bool, same_machine: bool, same_length: bool
) -> list[Statement]:
    if a.answer is None or b.answer is None:
        missing = " and ".join(s.study.spec.label for s in (a, b) if s.answer is None)
        return [
            Statement(
                about="best",
                verdict="incomparable",
                sentence=f"There is nothing to compare: {missing} has no measured baseline.",
            )
        ]
    apart = ""
    if not same_length:
        apart = "Each counts compiling over a planned run of another length"
    elif not same_machine:
        apart = "They were measured on different machines or versions"
    found = [
        s for name in _PICKS if (s := _speedups(a, b, name, same_script=same_script, apart=apart)) is not None
    ]
    if not same_script:
        found.append(
            Statement(
                about="throughput",
                verdict="incomparable",
                sentence="Different scripts or arguments: throughput is not compared, and each speed-up is "
                "against its own script.",
            )
        )
        return found
    if not same_machine:
        found.append(
            Statement(
                about="throughput",
                verdict="incomparable",
                sentence="Different machines or versions: no difference in throughput between the two is "
                "claimed.",
            )
        )
        return found
    if not same_length:
        found.append(
            Statement(
                about="throughput",
                verdict="incomparable",
                sentence="Different planned run lengths (--run-steps): throughput counts compiling over "
                "other numbers of steps, so no difference is claimed.",
            )
        )
        return found
    base = _verdict(a.answer.baseline_throughput, b.answer.baseline_throughput)
    if base in ("a", "b"):
        found.append(
            Statement(
                about="baseline",
                verdict=base,
                sentence=f"The unchanged script ran at {rate_text(a.answer.baseline_throughput)} in A and at "
                f"{rate_text(b.answer.baseline_throughput)} in B, beyond their intervals: the machine was "
                "not in the same state, so no difference in throughput between the picks is claimed.",
            )
        )
        return found
    found.append(_rates(a.answer, b.answer))
    return found


def _speedups(a: StudySide, b: StudySide, name: str, *, same_script: bool, apart: str) -> Statement | None:
    """Return the statement about one pick's two speedups.

    Args:
        a: First study.
        b: Second study.
        name: Name of the pick.
        same_script: Whether both are of one script.
        apart: Why the two are not comparable, as the beginning of a sentence; empty if they are.
    """
    left, right = a.pick(name), b.pick(name)
    if left is None and right is None:
        if name != "best":
            return None
        return Statement(
            about=name, verdict="same", sentence="best: neither study confirmed anything faster."
        )
    if left is None or right is None:
        one, other = (a, left) if right is None else (b, right)
        if other is None:
            return None
        sentence = (
            f"{name}: only {one.letter} has one, {summary.ratio_text(other.speedup)}. The other search "
            "found none, which does not prove that none exists."
        )
        return Statement(about=name, verdict="incomparable", sentence=sentence)
    verdict = "incomparable" if apart else _verdict(left.speedup, right.speedup)
    both = f"{summary.ratio_text(left.speedup)} in A, {summary.ratio_text(right.speedup)} in B"
    if left.config == right.config:
        both += ", the same configuration"
    if apart:
        sentence = f"{name}: {both}. {apart}: no difference is claimed."
    elif verdict == "incomparable":
        sentence = f"{name}: {both}; one of them has no interval, so no difference is claimed."
    elif verdict == "same":
        sentence = f"{name}: {both}. The intervals overlap: no difference between the speed-ups is shown."
    else:
        of = "" if same_script else ", each of its own script"
        sentence = (
            f"{name}: {both}. The intervals do not overlap: {verdict.upper()}'s speed-up is higher{of}."
        )
    return Statement(about=name, verdict=verdict, sentence=sentence)


def _rates(a: Answer, b: Answer) -> Statement:
    left, right = a.best.throughput, b.best.throughput
    verdict = _verdict(left, right)
    both = f"throughput of best: {rate_text(left)} in A, {rate_text(right)} in B"
    if verdict == "incomparable":
        sentence = f"{both}; one of them has no interval, so no difference is claimed."
    elif verdict == "same":
        sentence = f"{both}. The intervals overlap: no difference is shown."
    else:
        sentence = f"{both}. The intervals do not overlap: {verdict.upper()} is faster."
    return Statement(about="throughput", verdict=verdict, sentence=sentence)


def _verdict(left: Estimate, right: Estimate) -> str:
    """Return ``a``, ``b``, ``same`` or ``incomparable``, by whether two intervals overlap."""
    ends = (left.low, left.high, right.low, right.high)
    if left.n < 2 or right.n < 2 or left.unit != right.unit or not all(map(math.isfinite, ends)):
        return "incomparable"
    if left.low > right.high:
        return "a"
    return "b" if right.low > left.high else "same"


def _table(found: Compared) -> list[tuple[str, str, str]]:
    sides = (found.a, found.b)
    named = {name: (left, right) for name, left, right in found.differences}
    around = dict(_around(found.a.study))
    rows: list[tuple[str, str, str]] = []
    for name in ("script", "arguments", "device", "CPU", "PyTorch", "space", "budget"):
        left, right = named.get(name, (around.get(name, ""), around.get(name, "")))
        if left or right:
            rows.append((name, left, right))
    rows += [
        (name, left, right) for name, (left, right) in named.items() if name not in {row[0] for row in rows}
    ]
    views = [None if s.answer is None else AnswerView.of(s.answer) for s in sides]
    rows.append(_row("trials", [str(len(s.study.finished())) for s in sides]))
    rows.append(
        _row(
            "your script",
            ["" if s.answer is None else rate_text(s.answer.baseline_throughput) for s in sides],
        )
    )
    rows.append(_row("", ["" if view is None else view.own_memory for view in views]))
    rows.append(_row("outcome", ["" if s.answer is None else s.answer.outcome.value for s in sides]))
    for name in (*_PICKS, "likely"):
        chosen = [s.pick(name) for s in sides]
        if not any(chosen):
            continue
        claims = ["none" if p is None else PickView.of(p).claim for p in chosen]
        rows.append(_row(name, claims))
        rows.append(_row("", ["" if p is None else config_text(p.config) for p in chosen]))
        rows.append(_row("", ["" if p is None else PickView.of(p).costs for p in chosen]))
    return rows


def _row(name: str, cells: Sequence[str]) -> tuple[str, str, str]:
    return name, cells[0], cells[1]


def _side_data(side: StudySide) -> dict[str, Any]:
    spec = side.study.spec
    data: dict[str, Any] = {
        "id": spec.study_id,
        "label": spec.label,
        "around": dict(_around(side.study)),
        "trials": len(side.study.finished()),
    }
    if side.answer is None:
        return {**data, "picks": {}}
    data["outcome"] = side.answer.outcome.value
    data["baseline"] = estimate_data(side.answer.baseline_throughput)
    data["picks"] = {
        name: {
            "config": dict(pick.config),
            "speedup": estimate_data(pick.speedup),
            "throughput": estimate_data(pick.throughput),
            "peak_bytes": pick.peak_bytes,
            "loss": pick.loss.verdict,
        }
        for name in (*_PICKS, "likely")
        if (pick := side.pick(name)) is not None
    }
    return data

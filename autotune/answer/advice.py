"""Hints about the script's own code: each may buy at most what a run showed of its part of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.answer.bottleneck import bottleneck
from autotune.model.config import Config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.answer.bottleneck import Bottleneck
    from autotune.model.facts import Advice
    from autotune.model.study import Study


_LEAST_FRAC: Final = 0.01
"""Of a step: what buys less is not worth a change of the script."""


def advice_of(study: Study) -> tuple[Advice, ...]:
    """Return the hints about the script as it was searched, those that may buy most first.

    Hints about reading a value are left out where the run used no accelerator: nothing waits there.
    """
    facts = study.facts
    if facts is None or not facts.advice:
        return ()
    on_device = facts.run is not None and bool(facts.run.devices)
    hints = [hint for hint in facts.advice if on_device or facts.run is None or hint.kind != "read"]
    return weighed(hints, bottleneck(study, Config()), on_device=on_device)


def weighed(
    hints: Sequence[Advice], verdict: Bottleneck | None, *, on_device: bool = False
) -> tuple[Advice, ...]:
    """The same with what each may buy at most by what a run showed, the largest first.

    Hints that may buy less than `_LEAST_FRAC` by what the run showed are left out.

    Args:
        hints: Of `advise`.
        verdict: On the unchanged script; None where it was not measured.
        on_device: It trains on an accelerator. Waiting for that one hides what the host could do meanwhile:
            what reading or writing less often would buy is bounded by the time in which the device computed
            nothing, as far as its own counters tell, and by nothing else.
    """
    bounds: dict[str, float | None] = {}
    if verdict is not None:
        bounds = {k: verdict.shares.get(k) for k in ("compute", "transfer")}
        bounds |= {
            "input": verdict.input_frac_at_most,
            "host": _idle_frac(verdict) if on_device else verdict.host_frac,
        }
    told = [replace(hint, gain_frac_at_most=bounds.get(hint.part)) for hint in hints]
    told = [hint for hint in told if hint.gain_frac_at_most is None or hint.gain_frac_at_most >= _LEAST_FRAC]
    return tuple(sorted(told, key=lambda h: -(h.gain_frac_at_most or 0.0)))


def _idle_frac(verdict: Bottleneck) -> float | None:
    """Share of the time in which the accelerator computed nothing; None where no counter tells."""
    busy = None if verdict.evidence is None else verdict.evidence.busy_frac
    return None if busy is None else max(0.0, 1.0 - busy)


def advice_text(hint: Advice) -> str:
    """``train.py:42: ... (at most 3 % of a step)``."""
    bound = bound_text(hint)
    return f"{hint.place}: {hint.text}" + (f" ({bound} of a step)" if bound else "")


def bound_text(hint: Advice) -> str:
    """``at most 3 %``; empty where that was not measured."""
    bound = hint.gain_frac_at_most
    return "" if bound is None else f"at most {100 * bound:.0f} %"


def advice_data(hint: Advice) -> dict[str, str | int | float | None]:
    """One hint as plain data."""
    return {
        "kind": hint.kind,
        "file": hint.file,
        "line": hint.line,
        "text": hint.text,
        "part": hint.part,
        "gain_frac_at_most": hint.gain_frac_at_most,
    }

"""Hints about the source code of the script, each with an upper bound of its gain."""

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
"""Share of a step. A hint with a smaller gain is not worth a change of the script."""


def advice_of(study: Study) -> tuple[Advice, ...]:
    """Return the hints about the script, largest possible gain first.

    Hints about reading values are left out if the run used no accelerator, where a read does not wait.
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
    """Return the hints with an upper bound of each gain, largest first.

    Hints below `_LEAST_FRAC` are left out.

    Args:
        hints: From `advise`.
        verdict: On the unchanged script; None if it was not measured.
        on_device: Whether an accelerator trains. Waiting for it overlaps work of the host. The gain of
            host-side hints is then bounded by the device's idle time, if its counters report that.
    """
    bounds: dict[str, float | None] = {}
    if verdict is not None:
        bounds = {k: verdict.shares.get(k) for k in ("compute", "transfer")}
        bounds |= {
            "input": verdict.input_frac_at_most,
            "host": _idle_frac(verdict) if on_device else verdict.host_frac,
        }
    found = [replace(hint, gain_frac_at_most=bounds.get(hint.part)) for hint in hints]
    found = [h for h in found if h.gain_frac_at_most is None or h.gain_frac_at_most >= _LEAST_FRAC]
    return tuple(sorted(found, key=lambda h: -(h.gain_frac_at_most or 0.0)))


def _idle_frac(verdict: Bottleneck) -> float | None:
    """Return the share of time in which the accelerator was idle, or None without a counter."""
    busy = None if verdict.evidence is None else verdict.evidence.busy_frac
    return None if busy is None else max(0.0, 1.0 - busy)


def advice_text(hint: Advice) -> str:
    """Return a hint as text: ``train.py:42: ... (at most 3 % of a step)``."""
    bound = bound_text(hint)
    return f"{hint.place}: {hint.text}" + (f" ({bound} of a step)" if bound else "")


def bound_text(hint: Advice) -> str:
    """Return the bound as text: ``at most 3 %``; empty if it was not measured."""
    bound = hint.gain_frac_at_most
    return "" if bound is None else f"at most {100 * bound:.0f} %"


def advice_data(hint: Advice) -> dict[str, str | int | float | None]:
    """Return one hint as JSON-ready data."""
    return {
        "kind": hint.kind,
        "file": hint.file,
        "line": hint.line,
        "text": hint.text,
        "part": hint.part,
        "gain_frac_at_most": hint.gain_frac_at_most,
    }

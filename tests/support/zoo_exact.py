"""What EXACT promises, compared from outside: the samples that a training gets, and what it makes of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from zoo import PATH_TOLERANCE, ROOT, ROUNDS_OTHERWISE, distance, last_common

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

RESULTS = ROOT / "experiments" / "zoo" / "exact.jsonl"
SAME, REDRAWN, OTHER, WITHDRAWN = "same", "redrawn", "other", "withdrawn"
"""`REDRAWN`: other random numbers, which the space reports. `WITHDRAWN`: not applied, with a reason."""


def compared(
    seen: Mapping[str, Any], bare: Mapping[str, Any], knobs: Collection[str], *, redrawn: bool
) -> dict[str, Any]:
    """Compare a run with these knobs with the bare run.

    Args:
        seen, bare: What the observer wrote.
        knobs: That were changed.
        redrawn: The space reports other random numbers.

    Returns:
        ``verdict``, ``samples`` that are the same from the first on, and ``steps`` after which the parameters
        are ``away`` from those of the bare run, as a share of the way that these went.
    """
    ones, others = seen.get("stream") or {}, bare.get("stream") or {}
    marks = sorted(map(int, set(ones) & set(others)))
    unlike = next((n for n in marks if ones[str(n)] != others[str(n)]), None)
    kept = max((n for n in marks if unlike is None or n < unlike), default=0)
    steps = last_common(seen, bare, min(int(seen["steps"]), int(bare["steps"])))
    away = distance(seen, bare, steps)
    tolerance = PATH_TOLERANCE if ROUNDS_OTHERWISE & set(knobs) else 0.0
    is_same = unlike is None and away is not None and away <= tolerance and seen["steps"] == bare["steps"]
    verdict = SAME if is_same else REDRAWN if redrawn else OTHER
    return {"verdict": verdict, "samples": kept, "unlike": unlike, "steps": steps, "away": away}


def read(path: Path = RESULTS) -> dict[tuple[str, str], dict[str, Any]]:
    """The latest line of every (script, knob)."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.exists() else ())
    return {(line["script"], line["knob"]): line for line in lines}


def summary(results: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Return the results as a table for the page, and the sentence on silent changes."""
    rows = [row for (_, knob), row in results.items() if knob]
    counts = Counter(row["verdict"] for row in rows)
    bitwise = sum(row["verdict"] == SAME and not row["away"] for row in rows)
    scripts = len({script for script, _ in results})
    figures = {
        "same samples and parameters": counts[SAME],
        "of these, bit by bit": bitwise,
        "other random numbers, as reported": counts[REDRAWN],
        "withdrawn with a reason": counts[WITHDRAWN],
    }
    table = "\n".join(f"| {name} | {count} |" for name, count in figures.items())
    return (
        f"Changes rated EXACT, compared with the bare run ({scripts} scripts):\n\n"
        f"| Result | Changes |\n| --- | --- |\n| all | {len(rows)} |\n{table}\n\n"
        f"Silent changes: {counts[OTHER]}."
    )

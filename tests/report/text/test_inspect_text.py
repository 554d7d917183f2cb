"""The table of knobs that `inspect` prints: what raises a knob's effect is said with its place."""

from __future__ import annotations

from dataclasses import replace

from autotune.model.facts import FetchState
from autotune.report.text.inspect_text import knob_rows
from autotune.testing.knobs import CPU_RUN, LOADER, facts


def row(name: str, held: FetchState) -> dict[str, object]:
    given = facts(run=replace(CPU_RUN, loader=replace(LOADER, fetch_state=held)))
    return next(row for row in knob_rows(given) if row["knob"] == name)


def test_why_the_risk_is_raised_is_said_with_its_place() -> None:
    held = FetchState(what="your dataset changes what it holds (calls) at data.py:31")
    found = row("num_workers", held)
    assert str(found["why"]).startswith("TRAINING: Your dataset changes what it holds (calls) at data.py:31,")
    assert found["status"] == "searched"


def test_what_is_refused_for_it_is_said_with_its_place() -> None:
    held = FetchState(what="your dataset draws from its own generator (rng) at data.py:31", sure=True)
    found = row("num_workers", held)
    assert str(found["why"]).startswith("Your dataset draws from its own generator (rng) at data.py:31,")
    assert found["tunable"] is False

"""The table of knobs that `inspect` prints: what raises a knob's effect is reported with its place."""

from __future__ import annotations

from dataclasses import replace

from autotune.model.facts import FetchState, ScriptFlag
from autotune.report.text.inspect_text import every_knob_text, knob_rows, knobs_text, script_data, script_text
from autotune.testing.knobs import CPU_RUN, LOADER, facts


def row(name: str, held: FetchState) -> dict[str, object]:
    given = facts(run=replace(CPU_RUN, loader=replace(LOADER, fetch_state=held)))
    return next(row for row in knob_rows(given) if row["knob"] == name)


def test_why_the_risk_is_raised_is_reported_with_its_place() -> None:
    held = FetchState(what="your dataset changes what it holds (calls) at data.py:31")
    found = row("num_workers", held)
    assert str(found["why"]).startswith("TRAINING: Your dataset changes what it holds (calls) at data.py:31,")
    assert found["status"] == "searched"


def test_what_is_refused_for_it_is_reported_with_its_place() -> None:
    held = FetchState(what="your dataset draws from its own generator (rng) at data.py:31", sure=True)
    found = row("num_workers", held)
    assert str(found["why"]).startswith("Your dataset draws from its own generator (rng) at data.py:31,")
    assert found["tunable"] is False


def test_the_screen_lists_what_can_be_varied_and_gives_each_reason_once() -> None:
    rows = knob_rows(facts(run=CPU_RUN))
    table, _, below = knobs_text(rows).partition("\n\n")
    head, *lines, legend = table.splitlines()
    assert head.split() == ["KNOB", "VALUE", "TRY", "EFFECT", "HOW"]
    assert legend.startswith("Effect on the training: EXACT none")
    assert {line.split()[0] for line in lines} == {row["knob"] for row in rows if row["tunable"]}
    assert any("TRAINING, with --allow" in line for line in lines)
    refused = below.partition("Not varied:\n")[2].splitlines()
    assert len(refused) == len({row["why"] for row in rows if not row["tunable"]})
    shared = next(line for line in refused if line.startswith("  ddp_bucket_cap_mb, "))
    assert shared.endswith("A single process trains, which exchanges nothing.")


def test_a_script_that_was_only_read_has_no_columns_of_values() -> None:
    rows = [{**row, "value": None, "values": []} for row in knob_rows(facts(run=None))]
    assert knobs_text(rows).splitlines()[0].split() == ["KNOB", "EFFECT", "HOW"]


def test_reasons_are_wrapped_to_the_terminal() -> None:
    below = knobs_text(knob_rows(facts(run=CPU_RUN)), 80).partition("\n\n")[2]
    assert max(map(len, below.splitlines())) <= 80


def test_the_list_of_all_knobs_describes_each_one() -> None:
    head, *lines = every_knob_text().splitlines()
    assert head.split() == ["KNOB", "EFFECT", "HOW", "WHAT", "IT", "SETS"]
    assert all(len(line.split()) > 4 for line in lines)


def test_options_have_the_values_in_force_and_else_those_of_the_source() -> None:
    flags = (
        ScriptFlag(names=("--batch-size",), dest="batch_size", kind="int", default=32),
        ScriptFlag(names=("--lr",), dest="lr", kind="float", default=0.1),
    )
    given = facts(run=replace(CPU_RUN, options={"batch_size": 20}))
    given = replace(given, script=replace(given.script, flags=flags))
    assert "options    --batch-size=20, --lr=0.1\n" in script_text(given, "train.py", ())
    assert [flag["value"] for flag in script_data(given, ())["flags"]] == [20, 0.1]
    assert "--batch-size=16, --lr=0.1" in script_text(
        replace(given, run=None), "train.py", ("--batch-size=16",)
    )

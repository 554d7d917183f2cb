"""The tables of experiments/faults/README.md name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "experiments" / "faults" / "README.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+)(\.py)?(?:::(test_\w+))?`", TEXT)


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED) > 30
    for path, ending, name in NAMED:
        found = ROOT / (path + ending)
        assert found.exists(), found
        assert not name or f"def {name}(" in found.read_text(encoding="utf-8"), name


def test_every_fault_of_a_shared_machine_has_a_test() -> None:
    table = TEXT.partition("## Faults found on a shared machine")[2]
    rows = re.findall(r"^\| (\d+) \|.*`tests/", table, re.MULTILINE)
    assert rows == [str(number) for number in range(1, 19)]

"""Runs the tests of database, queue, reconciler and HTTP interface on SQLite and on a PostgreSQL server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

NAME = "conformance"
TITLE = "conformance on SQLite and PostgreSQL"
FILES = ("test_store.py", "test_reconcile.py", "test_app.py", "test_outages.py")
ROOT = Path(__file__).resolve().parents[2]


def cases() -> list[str]:
    """Return the databases."""
    return ["sqlite", "postgres"]


def run(case: str, folder: Path) -> dict[str, Any]:
    """Run the tests that take this database; a skipped one counts as a fault."""
    files = [str(ROOT / "tests" / "service" / name) for name in FILES]
    words = [
        "-q",
        "-n",
        "0",
        "-m",
        "",
        "-k",
        case,
        "-p",
        "no:cacheprovider",
        f"--basetemp={folder / 'tests'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *files],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    count = {
        name: int(number) for number, name in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)
    }
    faults = [f"{number} {name}" for name, number in count.items() if name != "passed"]
    if not count.get("passed"):
        faults.append(done.stdout[-1000:] + done.stderr[-1000:])
    return {"faults": faults, "tests": count.get("passed", 0)}

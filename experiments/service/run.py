"""The whole proof of the service: runs every case that has no row yet, and writes the totals.

python experiments/service/run.py                  # all of it; stopped, it continues behind its last case
python experiments/service/run.py kills moments    # some kinds
python experiments/service/run.py --limit 30m      # begins no case after this time
python experiments/service/run.py --list           # how far it is; runs nothing
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import api_checks  # noqa: E402 (needs the path set above)
import canaries  # noqa: E402
import conformance  # noqa: E402
import growth  # noqa: E402
import kill_matrix  # noqa: E402
import load  # noqa: E402
import moments  # noqa: E402
import restarts  # noqa: E402

from autotune.config_files.duration import duration_s  # noqa: E402

KINDS: dict[str, ModuleType] = {
    module.NAME: module
    for module in (conformance, api_checks, canaries, kill_matrix, moments, restarts, load, growth)
}
MOST_FAULTS = 10


def main() -> int:
    """Return 0 where every case of the kinds that were named was run and had no fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--limit", default="30d", metavar="30m", help="begin no case after this time")
    parser.add_argument("--list", action="store_true", help="show how far it is")
    parser.add_argument("--new", action="store_true", help="forget earlier rows of these kinds")
    parser.add_argument("--work", type=Path, default=HERE / "work", help="rows of cases")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "totals.json")
    given = parser.parse_args()
    names = given.kinds or list(KINDS)
    given.work.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + duration_s(given.limit)
    for name in names:
        table = given.work / f"{name}.jsonl"
        if given.new and not given.list:
            table.unlink(missing_ok=True)
        if not given.list:
            go_on(KINDS[name], table, end_s)
    totals = {name: totals_of(KINDS[name], given.work / f"{name}.jsonl") for name in names}
    for name, row in totals.items():
        print(f"{name:<12}{row['done']} of {row['cases']} cases, {row['faults']} faults  {row['counts']}")
    if not given.list:
        write(given.results, {name: row for name, row in totals.items() if row["done"]})
    return 1 if any(row["faults"] or row["done"] < row["cases"] for row in totals.values()) else 0


def go_on(kind: ModuleType, table: Path, end_s: float) -> None:
    """Run every case that has no row, until the time is over."""
    known = {row["case"] for row in rows(table)}
    for case in kind.cases():
        if case in known or time.monotonic() > end_s:
            continue
        row = {"case": case, **result_of(kind, case)}
        with table.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        print(row, flush=True)


def result_of(kind: ModuleType, case: str) -> dict[str, Any]:
    """Run one case; one that breaks off is a fault."""
    with tempfile.TemporaryDirectory(prefix="service-", ignore_cleanup_errors=True) as folder:
        try:
            return kind.run(case, Path(folder))
        except Exception as error:  # noqa: BLE001 (the other cases are run all the same)
            traceback.print_exc()
            return {"faults": [f"{type(error).__name__}: {error}"[:2000]]}


def rows(table: Path) -> list[dict[str, Any]]:
    """Return the cases that were run."""
    if not table.exists():
        return []
    return [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines() if line]


def totals_of(kind: ModuleType, table: Path) -> dict[str, Any]:
    """Return the totals of a kind: cases, faults, and the sums of its counts; single figures by case."""
    cases, found = kind.cases(), rows(table)
    counts: dict[str, int] = {}
    figures: dict[str, Any] = {}
    faults: list[str] = []
    for row in found:
        faults += [f"{row['case']}: {fault}" for fault in row["faults"]]
        for name, value in row.items():
            if isinstance(value, int):
                counts[name] = counts.get(name, 0) + value
        if row.get("figures"):
            figures[row["case"]] = row["figures"]
    total = {"title": kind.TITLE, "cases": len(cases), "done": len({row["case"] for row in found} & {*cases})}
    total |= {"faults": len(faults), "counts": counts, "examples": faults[:MOST_FAULTS]}
    return total | ({"figures": figures} if figures else {})


def write(path: Path, totals: dict[str, dict[str, Any]]) -> None:
    """Write the totals; those of kinds that were not run now stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text(encoding="utf-8"))["kinds"] if path.exists() else {}
    for name, row in totals.items():
        known[name] = {"date": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M}Z", "machine": machine(), **row}
    report = {"schema": "autotune.service-proof/v1", "kinds": {n: known[n] for n in KINDS if n in known}}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Return what ran it; the load average says how busy it was."""
    cpus, load_average = os.cpu_count(), round(os.getloadavg()[0], 1)
    return {"cpus": cpus, "kernel": platform.release(), "load_average": load_average}


if __name__ == "__main__":
    sys.exit(main())

"""Proofs of the distributed knobs over gloo: what is done is kept in ``work/``, and a second call goes on.

python experiments/distributed/run.py                     # everything that is left
python experiments/distributed/run.py parity failures     # some kinds alone
python experiments/distributed/run.py --list              # how far it is
python experiments/distributed/run.py --limit 20m
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import links  # noqa: E402 (needs the path set above)
import parity  # noqa: E402
import rank_failures  # noqa: E402

KINDS: dict[str, Any] = {"parity": parity, "links": links, "failures": rank_failures}
_UNITS = {"s": 1, "m": 60, "h": 3600}


def main() -> int:
    """Run what is left; 0 where every case was run and holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--list", action="store_true", help="show how far it is")
    parser.add_argument("--limit", default="24h", help="begin no case after this time: 90s, 20m, 2h")
    parser.add_argument("--work", type=Path, default=HERE / "work", help="rows of cases")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where totals are written")
    requested = parser.parse_args()
    for folder in (requested.work, requested.results):
        folder.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + int(requested.limit[:-1]) * _UNITS[requested.limit[-1]]
    holds = True
    for name in requested.kinds or KINDS:
        table = requested.work / f"{name}.jsonl"
        if not requested.list:
            _go_on(KINDS[name], table, end_s)
        totals = _totals(KINDS[name].cases(), rows(table))
        print(name, json.dumps(totals))
        if not requested.list:
            (requested.results / f"{name}.json").write_text(json.dumps(totals, indent=2) + "\n")
        holds = holds and totals["ok"] + totals["skipped"] == totals["cases"]
    return 0 if holds else 1


def rows(table: Path) -> list[dict[str, Any]]:
    """Return the rows that were written so far."""
    return [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []


def _go_on(kind: Any, table: Path, end_s: float) -> None:
    known = {row["key"] for row in rows(table)}
    plain: dict[Any, Any] = {}
    for case in kind.cases():
        if case["key"] in known or time.monotonic() > end_s:
            continue
        package = getattr(kind, "NEEDS", {}).get(case.get("script"))
        if package and importlib.util.find_spec(package) is None:
            row = {"skipped": f"{package} is not installed"}
        else:
            try:
                row = kind.run(case, plain)
            except Exception as error:  # noqa: BLE001 (a broken case is recorded; the others run)
                row = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                plain.clear()
        with table.open("a") as file:
            file.write(json.dumps({**case, **row}) + "\n")
        print(
            case["key"],
            {k: v for k, v in row.items() if k in ("ok", "error", "skipped", "answer")},
            flush=True,
        )


def _totals(cases: list[dict[str, Any]], written: list[dict[str, Any]]) -> dict[str, Any]:
    keys = {case["key"] for case in cases}
    found = list({row["key"]: row for row in written if row["key"] in keys}.values())
    by_group = Counter(f"{row.get('group') or row['script']}: {_word(row)}" for row in found)
    return {
        "cases": len(cases),
        "run": sum("skipped" not in row for row in found),
        "ok": sum(bool(row.get("ok")) for row in found),
        "skipped": sum("skipped" in row for row in found),
        "broken": [row["key"] for row in found if _word(row) == "broken"],
        "by_group": dict(sorted(by_group.items())),
    }


def _word(row: dict[str, Any]) -> str:
    return "skipped" if "skipped" in row else "ok" if row.get("ok") else "broken"


if __name__ == "__main__":
    sys.exit(main())

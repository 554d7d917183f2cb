"""The whole fault suite: injects every fault, counts what became of it, goes on where it stopped.

python experiments/faults/run.py                      # all of it, again and again until all is done
python experiments/faults/run.py --limit 25m          # so long at most
python experiments/faults/run.py kills hangs          # some kinds alone
python experiments/faults/run.py --list               # how far it is; injects nothing
python experiments/faults/run.py --sample --work W    # what CI does, its results kept apart
"""

import argparse
import functools
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from faultbed import (  # noqa: E402 (needs the path set above)
    cuts,
    devices,
    documents,
    drivers,
    floods,
    forks,
    hangs,
    kills,
    rays,
    secrets,
    signals,
    soak,
    trackers,
    writes,
)
from faultbed.common import Child, Count, added, tree_hash, users_tree  # noqa: E402

SUITES: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        *(documents, secrets, cuts, drivers, writes, signals, kills, forks, hangs, floods),
        *(devices, trackers, rays, soak),
    )
}
AT_ONCE = {"drivers": 2, "secrets": 2, "writes": 4, "hangs": 3, "signals": 2, "trackers": 6}
"""Cases that mostly wait may run beside each other."""

CASE_S = 3900.0
MOST_NOTES = 20
MOST_MISSING = 5


def main() -> int:
    """Run what is requested; 0 where all of it was run and every promise was kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", metavar="KIND", help=", ".join(SUITES))
    parser.add_argument("--limit", default="", help="stop beginning new cases after this time: 90s, 25m, 2h")
    parser.add_argument("--list", action="store_true", help="show how far it is")
    parser.add_argument("--new", action="store_true", help="forget earlier results of these kinds")
    parser.add_argument("--sample", action="store_true", help="the sample of CI instead of everything")
    parser.add_argument("--work", type=Path, default=HERE / "work", help="rows of cases, and scratch")
    parser.add_argument("--results", type=Path, default=None, help="where totals are written")
    requested = parser.parse_args()
    unknown = [name for name in requested.suites if name not in SUITES]
    if unknown:
        parser.error(f"there is no kind {unknown[0]}; there are: {', '.join(SUITES)}")
    names = requested.suites or list(SUITES)
    # Ended from outside it still ends what it has forked.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    requested.work.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + _seconds(requested.limit)
    for name in names:
        table = _table(name, requested.work, sample=requested.sample)
        if requested.new and not requested.list:
            table.unlink(missing_ok=True)
        if not requested.list:
            _go_on(SUITES[name], table, end_s, sample=requested.sample)
    results = requested.results or (None if requested.sample else HERE / "results")
    totals = _totals(requested.work, sample=requested.sample)
    _show(totals)
    if results is not None and not requested.list:
        results.mkdir(exist_ok=True)
        _write(results / "totals.json", {name: totals[name] for name in names})
    missing = {name: _missing(SUITES[name], requested.work, sample=requested.sample) for name in names}
    return ended({name: totals[name] for name in names}, missing)


def ended(totals: dict[str, dict[str, Any]], missing: dict[str, list[str]]) -> int:
    """The exit code: 0 where every case was run and kept what was promised. Names those that were not run.

    Args:
        totals: Per kind.
        missing: Kind -> keys of cases without a row.
    """
    for name, keys in missing.items():
        if keys:
            more = f" and {len(keys) - MOST_MISSING} more" if len(keys) > MOST_MISSING else ""
            print(f"{name}: not run: {', '.join(keys[:MOST_MISSING])}{more}", file=sys.stderr)
    return 1 if any(missing.values()) or any(row["broken"] for row in totals.values()) else 0


def _missing(suite: ModuleType, work: Path, *, sample: bool) -> list[str]:
    known = {row["key"] for row in _rows(_table(suite.NAME, work, sample=sample))}
    cases = suite.sample() if sample else suite.cases()
    return [str(case["key"]) for case in cases if case["key"] not in known]


def _table(name: str, work: Path, *, sample: bool) -> Path:
    """Rows of the cases of one kind."""
    return work / f"{name}{'.sample' if sample else ''}.jsonl"


def _go_on(suite: ModuleType, table: Path, end_s: float, *, sample: bool) -> None:
    """Every case that has no row yet."""
    known = {row["key"] for row in _rows(table)}
    waiting = [case for case in (suite.sample() if sample else suite.cases()) if case["key"] not in known]
    for module in getattr(suite, "MODULES", ()) if waiting else ():
        __import__(module)
    scratch = Path(tempfile.mkdtemp(prefix=f"{suite.NAME}-", dir=table.parent))
    running: list[tuple[Any, Child, float]] = []
    try:
        while (waiting and time.monotonic() < end_s) or running:
            while waiting and len(running) < AT_ONCE.get(suite.NAME, 1) and time.monotonic() < end_s:
                case = waiting.pop(0)
                running.append((case, _begun(suite, case, scratch), time.monotonic()))
            for each in [r for r in running if r[1].wait(0.02) or time.monotonic() - r[2] > CASE_S]:
                running.remove(each)
                _note(suite, each[0], each[1], table)
            if sys.stdout.isatty():
                print(f"\r{suite.TITLE}: {len(waiting) + len(running)} cases to go ", end="", flush=True)
    finally:
        for _, child, _ in running:
            child.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _begun(suite: ModuleType, case: Any, scratch: Path) -> Child:
    place = scratch / str(case["key"]).replace("/", "-").replace(" ", "-")
    place.mkdir()

    def act() -> dict[str, Any]:
        os.environ["AUTOTUNE_HOME"] = str(place / "autotune")
        os.environ["AUTOTUNE_LOCKS"] = str(place / "locks")  # cases run beside each other
        tree = users_tree(place)
        before = tree_hash(tree.parent)
        count: Count = suite.run(case, place)
        if tree_hash(tree.parent) != before:
            count.notes.append("the user's files have changed")
            count.survived = 0
        return {**count.row(), "tree": before}

    return Child(act, place / "case.log")


def _note(suite: ModuleType, case: Any, child: Child, table: Path) -> None:
    message = child.answer
    child.close()
    if message is None:
        message = {**Count(injected=1, notes=["the case itself failed"]).row(), "tree": ""}
    row = {"key": case["key"], **message, "sources": _sources()}
    with table.open("a") as file:
        file.write(json.dumps(row) + "\n")
    if row["notes"]:
        print(f"\n{suite.NAME} {case['key']}: {row['notes'][0][:300]}", flush=True)


def _rows(table: Path) -> list[dict[str, Any]]:
    if not table.exists():
        return []
    return [json.loads(line) for line in table.read_text().splitlines() if line.endswith("}")]


def _totals(work: Path, *, sample: bool) -> dict[str, dict[str, Any]]:
    """Per kind: cases done and to do, and the sums."""
    found: dict[str, dict[str, Any]] = {}
    for name, suite in SUITES.items():
        rows = _rows(_table(name, work, sample=sample))
        cases = suite.sample() if sample else suite.cases()
        fields = Count.__dataclass_fields__
        counts = [Count(**{k: v for k, v in row.items() if k in fields}) for row in rows]
        total = added(counts)
        found[name] = {
            "title": suite.TITLE,
            "cases": len(cases),
            "done": len(rows),
            "injected": total.injected,
            "survived": total.survived,
            "lost": total.lost,
            "duplicated": total.duplicated,
            "survivors": total.survivors,
            "broken": sum(not count.is_clean for count in counts),
            "slowest_s": round(max((count.seconds for count in counts), default=0.0), 2),
            "facts": _by_case(rows) if hasattr(suite, "FACTS_BY_CASE") else _facts(counts),
            "sources": sorted({row["sources"] for row in rows if "sources" in row}),
            "notes": total.notes[:MOST_NOTES],
        }
    return found


def _write(path: Path, totals: dict[str, dict[str, Any]]) -> None:
    """Every kind with its own date and machine; where nothing of it was run now, its last run stands."""
    known = json.loads(path.read_text())["kinds"] if path.exists() else {}
    for name, row in totals.items():
        if row["done"]:
            known[name] = {**_machine(), **row}
    kinds = {name: known[name] for name in SUITES if name in known}
    report = {"schema": "autotune.faults/v2", "kinds": kinds}
    path.write_text(json.dumps(report, indent=1) + "\n")


def _by_case(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["key"]: row["facts"] for row in rows if row["facts"]}


def _facts(counts: list[Count]) -> dict[str, Any]:
    """Numbers are summed, the rest is left to the rows; a single case keeps what it found."""
    if len(counts) <= 2:
        return {f"{n}": count.facts for n, count in enumerate(counts) if count.facts}
    sums: dict[str, float] = {}
    for count in counts:
        for key, value in count.facts.items():
            if isinstance(value, (int, float)):
                sums[key] = round(sums.get(key, 0) + value, 3)
    return sums


def _show(totals: dict[str, dict[str, Any]]) -> None:
    columns = ("injected", "survived", "lost", "duplicated", "survivors", "broken")
    print(f"{'':44}{'cases':>12}" + "".join(f"{name:>12}" for name in columns))
    for row in totals.values():
        done = f"{row['done']}/{row['cases']}"
        print(f"{row['title']:44}{done:>12}" + "".join(f"{row[name]:>12}" for name in columns))


def _machine() -> dict[str, Any]:
    """Date and kind of machine; nothing that names it."""
    from autotune.inspection.host import host_facts

    host = host_facts()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "machine": {
            "cpu": host.cpu_model,
            "cpus": host.cpus,
            "memory_gib": round(host.memory_bytes / 2**30, 1),
            "kernel": os.uname().release,
            "python": host.python,
            "isolation": _isolation(),
            "load_average": round(os.getloadavg()[2], 1),
            "devices": [device.name for device in host.devices],
        },
    }


@functools.cache
def _sources() -> str:
    """Names the code that is run, by its content: a commit does not, while it is being made."""
    package = HERE.parents[1] / "autotune"
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _isolation() -> str:
    from autotune.launch.workspace import isolation

    return isolation.available()


def _seconds(text: str) -> float:
    if not text:
        return float("inf")
    units = {"s": 1, "m": 60, "h": 3600}
    return float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)


if __name__ == "__main__":
    sys.exit(main())

"""What accounts leave on a machine, counted by their uids, and whether counts grow from search to search."""

import stat
import statistics
from pathlib import Path

IPC = ("shm", "sem", "msg")
LIMITS = {
    "processes": 0.0,
    "tmp_entries": 0.0,
    "tmp_bytes": 0.0,
    "shm_entries": 0.0,
    "shm_bytes": 0.0,
    "ipc": 0.0,
    "other_bytes": 1024.0,
    "lock_files": 0.0,
    "neighbour_descriptors": 0.0,
    "neighbour_threads": 0.0,
    "neighbour_bytes": 64 * 1024.0,
}
"""Measure -> by how much it may grow per search. Homes grow by a study per search, which their user keeps
(`other_bytes` is what lies beside the studies); memory of a long-lived process comes in whole pages."""

LEAST_ROWS = 4
"""With fewer rows there is no slope."""

LEAST_MEMORY_ROWS = 20
"""An allocator takes its arenas over a process's first searches: a slope of fewer rows is not judged."""


def accounts_left(uids, locks):
    """What these accounts have at this moment, none of which a search that has ended may leave.

    Args:
        uids: Of the accounts.
        locks: The folder of locks.
    """
    tmp, shm = owned_entries(Path("/tmp"), uids), owned_entries(Path("/dev/shm"), uids)
    return {
        "processes": len(owned_processes(uids)),
        "lock_files": len(owned_entries(locks, uids)),
        "tmp_entries": len(tmp),
        "tmp_bytes": sum(map(tree_bytes, tmp)),
        "shm_entries": len(shm),
        "shm_bytes": sum(map(tree_bytes, shm)),
        "ipc": sum(owned_ipc(kind, uids) for kind in IPC),
    }


def owned_entries(folder, uids):
    """Entries of a folder that belong to one of the accounts."""
    found = []
    for path in folder.iterdir():
        try:
            if path.lstat().st_uid in uids:
                found.append(path)
        except OSError:
            continue
    return found


def tree_bytes(path):
    """Bytes on disk below a path, itself included; what vanishes meanwhile counts as nothing."""
    total = 0
    for each in [path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())]:
        try:
            status = each.lstat()
        except OSError:
            continue
        total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def owned_processes(uids):
    """Pids of living processes of the accounts; zombies are their parent's business."""
    found = set()
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            lines = dict(line.partition(":")[::2] for line in (place / "status").read_text().splitlines())
        except OSError:
            continue
        if int(lines["Uid"].split()[0]) in uids and not lines["State"].strip().startswith("Z"):
            found.add(int(place.name))
    return found


def owned_ipc(kind, uids):
    """System V objects of the accounts."""
    lines = Path("/proc/sysvipc", kind).read_text().splitlines()
    column = lines[0].split().index("uid")
    return sum(int(line.split()[column]) in uids for line in lines[1:])


def process_holds(pid):
    """Descriptors, threads and memory of one process."""
    place = Path("/proc", str(pid))
    lines = dict(line.partition(":")[::2] for line in (place / "status").read_text().splitlines())
    return {
        "descriptors": len(list((place / "fd").iterdir())),
        "threads": int(lines["Threads"]),
        "bytes": int(lines["VmRSS"].split()[0]) * 1024,
    }


def home_bytes(home):
    """Bytes of the studies below a home, and of everything else but MLflow's store, which keeps runs."""
    studies = tree_bytes(home / "studies")
    runs = tree_bytes(home / "mlflow.db") + tree_bytes(home / "mlartifacts")
    return {"study_bytes": studies, "run_bytes": runs, "other_bytes": tree_bytes(home) - studies - runs}


def slope(values):
    """Growth per row by Theil and Sen: the median of all slopes, which single rows do not move."""
    slopes = [(b - a) / (j - i) for i, a in enumerate(values) for j, b in list(enumerate(values))[i + 1 :]]
    return statistics.median(slopes) if slopes else 0.0


def judged(rows):
    """A line for each measure: first, last and largest value, slope per search, and whether it is flat.

    A neighbour is a new process in each piece, so its measures have the median of the slopes of pieces. The
    first row of a piece is warming up.
    """
    found = {}
    for name, limit in LIMITS.items():
        values = [row[name] for row in rows if name in row]
        if not values:
            continue
        if name.startswith("neighbour_"):
            pieces = {}
            for row in rows:
                pieces.setdefault(row["piece"], []).append(row.get(name))
            warm = [[v for v in piece if v is not None][1:] for piece in pieces.values()]
            slopes = [slope(piece) for piece in warm if len(piece) >= LEAST_ROWS]
            growth = statistics.median(slopes) if slopes else None
            is_long = name != "neighbour_bytes" or max(map(len, warm)) >= LEAST_MEMORY_ROWS
        else:
            growth, is_long = slope(values) if len(values) >= LEAST_ROWS else None, True
        found[name] = {
            "first": values[0],
            "last": values[-1],
            "largest": max(values),
            "slope": None if growth is None else round(growth, 3),
            "flat": growth <= limit if growth is not None and is_long else None,
        }
    return found

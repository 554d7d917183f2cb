"""Times a training process from outside, by code that is not part of autotune.

`third_party/stopwatch` runs inside the process and records optimizer steps and the samples drawn from
DataLoaders. The process is ended once the window is over. The unit is samples/s where a DataLoader was seen,
else steps/s.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("third_party", "e2e_speedup")]

import third_party_judge as judge  # noqa: E402 (needs the path set above)
import timer  # noqa: E402 (needs the path set above)

STOPWATCH = HERE.parent / "third_party" / "stopwatch"
MIN_STEPS = 5
"""Fewest steps in a window; where steps take seconds the window is extended until it has them."""
_POLL_S = 0.2
_NS = 1e9


def rate_of(records, begin_ns, end_ns):
    """Return the training rate between two moments.

    Returns:
        ``{"rate": float, "unit": str, "steps": int}``, or None where less than `MIN_STEPS` steps ended there.
        Evaluation is not counted as training time.
    """
    seen = judge.window(records, begin_ns, end_ns)
    if seen is None or seen["steps"] < MIN_STEPS:
        return None
    unit, count = ("samples/s", seen["samples"]) if seen["samples"] else ("steps/s", seen["steps"])
    rate = count / (seen["seconds"] - seen["evaluation_s"])
    return {"rate": round(rate, 6), "unit": unit, "steps": seen["steps"]}


def run_once(command, *, cwd, variables, warm_s, window_s, limit_s, tree=None):
    """Run one process until its window is over.

    Args:
        command: Words of the command.
        cwd: Working directory.
        variables: The environment.
        warm_s: Seconds between the end of the first step and the window.
        window_s: Length of the window.
        limit_s: Most seconds for the whole process.
        tree: Checkout that `python -m autotune` is imported from; None for a plain command.

    Returns:
        `rate_of` the window with ``start_s``, ``foreign_cores`` and ``pressure_frac``, or only ``failed``:
        the reason.
    """
    paths = [str(STOPWATCH), *([str(tree)] if tree else [])]
    with tempfile.TemporaryDirectory() as folder:
        stem, log = Path(folder) / "steps", Path(folder) / "log.txt"
        environment = {**variables, "PYTHONPATH": os.pathsep.join(paths), "STOPWATCH_FILE": str(stem)}
        before, began = timer.load(), time.perf_counter()
        with log.open("w") as stream, timer.orphans_are_ours():
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                found = _watched(process, stem, began + limit_s, warm_s, window_s)
            finally:
                timer.end_group(process)
        if found is None:
            lines = log.read_text(errors="replace").strip().splitlines()
            reason = f"exit {process.returncode}: {lines[-1] if lines else 'no output'}"
            return {"failed": judge.scrubbed(reason, [cwd])[:300]}
        start_s = found.pop("first_ns") / _NS - began
        return {**found, "start_s": round(start_s, 2), **timer.neighbours(before, timer.load())}


def _watched(process, stem, until, warm_s, window_s):
    """Wait for the end of the window; return its rate, or None where the process did not get so far."""
    while time.perf_counter() < until:
        ended = process.poll() is not None
        path = _longest(stem)
        first_ns = _first_ns(path)
        if first_ns is not None:
            begin_ns, now_ns = first_ns + warm_s * _NS, time.perf_counter_ns()
            # The whole file is read only when the window is over: reading it takes time from the process.
            if now_ns >= begin_ns + window_s * _NS or ended:
                found = rate_of(judge.read_records(path), begin_ns, now_ns)
                if found is not None:
                    return {**found, "first_ns": first_ns}
        if ended:
            return None
        time.sleep(_POLL_S)
    return None


def _longest(stem):
    """Return the records of the process that took most steps, or None."""
    files = [path for path in stem.parent.glob(f"{stem.name}.*") if path.suffix[1:].isdigit()]
    return max(files, key=lambda path: path.stat().st_size, default=None)


def _first_ns(path):
    """Return when the first step ended, or None where none has."""
    if path is None:
        return None
    with path.open("rb") as stream:
        data = stream.read(judge.RECORD.size)
    return judge.RECORD.unpack(data)[0] if len(data) == judge.RECORD.size else None

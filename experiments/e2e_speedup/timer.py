"""Measure a best.yaml against the unchanged script, again and from outside.

    python timer.py best.yaml --pairs 10 --result results/photos_denoise.json -- photos_denoise.py [args]

Every run is a fresh process in an empty folder: `python script args` or
`autotune apply best.yaml -- python script args`. Timing is `stamps/sitecustomize.py`, nothing of autotune's.
One cycle holds three runs, baseline A, best B and baseline A2 again, in an order that rotates through all
six permutations; it yields one pair B/A and one identical pair A2/A. Runs that are done are kept: started
again with the same arguments, it goes on where it stopped.
"""

import argparse
import contextlib
import ctypes
import datetime
import hashlib
import itertools
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from scipy.stats import t as student

STAMPS = Path(__file__).resolve().parent / "stamps"
ORDERS = list(itertools.permutations(("A", "B", "A2")))
_PR_SET_CHILD_SUBREAPER = 36


def interval(logs):
    """Geometric mean of ratios with its 95 % t interval, from their logarithms."""
    n = len(logs)
    mean = sum(logs) / n
    if n < 2:
        return {"value": math.exp(mean), "low": None, "high": None, "n": n, "sd_log": None}
    sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
    half = student.ppf(0.975, n - 1) * sd / math.sqrt(n)
    return {
        "value": math.exp(mean),
        "low": math.exp(mean - half),
        "high": math.exp(mean + half),
        "n": n,
        "sd_log": sd,
    }


def run_once(command, *, warm_s, window_s, limit_s):
    """Samples per second of one fresh process, and what else used the machine meanwhile.

    Raises:
        SystemExit: It wrote no figures; the end of its log is in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder) / "stamps.json"
        work = Path(folder) / "work"
        work.mkdir()
        log = Path(folder) / "log.txt"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(STAMPS), os.environ.get("PYTHONPATH", "")])),
            "STAMPS_FILE": str(stamps),
            "STAMPS_WARM_S": str(warm_s),
            "STAMPS_WINDOW_S": str(window_s),
            "STAMPS_BEGAN": str(time.monotonic()),
        }
        before = load()
        with log.open("w") as stream, orphans_are_ours():
            process = subprocess.Popen(
                command,
                cwd=work,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                end_group(process)
        if not stamps.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise SystemExit(f"no figures from: {' '.join(command)}\nexit {process.returncode}\n{tail}")
        figures = json.loads(stamps.read_text())
        training_s = figures["seconds"] - figures["evaluation_s"] - figures["once_s"]
        return {
            **figures,
            **neighbours(before, load()),
            "samples_per_s": figures["samples"] / training_s,
            "samples_per_s_with_evaluation": figures["samples"] / figures["seconds"],
        }


@contextlib.contextmanager
def orphans_are_ours():
    """What a run leaves behind becomes a child of this process meanwhile, so that its time can be counted.

    The stopwatch ends a run in the middle, when nobody has waited for the workers of its loader. Linux alone.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def run_or_failed(command, **how):
    """The same; a process that wrote no figures is reported, and is ``{"failed": True}``."""
    try:
        return run_once(command, **how)
    except SystemExit as failed:
        print(failed, file=sys.stderr)
        return {"failed": True}


def reported(figures):
    """A run for people."""
    return "failed" if "failed" in figures else f"{figures['samples_per_s']:.1f} samples/s"


def check_identity(earlier, identity, path):
    """Refuse to go on with results of something else.

    Raises:
        SystemExit: What differs.
    """
    differs = [name for name, value in identity.items() if earlier.get(name) != value]
    if differs:
        raise SystemExit(f"{path.name} is of another {', '.join(differs)}; move it away to begin anew")


def load():
    """The clock, and what the kernel has counted so far; None where it does not count."""
    own = os.times()
    now = {
        "at_s": time.monotonic(),
        "own_s": own.user + own.system + own.children_user + own.children_system,
        "busy_s": None,
        "stalled_s": None,
    }
    try:
        # user, nice, system, then irq, softirq: idle, waiting for disks and stolen time are not work.
        ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
        now["busy_s"] = (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")
        some = Path("/proc/pressure/cpu").read_text().split("\n", 1)[0]
        now["stalled_s"] = int(some.rsplit("total=", 1)[1]) / 1e6
    except (OSError, ValueError, IndexError):
        pass
    return now


def neighbours(before, after):
    """Cores that others used, and the share of the time in which something waited for a core.

    What a run leaves behind is its own where `end_group` could wait for it, else it counts as others.
    """
    elapsed_s = after["at_s"] - before["at_s"]

    def rate(name):
        if before[name] is None or after[name] is None:
            return None
        return (after[name] - before[name]) / elapsed_s

    busy, own = rate("busy_s"), rate("own_s")
    return {
        "foreign_cores": None if busy is None else round(max(0.0, busy - own), 3),
        "pressure_frac": None if rate("stalled_s") is None else round(rate("stalled_s"), 3),
    }


def end_group(process):
    """End whatever is left of the process group that we started, and wait for what of it became ours."""
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, wanted)
        except ProcessLookupError:
            break
        time.sleep(0.5)
    process.wait()
    with contextlib.suppress(ChildProcessError):
        # 0 is reported where some are left and none of them has ended.
        while os.waitpid(-process.pid, os.WNOHANG)[0]:
            pass


def machine():
    """What the figures were made on; no names, no paths."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else ""
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def measure(best, script, args, *, pairs, result, warm_s=6.0, window_s=20.0, limit_s=300.0):
    """All missing runs, then the summary; writes `result` after every run."""
    script = Path(script).resolve()
    best = Path(best).resolve()
    plain = [sys.executable, str(script), *args]
    tuned = [sys.executable, "-m", "autotune", "apply", str(best), "--", *plain]
    identity = {
        "script": script.name,
        "script_sha256": hashlib.sha256(script.read_bytes()).hexdigest(),
        "best_sha256": hashlib.sha256(best.read_bytes()).hexdigest(),
        "args": list(args),
        "warm_s": warm_s,
        "window_s": window_s,
    }
    state = {"identity": identity, "runs": []}
    if result.exists():
        earlier = json.loads(result.read_text())
        if earlier["identity"] == identity:
            state = earlier
    state.update(machine=machine(), date=datetime.date.today().isoformat())
    done = {(run["cycle"], run["arm"]) for run in state["runs"]}
    for cycle in range(pairs):
        for arm in ORDERS[cycle % len(ORDERS)]:
            if (cycle, arm) in done:
                continue
            figures = run_once(
                tuned if arm == "B" else plain, warm_s=warm_s, window_s=window_s, limit_s=limit_s
            )
            state["runs"].append({"cycle": cycle, "arm": arm, **figures})
            print(
                f"cycle {cycle} {arm:2} {figures['samples_per_s']:.1f} samples/s", file=sys.stderr, flush=True
            )
            write(result, summary(state))
    return write(result, summary(state))


def summary(state):
    """The ratios of complete cycles, added to the runs: of the training, and of everything."""
    for figure, end in (("samples_per_s", ""), ("samples_per_s_with_evaluation", "_with_evaluation")):
        cycles = {}
        for run in state["runs"]:
            cycles.setdefault(run["cycle"], {})[run["arm"]] = run[figure]
        whole = [arms for _, arms in sorted(cycles.items()) if len(arms) == len(ORDERS[0])]
        if whole:
            for name, arm in (("speedup", "B"), ("identical", "A2")):
                ratios = [arms[arm] / arms["A"] for arms in whole]
                state[f"{name}_ratios{end}"] = ratios
                state[f"{name}{end}"] = interval([math.log(x) for x in ratios])
    return state


def write(path, state):
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1) + "\n")
    part.replace(path)
    return state


def prediction(claim, again):
    """Where the re-measured geometric mean should lie, if the claim holds.

    With L = log ratio, the claim is L_c with standard error e_c (its half-width over the t quantile of n-1
    at the confidence that it states),
    the new mean L_m has e_m = s_m / sqrt(m). L_m - L_c has standard error sqrt(e_c^2 + e_m^2), with Welch's
    degrees of freedom; the interval is exp(L_c -+ t * that).
    """
    centre = math.log(claim["value"])
    n, m = claim["n"], again["n"]
    tail = (1 + claim.get("confidence", 0.95)) / 2
    se_claim = (math.log(claim["high"]) - math.log(claim["low"])) / 2 / student.ppf(tail, n - 1)
    se_again = again["sd_log"] / math.sqrt(m)
    both = se_claim**2 + se_again**2
    df = both**2 / (se_claim**4 / (n - 1) + se_again**4 / (m - 1)) if both else 1
    half = student.ppf(0.975, df) * math.sqrt(both)
    low, high = math.exp(centre - half), math.exp(centre + half)
    return {"low": low, "high": high, "df": float(df), "within": bool(low <= again["value"] <= high)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("best", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--warm", type=float, default=6.0, help="seconds skipped after the first step")
    parser.add_argument("--window", type=float, default=20.0, help="seconds measured")
    parser.add_argument("script")
    parser.add_argument("args", nargs="*")
    options = parser.parse_args()
    state = measure(
        options.best,
        options.script,
        options.args,
        pairs=options.pairs,
        result=options.result,
        warm_s=options.warm,
        window_s=options.window,
    )
    for name in ("speedup", "identical", "speedup_with_evaluation"):
        print(name, json.dumps(state[name]))


if __name__ == "__main__":
    main()

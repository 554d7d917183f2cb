"""Everything that is wanted from a device, in the order of its rank, as much as fits into the time.

    python all.py --minutes 25
    python all.py --minutes 25 --from knobs   # begin further down
    python all.py --device cpu --tiny

Each check is a process of its own, whose result is written when it ends and is not made again in a later call
(--again does). Nothing that one of them does ends the others; how each ended is in `summary.json`.
"""

import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from common import FULL, HERE, parsed, parser, scrubbed

GRIDS = HERE.parent / "grids"
REPEATED_S = 60


@dataclass(frozen=True)
class Check:
    """One of them: expected minutes, and more words for its command."""

    name: str
    script: str
    minutes: float
    words: tuple = ()
    tiny: bool = True


def plan():
    """All checks in order of rank."""
    recorded = [
        Check(f"grid {name}", str(GRIDS / "record.py"), 8, (name, "--limit", "8m"), tiny=False)
        for name in ("small_steps", "gpt2", "resnet50", "vit_b16")
    ]
    return [
        Check("timing", "timing.py", 6, ("--pairs", "2")),
        Check("memory", "memory.py", 3),
        Check("failures", "failures.py", 4),
        Check("knobs", "knobs.py", 12),
        Check("caches small_steps", "caches.py", 4, ("--workloads", "small_steps")),
        recorded[0],
        Check("search small_steps", "search.py", 7, ("--workloads", "small_steps", "--budget", "4m")),
        Check("aa", "aa.py", 8),
        *recorded[1:],
        Check("search", "search.py", 30, tiny=False),
        Check("rival", "rival.py", 25, tiny=False),
        Check("caches", "caches.py", 12, tiny=False),
        Check("beside", "beside.py", 3, tiny=False),
    ]


def done_before(check, options):
    """A result of an earlier call; grids know by themselves how far they are."""
    if check.name.startswith("grid"):
        return False
    name = "-".join(check.name.split()) + ("-tiny" if options.tiny else "")
    found = sorted(options.out.glob(f"????-??-??-{name}.json"))
    if not found:
        return False
    result = json.loads(found[-1].read_text())["result"]
    if "missing" in result:
        # It only reported what has to be installed first.
        return False
    # These two write after every workload.
    return check.name not in ("search", "rival") or set(FULL) <= set(result)


def command(check, options):
    """Words of one check."""
    words = [sys.executable, str(HERE / check.script), *check.words]
    if check.name.startswith("grid"):
        table = options.out / f"{check.name.replace(' ', '-')}.jsonl"
        return [*words, "--out", str(table)] if options.placed else words
    words += ["--device", options.device, "--out", str(options.out)]
    return [*words, "--tiny"] if options.tiny else words


def run(check, options, limit_s):
    """How one check ended; its last lines."""
    log = HERE / "work" / options.out.name / f"{check.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w") as stream:
        process = subprocess.Popen(
            command(check, options), cwd=HERE, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        why = "ended"
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            why = "out of time"
        for wanted, patience_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
            if process.poll() is None:
                os.killpg(process.pid, wanted)
                try:
                    process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    continue
    last = log.read_text(errors="replace").strip().splitlines()[-3:]
    return {
        "why": why,
        "code": process.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "last": scrubbed(last, platform.node()),
        "at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def main(words=None):
    made = parser(__doc__, minutes=25.0)
    made.add_argument("--from", dest="first", default="", help="name of the check to begin with")
    made.add_argument("--only", nargs="*", default=[], help="names of checks")
    made.add_argument("--again", action="store_true", help="also what has a result already")
    options = parsed(made, words)
    options.out.mkdir(parents=True, exist_ok=True)
    summary_path = options.out / "summary.json"
    summary = json.loads(summary_path.read_text()) if summary_path.exists() else {}
    until = time.monotonic() + 60 * options.minutes
    checks = plan()
    names = [check.name for check in checks]
    checks = checks[names.index(options.first) :] if options.first else checks
    for check in checks:
        left_s = until - time.monotonic()
        if (options.only and check.name not in options.only) or (options.tiny and not check.tiny):
            continue
        if not options.again and done_before(check, options):
            print(f"{check.name}: there is a result", flush=True)
            continue
        if left_s < REPEATED_S or (left_s < 30 * check.minutes and not options.tiny):
            print(f"{check.name}: wants {check.minutes:g} minutes, {left_s / 60:.0f} are left", flush=True)
            continue
        print(f"{check.name}: begins", flush=True)
        try:
            summary[check.name] = run(check, options, left_s)
        except OSError as error:
            summary[check.name] = {"why": str(error)}
        print(f"{check.name}: {summary[check.name]}", flush=True)
        part = summary_path.with_suffix(".part")
        part.write_text(json.dumps({**summary, "machine": options.machine}, indent=1) + "\n")
        part.replace(summary_path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

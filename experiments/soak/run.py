"""Real searches one after the other beside a second account's; what they leave is counted after each.

python experiments/soak/run.py                # three hours of searches in all; goes on where it stopped
python experiments/soak/run.py --limit 25m    # one piece of at most that length
python experiments/soak/run.py --list         # the table so far; runs nothing

Needs root: it creates two accounts, and removes them when it ends.
"""

import argparse
import contextlib
import datetime
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent / "claims"), str(HERE.parent / "faults")]

import soak_measures as measures  # noqa: E402 (needs the path set above)
from faultbed.common import tree_hash  # noqa: E402
from proofs import machine, sources_sha256  # noqa: E402

from autotune.config_files.duration import duration_s  # noqa: E402
from autotune.launch.devices.load_check import usable_cpus  # noqa: E402

TARGET = "3h"
BUDGET = "90s"
TURN_EVERY = 5
"""Every fifth search may use all CPUs, so that it and the neighbour's searches have to take turns. All others
run beside the neighbour, each on CPUs of its own."""

SETTLE_S = 15.0
"""What a search has started is gone by then."""

NAMES = ("autotune-soak-a", "autotune-soak-b")
CAN_RUN = "import os, sys, autotune, sqlite3; sys.exit(not os.access(sys.executable, os.X_OK))"
SCRIPT = HERE.parent / "faults" / "trials" / "small.py"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", default=TARGET, help="begin no search after this time: 90s, 25m")
    parser.add_argument("--budget", default=BUDGET, help="of each search")
    parser.add_argument("--list", action="store_true", help="show the table so far; run nothing")
    parser.add_argument("--new", action="store_true", help="forget the searches so far")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    requested = parser.parse_args()
    if requested.new and not requested.list:
        shutil.rmtree(requested.work, ignore_errors=True)
    rows = read_rows(requested.work / "rows.jsonl")
    if not requested.list:
        if os.geteuid() != 0:
            parser.error("it creates two accounts, which only root can do")
        with two_accounts() as accounts:
            run_piece(requested, accounts, rows)
    report = reported(rows)
    if not requested.list and rows:
        requested.results.mkdir(exist_ok=True)
        (requested.results / "soak.json").write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    return 0 if report["broken"] == 0 else 1


@contextlib.contextmanager
def two_accounts():
    """Create both; what an earlier piece has left of them is used again."""
    try:
        for name in NAMES:
            with contextlib.suppress(KeyError):
                pwd.getpwnam(name)
                continue
            subprocess.run(["useradd", "--system", "--user-group", "--no-create-home", name], check=True)
        accounts = [pwd.getpwnam(name) for name in NAMES]
        tries = as_account(accounts[0], usable_cpus(), "-c", CAN_RUN)
        if subprocess.run(tries, cwd="/", env={"PYTHONPATH": str(ROOT)}).returncode:
            raise SystemExit(f"other accounts cannot run {sys.executable}, or read {ROOT}")
        yield accounts
    finally:
        for name in NAMES:
            removed(name)


def removed(name):
    """Remove an account; what an interrupt has left running under it is ended before."""
    with contextlib.suppress(KeyError):
        uid = pwd.getpwnam(name).pw_uid
        end_s = time.monotonic() + SETTLE_S
        while (left := measures.owned_processes({uid})) and time.monotonic() < end_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        subprocess.run(["userdel", name], capture_output=True)


def run_piece(requested, accounts, rows):
    """Search until the limit, or until all pieces together have searched for as long as is wanted."""
    place = prepared(requested.work, accounts)
    piece = max((row["piece"] for row in rows), default=0) + 1
    sources = sources_sha256(ROOT / "autotune")[:12]
    cpus = sorted(usable_cpus())
    ours, theirs = (cpus[:-1] or cpus), cpus[-1:]
    uids = {account.pw_uid for account in accounts}
    end_s = time.monotonic() + duration_s(requested.limit)
    with neighbour(place, accounts[1], theirs, requested.budget) as beside:
        while time.monotonic() < end_s and sum(row["seconds"] for row in rows) < duration_s(TARGET):
            number = len(rows) + 1
            takes_turns = number % TURN_EVERY == 0
            row = one_search(place, accounts[0], cpus if takes_turns else ours, requested.budget, number)
            row |= {"piece": piece, "number": number, "takes_turns": takes_turns, "sources": sources}
            row |= settled({accounts[0].pw_uid}, place / "locks")
            row |= measures.home_bytes(place / NAMES[0] / "home")
            row |= beside()
            append(requested.work / "rows.jsonl", row)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if rows:
        # The neighbour has ended with all that it had.
        append(requested.work / "rests.jsonl", {"piece": piece} | settled(uids, place / "locks"))


def prepared(work, accounts):
    """A home and a project for each account, and locks for both."""
    work.mkdir(parents=True, exist_ok=True)
    locks = work / "locks"
    locks.mkdir(exist_ok=True)
    locks.chmod(0o1777)
    for account in accounts:
        folder = work / account.pw_name
        if not folder.exists():
            (folder / "project" / ".git").mkdir(parents=True)
            (folder / "home").mkdir()
            shutil.copy(SCRIPT, folder / "project" / "train.py")
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    return work


def as_account(account, cpus, *words):
    """A command line of this account on these CPUs."""
    ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    on = ["taskset", "--cpu-list", ",".join(map(str, cpus))]
    return [*on, "setpriv", *ids, sys.executable, *map(str, words)]


def in_project(place, account):
    """Folder and environment of a process of this account."""
    folder = place / account.pw_name
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        "cwd": folder / "project",
        "env": {
            **kept,
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "AUTOTUNE_HOME": str(folder / "home"),
            "AUTOTUNE_LOCKS": str(place / "locks"),
            "AUTOTUNE_TRANSFER": "off",
            "RAY_AUTH_MODE": "disabled",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        "stdin": subprocess.DEVNULL,
    }


def one_search(place, account, cpus, budget, number):
    """One search by the command, by Ray and in line by turns."""
    folder = place / account.pw_name
    driver = "ray" if number % 2 else "inline"
    words = ["search", "--script", "train.py", "--driver", driver, "--budget", budget, "--trials", "4"]
    words += ["--wait", "1h", "--out", str(folder / "best.yaml"), "--json"]
    before, began_s = tree_hash(folder / "project"), time.monotonic()
    line = as_account(account, cpus, "-m", "autotune", *words)
    done = subprocess.run(line, capture_output=True, text=True, **in_project(place, account))
    row = {
        "driver": driver,
        "exit": done.returncode,
        "seconds": round(time.monotonic() - began_s, 1),
        "waited": "waiting up to" in done.stderr,
        "tree_is_same": tree_hash(folder / "project") == before,
    }
    return row if done.returncode in (0, 1, 8) else row | {"note": done.stderr[-400:]}


def settled(uids, locks):
    """What is left once what is ending has ended."""
    end_s = time.monotonic() + SETTLE_S
    while (left := measures.accounts_left(uids, locks))["processes"] and time.monotonic() < end_s:
        time.sleep(0.2)
    return left


@contextlib.contextmanager
def neighbour(place, account, cpus, budget):
    """The second account's program; what it held after its last search. It is ended in the middle of one."""
    line = as_account(account, cpus, HERE / "soak_neighbour.py", "train.py", budget)
    out = place / "neighbour.jsonl"
    with out.open("w") as rows, (place / "neighbour.log").open("a") as log:
        process = subprocess.Popen(line, stdout=rows, stderr=log, **in_project(place, account))

    def last():
        if process.poll() is not None:
            return {"note": f"the neighbour has ended: {process.returncode}"}
        rows = read_rows(out)
        return {f"neighbour_{name}": value for name, value in rows[-1].items()} if rows else {}

    try:
        yield last
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SETTLE_S)
                break


def append(path, row):
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def reported(rows):
    """Counts of all searches so far; no times but how long was searched."""
    broken = [row for row in rows if row["exit"] not in (0, 1, 8) or not row["tree_is_same"]]
    found = measures.judged(rows)
    grown = [name for name, line in found.items() if line["flat"] is False]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "machine": machine(),
        "sources": sorted({row["sources"] for row in rows}),
        "searches": len(rows),
        "pieces": len({row["piece"] for row in rows}),
        "searched_hours": round(sum(row["seconds"] for row in rows) / 3600, 2),
        "target": TARGET,
        "waited_for_the_neighbour": sum(row["waited"] for row in rows),
        "waits_of_the_neighbour": sum(
            max(row.get("neighbour_waits", 0) for row in rows if row["piece"] == piece)
            for piece in {row["piece"] for row in rows}
        ),
        "trees_identical": sum(row["tree_is_same"] for row in rows),
        "exits": {
            str(code): sum(r["exit"] == code for r in rows) for code in sorted({r["exit"] for r in rows})
        },
        "broken": len(broken) + len(grown),
        "measures": found,
        "study_bytes_per_search": measures.slope([row["study_bytes"] for row in rows]),
        "run_bytes_per_search": measures.slope([row["run_bytes"] for row in rows]),
    }


def table(report):
    """For people, in Markdown."""
    how_far = f"{report['searches']} searches in {report['pieces']} pieces, {report['searched_hours']} h"
    lines = [
        f"{how_far} of {report['target']}",
        f"trees identical: {report['trees_identical']}; exit codes: {report['exits']}",
        "",
        "| measure | first | last | largest | per search | flat |",
        "|---|---|---|---|---|---|",
    ]
    for name, line in report["measures"].items():
        flat = {None: "too few searches", True: "yes", False: "NO"}[line["flat"]]
        lines.append(
            f"| {name} | {line['first']} | {line['last']} | {line['largest']} | {line['slope']} | {flat} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

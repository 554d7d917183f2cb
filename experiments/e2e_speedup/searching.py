"""What the programs of this folder share: a search as a process of its own, and which code was measured."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import autotune

ROOT = Path(__file__).resolve().parents[2]
DECIDED = (0, 1, 8)
_PATIENCE_S = 60.0


def end_on_signals():
    """SIGTERM and SIGHUP end the program as Ctrl-C does, so that what it started is ended with it."""

    def interrupted(*_):
        raise KeyboardInterrupt

    for wanted in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(wanted, interrupted)


def check_tree():
    """Refuse to measure a package that does not belong to this checkout.

    Raises:
        SystemExit: It was imported from elsewhere.
    """
    if Path(autotune.__file__).resolve().parents[1] != ROOT:
        raise SystemExit(
            "autotune is imported from another checkout than this program's; set PYTHONPATH to it"
        )


def run_autotune(words, *, cwd, stdout=None, stderr=None, home=None, variables=None, limit_s=None):
    """`python -m autotune WORDS` with none of the user's own settings; its exit code.

    It is stopped where this program is ended, and waited for.

    Args:
        variables: The environment in place of this program's.
        limit_s: Seconds after which it is stopped.
    """
    given = os.environ if variables is None else variables
    kept = {k: v for k, v in given.items() if not k.startswith("AUTOTUNE_") or k == "AUTOTUNE_HOME"}
    # A repeat is a search of its own: it must not begin where the last one ended.
    kept["AUTOTUNE_TRANSFER"] = "off"
    if home is not None:
        kept["AUTOTUNE_HOME"] = str(home)
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *words],
        cwd=cwd,
        env=kept,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return process.returncode


def check_answer(code, best):
    """Refuse an ending that is no answer: a broken interpreter ends with 1, too, as if nothing were faster.

    Raises:
        SystemExit: The search failed, or left no file with what it found.
    """
    if code not in DECIDED:
        raise SystemExit(f"the search ended with exit code {code}")
    if not best.is_file():
        raise SystemExit(f"the search ended with exit code {code} and left no {best.name}: it did not begin")


def commit():
    """(abbreviated commit, whether the package or these programs differ from it); empty without git."""

    def git(*words):
        try:
            done = subprocess.run(
                ["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git(
        "status", "--porcelain", "--", "autotune", "experiments/workloads", "experiments/e2e_speedup/*.py"
    )
    return git("rev-parse", "--short=12", "HEAD"), bool(changed)


def is_committed(path):
    """Whether a file is in the repository as it is on disk; True outside of git."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain", "--", str(path)], capture_output=True, text=True
    )
    return done.returncode != 0 or not done.stdout.strip()

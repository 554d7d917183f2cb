"""A second account on this machine, for as long as a test takes."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def second_account() -> Iterator[pwd.struct_passwd]:
    """Make an account without a home and remove it afterwards; skips where that is not possible."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root can add a second account, by useradd")
    name = f"at-test-{os.getpid()}"
    made = subprocess.run(
        ["useradd", "--system", "--no-create-home", "--shell", "/bin/sh", name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"useradd adds no account here: {made.stderr.strip()}")
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", name], capture_output=True, check=False)


def run_as(
    account: pwd.struct_passwd, *words: str, cwd: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -m autotune` as another account; skips where that account cannot read this checkout."""
    command = [sys.executable, "-m", "autotune", *words]
    given = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(cwd),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        command, cwd=cwd, env=given | environ, capture_output=True, text=True, check=False, timeout=100,
        user=account.pw_uid, group=account.pw_gid, extra_groups=[], stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if "Permission denied" in done.stderr and done.returncode in (1, 2) and "autotune" not in done.stderr:
        pytest.skip("a second account cannot read this interpreter or this checkout")
    return done

"""A second account of this machine, for what one user must not do to another."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Account:
    """Another user."""

    name: str

    @property
    def ids(self) -> dict[str, Any]:
        """Arguments by which `subprocess` starts a process of this account."""
        entry = pwd.getpwnam(self.name)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def another_account() -> Iterator[Account]:
    """Create an account and remove it afterwards; skips the test where that is not possible."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root can create a second account, by useradd")
    account = Account(f"autotune-t{os.getpid() % 10**6}")
    made = subprocess.run(
        ["useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", account.name],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"no second account can be created here: {made.stderr.strip()}")
    try:
        line = [sys.executable, "-c", "import autotune"]
        reads = subprocess.run(
            line, cwd="/", env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False, **account.ids
        )
        if reads.returncode != 0:
            pytest.skip("another account cannot read this checkout or its interpreter")
        yield account
    finally:
        subprocess.run(["userdel", account.name], capture_output=True, check=False)

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

import pytest

ROOT = Path(__file__).parents[2]
READS_ALL = (
    "--securebits=+no_setuid_fixup",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
)
"""Where the interpreter lies in a private folder, the account may read everything, and no more. By the
first of them `access` counts capabilities as `open` does."""

READS = "import os, sys, sqlite3, autotune; sys.exit(not os.access(sys.executable, os.X_OK))"
"""Fails where the account itself cannot start the interpreter; setpriv, which is still root, can."""


@dataclass(frozen=True)
class Account:
    """Another user.

    Args:
        name: Of the account.
        more: Further options of setpriv.
    """

    name: str
    more: tuple[str, ...] = ()

    @property
    def uid(self) -> int:
        """Of its processes and files."""
        return pwd.getpwnam(self.name).pw_uid

    def command(self, *words: str) -> list[str]:
        """A command line as this account."""
        ids = (f"--reuid={self.name}", f"--regid={self.name}", "--clear-groups")
        return ["setpriv", *ids, *self.more, *words]


@contextmanager
def another_account() -> Iterator[Account]:
    """Create an account and remove it afterwards; skips the test where that is not possible."""
    if os.geteuid() != 0 or not (shutil.which("useradd") and shutil.which("setpriv")):
        pytest.skip("only root can create a second account, by useradd, and be it, by setpriv")
    name = f"autotune-t{os.getpid() % 10**6}"
    made = subprocess.run(
        ["useradd", "--system", "--user-group", "--no-create-home", name],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"no second account can be created here: {made.stderr.strip()}")
    try:
        for account in (Account(name), Account(name, READS_ALL)):
            line = account.command(sys.executable, "-c", READS)
            environ = {"PYTHONPATH": str(ROOT)}
            if not subprocess.run(line, cwd="/", env=environ, capture_output=True, check=False).returncode:
                yield account
                return
        pytest.skip("another account cannot read this checkout or its interpreter")
    finally:
        subprocess.run(["userdel", name], capture_output=True, check=False)

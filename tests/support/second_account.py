"""A second account of this machine, for tests of what it can read and do."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or sys.executable
"""An interpreter that every account can run."""


class Account:
    """An account without a home, a shell or a group in common with this one."""

    def __init__(self, name: str) -> None:
        entry = pwd.getpwnam(name)
        self.uid, self.gid = entry.pw_uid, entry.pw_gid

    def run(self, code: str, *arguments: str) -> str:
        """Run Python as this account, standard library only; its output."""
        done = subprocess.run(
            [PYTHON, "-I", "-c", code, *arguments],
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def readable(self, *roots: Path) -> list[str]:
        """Files and folders below these that this account can list, read or write to."""
        return self.run(_READABLE, *map(str, roots)).splitlines()


_READABLE = """
import os, sys
def seen(path):
    try:
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        if os.access(path, os.R_OK) or os.access(path, os.W_OK) or (is_folder and os.access(path, os.X_OK)):
            print(path)
        for name in os.listdir(path) if is_folder else ():
            seen(os.path.join(path, name))
    except OSError:
        pass
for root in sys.argv[1:]:
    seen(root)
"""


@pytest.fixture(scope="session")
def second_account() -> Iterator[Account]:
    """A fresh account, removed afterwards; skips where this one may create none."""
    name = f"autotune-t{os.getpid()}"
    if os.geteuid() != 0 or not shutil.which("useradd"):
        pytest.skip("only root can create a second account, by useradd")
    made = subprocess.run(
        ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", "--user-group", name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"useradd refused: {made.stderr.strip()}")
    try:
        yield Account(name)
    finally:
        subprocess.run(["userdel", name], capture_output=True, timeout=60, check=False)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can enter and list, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-open-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)

"""Another user of this machine, for tests of what such a user can read."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest


@contextlib.contextmanager
def second_account() -> Generator[str]:
    """The name of an account that is made for this test; the test is skipped where none can be made."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("a second account needs root and useradd")
    name = f"at-test-{os.getpid()}"
    made = subprocess.run(["useradd", "--no-create-home", name], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"useradd: {made.stderr.strip()}")
    try:
        yield name
    finally:
        subprocess.run(["userdel", name], capture_output=True, check=False)


def files_with(text: str, root: Path, account: str) -> list[str]:
    """Files below `root` that this account can read and that hold the text; all of them for an empty one."""
    found = subprocess.run(
        ["grep", "-rlaF", "-e", text, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        cwd="/",
        user=account,
        group=pwd.getpwnam(account).pw_gid,
        extra_groups=[],
    )
    return found.stdout.splitlines()

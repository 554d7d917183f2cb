"""A second account on this machine, for as long as a test takes."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator

import pytest


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


@contextlib.contextmanager
def acting_as(account: pwd.struct_passwd) -> Iterator[None]:
    """Let this process be another account, with the rights of that account on every file.


    Modules that a verb imports have to be loaded before: the interpreter may lie in a folder of root's alone.
    """
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)

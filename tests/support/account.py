"""An ordinary user of this machine for tests that are run as root, to whom nothing is forbidden."""

from __future__ import annotations

import json
import os
import pickle
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.model.trial import Assignment

ROOT = Path(__file__).resolve().parents[2]
_RUN = f"""
import json, pickle, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from autotune.launch.workspace import isolation as enclosure
from autotune.launch.process import LocalRunner
assignments, study, stub = pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]), sys.argv[3]
launch = assignments[0].launch
runner = LocalRunner(
    study_dir=study, command=lambda python: (python, "-S", stub), space_floor_bytes=1, grace_s=0.5
)
found = enclosure.found_for(launch.script, launch.cwd, launch.env, str(study / "trials"))
ends = []
for assignment in assignments:
    (ended,) = runner.run(assignment)
    reported = getattr(ended.outcome, "message", "")
    ends.append({{"kind": type(ended.outcome).__name__, "message": reported, "notes": ended.notes}})
print(json.dumps({{"mode": found.mode, "why": found.why, "note": found.note, "ends": ends}}))
"""


@dataclass(frozen=True, slots=True)
class Account:
    """A user who is a member of a second group.

    Args:
        home: His folder; projects can be made in it.
        python: An interpreter that he may run.
    """

    name: str
    uid: int
    gid: int
    second: int
    home: Path
    python: str

    def run(self, *command: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command as this user."""
        return subprocess.run(
            command,
            user=self.uid,
            group=self.gid,
            extra_groups=[self.second],
            env={"PATH": os.defpath, "HOME": str(self.home)},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **more,
        )

    def give(self, place: Path, *, group: int | None = None) -> None:
        """Make all that lies in a folder this user's, and a group's."""
        group = self.gid if group is None else group
        for path in (place, *place.rglob("*")):
            os.lchown(path, self.uid, group)

    def run_trials(self, stub: str, *assignments: Assignment) -> dict[str, Any]:
        """Run assignments one after the other by a launcher of this user's.

        Returns:
            ``mode`` and ``why`` of the isolation, and ``ends``: kind, message and notes of each.
        """
        place = Path(tempfile.mkdtemp(prefix="run-", dir=self.home))
        shutil.copy(stub, place / "stub.py")
        made = []
        for assignment in assignments:
            launch = assignment.launch
            env = {**launch.env, "HOME": str(self.home)}
            made.append(replace(assignment, launch=replace(launch, python=self.python, env=env)))
        (place / "assignments").write_bytes(pickle.dumps(made))
        (place / "run.py").write_text(_RUN)
        self.give(place)
        done = self.run(
            *(self.python, "-S", str(place / "run.py"), str(place / "assignments")),
            *(str(place / "study"), str(place / "stub.py")),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def made() -> Generator[Account]:
    """Make one, and remove it; skips where that cannot be done."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("useradd", "groupadd", "userdel", "groupdel"))):
        pytest.skip("no account can be made here")
    name = f"at{os.getpid() % 10**6}"
    # Not beside hundreds of other temporary folders, each of which would get an overlay of its own.
    home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/var/tmp"))
    lab = f"{name}lab"
    try:
        for command in (["groupadd", lab], ["useradd", "-M", "-d", str(home), "-G", lab, name]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no account can be made here: {done.stderr}")
        entry = pwd.getpwnam(name)
        second = int(subprocess.check_output(["getent", "group", lab], text=True).split(":")[2])
        account = Account(name, entry.pw_uid, entry.pw_gid, second, home, "")
        home.chmod(0o755)
        account.give(home)
        yield replace(account, python=_interpreter(account))
    finally:
        for command in (["userdel", name], ["groupdel", lab]):
            subprocess.run(command, capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def _interpreter(account: Account) -> str:
    text = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import autotune.launch.process"
    for python in (sys.executable, shutil.which("python3", path=os.defpath) or ""):
        if python:
            try:
                done = account.run(python, "-S", "-c", text)
            except OSError:
                continue
            if done.returncode == 0:
                return python
    pytest.skip("an ordinary user cannot run this package here")

"""Searches with secrets under a real Ray, killed in the middle: no file holds one, and nothing lives on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from other_user import files_with, second_account

from autotune.driver.backends.local_ray import FOLDER
from autotune.launch.guard import process_tree

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

CANARY = "CANARY-of-the-user"
SECRETS = {
    "MY_API_TOKEN": f"{CANARY}-1",
    "AWS_ACCESS_KEY_ID": f"{CANARY}-2",
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}-3",
    "AWS_SESSION_TOKEN": f"{CANARY}-4",
    "NOT_CALLED_LIKE_ONE": f"{CANARY}-5",
}
ROOT = Path(__file__).parents[2]
DRIVER = f"""
import os, sys
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests" / "support")!r}]
from driver_worlds import open_session
from autotune.clock import SystemClock
from autotune.driver.backends import ray_auth
root, address = Path(sys.argv[1]), sys.argv[2]
ray_auth.prepare(address)
from autotune.driver.backends.ray_tune import RayDriver
environ = {{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}}
session, journal = open_session(
    root / "project", clock=SystemClock(), budget_s=600, python=str(root / "python"), environ=environ,
    args=("--password", {CANARY + "-6"!r}),
)
study = root / "home" / "study"
study.mkdir(mode=0o700)
driver = RayDriver(session, study_dir=study, isolation="redirect", address=address)
driver.connect()
driver.run()
"""
CLUSTER = """
import os, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
draft = Path(sys.argv[1], "address.part")
draft.write_text(cluster.address)
draft.rename(draft.with_name("address"))
time.sleep(600)
"""
TRIAL = """#!/bin/sh
[ -z "$AUTOTUNE_PLAN" ] && exec {python} "$@"
# The trial has what it needs, and hangs.
[ "$NOT_CALLED_LIKE_ONE" = {secret} ] && touch {root}/begun
exec sleep 600
"""
LISTEN = "0A"
"""State of a socket, see proc(5)."""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same in IPv6, and ::1."""
ENDS_S = 20.0
"""Ray's own agents take up to 108 s to notice that their raylet is gone."""


@dataclass
class World:
    """A folder in which everything lies that the processes of a search may write to."""

    root: Path

    def __post_init__(self) -> None:
        for name in ("t", "home", "project"):
            (self.root / name).mkdir()
        python = self.root / "python"
        secret = SECRETS["NOT_CALLED_LIKE_ONE"]
        python.write_text(TRIAL.format(python=sys.executable, root=self.root, secret=secret))
        python.chmod(0o755)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "t"),
            "AUTOTUNE_HOME": str(self.root / "home"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    @contextlib.contextmanager
    def started(
        self, code: str, *words: str, env: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process with this code; what it has started is ended with it."""
        with (self.root / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(self.root), *words],
                env={**self.env, **(env or {})},
                cwd=self.root / "project",
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            theirs = process_tree.descendants(process.pid)
            process.kill()
            process.wait()
            process_tree.send(theirs, signal.SIGKILL)

    def await_trial(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the first trial runs, with its environment."""
        self.within(
            lambda: (self.root / "begun").exists() or process.poll() is not None, 120.0, "no trial began"
        )
        assert process.poll() is None, (self.root / "output").read_text()[-3000:]

    def within(self, condition: Callable[[], object], bound_s: float, otherwise: str) -> None:
        until = time.monotonic() + bound_s
        while not condition():
            assert time.monotonic() < until, f"{otherwise}: {(self.root / 'output').read_text()[-3000:]}"
            time.sleep(0.05)

    def holding(self) -> list[str]:
        """Files in which a secret stands, but for the one that the test itself has put it into."""
        files = (p for p in self.root.rglob("*") if p.is_file() and not p.is_symlink())
        return [str(p) for p in files if CANARY.encode() in p.read_bytes() and p != self.root / "python"]


@pytest.fixture
def world() -> Iterator[World]:
    # Sockets of Ray lie below it, and their paths are limited to 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="ac-"))
    root.chmod(0o755)
    yield World(root)
    shutil.rmtree(root, ignore_errors=True)


def listening(pids: set[int]) -> set[str]:
    """Addresses on which these processes listen, as the kernel writes them."""
    inodes: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        if Path(f"/proc/net/{table}").exists()
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTEN and row[9] in inodes}


def test_a_killed_search_leaves_no_secret_no_process_and_nothing_that_others_can_reach(world: World) -> None:
    with world.started(DRIVER, "", env=SECRETS) as driver:
        world.await_trial(driver)
        pids = {driver.pid, *process_tree.descendants(driver.pid)}
        addresses = listening(pids)
        assert addresses, "nothing listens: this test looks in the wrong places"
        assert addresses <= LOOPBACK
        assert len(list((world.root / "t").glob(f"{FOLDER}*"))) == 1
        assert world.holding() == []
        theirs = {pid: process_tree.start_ticks(pid) for pid in pids}
        driver.kill()
        driver.wait()
        world.within(
            lambda: (
                not [
                    p
                    for p, t in theirs.items()
                    if process_tree.start_ticks(p) == t and not process_tree.is_zombie(p)
                ]
            ),
            ENDS_S,
            "a process of the search lives on",
        )
        world.within(lambda: not list((world.root / "t").iterdir()), ENDS_S, "a temporary folder stays")
    assert world.holding() == []


def test_a_search_on_a_cluster_hands_no_secret_to_files_that_other_users_can_read(world: World) -> None:
    cluster = {"RAY_TMPDIR": str(world.root / "t"), "RAY_AUTH_MODE": "disabled"}
    with second_account() as account, world.started(CLUSTER, env=cluster) as head:
        address = world.root / "address"
        world.within(lambda: address.exists() or head.poll() is not None, 60.0, "no cluster")
        with world.started(
            DRIVER, address.read_text(), env={**SECRETS, "RAY_AUTH_MODE": "disabled"}
        ) as driver:
            world.await_trial(driver)
            readable = files_with("", world.root / "t", account)
            assert any("runtime_env_agent.log" in path for path in readable), "others can read no log of Ray"
            assert files_with(CANARY, world.root / "t", account) == []
            assert world.holding() == []
            driver.kill()
            driver.wait()
        assert world.holding() == []

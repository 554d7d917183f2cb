"""A local Ray is always one of our own, whatever Ray is there already."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.driver.backends import ray_auth
from autotune.driver.backends.local_ray import MARK
from autotune.driver.backends.ray_head import Head

pytestmark = pytest.mark.ray


def driver(tmp_path: Path, address: str = "") -> Any:
    from autotune.driver.backends.ray_tune import RayDriver

    return RayDriver(None, study_dir=tmp_path, isolation="redirect", address=address)


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests to Ray; none is started, and none is ended."""
    from autotune.driver.backends import ray_tune

    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(ray_tune.ray, "init", lambda **requested: calls.append(requested))
    monkeypatch.setattr(ray_tune.ray, "shutdown", lambda: None)
    return calls


def test_somebody_elses_ray_in_the_environment_is_not_joined(
    requested: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "theirs")
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    ray_auth.prepare("")
    one = driver(tmp_path)
    one.connect()
    one.close()
    assert requested[0]["address"] == "local"
    assert "RAY_ADDRESS" not in os.environ
    assert os.environ["RAY_AUTH_TOKEN"] != "theirs"
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    assert not Path(requested[0]["_temp_dir"]).exists()


def test_the_token_of_our_ray_lies_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed driver removes none."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "theirs")
    ray_auth.prepare("")
    first = os.environ["RAY_AUTH_TOKEN"]
    ray_auth.prepare("")
    assert (len(first), os.environ["RAY_AUTH_TOKEN"]) == (64, first), "Ray reads it once in a process"
    assert list(tmp_path.iterdir()) == []
    # The trials of a second search in this process do not get it.
    assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & set(ray_auth.without_ours(os.environ))
    theirs = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "theirs"}
    assert ray_auth.without_ours(theirs) == theirs


def test_a_ray_of_ours_is_requested_to_listen_on_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself exchanges a loopback address for one that other machines reach."""
    from ray._private import services

    from autotune.driver.backends import ray_tune

    seen: list[tuple[str, str]] = []

    def init(**requested: Any) -> None:
        address = requested["_node_ip_address"]
        seen.append((address, services.resolve_ip_for_localhost(address)))

    monkeypatch.setattr(ray_tune.ray, "init", init)
    monkeypatch.setattr(ray_tune.ray, "shutdown", lambda: None)
    before = services.resolve_ip_for_localhost
    one = driver(tmp_path)
    one.connect()
    one.close()
    assert seen == [("127.0.0.1", "127.0.0.1")]
    assert services.resolve_ip_for_localhost is before


def test_nobody_else_may_enter_the_folder_of_our_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray lets everybody into the folder that it is given, and Tune stages the user's environment there."""
    from autotune.driver.backends import ray_tune

    modes: list[int] = []

    def init(**requested: Any) -> None:
        theirs = Path(requested["_temp_dir"])
        theirs.mkdir(parents=True, exist_ok=True)
        theirs.chmod(0o777)  # as Ray does
        modes.extend(place.stat().st_mode & 0o777 for place in (theirs, *theirs.parents))

    monkeypatch.setattr(ray_tune.ray, "init", init)
    monkeypatch.setattr(ray_tune.ray, "shutdown", lambda: None)
    one = driver(tmp_path)
    one.connect()
    one.close()
    assert 0o700 in modes


def test_a_cluster_is_joined_where_its_address_is_given_and_then_nothing_of_it_is_made(
    requested: list[dict[str, Any]], tmp_path: Path
) -> None:
    one = driver(tmp_path, "10.1.2.3:6379")
    one.connect()
    one.close()
    assert requested[0]["address"] == "10.1.2.3:6379"
    assert "_temp_dir" not in requested[0]


@pytest.mark.parametrize("address", ["", "10.1.2.3:6379"])
def test_others_on_a_cluster_are_not_shown_the_secrets_of_our_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    from ray._private import utils

    from autotune.driver.backends import ray_tune

    shown: list[str] = []
    monkeypatch.setattr(sys, "argv", ["autotune", "search", "--", "--password", "CANARY", "--lr", "0.1"])
    monkeypatch.setattr(ray_tune.ray, "init", lambda **_: shown.append(utils.get_entrypoint_name()))
    monkeypatch.setattr(ray_tune.ray, "shutdown", lambda: None)
    before = utils.get_entrypoint_name
    one = driver(tmp_path, address)
    one.connect()
    one.close()
    assert shown == ["autotune search -- --password '<redacted>' --lr 0.1"]
    assert utils.get_entrypoint_name is before


def test_a_signal_while_ray_starts_reaches_our_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own would leave by SystemExit from wherever the driver is."""
    from ray._private import utils

    from autotune.driver.backends import ray_tune

    reported: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: reported.append(number))

    def init(**_: object) -> None:
        utils.set_sigterm_handler(lambda number, _: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ray_tune.ray, "init", init)
    monkeypatch.setattr(ray_tune.ray, "shutdown", lambda: None)
    try:
        one = driver(tmp_path)
        one.connect()
        one.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert reported == [signal.SIGTERM]


def test_what_never_comes_ends_the_search_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.driver.backends import ray_tune

    class Patient:
        remaining_s = 100.0
        stopped = ""

        def stop(self, why: str) -> None:
            self.stopped = why

    class Waits:
        def waiting(self) -> bool:
            return True

    class Unreadable:
        def look(self) -> str:
            raise OSError(24, "Too many open files")

    interrupted: list[bool] = []
    monkeypatch.setattr(ray_tune, "SCHEDULING_S", 1.0)
    monkeypatch.setattr(ray_tune.ray, "available_resources", lambda: {"CPU": 3.0, "memory": 1e9})
    monkeypatch.setattr(ray_tune._thread, "interrupt_main", lambda: interrupted.append(True))
    one = driver(tmp_path)
    one._session = session = Patient()
    one._needs = "1 CPU and 1 GPU"
    # A look that fails ends nothing, and not the watching either.
    one._own = Unreadable()
    one._searcher = waits = Waits()
    one._watch(waits)
    assert interrupted == [True]
    assert session.stopped == "backend"
    assert one._broken == "no trial could start within 1 s: it needs 1 CPU and 1 GPU, free are 3 CPU"


def test_a_cluster_whose_head_has_gone_ends_the_search_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would end this process after a minute, with nothing written."""
    from autotune.driver.backends import ray_tune

    class Session:
        remaining_s = 100.0
        stopped = ""

        def stop(self, why: str) -> None:
            self.stopped = why

    class Begun:
        def waiting(self) -> bool:
            return False

    server = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{server.getsockname()[1]}"
    context = SimpleNamespace(gcs_address=address)
    interrupted: list[bool] = []
    monkeypatch.setattr(ray_tune.ray, "init", lambda **_: None)
    monkeypatch.setattr(ray_tune.ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray_tune.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_tune.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray_tune, "Head", partial(Head, every_s=0.0))
    monkeypatch.setattr(ray_tune._thread, "interrupt_main", lambda: interrupted.append(True))
    one = driver(tmp_path, "ray-head.example:6379")
    lost: list[str] = []
    one._lost = lambda error: lost.append(str(error).splitlines()[0])
    one.connect()
    one._session = session = Session()
    one._searcher = begun = Begun()
    assert one._death() == ("", "")
    server.close()
    one._watch(begun)
    assert (interrupted, session.stopped) == ([True], "backend")
    assert one._broken == f"the head of the cluster ({address}) no longer answers"
    assert lost == [one._broken]
    one.close()


def test_tune_does_not_ask_a_head_for_what_it_would_only_print(tmp_path: Path) -> None:
    """A head that is gone would hold the loop for a minute in such a question."""
    from ray.tune.utils import resource_updater

    driver(tmp_path)
    assert resource_updater._ResourceUpdater()._refresh_period > 1e6


def test_the_interrupt_by_which_it_breaks_its_loop_is_known_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.driver.backends import ray_tune

    class Session:
        def stop(self, why: str) -> None:
            pass

    monkeypatch.setattr(ray_tune._thread, "interrupt_main", lambda: None)
    one = driver(tmp_path)
    one._session = Session()
    assert not one.breaks_off()
    one._break("the head of the local Ray has ended", "")
    assert [one.breaks_off(), one.breaks_off()] == [True, False]


def test_a_ray_that_does_not_start_leaves_no_mark_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.driver.backends import ray_tune
    from autotune.errors import RayUnavailable

    begun: list[subprocess.Popen[bytes]] = []

    def half(**requested: Any) -> None:
        words = ["gcs_server", "-S", "-c", "import time; time.sleep(120)", requested["_temp_dir"]]
        begun.append(subprocess.Popen(words, executable=sys.executable))
        until = time.monotonic() + 30
        while requested["_temp_dir"].encode() not in Path(f"/proc/{begun[0].pid}/cmdline").read_bytes():
            assert time.monotonic() < until
        raise RuntimeError("the node did not start in time")

    monkeypatch.setattr(ray_tune.ray, "init", half)
    monkeypatch.setattr(ray_tune.ray, "shutdown", lambda: None)
    one = driver(tmp_path)
    with pytest.raises(RayUnavailable):
        one.connect()
    one.close()
    assert MARK not in os.environ
    try:
        assert begun[0].wait(30) == -signal.SIGKILL
    finally:
        begun[0].kill()
        begun[0].wait()

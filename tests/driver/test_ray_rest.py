"""Tune's loop rests while trials run, and is woken by what ends; a Ray of ours does little beside them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.driver.backends import ray_auth

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True)
def prepared() -> None:
    """As a search does it: Ray reads how it authenticates when it is imported first."""
    ray_auth.prepare("")


class Counted:
    """A wakeup that counts how often it was waited for."""

    def __init__(self, *, rings: bool = False) -> None:
        self.waits = 0
        self.rings = rings

    def wait(self, _seconds: float) -> bool:
        self.waits += 1
        return self.rings


@pytest.fixture
def searcher() -> Any:
    from autotune.driver.backends.ray_tune import SessionSearcher

    class Session:
        def start(self, assignment: Any, *, node: str = "") -> None:
            pass

    one = SessionSearcher(Session(), lambda: None)
    one.bell = Counted()
    return one


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So much later than now, by the clock that never goes back."""
    now_s = time.monotonic() + seconds
    monkeypatch.setattr(time, "monotonic", lambda: now_s)


def test_it_rests_only_where_all_that_was_requested_has_begun(
    searcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(monkeypatch, 100.0)
    searcher.rest()
    assert searcher.bell.waits == 0, "nothing runs: something may be requested at any moment"
    searcher._open = {"one": object(), "two": object()}
    searcher.on_trial_result("one", {"begins": True})
    later(monkeypatch, 200.0)
    searcher.rest()
    assert searcher.bell.waits == 0, "the second has yet to begin"
    searcher.on_trial_result("two", {"begins": True})
    searcher.rest()
    assert searcher.bell.waits == 0, "a result of the other may have come with it"
    later(monkeypatch, 300.0)
    for _ in range(3):
        searcher.rest()
    assert searcher.bell.waits == 3


def test_it_stays_awake_for_a_while_after_the_bell(searcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher.bell.rings = True
    searcher._open = {"one": object()}
    searcher.on_trial_result("one", {"begins": True})
    later(monkeypatch, 100.0)
    for _ in range(3):
        searcher.rest()
    assert searcher.bell.waits == 1
    later(monkeypatch, 200.0)
    searcher.rest()
    assert searcher.bell.waits == 2


def test_a_searcher_without_a_bell_never_rests(searcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher.bell = None
    searcher._open = {"one": object()}
    searcher.on_trial_result("one", {"begins": True})
    later(monkeypatch, 100.0)
    searcher.rest()
    assert searcher.__getstate__() == {}


def test_a_ray_of_ours_is_quiet_unless_the_user_says_how_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.driver.backends import ray_tune

    seen: list[dict[str, str]] = []
    monkeypatch.setattr(ray_tune.ray, "init", lambda **_: seen.append(dict(os.environ)))
    monkeypatch.setattr(ray_tune.ray, "shutdown", lambda: None)
    for name in ray_tune.AT_REST:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_event_stats", "1")
    one = ray_tune.RayDriver(None, study_dir=tmp_path, isolation="redirect")
    one.connect()
    one.close()
    assert {name: seen[0][name] for name in ray_tune.AT_REST} == {**ray_tune.AT_REST, "RAY_event_stats": "1"}
    left = {name for name in ray_tune.AT_REST if name in os.environ}
    assert left == {"RAY_event_stats"}, "nothing of it reaches what is started later"


def test_what_a_ray_of_ours_runs_is_no_nicer_than_we_are(tmp_path: Path) -> None:
    import ray

    from autotune.driver.backends.ray_tune import RayDriver

    one = RayDriver(None, study_dir=tmp_path, isolation="redirect")
    one.connect()
    try:

        @ray.remote
        def niceness() -> int:
            return os.getpriority(os.PRIO_PROCESS, 0)

        assert ray.get(niceness.remote()) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        one.close()


class Ran:
    """A runner of one assignment, which ends at once."""

    def run(self, assignment: Any) -> Any:
        from autotune.launch.runner import TrialResult
        from autotune.model.trial import Failure, FailureKind

        failed = Failure(kind=FailureKind.CRASH_EXIT, message="as an example")
        return iter([TrialResult(trial=assignment, outcome=failed, seconds=1.0, notes=("of the runner",))])


@pytest.mark.parametrize(
    ("is_ours", "niceness", "reported"), [(False, 15, True), (False, 0, False), (True, 15, False)]
)
def test_how_nice_trials_are_on_the_ray_of_others_is_reported(
    monkeypatch: pytest.MonkeyPatch, *, is_ours: bool, niceness: int, reported: bool
) -> None:
    from autotune.driver.backends import ray_tune
    from autotune.launch.runner import TrialResult
    from autotune.model import wire

    monkeypatch.setattr(os, "getpriority", lambda *_: niceness)
    one = ray_tune.Launcher.__new__(ray_tune.Launcher)
    one._outcomes, one._bell, one._is_ours = Ran().run(0), "", is_ours
    notes = wire.loads(TrialResult, one.step()["ended"]).notes
    assert notes[0] == "of the runner"
    assert [f"niceness of {niceness}" in note for note in notes[1:]] == ([True] if reported else [])


def test_what_tune_writes_lies_in_the_study_and_goes_with_the_driver(tmp_path: Path) -> None:
    """After a kill it is there, where the next command and `clean` look."""
    from autotune.driver.backends.ray_tune import RayDriver

    (tmp_path / "tune" / "of_a_dead_one").mkdir(parents=True)
    one = RayDriver(None, study_dir=tmp_path, isolation="redirect")
    place = Path(one._snapshots())
    assert place == tmp_path / "tune"
    assert list(place.iterdir()) == []
    assert place.stat().st_mode & 0o777 == 0o700
    one.close()
    assert not place.exists()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The memory of a head of Ray, as far as it holds assignments."""
    from autotune.driver.backends import ray_tune

    kept: dict[str, bytes] = {}

    class Head:
        def internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, namespace: bytes) -> None:
            kept[key.decode()] = value

        def internal_kv_get(self, key: bytes, namespace: bytes) -> bytes | None:
            return kept.get(key.decode())

        def internal_kv_del(self, key: bytes, del_by_prefix: bool, namespace: bytes) -> None:
            kept.pop(key.decode(), None)

    monkeypatch.setattr(ray_tune, "internal_kv_get_gcs_client", Head)
    return kept


def an_assignment() -> Any:
    from autotune.model.config import Config
    from autotune.model.trial import Assignment, Fidelity, Launch, Segment

    launch = Launch(
        command=("python", "train.py"),
        script="/x/train.py",
        argv=("--password", "CANARY"),
        python="python",
        cwd="/x",
        env={"MY_API_TOKEN": "CANARY \udc80"},
    )
    fidelity = Fidelity(
        min_window_s=1.0, max_window_s=2.0, min_steps=1, target_width=0.1, setup_s=1.0, deadline_s=9.0
    )
    segment = Segment(trial=0, config=Config(), fidelity=fidelity)
    return Assignment(uid="t0000-a1-abcdef", study_id="x", attempt=1, launch=launch, segments=(segment,))


def test_an_assignment_is_in_rays_head_until_its_worker_collects_it(head: dict[str, bytes]) -> None:
    from autotune.driver.backends.ray_tune import collect, hand_over

    key = hand_over(an_assignment())
    assert "CANARY" not in key
    assert collect(key) == an_assignment()
    assert head == {}
    with pytest.raises(LookupError):
        collect(key)


def test_tune_is_given_a_key_and_what_no_worker_collects_is_withdrawn(head: dict[str, bytes]) -> None:
    from types import SimpleNamespace

    from autotune.driver.backends.ray_tune import SessionSearcher, collect
    from autotune.model.trial import Stage

    class Session:
        study = SimpleNamespace(trials=[SimpleNamespace(number=0, stage=Stage.BASELINE)])

        def ask(self) -> Any:
            return an_assignment()

        def start(self, assignment: Any, *, node: str = "") -> None:
            pass

        def lost(self, uid: str, why: str) -> None:
            pass

    searcher = SessionSearcher(Session(), lambda: None)
    given = [searcher.suggest(trial) for trial in ("one", "two", "three")]
    assert "CANARY" not in str(given)
    assert len(head) == 3
    collect(given[0]["assignment"])
    searcher.on_trial_result("one", {"begins": True})
    searcher.on_trial_complete("two")
    assert list(head) == [given[2]["assignment"]]
    searcher.withdraw_all()
    assert head == {}


def test_tune_copies_no_variable_of_the_driver_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray logs them where every user of the machine can read it."""
    from ray.tune.execution import class_cache

    from autotune.driver.backends import ray_tune

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "CANARY")
    assert "AWS_SECRET_ACCESS_KEY" in class_cache.ENV_VARS_TO_PROPAGATE, "Tune's list has changed"
    copied: list[Any] = []
    monkeypatch.setattr(class_cache.ray, "remote", lambda **more: copied.append(more) or (lambda cls: cls))
    with ray_tune._replaced("ENV_VARS_TO_PROPAGATE", ray_tune.HANDED_ON, module=ray_tune._ACTORS):
        class_cache._ActorClassCache().get(object)
    assert copied
    assert "CANARY" not in str(copied)

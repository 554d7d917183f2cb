"""Whoever of a trial's processes is killed, nothing is left; and each layer that sees to it is needed."""

from __future__ import annotations

import os

import pytest
from faultbed import kills

from autotune.launch import sweep


def can_group() -> bool:
    folder = sweep.make_group(f"probe-{os.getpid()}")
    sweep.end_group(folder)
    return bool(folder)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BUSY_S = 10.0
"""Two seconds are promised; here other tests may run beside."""

NO_GROUP = ("folder = sweep.make_group(self.uid)", 'folder = ""')
"""Where a control group can be made, it ends what the layers before it have left."""

NO_KEEPER = ("sweep.send(sweep.descendants(os.getpid()), signal.SIGKILL)", "return 1")


@pytest.mark.parametrize("case", kills.sample(), ids=lambda case: case["key"])
def test_nothing_survives_a_kill(injected, is_clean, case) -> None:
    is_clean(injected(kills, case, promise_s=BUSY_S))


def case(shape: str, victim: str) -> dict[str, object]:
    return {"key": f"{shape}/{victim}", "shape": shape, "victim": victim, "starting": False}


def test_without_the_life_pipe_a_trial_survives_its_runner(injected, crippled_guard) -> None:
    crippled_guard(("fds.append(self.life_fd)", "pass"))
    count = injected(kills, case("forks", "runner"), promise_s=1.5)
    assert count.survivors >= 3
    assert not count.survived


def test_without_the_kill_after_the_request_a_deaf_trial_survives(injected, crippled_guard) -> None:
    crippled_guard(
        (
            'self._signal_until_gone(signal.SIGKILL, float(self.spec.get("reap_s", 10.0)), repeat=True)',
            "pass",
        ),
        ('sweep.end_marked(self.uid, bound_s=float(self.spec.get("reap_s", 10.0)))', "[]"),
        NO_GROUP,
    )
    assert injected(kills, case("deaf", "runner"), promise_s=3.0).survivors


def test_without_the_keeper_an_unmarked_daemon_survives_the_guard(injected, crippled_guard) -> None:
    crippled_guard(NO_KEEPER, NO_GROUP)
    assert injected(kills, case("bare", "guard by KILL"), promise_s=1.5).survivors == 1


def test_without_keeper_and_marks_a_daemon_survives_the_guard(
    injected, crippled_guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    crippled_guard(NO_KEEPER, NO_GROUP)
    monkeypatch.setattr("autotune.launch.process.sweep.end_marked", lambda *_, **__: [])
    assert injected(kills, case("daemon", "guard by KILL"), promise_s=1.5).survivors


@pytest.mark.skipif(not can_group(), reason="no control group can be made here")
def test_with_its_group_alone_an_unmarked_daemon_is_ended(injected, crippled_guard) -> None:
    crippled_guard(NO_KEEPER)
    assert not injected(kills, case("bare", "guard by KILL"), promise_s=BUSY_S).survivors

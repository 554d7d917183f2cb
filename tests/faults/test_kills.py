"""Whoever of a trial's processes is killed, nothing is left; and each layer that sees to it is needed."""

from __future__ import annotations

import os

import pytest
from faultbed import kills

from autotune.launch.guard import process_tree


def can_group() -> bool:
    folder = process_tree.make_group(f"probe-{os.getpid()}")
    process_tree.end_group(folder)
    return bool(folder)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BUSY_S = 30.0
"""Two seconds are promised, and the fault suite holds it to them; here other tests may run beside."""

NO_GROUP = ("folder = process_tree.make_group(self.uid)", 'folder = ""')
"""Where a control group can be made, it ends what the layers before it have left."""

NO_KEEPER = ("process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)", "return 1")


@pytest.mark.parametrize("case", kills.sample(), ids=lambda case: case["key"])
def test_nothing_survives_a_kill(injected, is_clean, case) -> None:
    is_clean(injected(kills, case, promise_s=BUSY_S))


def case(shape: str, victim: str) -> dict[str, object]:
    return {"key": f"{shape}/{victim}", "shape": shape, "victim": victim, "starting": False}


NOT_TOLD = (
    "_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)\n    _let_notices_pass()",
    "_let_notices_pass()",
)
"""The kernel signals the launcher's death to the keeper."""


def test_without_the_life_pipe_and_the_kernels_word_a_trial_survives_its_runner(
    injected, crippled_guard
) -> None:
    crippled_guard(("fds.append(self.life_fd)", "pass"), NOT_TOLD)
    count = injected(kills, case("forks", "runner"), promise_s=1.5)
    assert count.survivors >= 3
    assert not count.survived


def test_with_the_life_pipe_alone_a_fork_of_the_runner_keeps_a_trial_alive(injected, crippled_guard) -> None:
    crippled_guard(NOT_TOLD)
    assert injected(kills, case("forks", "runner, pipe kept"), promise_s=1.5).survivors >= 3


def test_without_a_look_at_the_pipe_a_deaf_trial_outlives_its_runner_by_its_grace(
    injected, crippled_guard
) -> None:
    crippled_guard(("if not repeat and not alone and self._is_alone():", "if False:"), NOT_TOLD)
    assert injected(kills, case("deaf", "runner in grace"), promise_s=1.5).survivors


def test_without_the_kill_after_the_request_a_deaf_trial_survives(injected, crippled_guard) -> None:
    crippled_guard(
        ("self._signal_until_gone(signal.SIGKILL, reap_s, repeat=True)", "pass"),
        ("process_tree.end_marked(self.uid, bound_s=max(least_s, until_s - time.monotonic()))", "[]"),
        NO_GROUP,
    )
    assert injected(kills, case("deaf", "runner"), promise_s=3.0).survivors


@pytest.mark.usefixtures("unfindable")
def test_without_the_keeper_an_unmarked_daemon_survives_the_guard(injected, crippled_guard) -> None:
    crippled_guard(NO_KEEPER, NO_GROUP)
    assert injected(kills, case("bare", "guard by KILL"), promise_s=1.5).survivors == 1


@pytest.mark.usefixtures("unfindable")
def test_without_keeper_and_marks_a_daemon_survives_the_guard(
    injected, crippled_guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    crippled_guard(NO_KEEPER, NO_GROUP)
    monkeypatch.setattr("autotune.launch.guard.process_tree.end_marked", lambda *_, **__: [])
    assert injected(kills, case("daemon", "guard by KILL"), promise_s=1.5).survivors


@pytest.mark.usefixtures("unfindable")
@pytest.mark.skipif(not can_group(), reason="no control group can be made here")
def test_with_its_group_alone_an_unmarked_daemon_is_ended(injected, crippled_guard) -> None:
    crippled_guard(NO_KEEPER)
    assert not injected(kills, case("bare", "guard by KILL"), promise_s=BUSY_S).survivors


def test_what_leaves_another_in_its_place_is_ended_without_a_group_too(injected, crippled_guard) -> None:
    crippled_guard(NO_GROUP)
    assert not injected(kills, case("rabbits", "runner"), promise_s=BUSY_S).survivors


def test_by_its_namespace_or_record_alone_an_unmarked_daemon_is_ended(injected, crippled_guard) -> None:
    crippled_guard(NO_KEEPER, NO_GROUP)
    assert not injected(kills, case("bare", "guard by KILL"), promise_s=BUSY_S).survivors


@pytest.mark.usefixtures("unfindable")
def test_without_any_kill_it_would_live_on(injected, crippled_guard, monkeypatch: pytest.MonkeyPatch) -> None:
    # The keeper and the launcher kill as well, and sometimes catch the one that is alive.
    monkeypatch.setattr("autotune.launch.guard.process_tree.end_marked", lambda *_, **__: [])
    crippled_guard(
        ("self._signal_until_gone(signal.SIGTERM, grace_s, repeat=False)", "pass"),
        ("self._signal_until_gone(signal.SIGKILL, reap_s, repeat=True)", "pass"),
        ("process_tree.end_marked(self.uid, bound_s=max(least_s, until_s - time.monotonic()))", "[]"),
        NO_GROUP,
        NO_KEEPER,
    )
    assert injected(kills, case("rabbits", "script"), promise_s=1.5).survivors

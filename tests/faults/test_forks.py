"""Whoever of a forked trial's processes is killed, nothing is left, the fork server included."""

from __future__ import annotations

import pytest
from faultbed import forks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BUSY_S = 30.0
"""Two seconds are promised, and the fault suite holds it to them; here other tests may run beside."""


@pytest.mark.parametrize("case", forks.sample(), ids=lambda case: case["key"])
def test_nothing_survives_a_kill(injected, is_clean, case) -> None:
    is_clean(injected(forks, case, promise_s=BUSY_S))


@pytest.mark.usefixtures("unfindable")
def test_without_the_keeper_an_unmarked_daemon_of_a_forked_trial_survives_the_guard(
    injected, crippled_guard
) -> None:
    crippled_guard(
        ("process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)", "return 1"),
        # Where a control group can be made, it ends what the layers before it have left.
        ("folder = process_tree.make_group(self.uid)", 'folder = ""'),
    )
    bare = {"key": "bare/guard by KILL", "shape": "bare", "victim": "guard by KILL", "starting": False}
    assert injected(forks, bare, promise_s=1.5).survivors

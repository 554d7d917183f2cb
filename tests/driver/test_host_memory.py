"""What trials may take of a machine's memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from session_fakes import spec

from autotune.driver import host_memory

GIB = 2**30


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(devices=(), has_cuda=False, memory_bytes=64 * GIB)
    monkeypatch.setattr(host_memory, "host_facts", lambda: made)
    return made


def test_trials_that_run_at_once_share_what_is_free(host: SimpleNamespace) -> None:
    """Each with all of it, they would take the machine down together."""
    free = 40 * GIB
    under_ray = replace(spec(), driver="ray")
    assert host_memory.trial_limit(replace(spec(), driver="inline", concurrency=4), free) == free
    assert host_memory.trial_limit(under_ray, free) == free
    assert host_memory.trial_limit(replace(under_ray, concurrency=4), free) == 10 * GIB
    host.devices, host.has_cuda = (object(),) * 8, True
    assert host_memory.trial_limit(under_ray, free) == 5 * GIB


def test_the_users_own_bound_holds_on_a_cpu_and_is_the_devices_elsewhere(host: SimpleNamespace) -> None:
    bounded = replace(spec(), driver="inline", max_memory_bytes=6 * GIB)
    assert host_memory.trial_limit(bounded, 40 * GIB) == 6 * GIB
    assert host_memory.trial_limit(bounded, 4 * GIB) == 4 * GIB
    host.has_cuda = True
    assert host_memory.trial_limit(bounded, 40 * GIB) == 40 * GIB


def test_of_a_clusters_nodes_this_machine_says_nothing_but_the_users_own_bound(host: SimpleNamespace) -> None:
    """They may have ten times as much, or a tenth of it."""
    joined = replace(spec(), driver="ray", ray_address="ray://head:10001", concurrency=4)
    assert host_memory.free_for(joined) == 0
    assert host_memory.trial_limit(joined, 0) == 0
    bounded = replace(joined, max_memory_bytes=6 * GIB)
    assert host_memory.trial_limit(bounded, host_memory.free_for(bounded)) == 6 * GIB
    assert host_memory.free_for(replace(joined, driver="inline")) > 0


@pytest.mark.parametrize(
    ("allowed", "trials", "limit"),
    [(0, 1, 90), (0, 4, 22), (50, 1, 50), (50, 4, 22), (200, 1, 90), (0, 0, 90)],
)
def test_a_node_gives_a_trial_its_share_and_never_more_than_is_allowed(
    monkeypatch: pytest.MonkeyPatch, allowed: int, trials: int, limit: int
) -> None:
    monkeypatch.setattr(host_memory, "memory_limit_bytes", lambda: 100)
    assert host_memory.node_limit(allowed, trials) == limit


def test_what_others_hold_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < host_memory.free_memory() < 2**60
    monkeypatch.setattr(host_memory, "memory_room_bytes", lambda: 1000)
    assert host_memory.free_memory() == 900

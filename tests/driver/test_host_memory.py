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


def test_of_a_cluster_nobody_here_knows_who_runs_where(host: SimpleNamespace) -> None:
    joined = replace(spec(), driver="ray", ray_address="ray://head:10001", concurrency=4)
    assert host_memory.slots(joined) == 1
    assert host_memory.trial_limit(joined, 40 * GIB) == 40 * GIB


def test_what_others_hold_is_not_free(host: SimpleNamespace) -> None:
    host.memory_bytes = 2**60
    assert 0 < host_memory.free_memory() < 0.9 * 2**60
    host.memory_bytes = 1000
    assert host_memory.free_memory() == 900

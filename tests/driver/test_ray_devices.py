"""Which devices a trial sees under Ray."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from session_fakes import spec

from autotune.model.config import Config
from autotune.model.trial import Assignment, Fidelity, Launch, Segment

pytestmark = pytest.mark.ray

FIDELITY = Fidelity(min_window_s=1, max_window_s=1, min_steps=1, target_width=0.1, setup_s=1, deadline_s=1)


def assignment(**env: str) -> Assignment:
    launch = Launch(command=("p", "s"), script="s", argv=(), python="p", cwd="/", env=env)
    segment = Segment(trial=0, config=Config(), fidelity=FIDELITY)
    return Assignment(uid="u", study_id="s", attempt=1, launch=launch, segments=(segment,))


@pytest.mark.parametrize(
    ("given", "ids", "pinned", "seen"),
    [
        ("3", [3], "", "3"),
        ("3", [3], "2", "2"),  # a pair runs where its other half ran
        ("", [], "2", "0,1"),  # no device of Ray's: the user's own choice stands
    ],
)
def test_a_trial_sees_the_device_that_is_meant_for_it(
    monkeypatch: pytest.MonkeyPatch, given: str, ids: list[int], pinned: str, seen: str
) -> None:
    from autotune.driver.backends import ray_tune

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    monkeypatch.setattr(ray_tune.ray, "get_gpu_ids", lambda: ids)
    found = ray_tune.on_our_devices(assignment(CUDA_VISIBLE_DEVICES="0,1"), pinned)
    assert found.launch.env["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize(
    ("address", "visible", "gpus", "pinned"),
    [
        ("", None, 1, "0"),
        ("", "2,3", 1, "2"),
        ("", "GPU-7ab,GPU-8cd", 1, "GPU-7ab"),
        ("", None, 2, "0,1"),  # processes that train together have one each
        ("", "4, 2,3", 2, "4,2"),
        ("auto", "2,3", 1, ""),
    ],
)
def test_pairs_are_pinned_where_every_device_is_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, address: str, visible: str | None, gpus: int, pinned: str
) -> None:
    from autotune.driver.backends.ray_tune import RayDriver

    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    driver = RayDriver(None, study_dir=tmp_path, isolation="redirect", address=address)  # type: ignore[arg-type]
    assert driver._pinned_devices(gpus) == pinned


@pytest.mark.parametrize(
    ("at_once", "gpus", "allowed", "limit"),
    [
        (1, [], 0, 900),
        (3, [], 0, 450),  # the node has two CPUs
        (16, [0], 0, 225),  # and four devices
        (2, [0], 0, 450),
        (16, [0], 100, 100),
    ],
)
def test_on_a_cluster_a_trial_has_its_share_of_the_memory_of_its_node(
    monkeypatch: pytest.MonkeyPatch, at_once: int, gpus: list[int], allowed: int, limit: int
) -> None:
    from autotune.driver import host_memory
    from autotune.driver.backends import ray_tune

    nodes = [
        {"NodeID": "other", "Resources": {"CPU": 64.0, "GPU": 8.0}},
        {"NodeID": "here", "Resources": {"CPU": 2.0, "GPU": 4.0}},
    ]
    monkeypatch.setattr(host_memory, "memory_limit_bytes", lambda: 1000)
    monkeypatch.setattr(ray_tune.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_tune.ray, "get_gpu_ids", lambda: gpus)
    monkeypatch.setattr(
        ray_tune.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here")
    )
    made = replace(assignment(), memory_limit_bytes=allowed)
    assert ray_tune.on_this_node(made, at_once).memory_limit_bytes == limit


@pytest.mark.parametrize(
    ("requested", "wait_s"),
    [
        ({}, 300.0),  # as long as for a device
        ({"wait_s": 1800.0}, 1800.0),
        ({"share": True}, 0.0),
    ],
)
def test_on_a_cluster_each_trial_claims_its_node_and_waits_as_for_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, requested: dict[str, Any], wait_s: float
) -> None:
    from autotune.driver.backends import ray_tune
    from autotune.model import wire

    request = ray_tune.node_request(replace(spec(7200.0), **requested))
    assert (request.study_id, request.label, request.wait_s) == ("01STUDY", "train", wait_s)
    made: dict[str, Any] = {}
    monkeypatch.setattr(ray_tune, "DeviceCare", lambda **more: made.update(more))
    monkeypatch.setattr(ray_tune, "on_this_node", lambda assignment, _: assignment)
    monkeypatch.setattr(ray_tune, "collect", lambda key: assignment())
    monkeypatch.setattr(ray_tune.ray, "get_gpu_ids", list)
    config = {
        "assignment": "key",
        "confirms": False,
        "pinned_device": "",
        "is_ours": False,
        "at_once": 1,
        "study_dir": str(tmp_path),
        "isolation": "redirect",
        "bell": "",
        "request": wire.dumps(request),
    }
    worker = ray_tune.Launcher.__new__(ray_tune.Launcher)
    worker.setup(config)
    worker._our_runner()
    assert made == {"request": request}
    worker.setup({**config, "is_ours": True, "request": ""})
    worker._our_runner()
    assert made == {"request": None}

"""A Ray worker that is killed costs the search one attempt, and leaves nothing behind."""

from __future__ import annotations

import os

import pytest
from faultbed import rays

from autotune.driver.backends.local_ray import OwnRay, claim
from autotune.driver.backends.ray_keeper import Keeper
from autotune.driver.loop.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1800)]

(WORKER,) = rays.sample()


def test_a_search_goes_on_without_its_worker(injected, is_clean) -> None:
    is_clean(injected(rays, WORKER))


def test_without_asking_again_what_a_worker_lost_it_is_missing(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "lost", lambda *_: None)
    count = injected(rays, {**WORKER, "key": "forgotten"}, end_s=30.0)
    assert not count.survived
    assert any("reported were" in note for note in count.notes)


def test_without_looking_at_its_ray_the_search_has_no_answer_when_it_dies(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnRay, "look", lambda *_: "")
    count = injected(rays, {"key": "unseen", "victim": "head"}, end_s=40.0)
    assert not count.survived
    assert any("did not end" in note or "answer was not written" in note for note in count.notes), count


def test_a_killed_driver_leaves_nothing_of_its_ray(injected, is_clean) -> None:
    is_clean(injected(rays, {"key": "driver", "victim": "driver"}))


def test_without_a_keeper_the_ray_of_a_killed_driver_leaves_its_folder(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeper, "__init__", lambda self, *place: setattr(self, "_claim", claim(*place)))
    monkeypatch.setattr(Keeper, "close", lambda self: os.close(self._claim))
    count = injected(rays, {"key": "left alone", "victim": "driver"})
    assert not count.survived
    assert any("a folder" in note for note in count.notes), count

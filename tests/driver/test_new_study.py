"""A study is created under a label that no other one has, however many begin at once."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from session_fakes import spec

from autotune.driver import new_study
from autotune.driver.new_study import create_study
from autotune.model.study import VERIFY, StudySpec
from autotune.store.fold import fold
from autotune.store.paths import new_id, studies


def requested() -> StudySpec:
    return replace(spec(), study_id=new_id(), label="train-1127-1002")


def test_two_that_begin_in_the_same_second_get_different_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would else look for a free label before the other has journaled its own."""
    real, both_have_looked = new_study.untaken_label, threading.Barrier(2)

    def untaken(label: str) -> str:
        found = real(label)
        # One at a time: the other one does not come this far meanwhile.
        with contextlib.suppress(threading.BrokenBarrierError):
            both_have_looked.wait(0.5)
        return found

    monkeypatch.setattr(new_study, "untaken_label", untaken)

    def create(given: StudySpec) -> str:
        made, _, journal = create_study(given, wall_s=1.0)
        journal.close()
        return made.label

    with ThreadPoolExecutor(2) as pool:
        labels = sorted(pool.map(create, [requested(), requested()]))
    assert labels == ["train-1127-1002", "train-1127-1002-2"]
    assert sorted(study.label for study in studies()) == labels


def test_the_first_event_holds_the_settled_label(monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ("train-1127-1002", "train-1127-1002-2"):
        made, folder, journal = create_study(requested(), wall_s=7.0)
        with journal:
            study = fold(journal.entries())
            assert (study.spec.label, study.created) == (label, 7.0)
            assert study.spec == made
            assert journal.pending("mlflow"), "the tracker receives it"
        assert folder.name == made.study_id


def test_a_verification_is_not_sent_to_the_tracker() -> None:
    _, _, journal = create_study(replace(requested(), purpose=VERIFY), wall_s=1.0)
    with journal:
        assert list(journal.pending("mlflow")) == []


def test_a_home_in_which_nothing_can_be_locked_still_takes_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError("no lock file")

    monkeypatch.setattr(new_study, "opened", refuse)
    made, _, journal = create_study(requested(), wall_s=1.0)
    journal.close()
    assert made.label == "train-1127-1002"


def test_a_process_that_was_stopped_while_it_held_the_lock_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(new_study, "LOCK_S", 0.05)
    create_study(requested(), wall_s=1.0)[2].close()
    with new_study._locked_labels():
        made, _, journal = create_study(requested(), wall_s=1.0)
    journal.close()
    assert made.label == "train-1127-1002-2"

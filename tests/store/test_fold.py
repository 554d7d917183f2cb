"""Events fold to a study; any prefix does, and outcomes are final."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import JournalDamaged
from autotune.model.config import Config
from autotune.model.space import SearchSpace
from autotune.model.trial import Stage, TrialState
from autotune.model.wire import to_wire
from autotune.store.fold import fold
from autotune.store.journal import Entry, Journal

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made


def entry(seq: int, event: made.Event) -> Entry:
    return Entry(seq=seq, uid=event.uid, epoch=1, kind=event.kind, data=to_wire(event.data), wall_s=1.0)


def entries(*more: made.Event, **changes: object) -> list[Entry]:
    return [entry(i, e) for i, e in enumerate([*made.events(**changes), *more], start=1)]


def test_a_whole_journal_folds_to_the_study_it_reports() -> None:
    study = fold(entries())
    assert study.spec == made.spec()
    assert [t.outcome for t in study.trials] == [outcome for _, _, outcome in made.OUTCOMES]
    assert [t.config for t in study.trials] == [config for _, config, _ in made.OUTCOMES]
    assert study.facts == replace(made.FACTS, run=made.RUN)
    assert (study.elapsed_s, study.stopped, study.created) == (85.0, "finished", made.WALL_S)
    assert study.trials[3].finished_s == 48.0
    assert study.trials[3].seconds == 10.0


@given(st.integers(min_value=1, max_value=len(entries())))
@settings(max_examples=40, deadline=None)
def test_any_prefix_folds_and_can_be_resumed(length: int) -> None:
    prefix = entries()[:length]
    study = fold(prefix)
    reported = [e.data["number"] for e in prefix if e.kind == "finished"]
    requested = [e.data["trial"]["number"] for e in prefix if e.kind == "proposed"]
    assert [t.number for t in study.finished()] == reported
    assert [t.number for t in study.open_trials] == [n for n in requested if n not in reported]
    # Resume: a new life, the open trial given up and proposed again, the rest of the story as before.
    again = list(prefix)

    def add(kind: str, uid: str, data: dict[str, object]) -> None:
        again.append(entry(len(again) + 1, made.Event(kind, uid, data)))

    add("opened", "opened/2", {"spec": made.spec(), "wall_s": 2.0e9, "host": "h", "pid": 1, "version": "1"})
    if not any(e.kind == "inspected" for e in prefix):
        add("inspected", "inspected/1", {"facts": made.FACTS})
    for trial in study.open_trials:
        add(
            "requeued",
            f"requeued/{trial.number}/1",
            {"number": trial.number, "attempt": 1, "reason": "killed"},
        )
    for number, (_, _, outcome) in enumerate(made.OUTCOMES):
        if number in reported:
            continue
        attempt = 2 if number in requested else 1
        if number not in requested:
            add(
                "proposed",
                f"proposed/{number}/1",
                next(e.data for e in made.events() if e.uid == f"proposed/{number}/1"),
            )
        data = {"number": number, "attempt": attempt, "outcome": outcome, "seconds": 10.0}
        facts = made.RUN if number == 0 else None
        add(
            "finished",
            f"finished/{number}/{attempt}",
            {**data, "elapsed_s": 12.0 * (number + 1), "facts": facts},
        )
    ended = fold(again)
    assert [t.outcome for t in ended.trials] == [outcome for _, _, outcome in made.OUTCOMES]
    assert not ended.open_trials
    assert ended.stopped == ""
    assert ended.created == made.WALL_S
    assert ended.facts == replace(made.FACTS, run=made.RUN)


def test_the_journal_gives_back_the_same_study_as_the_events(tmp_path: Path) -> None:
    with Journal.create(tmp_path, ballast_bytes=0, environ={}) as journal:
        for event in made.events():
            journal.append(event.kind, event.uid, event.data, outbox=event.outbox)
        assert fold(journal.entries()) == fold(entries())
        assert [r.op for r in journal.pending("mlflow")] == [
            "study_began",
            *["trial_ended"] * 7,
            "study_ended",
        ]


def reported(number: int, attempt: int, rate: float) -> made.Event:
    data = {
        "number": number,
        "attempt": attempt,
        "outcome": made.measured(rate),
        "seconds": 1.0,
        "elapsed_s": 99.0,
    }
    return made.Event("finished", f"finished/{number}/{attempt}", data)


def test_an_outcome_is_final() -> None:
    study = fold(
        entries(reported(3, 2, 1.0), made.Event("requeued", "r", {"number": 3, "attempt": 1, "reason": ""}))
    )
    assert study.trials[3].outcome == made.OUTCOMES[3][2]
    assert study.trials[3].state is TrialState.FINISHED
    assert study.elapsed_s == 99.0


def test_an_outcome_of_an_attempt_that_was_given_up_changes_nothing() -> None:
    begun = entries(stopped="", outcomes=made.OUTCOMES[:3])[:-1]
    n = len(begun)
    requeued = entry(n + 1, made.Event("requeued", "r", {"number": 2, "attempt": 1, "reason": "lost"}))
    late = entry(n + 2, reported(2, 1, 5.0))
    study = fold([*begun, requeued, late])
    assert (study.trials[2].state, study.trials[2].attempt) == (TrialState.WAITING, 2)
    fresh = entry(n + 3, reported(2, 2, 7.0))
    assert fold([*begun, requeued, late, fresh]).trials[2].outcome == made.measured(7.0)


def test_a_cycle_that_was_cut_stays_so_for_every_later_life() -> None:
    cuts = [("confirm", 2), ("ablate", 1), ("confirm", 3)]
    events = [made.Event("cut", f"cut/{s}/{g}", {"stage": s, "group": g}) for s, g in cuts]
    assert fold(entries(*events)).cut == {(Stage.CONFIRM, 2), (Stage.ABLATE, 1), (Stage.CONFIRM, 3)}
    assert fold(entries()).cut == frozenset()


def test_the_space_is_built_once_the_baseline_has_shown_its_facts() -> None:
    calls: list[object] = []

    def build(spec: object, facts: object) -> tuple[SearchSpace, dict[str, str]]:
        calls.append((spec, facts))
        return SearchSpace(dimensions={}, fixed=Config({"a": 1})), {"tf32": "There is no CUDA device."}

    assert fold(entries()[:4], build=build).space is None
    assert calls == []
    study = fold(entries(), build=build)
    assert len(calls) == 1
    assert study.space is not None
    assert study.refusals == {"tf32": "There is no CUDA device."}


def test_a_newer_version_s_events_and_fields_are_passed_over() -> None:
    strange = Entry(seq=99, uid="x", epoch=1, kind="teleported", data={"to": "mars"}, wall_s=0.0)
    known = entries()
    opened = replace(known[0], data={**known[0].data, "mood": "good"})
    assert fold([opened, *known[1:], strange]) == fold(known)


def test_an_event_that_does_not_hold_what_its_kind_says_is_located() -> None:
    bad = Entry(seq=7, uid="finished/0/1", epoch=1, kind="finished", data={"number": 0}, wall_s=0.0)
    with pytest.raises(JournalDamaged, match=r"event 7 \(finished/0/1\)"):
        fold([*entries()[:4], bad])
    with pytest.raises(JournalDamaged, match="no `opened` event"):
        fold([])

"""Every core value survives the way to JSON and back, exactly."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import typing
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.answer.answer import Answer
from autotune.model.change import Change, Env, Flag, Keyword, Patch
from autotune.model.config import Config, Value
from autotune.model.facts import REPORTED, Facts, InputFacts, RunFacts
from autotune.model.measurement import Estimate, Measurement, Memory
from autotune.model.study import StudySpec
from autotune.model.trial import Assignment, Failure, FailureKind, Outcome, Trial
from autotune.model.wire import OLD_FIELDS, dumps, from_wire, loads, to_wire

TEXT = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=12)
NUMBERS = st.floats(allow_nan=False)
VALUES = st.one_of(
    st.booleans(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
KNOBS = st.from_regex(r"[a-z]{1,8}", fullmatch=True)

st.register_type_strategy(Config, st.dictionaries(KNOBS, VALUES, max_size=4).map(Config))
# Without this a Config, being a Mapping, is drawn for any field of that type.
st.register_type_strategy(
    Mapping,
    lambda kind: st.dictionaries(*(st.from_type(part) for part in typing.get_args(kind)), max_size=3).map(
        dict
    ),
)
# Without this texts, bytes and whatever else is a Sequence are drawn.
st.register_type_strategy(
    Sequence, lambda kind: st.lists(st.from_type(typing.get_args(kind)[0]), max_size=3).map(tuple)
)
st.register_type_strategy(float, NUMBERS)
st.register_type_strategy(str, TEXT)


def core_dataclasses() -> list[type]:
    found: list[type] = []
    for package in ("model", "statistics", "loss", "compare", "answer", "source"):
        home = importlib.import_module(f"autotune.{package}")
        modules = [
            importlib.import_module(f"{home.__name__}.{info.name}")
            for info in pkgutil.iter_modules(home.__path__)
        ]
        found += [
            thing
            for module in modules
            for thing in vars(module).values()
            if isinstance(thing, type)
            and dataclasses.is_dataclass(thing)
            and thing.__module__ == module.__name__
        ]
    return found


def is_plain(kind: type) -> bool:
    """Holds no function, no space and nothing derived from one: those never cross a border."""
    words = ("Callable", "LateHarm", "SearchSpace", "Study]", "model.study.Study'", "transfer.PredictedRate")
    return not any(word in str(hint) for hint in typing.get_type_hints(kind).values() for word in words)


PLAIN = [kind for kind in core_dataclasses() if is_plain(kind)]


def test_nothing_of_the_core_was_left_out() -> None:
    names = {kind.__name__ for kind in PLAIN}
    assert {
        "StudySpec",
        "Trial",
        "Measurement",
        "Failure",
        "Facts",
        "Answer",
        "Change",
        "LossVerdict",
    } <= names
    never = {"SearchSpace", "Study", "Unshown", "Beliefs", "_Kin"}
    assert {kind.__name__ for kind in core_dataclasses()} - names <= never


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_value_survives_the_way_there_and_back(kind: type, data: st.DataObject) -> None:
    value = data.draw(st.from_type(kind))
    text = dumps(value)
    again = loads(kind, text)
    assert again == value
    assert dumps(again) == text
    assert "\n" not in text
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))


@pytest.mark.parametrize(
    "kind", [StudySpec, Trial, Facts, Assignment, Answer], ids=lambda kind: kind.__name__
)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_fields_of_a_newer_writer_are_ignored(kind: type, data: st.DataObject) -> None:
    value = data.draw(st.from_type(kind))
    wired = {**to_wire(value), "added_later": {"x": [1]}}
    assert from_wire(kind, wired) == value


def test_a_run_that_was_written_before_a_field_was_known_is_read() -> None:
    one = Estimate(value=1.0, low=0.9, high=1.1, n=8, unit="steps/s")
    made = Measurement(throughput=one, step_time_s=one, data_wait_frac=0.0, memory=Memory(), compile_s=3.0)
    written = to_wire(made)
    assert written.pop("late_compile_s") == 0.0
    assert from_wire(Measurement, written) == made


def test_names_of_older_journals_are_read_as_today_s() -> None:
    inputs = {"_": "InputFacts", "said": 32, "dims": [1], "shape": [16, 32], "told": 0.5}
    run = from_wire(RunFacts, {"_": "RunFacts", "samples_source": "told", "inputs": inputs})
    assert run.samples_source == REPORTED
    assert run.inputs == InputFacts(batch_size=32, dims=(1,), shape=(16, 32), reported_per_sample=0.5)


def test_an_alias_of_a_field_names_a_field_of_today() -> None:
    fields = {kind.__name__: {f.name for f in dataclasses.fields(kind)} for kind in core_dataclasses()}
    assert all(new in fields[kind] and old not in fields[kind] for (kind, old), new in OLD_FIELDS.items())


@pytest.mark.parametrize("spelling", [Flag(("--a", "--b")), Env("A"), Keyword("torch.x", "y"), Patch()])
def test_the_way_of_a_change_keeps_its_class(spelling: object) -> None:
    change = Change(knob="k", value=1, spelling=spelling)  # type: ignore[arg-type]
    assert loads(Change, dumps(change)) == change


@pytest.mark.parametrize("value", [True, 1, 1.0, "1", 0, False, -0.5])
def test_the_type_of_a_knob_s_value_is_kept(value: Value) -> None:
    again = loads(Config, dumps(Config({"knob": value})))
    assert again == Config({"knob": value})
    assert type(again["knob"]) is type(value)


def test_every_kind_of_failure_comes_back_and_stays_an_outcome() -> None:
    for kind in FailureKind:
        failure = Failure(kind=kind, message="m", evidence={"exit": -9, "t": 1.5, "log_tail": "a\nb"})
        assert from_wire(typing.cast("type[Failure]", Outcome), json.loads(dumps(failure))) == failure


def test_what_is_not_finite_is_still_strict_json() -> None:
    text = dumps({"a": float("inf"), "b": float("-inf"), "c": float("nan")})
    assert "Infinity" not in text
    assert "NaN" not in text
    again = from_wire(typing.cast("type[dict[str, float]]", dict[str, float]), json.loads(text))
    assert again["a"] == float("inf")
    assert again["c"] != again["c"]


def test_what_has_no_place_on_the_wire_is_refused() -> None:
    with pytest.raises(TypeError, match="no place"):
        to_wire({"f": len})
    with pytest.raises(TypeError):
        from_wire(Measurement, ["not", "a", "measurement"])
    with pytest.raises(TypeError):
        from_wire(Measurement, {"_": "Measurement"})

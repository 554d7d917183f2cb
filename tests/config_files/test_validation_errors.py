"""What is wrong with a value, in words: none of the validator's own reaches a person."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from autotune.config_files.presets import problems
from autotune.config_files.validation_errors import choices_of, wanted


class Inner(BaseModel):
    x: int = 0


class Sample(BaseModel):
    text: str = ""
    count: int = Field(default=1, ge=1, le=9)
    share: float = Field(default=0.5, gt=0, lt=1)
    switch: bool = False
    items: list[str] = Field(default_factory=list)
    table: dict[str, int] = Field(default_factory=dict)
    inner: Inner = Inner()
    word: Literal["one", "two"] = "one"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": 3}, "expected text"),
        ({"count": "x"}, "expected a whole number"),
        ({"count": 1.5}, "expected a whole number"),
        ({"count": 0}, "must be at least 1"),
        ({"count": 10}, "must be at most 9"),
        ({"share": "x"}, "expected a number"),
        ({"share": 0}, "must be more than 0.0"),
        ({"share": 1}, "must be less than 1.0"),
        ({"switch": "maybe"}, "expected true or false"),
        ({"items": 3}, "expected a list"),
        ({"table": 3}, "expected a mapping: key: value"),
        ({"inner": 3}, "expected a mapping: key: value"),
        ({"word": "tow"}, "expected one of one, two"),
    ],
)
def test_a_fault_is_reported_in_words(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate(given)
    (fault,) = caught.value.errors()
    assert wanted(fault) == message
    assert choices_of(fault) == (["one", "two"] if "word" in given else [])


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("constraints: {peak_memory: 4 GiB}", "constraints.peak_memory: expected a mapping", "at_most: 80%"),
        ("constraints: 80%", "constraints: expected a mapping", "at_most: 80%"),
        (
            "constraints: {peak_memory: {at_most: 4x}}",
            'constraints.peak_memory.at_most: "x" is not a unit',
            "80%",
        ),
        ("constraints: {peak_memroy: {at_most: 80%}}", 'unknown key "peak_memroy"', '"peak_memory"'),
        ("name: [x]", "name: expected text", ""),
        ("extends: [default]", "extends: expected text", ""),
        ("start: 3", "start: expected a list", ""),
    ],
)
def test_a_space_file_is_refused_in_words_with_its_line(tmp_path, line: str, message: str, hint: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"schema: autotune.space/v1\nknobs: {{precision: auto}}\n{line}\n")
    reported = problems("mine.yaml", cwd=str(tmp_path))
    assert any(
        p.message.startswith("mine.yaml:3: ") and message in p.message and hint in p.hint for p in reported
    ), reported
    assert not any("Input should" in p.message for p in reported), reported

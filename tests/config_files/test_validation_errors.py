"""What is wrong with a value, said in words: none of the validator's own reaches a person."""

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
    ("given", "said"),
    [
        ({"text": 3}, "text is wanted"),
        ({"count": "x"}, "a whole number is wanted"),
        ({"count": 1.5}, "a whole number is wanted"),
        ({"count": 0}, "at least 1 is wanted"),
        ({"count": 10}, "at most 9 is wanted"),
        ({"share": "x"}, "a number is wanted"),
        ({"share": 0}, "more than 0.0 is wanted"),
        ({"share": 1}, "less than 1.0 is wanted"),
        ({"switch": "maybe"}, "expected true or false"),
        ({"items": 3}, "a list is wanted"),
        ({"table": 3}, "expected a mapping: key: value"),
        ({"inner": 3}, "expected a mapping: key: value"),
        ({"word": "tow"}, "one of one, two is wanted"),
    ],
)
def test_a_fault_is_told_in_words(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate(given)
    (fault,) = caught.value.errors()
    assert wanted(fault) == said
    assert choices_of(fault) == (["one", "two"] if "word" in given else [])


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("constraints: {peak_memory: 4 GiB}", "constraints.peak_memory: expected a mapping", "at_most: 80%"),
        ("constraints: 80%", "constraints: expected a mapping", "at_most: 80%"),
        (
            "constraints: {peak_memory: {at_most: 4x}}",
            'constraints.peak_memory.at_most: "x" is not a unit',
            "80%",
        ),
        ("constraints: {peak_memroy: {at_most: 80%}}", 'unknown key "peak_memroy"', '"peak_memory"'),
        ("name: [x]", "name: text is wanted", ""),
        ("extends: [default]", "extends: text is wanted", ""),
        ("start: 3", "start: a list is wanted", ""),
    ],
)
def test_a_space_file_is_refused_in_words_with_its_line(tmp_path, line: str, said: str, hint: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"schema: autotune.space/v1\nknobs: {{precision: auto}}\n{line}\n")
    told = problems("mine.yaml", cwd=str(tmp_path))
    assert any(
        p.message.startswith("mine.yaml:3: ") and said in p.message and hint in p.hint for p in told
    ), told
    assert not any("Input should" in p.message for p in told), told

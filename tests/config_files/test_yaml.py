"""Files that somebody else wrote."""

import time

import pytest

from autotune.config_files.yaml import load, scalar
from autotune.errors import InvalidSpace, UsageError

LAUGHS = 'a: &a ["x","x","x","x","x","x","x","x","x"]\n' + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, r"expand to more than|stands here|values"),
        ("a: !!python/object:os.system [x]", r"t.yaml:1: tags are not allowed"),
        ("x: 1\na: !!python/object/apply:os.system ['id']", r"t.yaml:2: tags are not allowed"),
        ("a: !!str 1", "tags are not allowed"),
        ("[" * 40 + "]" * 40, "nested deeper than 32"),
        ("{a: " * 3000 + "}" * 3000, "nested deeper than 32"),
        ("a: &a [*a]", "nested deeper|expand"),
        ("x" * (129 << 10), "larger than 128 KiB"),
        ("\n" * 100_000, "more than 20000 lines"),
        ("[" + "1," * 60_000 + "1]", "more than 50000 elements"),
        ("a: 1\nb: 2\na: 3", 't.yaml:3: "a" is set twice, first on line 1'),
        ("a: &x 1\nb: [" + ", ".join(["*x"] * 101) + "]", "more than 100 aliases"),
        ("a: [1", "not valid YAML"),
        ("a: 1\n---\nb: 2", "a second document"),
        ("[a, b]: 1", "a key cannot be a list or a mapping"),
        ("a: *nowhere", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_hostile_files_are_refused_quickly(text, message) -> None:
    began = time.process_time()
    with pytest.raises(InvalidSpace, match=message):
        load(text, source="t.yaml")
    assert time.process_time() - began < 5


def test_the_class_of_error_can_be_chosen() -> None:
    with pytest.raises(UsageError) as caught:
        load("[", source="best.yaml", error=UsageError)
    assert type(caught.value) is UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("1e-3", 1e-3),
        ("1.5", 1.5),
        ("-2", -2),
        ("0o17", "0o17"),
        ("017", 17),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("~", None),
        ("null", None),
        ("x2", "x2"),
        (".nan", ".nan"),
        ("1e999", "1e999"),
        ("9" * 30, "9" * 30),
        ("<<", "<<"),
    ],
)
def test_words_mean_what_they_look_like(text, value) -> None:
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)
    assert load(f"k: {text}", source="t") == {"k": value}


def test_quoted_words_stay_text() -> None:
    assert load("""{a: "1", b: 'true', c: "off"}""", source="t") == {"a": "1", "b": "true", "c": "off"}


def test_lines_are_kept() -> None:
    data = load("# c\na: 1\nb:\n  - x\n  - y\n", source="t")
    assert data.lines == {"a": 2, "b": 3}
    assert data["b"].lines == [4, 5]


def test_an_empty_file_is_nothing() -> None:
    assert load("# only a comment\n", source="t") is None

"""What a script says to autotune itself, read from its source."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from autotune.inspection.sdk_calls import requested_values
from autotune.inspection.source_advice import advise

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.inspection.sdk_calls import SdkValue


def requested(folder: Path, text: str) -> tuple[SdkValue, ...]:
    script = folder / "train.py"
    script.write_text(dedent(text))
    return requested_values(str(script))


@pytest.mark.parametrize(
    ("imported", "called"),
    [
        ("import autotune", "autotune.value"),
        ("import autotune as at", "at.value"),
        ("import autotune", "autotune.sdk.value"),
        ("import autotune.sdk", "autotune.sdk.value"),
        ("from autotune import sdk", "sdk.value"),
        ("from autotune import value", "value"),
        ("from autotune.sdk import value as own", "own"),
    ],
)
def test_a_value_is_found_however_it_is_requested(tmp_path: Path, imported: str, called: str) -> None:
    (found,) = requested(tmp_path, f"{imported}\n\ndef main():\n    batch = {called}('batch', 64)\n")
    assert (found.name, found.place, found.default) == ("batch", "train.py:4", 64)


def test_values_of_others_are_none_of_ours(tmp_path: Path) -> None:
    assert (
        requested(tmp_path, "import other\nx = other.value('batch', 64)\ny = config.value('lr', 0.1)\n") == ()
    )
    assert requested(tmp_path, "import autotune\nx = autotune.value(name, 64)\n") == ()
    assert requested(tmp_path, "import autotune\nx = (") == ()
    assert requested_values(str(tmp_path / "gone.py")) == ()


def test_each_name_is_reported_once_where_it_comes_first_also_in_modules_of_the_script(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.py").write_text("from autotune import value\nwidth = value(name='width', default=8)\n")
    text = """
    import autotune
    import model
    jit = autotune.value("jit", make())
    jit = autotune.value("jit", False)
    token = autotune.value("api_token", "hidden")
    """
    found = {value.name: (value.place, value.default) for value in requested(tmp_path, text)}
    assert list(found) == ["jit", "api_token", "width"]
    assert [*found.values()] == [("train.py:4", None), ("train.py:6", None), ("model.py:2", 8)]


REPORTED = "import autotune\n{}\nfor rows in range(9):\n    autotune.step({})\n"


@pytest.mark.parametrize(
    ("taken", "given", "hinted"),
    [
        ("batch = autotune.value('batch', 64)", "samples=64", True),
        ("parser.add_argument('-b', '--batch-size', type=int)", "64, loss", True),
        ("batch = autotune.value('batch', 64)", "samples=batch", False),
        ("batch = autotune.value('batch', 64)", "loss=loss", False),
        ("depth = autotune.value('depth', 64)", "samples=64", False),
    ],
)
def test_samples_that_do_not_follow_the_batch_are_worth_a_hint(
    tmp_path: Path, taken: str, given: str, hinted: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(REPORTED.format(taken, given))
    hints = [(hint.kind, hint.place) for hint in advise(str(script))]
    assert hints == ([("samples", "train.py:4")] if hinted else [])

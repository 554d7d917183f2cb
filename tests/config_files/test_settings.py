"""[tool.autotune] and AUTOTUNE_*: what is not known is refused, with the place."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from autotune.config_files.settings import KEYS, check_variables, project_settings, variable
from autotune.errors import UsageError


def written(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_settings_carry_the_line_they_stand_in(tmp_path: Path) -> None:
    written(
        tmp_path,
        """\
[project]
budget = "1h"

[tool.autotune]
budget = "30m"
max-memory = "80%"   # a comment
trials = 40
keep-loggers = true
knob = ["precision"]
"tracking_uri" = "http://x"
""",
    )
    found = project_settings(tmp_path)
    assert found.values == {
        "budget": "30m", "max-memory": "80%", "trials": 40, "keep-loggers": True, "knob": ["precision"],
        "tracking-uri": "http://x",
    }  # fmt: skip
    assert found.origins["budget"] == "pyproject.toml:5"
    assert found.origins["tracking-uri"] == "pyproject.toml:10"


def test_values_of_knobs_are_a_table_or_texts(tmp_path: Path) -> None:
    text = """\
[tool.autotune]
fix = ["precision=bf16"]
[tool.autotune.set]
num_workers = [0, 2]
pin_memory = true
"""
    found = project_settings(written(tmp_path, text))
    assert found.values == {"fix": ["precision=bf16"], "set": ["num_workers=0,2", "pin_memory=true"]}
    assert found.origins == {"fix": "pyproject.toml:2", "set": "pyproject.toml:3"}


def test_the_nearest_file_that_speaks_of_us_counts_and_its_paths_are_its_own(tmp_path: Path) -> None:
    written(
        tmp_path, '[tool.autotune]\nspace = "spaces/mine.yaml"\nout = "best.yaml"\npython = "python3.12"\n'
    )
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    written(tmp_path / "a", "[tool.ruff]\nline-length = 100\n")
    (inner / "pyproject.toml").write_text("this is = = no TOML, and none of our business")
    found = project_settings(inner)
    assert found.values == {
        "space": str(tmp_path / "spaces" / "mine.yaml"),
        "out": str(tmp_path / "best.yaml"),
        "python": "python3.12",
    }
    assert found.origins["space"] == f"{tmp_path}/pyproject.toml:2"


def test_without_a_file_or_a_table_nothing_is_set(tmp_path: Path) -> None:
    assert not project_settings(tmp_path).values
    assert not project_settings(written(tmp_path, '[project]\nname = "autotune-user"\n')).values


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('budgt = "1h"', ':3: [tool.autotune] has no setting "budgt"', 'Did you mean "budget"?'),
        ("json = true", ':3: [tool.autotune] has no setting "json"', "settings are: budget"),
        ("budget = 600", ":3: budget cannot be 600", 'text in quotes: "10m"'),
        ('trials = "40"', ":3: trials cannot be '40'", "a whole number"),
        ("trials = true", ":3: trials cannot be True", "a whole number"),
        ('keep-loggers = "yes"', ":3: keep-loggers cannot be 'yes'", "true or false"),
        ('knob = "precision"', ":3: knob cannot be 'precision'", "a list of texts"),
        ("set = [1]", ":3: set cannot be [1]", "a list or table"),
        ('max-memory = "1GiB"\nmax_memory = "2GiB"', ":4: max-memory is set twice", ""),
        ("budget = ", "is no valid TOML", ""),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(tmp_path: Path, text: str, message: str, hint: str) -> None:
    written(tmp_path, f"\n[tool.autotune]\n{text}\n")
    with pytest.raises(UsageError) as raised:
        project_settings(tmp_path)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_table_that_is_none_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\nautotune = 3\n")
    with pytest.raises(UsageError, match=r"\[tool.autotune\] is not a table but 3"):
        project_settings(tmp_path)


def test_a_variable_that_was_meant_for_a_setting_is_refused_and_any_other_is_not() -> None:
    check_variables({variable(key): "x" for key in KEYS} | {"AUTOTUNE_HOME": "/x", "AUTOTUNE_TRIAL": "t"})
    check_variables({"AUTOTUNE_SOMETHING_ELSE_ENTIRELY": "1", "PATH": "/bin"})
    with pytest.raises(UsageError, match="AUTOTUNE_BUGDET is not a setting") as raised:
        check_variables({"AUTOTUNE_BUGDET": "1h"})
    assert raised.value.hint == 'Did you mean "AUTOTUNE_BUDGET"?'


def test_an_amount_may_be_whole_or_not(tmp_path: Path) -> None:
    for text, value in (("2", 2.0), ("2.5", 2.5)):
        (tmp_path / "pyproject.toml").write_text(f"[tool.autotune]\nprice-per-hour = {text}\n")
        assert project_settings(tmp_path).values == {"price-per-hour": value}
    (tmp_path / "pyproject.toml").write_text("[tool.autotune]\nprice-per-hour = true\n")
    with pytest.raises(UsageError, match="price-per-hour cannot be True"):
        project_settings(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another account")
def test_a_file_that_another_account_put_above_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in /tmp, where anybody may put a file that names an interpreter."""
    inner = tmp_path / "mine"
    inner.mkdir()
    path = written(tmp_path, '[tool.autotune]\npython = "/tmp/evil"\nquiet = true\n') / "pyproject.toml"
    assert set(project_settings(inner).values) == {"python", "quiet"}
    os.chown(path, 65534, 65534)
    with caplog.at_level(logging.WARNING):
        assert project_settings(inner).values == {}
        assert project_settings(inner).values == {}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{path} belongs to another account; its settings are not used"
    os.chown(inner, 65534, 65534)
    assert set(project_settings(inner).values) == {"python", "quiet"}, "a mounted project, of one owner"

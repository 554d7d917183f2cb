"""Standard input that every run can read anew, and what cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
ASK = "from autotune.driver.spec import redirected_stdin; print(redirected_stdin())"


def requested(**streams):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
        timeout=60,
        **streams,
    )
    return ended.stdout.strip()


def test_a_file_is_named_and_a_pipe_or_nothing_is_not(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("words\n", encoding="utf-8")
    with corpus.open() as file:
        assert requested(stdin=file) == str(corpus)
    assert requested(input="words\n") == ""
    assert requested(stdin=subprocess.DEVNULL) == ""


def test_a_file_that_is_gone_is_not_named(tmp_path):
    gone = tmp_path / "gone.txt"
    gone.touch()
    with gone.open() as file:
        gone.unlink()
        assert requested(stdin=file) == ""

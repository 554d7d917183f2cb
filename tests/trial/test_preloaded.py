"""Tests of the training process share one process that has PyTorch loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from trial_kit import Ran

pytestmark = pytest.mark.torch

IS_LOADED = "import sys; print('true' if 'torch._dynamo' in sys.modules else 'false')"


@pytest.mark.parametrize("variable", ["", "KMP_INIT_AT_FORK"])
def test_every_test_runs_a_fork_whatever_another_one_has_set(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, "FALSE")
    assert run(IS_LOADED, bare=True).reported is True


def test_a_run_with_variables_of_its_own_is_a_new_process(run: Callable[..., Ran]) -> None:
    assert run(IS_LOADED, bare=True, env={"KMP_INIT_AT_FORK": "FALSE"}).reported is False

"""A PyTorch that nothing of ours was made for ends a trial with a sentence, before it can break oddly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.model.supported import UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trial_kit import Ran

SCRIPT = "import torch\nprint('trained with', torch.__version__)"
SENTENCE = "autotune needs PyTorch 2.6 or newer, and this is 2.5.1+cpu"


@pytest.fixture
def old(tmp_path: Path) -> dict[str, str]:
    """Variables under which `import torch` finds one that has nothing but an old version."""
    (tmp_path / "site" / "torch").mkdir(parents=True)
    (tmp_path / "site" / "torch" / "__init__.py").write_text("__version__ = '2.5.1+cpu'\n")
    return {"PYTHONPATH": str(tmp_path / "site")}


def test_a_trial_with_an_old_pytorch_says_so_and_ends_with_6(
    run: Callable[..., Ran], old: dict[str, str]
) -> None:
    ran = run(SCRIPT, env=old)
    assert (ran.code, ran.out) == (6, "")
    assert ran.broke is not None
    assert (ran.broke.error, ran.broke.message, ran.broke.tail) == (UNSUPPORTED, SENTENCE, SENTENCE)
    assert "Traceback" not in ran.err


def test_a_training_under_apply_does_not_begin_with_an_old_pytorch(
    run: Callable[..., Ran], old: dict[str, str]
) -> None:
    ran = run(SCRIPT, env=old, measure=False)
    assert (ran.code, ran.out) == (6, "")
    assert SENTENCE in ran.err.splitlines()

"""Listeners that copy a search into other experiment trackers, each an optional dependency.

Pass one to `autotune.tune(..., progress=...)`, or use ``--tensorboard DIR`` and ``--wandb PROJECT``. A
tracker never affects a search: its errors are logged and the search continues. May import `autotune.report`
and below.
"""

from __future__ import annotations

from autotune.integrations.tensorboard import TensorBoard
from autotune.integrations.wandb import WeightsAndBiases

__all__ = ["TensorBoard", "WeightsAndBiases"]

"""The environment of a training process: the user's own, plus quiet defaults. Pure.

The copy is taken in the driver before Ray starts: Ray writes ``OMP_NUM_THREADS`` and others into
its workers, and a trial that inherited them would measure another program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_TELEMETRY: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_NO_LOGGERS: Final = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "DISABLED",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
}
_OURS: Final = ("AUTOTUNE_PLAN", "AUTOTUNE_HIDDEN", "AUTOTUNE_TRIAL", "AUTOTUNE_SERVICE_REPORT")


def user_environment(environ: Mapping[str, str], *, keep_loggers: bool, trial: bool) -> dict[str, str]:
    """Return a copy of the user's environment for a training process.

    The user's variables are retained; defaults are only added for unset ones.

    Args:
        environ: `os.environ` before any change by autotune.
        keep_loggers: Leave the script's own trackers (wandb, comet, clearml, neptune) on.
        trial: False for `apply`, the user's real run: nothing is added.
    """
    copy = {name: value for name, value in environ.items() if name not in _OURS}
    if not trial:
        return copy
    defaults = _NO_TELEMETRY if keep_loggers else {**_NO_TELEMETRY, **_NO_LOGGERS}
    return {**defaults, **copy}

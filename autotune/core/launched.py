"""Launchers of several processes where they start one: how they are written, and what they set for it. Pure.

A trial is started without them, so what they would have set is set for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TORCHRUN: Final = "torchrun"
ACCELERATE: Final = "accelerate"

FREE_PORT: Final = "0"
"""Of ``MASTER_PORT``: one that nobody uses, which whoever starts the process looks for right before."""

_WORDS: Final = {TORCHRUN: ("torchrun",), ACCELERATE: ("accelerate", "launch", "--num_processes", "1")}
_MODULES: Final = {
    TORCHRUN: ("-m", "torch.distributed.run"),
    ACCELERATE: ("-m", "accelerate.commands.launch", "--num_processes", "1"),
}

# torch 2.13, `LocalElasticAgent._start_workers`, for one worker. No agent of torchrun's is there to keep the
# store, so the process keeps it itself.
_BY_TORCHRUN: Final = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1"),
    "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": FREE_PORT,
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
}
_UNLESS_SET_BY_TORCHRUN: Final = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}

# accelerate 1.15, `prepare_simple_launcher_cmd_env`, with no option but the number of processes.
_BY_ACCELERATE: Final = {
    "ACCELERATE_USE_CPU": "False",
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
}
_UNLESS_SET_BY_ACCELERATE: Final = {"OMP_NUM_THREADS": "1"}


def launch_words(launcher: str, python: str = "") -> tuple[str, ...]:
    """What is typed before the script: ``torchrun``; with an interpreter its ``-m`` form.

    Args:
        launcher: `TORCHRUN` or `ACCELERATE`; anything else means none.
        python: Interpreter, where it is another than the one of the shell.
    """
    if launcher not in _WORDS:
        return (python or "python",)
    return (python, *_MODULES[launcher]) if python else _WORDS[launcher]


def launch_variables(launcher: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What this launcher sets for its one process in this environment; nothing without a launcher."""
    if launcher == TORCHRUN:
        return {**_BY_TORCHRUN, **_unset(_UNLESS_SET_BY_TORCHRUN, environ)}
    if launcher == ACCELERATE:
        return {**_BY_ACCELERATE, **_unset(_UNLESS_SET_BY_ACCELERATE, environ)}
    return {}


def _unset(defaults: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in defaults.items() if name not in environ}

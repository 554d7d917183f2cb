"""Launchers of several processes: how they are written, and what they set for each. Pure.

A trial is started without them, so what they would have set is set for it. A launcher is kept as the words
that start its processes: ``torchrun``, ``accelerate``, ``torchrun --nproc-per-node 4``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TORCHRUN: Final = "torchrun"
ACCELERATE: Final = "accelerate"

_COUNT: Final = "--nproc-per-node"

FREE_PORT: Final = "0"
"""Of ``MASTER_PORT``: one that nobody uses, which whoever starts the process looks for right before."""

_WORDS: Final = {TORCHRUN: ("torchrun",), ACCELERATE: ("accelerate", "launch", "--num_processes", "1")}
_MODULES: Final = {
    TORCHRUN: ("-m", "torch.distributed.run"),
    ACCELERATE: ("-m", "accelerate.commands.launch", "--num_processes", "1"),
}

# torch 2.13, `LocalElasticAgent._start_workers`. No agent of torchrun's is there to keep the store, so the
# first process keeps it itself.
_RANKS: Final = ("RANK", "LOCAL_RANK", "ROLE_RANK")
_SIZES: Final = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")
_BY_TORCHRUN: Final = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": FREE_PORT,
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
}
_UNLESS_SET_BY_TORCHRUN: Final = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
_UNLESS_SET_FOR_SEVERAL: Final = {"OMP_NUM_THREADS": "1"}

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


def several(count: int) -> str:
    """The launcher word of torchrun for so many processes on one machine."""
    return TORCHRUN if count == 1 else f"{TORCHRUN} {_COUNT} {count}"


def ranks_of(launcher: str) -> int:
    """Processes that it starts; 1 without a launcher, and where the words say no number."""
    name, _, count = launcher.partition(f" {_COUNT} ")
    return int(count) if name == TORCHRUN and count.isdecimal() and int(count) > 0 else 1


def rank_variables(rank: int) -> dict[str, str]:
    """What differs between the processes of one launch: their number, counted from 0."""
    return dict.fromkeys(_RANKS, str(rank))


def launch_words(launcher: str, python: str = "") -> tuple[str, ...]:
    """What is typed before the script: ``torchrun``; with an interpreter its ``-m`` form.

    Args:
        launcher: As this module has it; anything else means none.
        python: Interpreter, where it is another than the one of the shell.
    """
    name, *options = launcher.split() or [""]
    if name not in _WORDS:
        return (python or "python",)
    return (*((python, *_MODULES[name]) if python else _WORDS[name]), *options)


def launch_variables(launcher: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What this launcher sets for its first process in this environment; nothing without a launcher."""
    if launcher.split()[:1] == [TORCHRUN]:
        count = ranks_of(launcher)
        usual = {**_UNLESS_SET_BY_TORCHRUN, **(_UNLESS_SET_FOR_SEVERAL if count > 1 else {})}
        sizes = dict.fromkeys(_SIZES, str(count))
        return {**_BY_TORCHRUN, **rank_variables(0), **sizes, **_unset(usual, environ)}
    if launcher == ACCELERATE:
        return {**_BY_ACCELERATE, **_unset(_UNLESS_SET_BY_ACCELERATE, environ)}
    return {}


def _unset(defaults: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in defaults.items() if name not in environ}

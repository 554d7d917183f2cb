"""Launchers of several processes: how they are written, and what they set for each. Pure.

A trial is started without them, so what they would have set is set for it. A launcher is kept as text: its
name, its options, and behind ``--`` the variables that it sets by its own configuration:
``torchrun --nproc-per-node 4``, ``accelerate --num_processes 2 -- ACCELERATE_MIXED_PRECISION=bf16``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

TORCHRUN: Final = "torchrun"
ACCELERATE: Final = "accelerate"
DEEPSPEED: Final = "deepspeed"
TORCH_LAUNCH: Final = "torch.distributed.launch"
MOST_RANKS: Final = 64
"""Processes of one machine, and machines; a larger number is a typing error, or an attack."""

FREE_PORT: Final = "0"
"""Of ``MASTER_PORT``: one that nobody uses, which whoever starts the process looks for right before."""

_COUNT: Final = {
    TORCHRUN: "--nproc-per-node",
    TORCH_LAUNCH: "--nproc-per-node",
    ACCELERATE: "--num_processes",
    DEEPSPEED: "--num_gpus",
}
"""Launcher -> the option that gives its number of processes on one machine."""
_NODES: Final = "--nnodes"
_NO_LOCAL_RANK: Final = "--no_local_rank"
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    TORCHRUN: ("torchrun",),
    ACCELERATE: ("accelerate", "launch"),
    DEEPSPEED: ("deepspeed",),
    TORCH_LAUNCH: ("python", "-m", "torch.distributed.launch"),
}
_MODULES: Final[Mapping[str, str]] = {
    TORCHRUN: "torch.distributed.run",
    ACCELERATE: "accelerate.commands.launch",
    DEEPSPEED: "deepspeed.launcher.runner",
    TORCH_LAUNCH: "torch.distributed.launch",
}

# torch 2.13, `LocalElasticAgent._start_workers`. No agent of torchrun's is there to keep the store, so the
# first process keeps it itself.
_RANKS: Final = ("RANK", "ROLE_RANK")
_SIZES: Final = ("WORLD_SIZE", "ROLE_WORLD_SIZE")
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

# deepspeed 0.19.8, `deepspeed.launcher.launch.main`, on one machine.
_BY_DEEPSPEED: Final = {
    "CROSS_RANK": "0",
    "CROSS_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": FREE_PORT,
}

_ITS_OWN: Final = re.compile(
    r"(ACCELERATE|FSDP|MEGATRON_LM|PARALLELISM_CONFIG)_\w+|KMP_(AFFINITY|BLOCKTIME)|OMP_NUM_THREADS"
    r"|CUDA_VISIBLE_DEVICES"
)
"""Variables that a launcher's configuration may set; a file of others can set no others by it."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    """A launcher's text, taken apart."""

    name: str
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    def number(self, option: str) -> int:
        """Value of an option that is a number; 1 without it."""
        at = self.options.index(option) + 1 if option in self.options else len(self.options)
        text = self.options[at] if at < len(self.options) else ""
        return int(text) if text.isdecimal() and 0 < int(text) <= MOST_RANKS else 1


def _parsed(launcher: str) -> _Launcher:
    try:
        words = shlex.split(launcher)
    except ValueError:
        words = []
    name, *rest = words or [""]
    at = rest.index("--") if "--" in rest else len(rest)
    pairs = (word.partition("=") for word in rest[at + 1 :])
    variables = {key: value for key, _, value in pairs if is_launcher_variable(key)}
    return _Launcher(name, tuple(rest[:at]), variables)


def is_launcher_variable(name: str) -> bool:
    """Return whether a launcher's configuration may set this variable."""
    return _ITS_OWN.fullmatch(name) is not None


def is_launcher(launcher: str) -> bool:
    """Return whether a text names a launcher of this module, for at most `MOST_RANKS` processes."""
    found = _parsed(launcher)
    if found.name not in _COUNT:
        return False
    options = (_COUNT[found.name], _NODES)
    given = [found.options[at + 1 : at + 2] for at, word in enumerate(found.options) if word in options]
    return all(n and n[0].isdecimal() and 0 < int(n[0]) <= MOST_RANKS for n in given)


def several(count: int, nodes: int = 1) -> str:
    """Return the launcher of torchrun for so many processes on each of so many machines."""
    words = [TORCHRUN]
    words += [_NODES, str(nodes)] if nodes > 1 else []
    words += [_COUNT[TORCHRUN], str(count)] if count > 1 or nodes > 1 else []
    return " ".join(words)


def launcher_text(
    name: str, count: int, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> str:
    """Return a launcher as it is kept.

    Args:
        name: One of this module's.
        count: Processes on one machine.
        options: What was typed beside the number of processes.
        variables: What its configuration sets for each process.
    """
    words = [name, _COUNT[name], str(count), *options]
    words += ["--", *(f"{key}={value}" for key, value in sorted(variables.items()))] if variables else []
    return shlex.join(words)


def with_ranks(launcher: str, count: int) -> str:
    """Return the launcher for another number of processes on one machine.

    Args:
        launcher: As this module has it; empty for none, which becomes torchrun.
        count: Processes.
    """
    found = _parsed(launcher)
    if found.name not in _COUNT or found.name == TORCHRUN:
        return several(count)
    option = _COUNT[found.name]
    at = found.options.index(option) if option in found.options else -2
    rest = [word for k, word in enumerate(found.options) if k not in (at, at + 1)]
    return launcher_text(found.name, count, rest, found.variables)


def ranks_of(launcher: str) -> int:
    """Processes that it starts on one machine; 1 without a launcher, and where the words give no number."""
    found = _parsed(launcher)
    return found.number(_COUNT[found.name]) if found.name in _COUNT else 1


def nodes_of(launcher: str) -> int:
    """Machines that it starts them on."""
    found = _parsed(launcher)
    return found.number(_NODES) if found.name == TORCHRUN else 1


def rank_variables(rank: int, *, first: int = 0) -> dict[str, str]:
    """Return what differs between the processes of one launch: their numbers, counted from 0.

    Args:
        rank: On its machine.
        first: Number of the machine's first process in the whole job.
    """
    return {**dict.fromkeys(_RANKS, str(first + rank)), "LOCAL_RANK": str(rank)}


def rank_words(launcher: str) -> tuple[str, ...]:
    """Return the argument by which a launcher gives a process its local rank, of rank 0; often none."""
    found = _parsed(launcher)
    if found.name == DEEPSPEED and _NO_LOCAL_RANK not in found.options:
        return ("--local_rank=0",)
    return ("--local-rank=0",) if found.name == TORCH_LAUNCH else ()


def launch_words(launcher: str, python: str = "") -> tuple[str, ...]:
    """What is typed before the script: ``torchrun``; with an interpreter its ``-m`` form.

    Args:
        launcher: As this module has it; anything else means none.
        python: Interpreter, where it is another than the one of the shell.
    """
    found = _parsed(launcher)
    if found.name not in _WORDS:
        return (python or "python",)
    start = (python, "-m", _MODULES[found.name]) if python else _WORDS[found.name]
    options = found.options or (("--num_processes", "1") if found.name == ACCELERATE else ())
    return (*start, *options)


def launch_variables(launcher: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What this launcher sets for its first process in this environment; nothing without a launcher."""
    found = _parsed(launcher)
    if found.name == ACCELERATE and ranks_of(launcher) == 1:
        return {**_BY_ACCELERATE, **_unset(_UNLESS_SET_BY_ACCELERATE, environ), **found.variables}
    if found.name == DEEPSPEED:
        count = ranks_of(launcher)
        sizes = {"WORLD_SIZE": str(count), "LOCAL_SIZE": str(count), "RANK": "0", "LOCAL_RANK": "0"}
        return {**_BY_DEEPSPEED, **sizes}
    if found.name not in _COUNT:
        return {}
    count, nodes = ranks_of(launcher), nodes_of(launcher)
    usual = {**_UNLESS_SET_BY_TORCHRUN, **(_UNLESS_SET_FOR_SEVERAL if count > 1 else {})}
    sizes = {**dict.fromkeys(_SIZES, str(count * nodes)), "LOCAL_WORLD_SIZE": str(count)}
    variables = {**_BY_TORCHRUN, **rank_variables(0), **sizes, **_unset(usual, environ), **found.variables}
    return {**variables, "GROUP_WORLD_SIZE": str(nodes)}


def _unset(defaults: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in defaults.items() if name not in environ}

"""Plan of a training process, from its launcher: one JSON file in its directory.

The file is named by ``AUTOTUNE_PLAN`` in the environment; standard library only. Secret arguments are in no
file, but in a second variable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.model import wire
from autotune.model.change import Change
from autotune.model.config import Value
from autotune.model.trial import Segment

PLAN_VARIABLE = "AUTOTUNE_PLAN"
HIDDEN_VARIABLE = "AUTOTUNE_HIDDEN"
"""Arguments left out of the plan's file, as JSON: index in `Plan.argv` -> word."""
TRIAL_VARIABLE = "AUTOTUNE_TRIAL"
FORKS_VARIABLE = "AUTOTUNE_FORKS"
"""In place of a plan: the connection for fork requests, see `autotune.protocol.forking`."""
RANK_VARIABLE = "AUTOTUNE_RANK"
"""Rank of this process. Without it, the process starts the ranks."""
RANKS_VARIABLE = "AUTOTUNE_RANKS"
"""Number of ranks, in a process that the script itself has started as one of them."""
PROFILE_TRACE, PROFILE_TOP = "profile.pt.trace.json.gz", "profile.txt"
"""Profile files in the trial's directory: a trace, and the slowest operators.

The trace's name is the pattern of TensorBoard's profiler plugin; Perfetto opens any.
"""
PROFILE_NSYS = "profile.nsys-rep"
"""The report of Nsight Systems."""
PRIVATE = ".private"
"""Suffix of a marker beside a file that must not leave this machine."""


def stacks_name(rank: int) -> str:
    """Return the name of the file in the trial's directory that receives a rank's stacks on SIGUSR2."""
    return f"stacks.{rank}.txt" if rank else "stacks.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Input of `python -m autotune.trial`.

    Args:
        nonce: The attempt's uid; every event carries it.
        script: Absolute path of the script to run.
        argv: Its arguments, including flags of the config.
        events_path: Event file to append to.
        trial_dir: The trial's own directory.
        changes: Changes to make (`Keyword`, `Patch`) and to read back (all).
        segments: Segments to measure; empty for `apply`.
        seed: Offset of every random seed; 0 changes no seeds. A trial seeds generators that the script leaves
            unseeded.
        measure: False for `apply`: readings until detection has settled, no recorder, no stop.
        shadow_dir: Folder for redirected writes if the launcher could not mount an overlay; empty if an
            overlay protects the user's files, or no protection is needed.
        protected: The user's folders whose contents must not change (with `shadow_dir`).
        sites: Call sites (``train.py:124``) of training loaders confirmed by the baseline; empty in the
            baseline itself, where all candidate loaders are observed.
        status_path: `apply` only: a JSON file that receives the readings once settled.
        module: Dotted name where the script is to run as ``python -m NAME``; empty for a plain script.
        source: The file that constants are relative to, where it is not the script (behind a console script).
        batch: Batch size of this run by the script's own option or constant; 0 where that is not known.
        ranks: Processes that train together, on all machines. The first of them measures.
        local_ranks: Those of this machine; 0 for all.
        first_rank: Number of the first of those.
        strict: `apply` only: end the process where the run contradicts the search, in place of a warning.
        own: `apply` only: the script's own values of knobs, as the search has seen them.
    """

    nonce: str
    script: str
    argv: tuple[str, ...]
    events_path: str
    trial_dir: str
    changes: tuple[Change, ...] = ()
    segments: tuple[Segment, ...] = ()
    seed: int = 0
    measure: bool = True
    shadow_dir: str = ""
    protected: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    status_path: str = ""
    module: str = ""
    batch: int = 0
    ranks: int = 1
    local_ranks: int = 0
    first_rank: int = 0
    source: str = ""
    strict: bool = False
    own: Mapping[str, Value] = field(default_factory=dict[str, Value])


def load_plan(environ: Mapping[str, str]) -> Plan:
    """Return the plan of the process with this environment, secrets included.

    Raises:
        KeyError: The environment names no plan.
    """
    plan = wire.loads(Plan, Path(environ[PLAN_VARIABLE]).read_text(encoding="utf-8"))
    hidden = json.loads(environ.get(HIDDEN_VARIABLE) or "{}")
    count = environ.get(RANKS_VARIABLE, "")
    return replace(
        plan,
        argv=tuple(hidden.get(str(place), word) for place, word in enumerate(plan.argv)),
        ranks=int(count) if count.isdecimal() else plan.ranks,
    )

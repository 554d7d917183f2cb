"""What a trial has left behind whose launcher or guard is gone: its processes, secrets and scratch."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from autotune.launch import guard, sweep
from autotune.launch.folders import remove_scratch
from autotune.launch.output import hide_secrets, remove_output, trim_logs
from autotune.protocol.lines import open_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

REAP_S = 10.0


def clear_up(
    folder: Path, words: Sequence[str], environ: Mapping[str, str], *, knows_all: bool = True
) -> None:
    """Do for a trial what its launcher did not live to do: end it, hide its secrets, remove its scratch.

    Args:
        folder: The trial's; its name is the attempt's uid.
        words: Of the command that it was started by, which may hold secrets, as far as they are known; the
            plan of an older version holds all of them.
        environ: That it had, as far as that is known.
        knows_all: Whether `words` and `environ` hold every secret that it had. If not, its output is removed.
    """
    end_strays(folder)
    remove_scratch(folder)
    if not knows_all:
        remove_output(folder)
    elif folder.is_dir():
        with (
            contextlib.suppress(OSError, ValueError, KeyError, TypeError),
            open_plain(folder / "plan.json") as file,
        ):
            words = [*words, *map(str, json.loads(file.read())["argv"])]
        hide_secrets(folder, words, environ)
        trim_logs(folder, failed=True)


def end_strays(folder: Path) -> None:
    """End what is left of a trial whose guard is gone: by its control group, and by its mark.

    Args:
        folder: The trial's; its name is the attempt's uid.
    """
    note = folder / guard.GROUP_FILE
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open_plain(note) as file:
            place = file.read().decode()
        if os.path.basename(place) == f"autotune-{folder.name}":
            sweep.end_group(place, bound_s=REAP_S)
        note.unlink()
    sweep.end_marked(folder.name, bound_s=REAP_S)

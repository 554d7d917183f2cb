"""Cleanup for a trial whose launcher or guard has died: processes, secrets and scratch files."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.launch.guard import guard, owned_resources, process_tree, sysv_ipc
from autotune.launch.result.trial_output import hide_secrets, remove_output, trim_logs
from autotune.launch.workspace.folders import remove_scratch
from autotune.protocol.lines import open_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

REAP_S = 10.0


@dataclass(frozen=True, slots=True)
class Swept:
    """Number of removed leftovers of trials."""

    processes: int = 0
    objects: int = 0
    """System V objects: shared memory, semaphores, message queues."""

    def __bool__(self) -> bool:
        return bool(self.processes or self.objects)

    def __add__(self, other: Swept) -> Swept:
        return Swept(self.processes + other.processes, self.objects + other.objects)


def clear_up(
    folder: Path, words: Sequence[str], environ: Mapping[str, str], *, knows_all: bool = True
) -> None:
    """Clean up a trial in place of its launcher: end it, hide its secrets, remove its scratch files.

    Args:
        folder: Folder of the trial; its name is the attempt's uid.
        words: Known words of its command, which may hold secrets. Plans of older versions hold all of them.
        environ: Known part of its environment.
        knows_all: Whether `words` and `environ` hold every secret. If not, the trial's output is removed.
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


def end_strays(folder: Path) -> Swept:
    """End the remaining processes of a trial whose guard has died.

    They are found by the trial's record (`autotune.launch.guard.owned_resources`), control group, mount
    namespace and mark.

    Args:
        folder: Folder of the trial; its name is the attempt's uid.
    """
    swept = _end_recorded(folder / owned_resources.RECORD)
    note = folder / guard.GROUP_FILE
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open_plain(note) as file:
            place = file.read().decode()
        if os.path.basename(place) == f"autotune-{folder.name}":
            process_tree.end_group(place, bound_s=REAP_S)
        note.unlink()
    process_tree.end_marked(folder.name, bound_s=REAP_S)
    return swept


def _end_recorded(path: Path) -> Swept:
    """End the recorded processes and remove the recorded objects, after a check of their identity."""
    try:
        with open_plain(path) as file:
            record = json.loads(file.read())
        processes = [(int(pid), int(start)) for pid, start in record["processes"]]
        objects = {(str(kind), int(number)) for kind, number in record["objects"]}
        is_of_this_boot = record["boot"] == owned_resources.boot_id()
    except (OSError, ValueError, KeyError, TypeError):
        return Swept()
    swept = Swept()
    if is_of_this_boot:
        swept = Swept(processes=len(_living(processes)))
        process_tree.end_all(lambda: _living(processes), bound_s=REAP_S)
        swept += Swept(objects=len(sysv_ipc.remove(objects)))
        with contextlib.suppress(OSError):
            path.unlink()
    return swept


def _living(processes: Sequence[tuple[int, int]]) -> list[int]:
    """Return those of these processes, by pid and start time, that are alive, and their descendants."""
    found = [
        pid
        for pid, start in processes
        if pid not in (1, os.getpid())
        and process_tree.start_ticks(pid) == start > 0
        and not process_tree.is_zombie(pid)
    ]
    return [*dict.fromkeys([*(below for pid in found for below in process_tree.descendants(pid)), *found])]

"""A profile of a few steps by `torch.profiler`, for people: Perfetto, Chrome and TensorBoard open it.

Only in a process that ends right after: a profiler slows what it watches.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import gzip
import os
import shutil
from typing import TYPE_CHECKING, Any

from autotune.protocol.plan import PROFILE_TOP, PROFILE_TRACE

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = 15


class Profiler:
    """Watches what happens between `begin` and `end`.

    Args:
        torch: The module.
        folder: Of the trial; the trace and a table of the operators that took most time go there.
        on_cuda: Watch the device as well.
    """

    def __init__(self, torch: Any, folder: Path, *, on_cuda: bool) -> None:
        self._folder = folder
        self._on_cuda = on_cuda
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if on_cuda:
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profile = profiler.profile(activities=activities)

    def begin(self) -> None:
        """Watch from now on."""
        self._profile.start()

    def end(self) -> None:
        """Stop, and write both files; the trace appears under its name when it is whole."""
        self._profile.stop()
        plain, part = self._folder / "profile.json.part", self._folder / f"{PROFILE_TRACE}.part"
        self._profile.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(part, "wb", compresslevel=4) as target:
            shutil.copyfileobj(source, target)
        plain.unlink()
        os.replace(part, self._folder / PROFILE_TRACE)
        by = "self_device_time_total" if self._on_cuda else "self_cpu_time_total"
        averages = self._profile.key_averages()
        try:
            text = averages.table(sort_by=by, row_limit=_ROWS, max_name_column_width=60)
        except (AttributeError, KeyError):
            text = averages.table(sort_by="self_cpu_time_total", row_limit=_ROWS)
        (self._folder / PROFILE_TOP).write_text(str(text), encoding="utf-8")

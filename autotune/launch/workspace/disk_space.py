"""Free space on the disks that a trial writes to: before its start, and the minimum during it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.launch.runner import NOT_BEGUN
from autotune.model.trial import Failure, FailureKind
from autotune.shortage import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SPACE_FLOOR_BYTES = 2 * 1024**3
LEAST_FLOOR_BYTES = 32 * 1024**2
"""For small disks: the journal's reserve (16 MiB) plus the largest output of one trial (10 MiB)."""
SPACE_FLOOR_FRAC = 0.05
LOW_SPACE_SHARE = 0.25
"""Share of the floor at which a running trial is ended, before other writes on that disk fail."""


@dataclass(frozen=True, slots=True)
class SpaceFloor:
    """Limit of free disk space below which a trial is refused.

    Args:
        own_bytes: Limit for any disk; None: 2 GiB or 5 % of the disk, whichever is less, and at least 32 MiB.
    """

    own_bytes: int | None = None

    def refusal(self, study_dir: Path) -> Failure | None:
        """Return a Failure if the study has too little space; creates the study's folder if missing."""
        study_dir.mkdir(parents=True, exist_ok=True)
        free_bytes, floor_bytes = self._space(study_dir)
        if free_bytes >= floor_bytes:
            return None
        free, needed = size_text(free_bytes), size_text(floor_bytes)
        return Failure(
            kind=FailureKind.DISK,
            message=f"{study_dir} has {free} free; a trial needs {needed}",
            evidence={"free_bytes": free_bytes, "floor_bytes": floor_bytes, NOT_BEGUN: 1},
        )

    def least_left(self, places: Iterable[Path]) -> dict[str, int]:
        """Return the bytes a trial must leave free per disk; disks that are already fuller are left out."""
        found: dict[str, int] = {}
        for place in places:
            free_bytes, floor_bytes = self._space(place)
            if free_bytes >= floor_bytes:
                found[str(place)] = int(LOW_SPACE_SHARE * floor_bytes)
        return found

    def _space(self, place: Path) -> tuple[int, int]:
        """Return the free bytes of a disk, and the limit below which no trial is started."""
        usage = shutil.disk_usage(place)
        if self.own_bytes is not None:
            return usage.free, self.own_bytes
        share_bytes = int(usage.total * SPACE_FLOOR_FRAC)
        return usage.free, max(LEAST_FLOOR_BYTES, min(SPACE_FLOOR_BYTES, share_bytes))

"""Room on the disks that a trial writes to: before it begins, and what it has to leave there."""

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
"""On a small disk: the journal's reserve (16 MiB), and the most that one trial's output takes (10 MiB)."""
SPACE_FLOOR_FRAC = 0.05
LOW_SPACE_SHARE = 0.25
"""Of the floor: a trial that leaves no more than this is ended, before all else on that disk fails."""


@dataclass(frozen=True, slots=True)
class SpaceFloor:
    """Less free disk space than this refuses a trial.

    Args:
        own_bytes: On any disk; None for 2 GiB or 5 % of the disk, whichever is less, and at least 32 MiB.
    """

    own_bytes: int | None = None

    def refusal(self, study_dir: Path) -> Failure | None:
        """A Failure where too little is free for the study, whose folder is made if missing."""
        study_dir.mkdir(parents=True, exist_ok=True)
        free_bytes, floor_bytes = self._space(study_dir)
        if free_bytes >= floor_bytes:
            return None
        free, needed = size_text(free_bytes), size_text(floor_bytes)
        return Failure(
            kind=FailureKind.DISK,
            message=f"{free} are free in {study_dir}, {needed} are needed for a trial",
            evidence={"free_bytes": free_bytes, "floor_bytes": floor_bytes, NOT_BEGUN: 1},
        )

    def least_left(self, places: Iterable[Path]) -> dict[str, int]:
        """Where a trial writes -> bytes that it has to leave free there; not where it is that full anyhow."""
        found: dict[str, int] = {}
        for place in places:
            free_bytes, floor_bytes = self._space(place)
            if free_bytes >= floor_bytes:
                found[str(place)] = int(LOW_SPACE_SHARE * floor_bytes)
        return found

    def _space(self, place: Path) -> tuple[int, int]:
        """Bytes that are free on a disk, and below which no trial is begun."""
        usage = shutil.disk_usage(place)
        if self.own_bytes is not None:
            return usage.free, self.own_bytes
        share_bytes = int(usage.total * SPACE_FLOOR_FRAC)
        return usage.free, max(LEAST_FLOOR_BYTES, min(SPACE_FLOOR_BYTES, share_bytes))

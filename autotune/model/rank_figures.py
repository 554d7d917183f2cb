"""Figures of each rank of a distributed training in a window. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNLIKE_FROM = 0.01
"""Relative difference of the ranks' samples per step from which their batches are called unlike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """One rank in the steady window.

    Args:
        rank: Number in the whole job.
        device: ``cuda:1``, or ``cpu``.
        steps: Optimizer steps that the rank logged in the window.
        samples_per_step: Samples that this rank consumed per step.
        input_wait_frac: Share of the window spent waiting for the next batch.
        communication_frac: Share of the window in which the rank was blocked in communication; None where
            that cannot be timed (`autotune.trial.measure.communication`).
        peak_bytes: Peak of the device allocator; None on a CPU.
        gradient_bytes: Bytes handed to reductions per step; None where they cannot be counted.
    """

    rank: int
    device: str
    steps: int
    samples_per_step: float
    input_wait_frac: float
    communication_frac: float | None = None
    peak_bytes: int | None = None
    gradient_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The rank that the others wait for.

    Args:
        rank: Its number.
        device: Of that rank.
        wait_frac: Share of a step that the other ranks wait for it, averaged over them.
        low, high: 95 % interval over blocks of the window.
    """

    rank: int
    device: str
    wait_frac: float
    low: float
    high: float


def communication_frac(ranks: Sequence[RankFigures]) -> float | None:
    """Return the share of the step in which a rank is blocked in communication, averaged; None if unknown."""
    known = [r.communication_frac for r in ranks if r.communication_frac is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(ranks) else None


def transfer_frac(ranks: Sequence[RankFigures]) -> float | None:
    """Return the share without waiting for a late rank: the least of any rank; None if unknown."""
    known = [r.communication_frac for r in ranks if r.communication_frac is not None]
    return min(known) if known and len(known) == len(ranks) else None


def sentences(ranks: Sequence[RankFigures], slow: Straggler | None) -> list[str]:
    """Return what a person should know about the ranks, one sentence each."""
    found: list[str] = []
    whole, transfer = communication_frac(ranks), transfer_frac(ranks)
    if whole is not None and transfer is not None:
        found.append(
            f"A rank is blocked in communication for {100 * whole:.0f} % of a step, "
            f"{100 * transfer:.0f} % without waiting for late ranks."
        )
    sizes = [r.gradient_bytes for r in ranks if r.gradient_bytes is not None]
    if sizes and max(sizes) > 0:
        found.append(f"A rank hands {bytes_text(max(sizes))} of gradients to reductions per step.")
    if slow is not None:
        found.append(
            f"Rank {slow.rank} ({slow.device}) is a straggler: the other ranks wait for it for "
            f"{100 * slow.wait_frac:.0f} % of a step [{100 * slow.low:.0f}, {100 * slow.high:.0f}]."
        )
    if (unlike := unlike_batches(ranks)) is not None:
        found.append(
            f"The ranks take unlike batches: {unlike[0]:.4g} to {unlike[1]:.4g} samples per step and rank."
        )
    return found


def unlike_batches(ranks: Sequence[RankFigures]) -> tuple[float, float] | None:
    """Return the fewest and most samples per step of any rank where these differ; else None."""
    sizes = [r.samples_per_step for r in ranks]
    if not sizes or max(sizes) <= min(sizes) * (1.0 + UNLIKE_FROM):
        return None
    return min(sizes), max(sizes)


def bytes_text(size: float) -> str:
    """Return a size in a binary unit: ``4.2 MiB``."""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_:
            return f"{size / bytes_:.3g} {unit}"
    return f"{size:.0f} B"

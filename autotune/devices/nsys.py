"""NVIDIA Nsight Systems' command, where the machine has it; standard library only."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def find_nsys(environ: Mapping[str, str]) -> str:
    """Path of ``nsys``: what `NSYS` names, else the first on `PATH`; empty where there is none."""
    found = shutil.which(environ.get("NSYS") or "nsys", path=environ.get("PATH", os.defpath))
    # A link is kept: nsys finds its parts by it.
    return str(Path(found).absolute()) if found else ""


def nsys_command(nsys: str, report: str, command: Sequence[str], *, window: bool) -> tuple[str, ...]:
    """Return the command that runs another one under ``nsys`` and leaves a report of it.

    Neither samples nor context switches are taken: most users may not, and the calls suffice.

    Args:
        nsys: From `find_nsys`.
        report: Where it goes, with its ending ``.nsys-rep``; what is there is overwritten.
        command: What runs.
        window: Nothing is recorded but what happens between the CUDA profiler's start and stop, which the
            command calls itself; False: all of it, the device left out.
    """
    trace = "cuda,nvtx,osrt" if window else "nvtx,osrt"
    options = [
        f"--output={report.removesuffix('.nsys-rep')}",
        "--force-overwrite=true",
        f"--trace={trace}",
        "--sample=none",
        "--cpuctxsw=none",
        # Loader workers may outlive what is measured.
        "--wait=primary",
    ]
    if window:
        options += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return (nsys, "profile", *options, *command)

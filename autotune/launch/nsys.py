"""Trials under Nsight Systems: their command, the time for the report, and the outcome without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.devices.nsys import find_nsys, nsys_command
from autotune.launch.result.trial_output import log_tail
from autotune.launch.running_trial import LINGER_S
from autotune.model.trial import Failure, FailureKind
from autotune.protocol.plan import PRIVATE, PROFILE_NSYS
from autotune.text.redact import redact, secret_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.launch.workspace.workspace import Workspace
    from autotune.model.trial import Launch, Outcome

NSYS_LINGER_S = 60.0
"""Time for Nsight Systems to write its report after the script has ended."""

_OUTPUT_CHARS = 200


def under_nsys(command: Sequence[str], prepared: Workspace) -> Sequence[str]:
    """Return the command, wrapped in Nsight Systems if the trial is a profile.

    Raises:
        FileNotFoundError: Nsight Systems is not installed.
    """
    fidelity = prepared.assignment.segments[0].fidelity
    if not fidelity.under_nsys:
        return command
    nsys = find_nsys(prepared.env)
    if not nsys:
        raise FileNotFoundError("nsys is not installed here")
    report = str(prepared.folder / PROFILE_NSYS)
    return nsys_command(nsys, report, command, window=fidelity.probe == "nsys")


def linger_s(prepared: Workspace) -> float:
    """Return how long a process may run after its script has ended, in seconds."""
    return NSYS_LINGER_S if prepared.assignment.segments[0].fidelity.under_nsys else LINGER_S


def reported(
    outcomes: dict[int, Outcome], result: dict[str, Any] | None, prepared: Workspace
) -> dict[int, Outcome]:
    """Return the outcomes of a profiled trial: failures if the report is missing or incomplete."""
    number, fidelity = prepared.assignment.trial, prepared.assignment.segments[0].fidelity
    if not fidelity.under_nsys:
        return outcomes
    report = prepared.folder / PROFILE_NSYS
    ended = result is not None and result["why"] == "exit" and not result["killed"]
    if ended and not isinstance(outcomes[number], Failure) and report.is_file() and report.stat().st_size:
        if _has_secrets(prepared.assignment.launch):
            report.with_name(report.name + PRIVATE).touch()
        return outcomes
    report.unlink(missing_ok=True)
    if isinstance(outcomes[number], Failure):
        return outcomes
    output = log_tail(prepared.folder, 1)
    message = "nsys left no report" if ended else f"nsys was not done {NSYS_LINGER_S:.0f} s after the script"
    message += f": {output.strip()[:_OUTPUT_CHARS]}" if output.strip() else ""
    evidence: dict[str, str | int | float] = {"dir": str(prepared.folder)}
    return {number: Failure(kind=FailureKind.NO_METRIC, message=message, evidence=evidence)}


def _has_secrets(launch: Launch) -> bool:
    """Return whether the launch holds secrets; `nsys` stores environment and command line in its report."""
    words = (*launch.env.values(), *launch.command, *launch.argv)
    known = secret_values([*launch.command, *launch.argv])
    return bool(known) or any(redact(word, launch.env, free=True) != word for word in words)

"""A trial under Nsight Systems: its command, the time that its report takes, and what it is worth without."""

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
"""Nsight Systems writes its report once what it watches has ended."""

_SAID_CHARS = 200


def under_nsys(command: Sequence[str], prepared: Workspace) -> Sequence[str]:
    """The command, run by Nsight Systems where that is what the trial is for.

    Raises:
        FileNotFoundError: It is not installed here.
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
    """So long a process may go on once its script has ended."""
    return NSYS_LINGER_S if prepared.assignment.segments[0].fidelity.under_nsys else LINGER_S


def reported(
    outcomes: dict[int, Outcome], result: dict[str, Any] | None, prepared: Workspace
) -> dict[int, Outcome]:
    """What a trial is worth that ran for a report: without a whole one nothing, whatever was measured."""
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
    said = log_tail(prepared.folder, 1)
    message = "nsys left no report" if ended else f"nsys was not done {NSYS_LINGER_S:.0f} s after the script"
    message += f": {said.strip()[:_SAID_CHARS]}" if said.strip() else ""
    evidence: dict[str, str | int | float] = {"dir": str(prepared.folder)}
    return {number: Failure(kind=FailureKind.NO_METRIC, message=message, evidence=evidence)}


def _has_secrets(launch: Launch) -> bool:
    """What it was started with must not be handed on: `nsys` keeps environment and command line."""
    words = (*launch.env.values(), *launch.command, *launch.argv)
    known = secret_values([*launch.command, *launch.argv])
    return bool(known) or any(redact(word, launch.env, free=True) != word for word in words)

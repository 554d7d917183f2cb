"""Failure of a process without a measurement: its kind, one line of text, and the evidence."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

from autotune.launch.runner import NOT_BEGUN
from autotune.model.trial import Failure, FailureKind
from autotune.protocol import device_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.launch.result.process_reports import ProcessReports
    from autotune.model.trial import Fidelity
    from autotune.protocol.events import Broke

TAIL_LINES = 20
STEPS_NEEDED = 3
"""Fewest optimizer steps for a rate: the first one is dropped, and an interval needs two."""
_LINE_LENGTH = 300

_OOM_HOST = re.compile(
    r"\bMemoryError\b|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|std::bad_alloc"
    r"|DataLoader worker \(pid\(?s?\)? [^)]*\) (?:is )?killed by signal: Killed"
)
_PORT = re.compile(r"failed to listen on any local network address.*EADDRINUSE")
"""From torch's store: another program took the port between its choice and its use."""
_DISK = re.compile(r"No space left on device|Disk quota exceeded|errno 28|Errno 28|Errno 122")
_PARSER = re.compile(
    r"[Ee]rror: (?P<what>.*(?:unrecognized arguments?|invalid choice|[Nn]o such option"
    r"|expected one argument|invalid \w+ value|ignored explicit argument).*)"
)
_PATTERNS = (
    (FailureKind.OOM_CUDA, device_errors.OUT_OF_MEMORY),
    (FailureKind.OOM_HOST, _OOM_HOST),
    (FailureKind.DISK, _DISK),
    (FailureKind.CONTENDED, device_errors.BUSY),
    (FailureKind.INFRA_LOST, _PORT),
    (FailureKind.CUDA_FATAL, device_errors.FATAL),
)

_Evidence = dict[str, "str | int | float"]


def classify(
    result: Mapping[str, Any] | None,
    reports: ProcessReports,
    log_tail: str,
    fidelity: Fidelity,
    *,
    progress_limit_s: float = 0.0,
) -> Failure:
    """Return the Failure of a process whose segment was not closed.

    Args:
        result: Verdict of the guard; None if there is none.
        reports: Reports of the process.
        log_tail: End of its output.
        fidelity: Limits of the run.
        progress_limit_s: Time limit between steps that was exceeded, if the launcher ended a hang.
    """
    tail = "\n".join(log_tail.splitlines()[-TAIL_LINES:])
    evidence: _Evidence = {"steps": reports.steps}
    if tail:
        evidence["log_tail"] = tail
    if result is None:
        return Failure(
            kind=FailureKind.INFRA_LOST,
            message="the trial's guard died and left no verdict; its processes were ended",
            evidence=evidence,
        )
    for key in ("code", "signal", "killed", "peak_bytes", "script_s"):
        if result.get(key) not in (None, ""):
            evidence[key] = result[key]
    if result.get("survivors"):
        evidence["survivors"] = " ".join(str(pid) for pid in result["survivors"])
    kind, message = _ending(result, reports, tail, fidelity, progress_limit_s, evidence)
    return Failure(kind=kind, message=_one_line(message), evidence=evidence)


def _ending(
    result: Mapping[str, Any],
    reports: ProcessReports,
    tail: str,
    fidelity: Fidelity,
    progress_limit_s: float,
    evidence: _Evidence,
) -> tuple[FailureKind, str]:
    why = str(result["why"])
    if why == "killed_user":
        return FailureKind.KILLED_USER, f"ended by request after {result['seconds']:.0f} s"
    if why == "spawn":
        text = str(result.get("spawn_error", ""))
        evidence[NOT_BEGUN] = 1
        kind = FailureKind.DISK if _DISK.search(text) else FailureKind.INFRA_LOST
        return kind, f"could not be started: {text}"
    if why == "launcher_gone" or why.startswith("guard_"):
        what = "its launcher died" if why == "launcher_gone" else f"its guard was ended ({why[6:].upper()})"
        return FailureKind.INFRA_LOST, f"{what} {result['seconds']:.0f} s after the start"
    if reports.broke is not None:
        return _broke(reports.broke, tail, evidence)
    if why == "memory_limit":
        return FailureKind.OOM_HOST, (
            f"used {_gib(result['peak_bytes'])} of memory; the limit is {_gib(result['memory_limit_bytes'])}"
        )
    if why == "timeout_total":
        return FailureKind.TIMEOUT_TOTAL, f"not done after {result['script_s']:.0f} s ({_progress(reports)})"
    if why == "timeout_progress":
        return FailureKind.TIMEOUT_PROGRESS, f"no step for {progress_limit_s:.0f} s ({_progress(reports)})"
    if why == "disk":
        return FailureKind.DISK, f"ended after {result['seconds']:.0f} s: it left nearly no space on the disk"
    if why in ("contended", "throttled"):
        return FailureKind.named(why), f"ended by the launcher: {why}"
    if result.get("signal") is not None:
        return _signalled(int(result["signal"]), tail)
    code = result.get("code") or (reports.done.code if reports.done is not None else 0)
    if code:
        return _exited(int(code), tail, evidence)
    return _silent(reports, fidelity, evidence)


def _broke(broke: Broke, tail: str, evidence: _Evidence) -> tuple[FailureKind, str]:
    evidence.update({"phase": broke.phase, "error": broke.error})
    if broke.tail:
        evidence["traceback"] = broke.tail
    if broke.peak_bytes is not None:
        evidence["peak_bytes"] = broke.peak_bytes
    try:
        kind = FailureKind.named(broke.kind)
    except KeyError:
        kind = FailureKind.CRASH_EXIT
    text = f"{broke.error}: {broke.message}" if broke.error else broke.message
    if kind is FailureKind.CONFIG_REJECTED:
        evidence.update({"knob": broke.knob, "how": broke.how})
        return kind, broke.message or f"{broke.knob} did not take effect"
    if kind is FailureKind.CRASH_EXIT:
        if broke.error == "SystemExit" and (found := _PARSER.search(tail)):
            return FailureKind.CONFIG_REJECTED, f"the script refused its arguments: {found['what']}"
        if broke.error == "SystemExit" and broke.rank:
            # Its report has no error; the end is classified as for one process.
            found_kind = next(((k, p) for k, p in _PATTERNS if p.search(tail)), None)
            if found_kind is not None:
                return found_kind[0], _matching_line(tail, found_kind[1])
            return kind, broke.message
        kind = next((k for k, pattern in _PATTERNS if pattern.search(f"{text}\n{broke.tail}")), kind)
    return kind, f"{text} (in {broke.phase}, after {broke.steps} steps)" if broke.phase else text


def _signalled(number: int, tail: str) -> tuple[FailureKind, str]:
    for kind, pattern in _PATTERNS:
        if pattern.search(tail):
            return kind, _matching_line(tail, pattern)
    if number == signal.SIGKILL:
        return (
            FailureKind.OOM_HOST,
            "killed from outside (SIGKILL), most likely by the kernel for lack of memory",
        )
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return FailureKind.CRASH_SIGNAL, f"ended by {name}"


def _exited(code: int, tail: str, evidence: _Evidence) -> tuple[FailureKind, str]:
    if code == 2 and (found := _PARSER.search(tail)):
        return FailureKind.CONFIG_REJECTED, f"the script refused its arguments: {found['what']}"
    for kind, pattern in _PATTERNS:
        if pattern.search(tail):
            return kind, _matching_line(tail, pattern)
    if code > 128 and code - 128 == signal.SIGKILL:
        return FailureKind.OOM_HOST, "a process of it was killed from outside (SIGKILL)"
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")
    evidence.setdefault("code", code)
    return (
        FailureKind.CRASH_EXIT,
        f"exit code {code}: {last}" if last else f"exit code {code} without output",
    )


def _silent(reports: ProcessReports, fidelity: Fidelity, evidence: _Evidence) -> tuple[FailureKind, str]:
    if reports.done is None:
        return (
            FailureKind.NO_METRIC,
            "exit code 0 without a final report: the script left Python without running its exit handlers",
        )
    if reports.steps == 0:
        return (
            FailureKind.NO_METRIC,
            "the script ended without an optimizer step, so there is nothing to time",
        )
    if reports.done.why == "deadline":
        evidence["deadline_s"] = fidelity.deadline_s
        return FailureKind.WARMUP_SHORT, (
            f"its {fidelity.deadline_s:.0f} s were over before enough steps could be timed"
            f" ({_progress(reports)})"
        )
    evidence["steps_needed"] = STEPS_NEEDED
    return FailureKind.WARMUP_SHORT, (
        f"the script ended after {_steps(reports.steps)}, and the first one cannot be timed; train for at "
        f"least {STEPS_NEEDED} steps"
    )


def _matching_line(text: str, pattern: re.Pattern[str]) -> str:
    return next(
        (line.strip() for line in reversed(text.splitlines()) if pattern.search(line)), pattern.pattern
    )


def _progress(reports: ProcessReports) -> str:
    if not reports.steps:
        return "before the first step"
    return f"{_steps(reports.steps)} {'was' if reports.steps == 1 else 'were'} done"


def _steps(count: int) -> str:
    return f"{count} optimizer step" + ("" if count == 1 else "s")


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_LENGTH else line[: _LINE_LENGTH - 3] + "..."

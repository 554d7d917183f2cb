"""The classification table, on verdicts, events and log tails as they occur."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.launch.result.classify import classify
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.trial import FailureKind, Fidelity
from autotune.protocol.events import Broke, Done

FIDELITY = Fidelity(
    min_window_s=3, max_window_s=9, min_steps=12, target_width=0.05, setup_s=60, deadline_s=99
)
K = FailureKind


def verdict(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "why": "exit",
        "code": 1,
        "signal": None,
        "killed": "",
        "seconds": 7.0,
        "script_s": 6.0,
    }
    return {**base, "peak_bytes": 3 << 30, "memory_limit_bytes": 2 << 30, "survivors": [], **more}


def broke(kind: str = "crash_exit", error: str = "", message: str = "", **more: Any) -> ProcessReports:
    return ProcessReports(
        broke=Broke(kind=kind, error=error, message=message, tail="", phase="window", **more)
    )


TAILS = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", K.OOM_CUDA),
    ("RuntimeError: CUDA error: out of memory", K.OOM_CUDA),
    ("torch.AcceleratorError: CUDA error: out of memory", K.OOM_CUDA),
    ("RuntimeError: CUDA driver error: out of memory", K.OOM_CUDA),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", K.OOM_CUDA),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", K.OOM_CUDA),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", K.OOM_CUDA),
    ("torch.distributed.DistBackendError: NCCL error: Cuda failure 2 'out of memory'", K.OOM_CUDA),
    ("torch._inductor.exc.InductorError: OutOfMemoryError: CUDA out of memory. Tried", K.OOM_CUDA),
    ("RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB", K.OOM_CUDA),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", K.CUDA_FATAL),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`", K.CUDA_FATAL),
    ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", K.CUDA_FATAL),
    ("torch.distributed.DistBackendError: ncclUnhandledCudaError: Call to CUDA failed", K.CUDA_FATAL),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", K.CONTENDED),
    (
        "DistNetworkError: The server socket has failed to listen on any local network address. EADDRINUSE",
        K.INFRA_LOST,
    ),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory", K.CRASH_EXIT),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", K.CUDA_FATAL),
    ("RuntimeError: CUDA error: device-side assert triggered", K.CUDA_FATAL),
    ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", K.OOM_HOST),
    ("RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed.", K.OOM_HOST),
    ("RuntimeError: DataLoader worker (pid(s) 71, 72) exited unexpectedly", K.CRASH_EXIT),
    ("MemoryError", K.OOM_HOST),
    ("OSError: [Errno 28] No space left on device", K.DISK),
    ("ValueError: loss is weird", K.CRASH_EXIT),
    ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised", K.CRASH_EXIT),
    ("", K.CRASH_EXIT),
]


@pytest.mark.parametrize(("tail", "kind"), TAILS)
def test_the_last_lines_tell_what_an_exit_code_does_not(tail: str, kind: FailureKind) -> None:
    found = classify(verdict(), ProcessReports(), "Traceback\n  File x\n" + tail, FIDELITY)
    assert found.kind is kind
    assert found.message.count("\n") == 0
    assert found.evidence["code"] == 1


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("train.py: error: unrecognized arguments: --amp=1", K.CONFIG_REJECTED),
        (
            "train.py: error: argument --precision: invalid choice: 'fp8' (choose from 'fp32')",
            K.CONFIG_REJECTED,
        ),
        ("train.py: error: argument --batch: invalid int value: 'x'", K.CONFIG_REJECTED),
        ("Error: No such option: --amp", K.CONFIG_REJECTED),
        ("usage: no idea", K.CRASH_EXIT),
    ],
)
def test_a_parser_that_refuses_its_arguments_is_no_crash(line: str, kind: FailureKind) -> None:
    found = classify(verdict(code=2), ProcessReports(), "usage: train.py [-h]\n" + line, FIDELITY)
    assert found.kind is kind


@pytest.mark.parametrize(
    ("result", "reported", "kind", "words"),
    [
        (None, ProcessReports(), K.INFRA_LOST, "guard died"),
        (verdict(why="launcher_gone"), ProcessReports(), K.INFRA_LOST, "launcher died"),
        (verdict(why="guard_sigterm"), ProcessReports(), K.INFRA_LOST, "SIGTERM"),
        (verdict(why="killed_user"), broke(), K.KILLED_USER, "by request"),
        (
            verdict(why="spawn", spawn_error="FileNotFoundError: python"),
            ProcessReports(),
            K.INFRA_LOST,
            "python",
        ),
        (
            verdict(why="spawn", spawn_error="OSError: No space left on device"),
            ProcessReports(),
            K.DISK,
            "No space",
        ),
        (verdict(why="memory_limit", code=None, signal=9), ProcessReports(), K.OOM_HOST, "3.00 GiB"),
        (
            verdict(why="timeout_total", code=None, signal=9),
            ProcessReports(),
            K.TIMEOUT_TOTAL,
            "before the first step",
        ),
        (
            verdict(why="timeout_progress", code=None, signal=9),
            ProcessReports(),
            K.TIMEOUT_PROGRESS,
            "no step for 30 s",
        ),
        (verdict(code=None, signal=9), ProcessReports(), K.OOM_HOST, "lack of memory"),
        (verdict(code=None, signal=6), ProcessReports(), K.CRASH_SIGNAL, "SIGABRT"),
        (verdict(code=137), ProcessReports(), K.OOM_HOST, "SIGKILL"),
        (verdict(code=0), ProcessReports(), K.NO_METRIC, "without a final report"),
        (
            verdict(code=0),
            ProcessReports(done=Done(why="script_end", steps=0)),
            K.NO_METRIC,
            "without an optimizer step",
        ),
        (
            verdict(code=0),
            ProcessReports(done=Done(why="script_end", steps=1)),
            K.WARMUP_SHORT,
            "at least 3 steps",
        ),
        (
            verdict(code=0),
            ProcessReports(done=Done(why="deadline", steps=9)),
            K.WARMUP_SHORT,
            "99 s were over before",
        ),
        (
            verdict(code=0),
            ProcessReports(done=Done(why="script_exit", steps=9, code=4)),
            K.CRASH_EXIT,
            "exit code 4",
        ),
        (verdict(), broke("oom_cuda", "OutOfMemoryError", "no"), K.OOM_CUDA, "in window"),
        (verdict(), broke("crash_exit", "RuntimeError", "CUDA error: unknown"), K.CUDA_FATAL, "CUDA error"),
        (
            verdict(),
            broke("config_rejected", message="tf32 was refused", knob="tf32"),
            K.CONFIG_REJECTED,
            "tf32",
        ),
        (verdict(), broke("diverged", message="the loss is nan"), K.DIVERGED, "nan"),
        (verdict(why="timeout_total"), broke("crash_exit", "ValueError", "x"), K.CRASH_EXIT, "ValueError: x"),
        (verdict(), broke("a kind of the future", "E", "x"), K.CRASH_EXIT, "E: x"),
    ],
)
def test_the_table(result: Any, reported: ProcessReports, kind: FailureKind, words: str) -> None:
    found = classify(result, reported, "", FIDELITY, progress_limit_s=30)
    assert found.kind is kind
    assert words in found.message


def test_the_evidence_names_knob_and_way_and_keeps_twenty_lines() -> None:
    reported = broke("config_rejected", message="no", knob="tf32", how="patch", peak_bytes=5)
    found = classify(verdict(survivors=[3, 4]), reported, "\n".join(str(i) for i in range(99)), FIDELITY)
    assert found.evidence["knob"] == "tf32"
    assert found.evidence["how"] == "patch"
    assert found.evidence["survivors"] == "3 4"
    assert str(found.evidence["log_tail"]).split("\n") == [str(i) for i in range(79, 99)]


def test_a_long_or_broken_message_is_one_short_line() -> None:
    found = classify(verdict(), broke("crash_exit", "E", "a\nb " * 900), "", FIDELITY)
    assert len(found.message) <= 300
    assert "\n" not in found.message

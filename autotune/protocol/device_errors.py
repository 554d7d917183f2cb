"""Accelerator errors in texts: common patterns for the trial process and its launcher.

The same condition has many spellings: PyTorch's allocator, cudaMalloc elsewhere in PyTorch, the driver
interface behind expandable segments, handles and workspaces of cuBLAS and related libraries, NCCL, HIP. Out
of memory is matched first, because most of its texts begin like other device errors. Standard library only.
"""

from __future__ import annotations

import re

OUT_OF_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|(?:CUDA|HIP) out of memory"
    r"|(?:CUDA|HIP|CUDA driver) error: out of memory|(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)"
    r"|CUDA_ERROR_OUT_OF_MEMORY|Cuda failure (?:\d+ )?'out of memory'"
    r"|CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_(?:HOST|DEVICE)_ALLOCATION_FAILED"
)
"""Out of device memory; the context is valid, and another configuration may fit."""

BUSY = re.compile(r"all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy")
"""Another process holds the device exclusively (exclusive compute mode)."""

FATAL = re.compile(
    r"\bAcceleratorError\b|(?:CUDA|HIP|CUDA driver) error: |\b(?:cuda|hip)Error\w+|device-side assert"
    r"|illegal memory access|uncorrectable (?:ECC|NVLink) error|GPU is lost|fallen off the bus"
    r"|CUDNN_STATUS_(?:EXECUTION|INTERNAL)\w*|cuDNN error: |CU(?:BLAS|SOLVER|SPARSE)_STATUS_\w+"
    r"|ncclUnhandledCudaError|Cuda failure "
)
"""Any other CUDA error: the context may be invalid, so the process must end."""


def kind_of(text: str) -> str:
    """Return the failure kind of an error text, empty if it is no device error.

    Args:
        text: Class and message of an exception, or lines of a log.
    """
    for kind, pattern in (("oom_cuda", OUT_OF_MEMORY), ("contended", BUSY), ("cuda_fatal", FATAL)):
        if pattern.search(text):
            return kind
    return ""

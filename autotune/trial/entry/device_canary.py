"""Check that every visible accelerator still computes; run after a trial that broke one, exit code 0 if so.

Standard library and torch only, and no other module of autotune: the script's interpreter gets it as text,
with the pid of the waiting process as its argument.
"""

import ctypes
import os
import signal
import sys

SIZE = 256
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Multiply whole numbers that every format holds exactly, and compare."""
    # On a device that hangs it would never end by itself.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for waiting in sys.argv[1:]:
        os.kill(int(waiting), 0)
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("torch sees no accelerator\n")
        return 1
    for device in range(torch.cuda.device_count()):
        numbers = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE).remainder(7).float() - 3
        product = (numbers.to(f"cuda:{device}") @ numbers.to(f"cuda:{device}")).cpu()
        if not torch.equal(product, numbers @ numbers):
            sys.stderr.write(f"accelerator {device} multiplies wrongly\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

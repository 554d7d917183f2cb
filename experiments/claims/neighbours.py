"""Processes that use the machine while something is measured on it."""

import contextlib
import subprocess
import sys

NEIGHBOURS = {
    "none": "",
    "busy": "while True: pass",
    "bursts": (
        "import random, time\n"
        "draw = random.Random(1)\n"
        "while True:\n"
        "    end = time.monotonic() + draw.uniform(1, 8)\n"
        "    while time.monotonic() < end: pass\n"
        "    time.sleep(draw.uniform(1, 8))\n"
    ),
}


@contextlib.contextmanager
def beside(neighbour):
    """One neighbour of that name is there meanwhile; it is gone afterwards, however that ends."""
    code = NEIGHBOURS[neighbour]
    busy = subprocess.Popen([sys.executable, "-c", code]) if code else None
    try:
        yield
    finally:
        if busy:
            busy.terminate()
            busy.wait()

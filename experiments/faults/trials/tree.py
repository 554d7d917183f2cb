"""A trial that makes a tree of processes and never ends by itself.

Arguments: the shape of the tree, the name that every process of it carries on its command line, and
whether to write where a trial must not.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SHAPE, TOKEN, WRITES = sys.argv[1:4]


def rest():
    while True:
        time.sleep(0.5)


def fork(then=rest):
    pid = os.fork()
    if pid == 0:
        try:
            then()
        finally:
            os._exit(0)
    return pid


def deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def in_own_session():
    os.setsid()
    rest()


def daemon(then=rest):
    def middle():
        os.setsid()
        fork(then)

    os.waitpid(fork(middle), 0)


def bare():
    """A daemon that has lost its environment when this returns."""
    fork()
    read, write = os.pipe()  # closed by exec
    daemon(without_environment)
    os.close(write)
    os.read(read, 1)
    os.close(read)


def without_environment():
    os.execve(sys.executable, [sys.executable, "-S", __file__, "rests", TOKEN, "no"], {})


def breeds():
    """A process that on TERM leaves another one in its place."""

    def on_term(_number, _frame):
        if os.fork():
            os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    rest()


def rabbits():
    """Processes that leave another one in their place at once: in a list of them the next one is missing.

    They hold a lock as long as one of them lives. They end by themselves at last, or when its file is gone.
    """
    alive = Path(os.environ["AUTOTUNE_PLAN"]).with_name("alive")
    file = os.open(alive, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    end_s = time.monotonic() + 60.0

    def run():
        while time.monotonic() < end_s and alive.exists():
            if os.fork():
                os._exit(0)

    daemon(run)
    os.close(file)


def workers():
    command = [sys.executable, "-S", __file__, "rests", TOKEN, "no"]
    return [subprocess.Popen(command, start_new_session=n > 0) for n in range(2)]


def write_outside():
    for place in ("ckpt", "new", "../x", "../y", "runs/log.csv"):
        Path(place).write_text("a trial was here\n")
    Path("latest").unlink()
    Path("..", "z").mkdir()


SHAPES = {
    "forks": lambda: [fork() for _ in range(3)],
    "session": lambda: fork(in_own_session),
    "daemon": daemon,
    "deaf": lambda: (deaf(), fork(), fork(in_own_session)),
    "workers": workers,
    "breeds": lambda: (fork(breeds), daemon(breeds)),
    "bare": bare,
    "rabbits": rabbits,
    "hostile": lambda: (deaf(), fork(), workers(), daemon(), daemon(breeds)),
    "rests": rest,
}

if WRITES == "yes":
    write_outside()
SHAPES[SHAPE]()
if SHAPE in ("daemon", "bare", "rabbits"):
    fork()
# A trial's TMPDIR may be seen by the trial alone.
PLACE = Path(os.environ["AUTOTUNE_PLAN"])
if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
    # Its children ignore the request; it does as well, and notes it.
    signal.signal(signal.SIGTERM, lambda *_: PLACE.with_name("asked").touch())
PLACE.with_name("ready").touch()
while True:
    # As a loader does: a worker that died ends the training.
    pid, _ = os.wait()
    sys.exit(3)

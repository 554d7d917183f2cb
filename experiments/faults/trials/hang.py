"""A trial that hangs in one of several ways. Argument: which."""

import fcntl
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path


def locked():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def full_pipe():
    _read, write = os.pipe()
    os.write(write, bytes(1 << 20))


def empty_queue():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=queue.get)
    worker.start()
    worker.join()


def silent_name_server():
    server, client = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    server.bind(("127.0.0.1", 0))
    client.sendto(b"where is it?", server.getsockname())
    client.recv(512)


def loop_in_c():
    # A handler of Python's never runs while this does not come back.
    signal.signal(signal.SIGTERM, lambda *_: None)
    sum(itertools.repeat(0))


def deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(3600)


def file_lock():
    path = Path(os.environ["TMPDIR"], "lock")
    with path.open("w") as one, path.open("w") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)


def fifo():
    path = Path(os.environ["TMPDIR"], "fifo")
    os.mkfifo(path)
    path.read_bytes()


KINDS = {
    "lock": locked,
    "sleep": lambda: time.sleep(3600),
    "full pipe": full_pipe,
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "empty queue": empty_queue,
    "silent name server": silent_name_server,
    "loop in C": loop_in_c,
    "deaf": deaf,
    "file lock": file_lock,
    "fifo": fifo,
}
KINDS[sys.argv[1]]()

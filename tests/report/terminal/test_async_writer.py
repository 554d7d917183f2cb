"""Somebody who stops reading holds up nothing, and who reads gets everything in order."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from study_fakes import study

from autotune.report.terminal import async_writer
from autotune.report.terminal.async_writer import AsyncWriter
from autotune.report.terminal.event_stream import EventLines
from autotune.report.terminal.live_view import Progress

Pipe = tuple[int, io.TextIOWrapper]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Its reading end, and a stream that writes to it."""
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    yield reader, stream
    os.close(reader)
    async_writer._outlets.pop(stream, None)
    stream.close()


def filled(stream: io.TextIOWrapper) -> None:
    """Nobody has read for long."""
    os.set_blocking(stream.fileno(), False)
    try:
        while True:
            os.write(stream.fileno(), b"." * 4096)
    except BlockingIOError:
        os.set_blocking(stream.fileno(), True)


def test_nothing_waits_for_a_reader_that_has_stopped(pipe: Pipe) -> None:
    _, stream = pipe
    filled(stream)
    began_s = time.monotonic()
    for listener in (EventLines(stream), Progress(stream, live=False)):
        listener.study_began(study())
        for trial in study().trials:
            listener.trial_started(study(), trial)
            listener.trial_ended(study(), trial)
        listener.note(study(), "message")
        listener.stopping("signal")
    assert time.monotonic() - began_s < 5.0


def test_a_reader_that_takes_nothing_for_long_receives_nothing_more(pipe: Pipe) -> None:
    _, stream = pipe
    filled(stream)
    out = AsyncWriter.of(stream)
    out.put("a line\n")
    assert not out.drain(0.2)
    out.last("the result\n")
    assert not out.is_open


def test_a_slow_reader_gets_everything_in_order_before_the_end(pipe: Pipe) -> None:
    reader, stream = pipe
    filled(stream)
    read = bytearray()

    def slowly() -> None:
        while not read.endswith(b"the result\n"):
            time.sleep(0.001)
            read.extend(os.read(reader, 4096))

    reading = threading.Thread(target=slowly)
    lines = EventLines(stream)
    for n in range(500):
        lines.note(study(), f"note {n}")
    reading.start()
    lines.study_ended(study())
    AsyncWriter.of(stream).last("the result\n")
    reading.join(10)
    *rows, result = bytes(read).decode().lstrip(".").splitlines()
    reported = [json.loads(row) for row in rows]
    assert [row["text"] for row in reported[:-1]] == [f"note {n}" for n in range(500)]
    assert (reported[-1]["event"], result) == ("study_ended", "the result")


def test_who_has_not_taken_thousands_of_lines_takes_none(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    _, stream = pipe
    filled(stream)
    monkeypatch.setattr(async_writer, "MOST_WAITING", 3)
    out = AsyncWriter.of(stream)
    for _ in range(6):
        out.put("a line\n")
    assert not out.is_open


def test_a_reader_that_has_gone_is_reported_where_it_matters(pipe: Pipe) -> None:
    reader, stream = pipe
    out = AsyncWriter.of(stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), reader)
    with pytest.raises(BrokenPipeError):
        out.last("the result\n")


def test_a_file_is_written_to_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        AsyncWriter.of(stream).put("a line\n")
        assert (tmp_path / "log").read_text() == "a line\n"


def test_what_was_reported_last_is_written_before_the_process_ends() -> None:
    text = (
        "import sys; from autotune.report.terminal.async_writer import AsyncWriter as Outlet; "
        "Outlet.of(sys.stderr).put('last\\n' * 999)"
    )
    done = subprocess.run([sys.executable, "-c", text], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr == "last\n" * 999


def test_where_no_thread_can_be_had_it_is_written_to_at_once(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader, stream = pipe
    monkeypatch.setattr(threading.Thread, "start", refuse)
    AsyncWriter.of(stream).put("reported\n")
    assert os.read(reader, 100) == b"reported\n"


def test_a_reader_that_has_gone_hides_no_exit_code() -> None:
    code = """
import os, sys
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
from autotune.cli.outcome import print_error, say_error
from autotune.errors import BackendError
error = BackendError("Ray is gone", hint="start it")
print_error(error, line=True)
say_error(error)
os._exit(error.exit_code)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 6
    assert "Ray is gone" in ended.stderr

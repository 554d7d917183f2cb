"""Event files: any cut, any foreign line, and nothing but whole messages is read."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.launch.result.process_reports import ProcessReports
from autotune.model.measurement import LossPoint
from autotune.protocol import lines
from autotune.protocol.events import Broke, Closed, Done, Hello, StepRow, Steps
from autotune.protocol.lines import Reader, Writer, encode

EVENTS = (
    Hello(pid=1, t_ns=2, python="3.11"),
    Steps(rows=(StepRow(t_ns=5, wait_ns=1, samples=8), StepRow(t_ns=9, wait_ns=1, samples=8, mark=2))),
    Closed(
        trial=0,
        begin_ns=1,
        end_ns=9,
        ended="limit",
        steady="steady",
        first_step_ns=1,
        compile_s=0.5,
        loss=(LossPoint(samples=8, loss=math.inf, t_s=1.0),),
    ),
    Broke(kind="crash_exit", error="E", message="ü\n\0", tail="", phase="window"),
    Done(why="measured", steps=2),
)
DATA = b"".join(encode(e, "nonce") for e in EVENTS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(DATA)))
def test_any_prefix_reads_as_the_messages_that_are_whole_in_it(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(DATA[:cut])
    reader = Reader(path, "nonce")
    whole = DATA[:cut].count(b"\n")
    assert list(reader.read()) == list(EVENTS[:whole])
    path.write_bytes(DATA)
    assert list(reader.read()) == list(EVENTS[whole:])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=80), at=st.integers(0, len(EVENTS)))
def test_foreign_lines_change_nothing(tmp_path: Path, junk: bytes, at: int) -> None:
    path = tmp_path / "events.jsonl"
    lines = [encode(e, "nonce") for e in EVENTS]
    path.write_bytes(b"".join([*lines[:at], junk + b"\n", encode(EVENTS[0], "other"), *lines[at:]]))
    assert list(Reader(path, "nonce").read()) == list(EVENTS)


def test_what_is_no_text_is_spelled_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    message = Broke(
        kind="crash_exit", error="E", message="no caf\udce9.jpg \U0001f600", tail="\ud800", phase=""
    )
    path.write_bytes(encode(message, "nonce"))
    (heard,) = Reader(path, "nonce").read()
    assert isinstance(heard, Broke)
    assert (heard.message, heard.tail) == ("no caf\\udce9.jpg \U0001f600", "\\ud800")


def test_a_fork_of_the_writer_writes_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "e", "nonce")
    writer.write(EVENTS[0])
    writer._pid = -1  # pyright: ignore[reportPrivateUsage]
    writer.write(EVENTS[1])
    reported = ProcessReports()
    for event in Reader(tmp_path / "e", "nonce").read():
        reported.take(event)
    assert reported.hello == EVENTS[0]
    assert reported.rows == []


def test_a_large_file_is_read_in_pieces_and_nothing_is_lost_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 100)
    path = tmp_path / "events.jsonl"
    last = encode(EVENTS[1], "nonce")
    path.write_bytes(DATA * 20 + last[:-5])
    reader = Reader(path, "nonce")
    assert len(list(reader.read())) == 20 * len(EVENTS)
    with path.open("ab") as file:
        file.write(last[-5:])
    assert list(reader.read()) == [EVENTS[1]]
    assert list(reader.read()) == []


def test_where_the_file_is_none_nothing_is_read_and_nobody_waits(tmp_path: Path) -> None:
    """A pipe that nobody writes to, a link, a folder."""
    (tmp_path / "events").write_bytes(DATA)
    (tmp_path / "link").symlink_to(tmp_path / "events")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "link", "folder", "missing"):
        assert list(Reader(tmp_path / name, "nonce").read()) == []
    assert len(list(Reader(tmp_path / "events", "nonce").read())) == len(EVENTS)

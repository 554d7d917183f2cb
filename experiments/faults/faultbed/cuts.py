"""Files cut and damaged: journals and event files keep what was whole before, and say what is wrong."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, JournalDamaged
from autotune.protocol.events import Done, StepRow, Steps
from autotune.protocol.lines import Reader, Writer
from autotune.store.journal import Journal
from faultbed.common import Case, Count, dice

NAME = "cuts"
TITLE = "files cut or damaged"
FRAME_BYTES = 24 + 4096
EVENTS = 24
PARTS = 8


def cases() -> list[Case]:
    """Every byte of the last three commits, every page many times, every byte of an event file's end."""
    return [
        *(
            {"key": f"log/{n}/{part}", "what": "log", "commit": n, "part": part, "stride": 1}
            for n in range(3)
            for part in range(PARTS)
        ),
        *({"key": f"pages/{n}", "what": "pages", "tries": 40, "turn": n} for n in range(5)),
        {"key": "events", "what": "events"},
    ]


def sample() -> list[Case]:
    """The borders of frames in full and between them every 97th byte; a few damages a page."""
    return [
        {"key": "log/0", "what": "log", "commit": 0, "stride": 97},
        {"key": "pages/0", "what": "pages", "tries": 3, "turn": 0},
        {"key": "events", "what": "events"},
    ]


def run(case: Case, folder: Path) -> Count:
    """One kind of damage at many places."""
    return {"log": _log, "pages": _pages, "events": _events}[str(case["what"])](case, folder)


def _text(i: int) -> str:
    return "x" * (9000 if i % 5 == 0 else 300) + str(i)


def _log(case: Case, folder: Path) -> Count:
    """The write-ahead log, cut byte by byte from its end, as a killed machine may leave it."""
    whole, torn = folder / "whole", folder / "torn"
    ends: list[int] = []
    with Journal.create(whole, ballast_bytes=0, environ={}) as journal:
        for i in range(EVENTS):
            journal.append("noted", f"n/{i}", {"text": _text(i)})
            ends.append((whole / "journal.db-wal").stat().st_size)
        shutil.copytree(whole, torn)
    last = EVENTS - 1 - int(case["commit"])
    count = Count()
    low, high = ends[last - 1], ends[last]
    if "part" in case:
        step = (high - low) // PARTS + 1
        low, high = low + int(case["part"]) * step, min(high, low + (int(case["part"]) + 1) * step)
    for cut in _places(low, high, int(case["stride"])):
        with (torn / "journal.db-wal").open("r+b") as file:
            file.truncate(cut)
        (torn / "journal.db-shm").unlink(missing_ok=True)
        count.injected += 1
        # A commit is there from its last byte on; SQLite may leave room behind it.
        least = last
        try:
            with closing(Journal.read(torn)) as journal:
                found = [(e.uid, e.data) for e in journal.entries()]
        except AutotuneError as error:
            count.lost += 1
            count.notes.append(f"cut at {cut}: {error.message}")
            continue
        good = found == [(f"n/{i}", {"text": _text(i)}) for i in range(len(found))]
        kept = len(found) >= least
        count.lost += not kept
        if good and kept:
            count.survived += 1
        else:
            count.notes.append(f"cut at {cut}: {len(found)} events")
    _goes_on(torn, count)
    return count


def _places(low: int, high: int, stride: int) -> Iterator[int]:
    """From the end to the beginning of one commit."""
    for cut in range(high, low - 1, -1):
        near = (cut - 32) % FRAME_BYTES
        if cut % stride == 0 or near <= 32 or near >= FRAME_BYTES - 32:
            yield cut


def _goes_on(folder: Path, count: Count) -> None:
    """A torn journal can be written to again."""
    (folder / "journal.db-shm").unlink(missing_ok=True)
    with Journal.open(folder, ballast_bytes=0, environ={}) as journal:
        before = len(list(journal.entries()))
        journal.append("noted", "after", {})
        after = [e.uid for e in journal.entries()]
    if len(after) != before + 1 or after[-1] != "after":
        count.notes.append("nothing could be written after the cut")
        count.survived = 0


def _pages(case: Case, folder: Path) -> Count:
    """Bytes of the database overwritten: every event is read as it was written, or the damage is named."""
    draw = dice(NAME, case["key"])
    whole, hurt = folder / "whole", folder / "hurt"
    with Journal.create(whole, ballast_bytes=0, environ={}) as journal:
        for i in range(EVENTS):
            journal.append("noted", f"n/{i}", {"text": _text(i)})
    data = (whole / "journal.db").read_bytes()
    written = [(f"n/{i}", {"text": _text(i)}) for i in range(EVENTS)]
    hurt.mkdir()
    count = Count()
    named = 0
    for page in range(len(data) // 4096):
        for _ in range(int(case["tries"])):
            bad = bytearray(data)
            size = draw.choice((1, 4, 64, 4096))
            place = page * 4096 + (0 if size == 4096 else draw.randrange(4096 - size))
            noise = bytes(size) if draw.random() < 0.3 else draw.randbytes(size)
            bad[place : place + size] = noise
            for name in ("journal.db-wal", "journal.db-shm"):
                (hurt / name).unlink(missing_ok=True)
            (hurt / "journal.db").write_bytes(bad)
            count.injected += 1
            problem = _read_or_named(hurt, written)
            named += problem == "named"
            if problem in ("", "named"):
                count.survived += 1
            else:
                count.notes.append(f"{size} bytes at {place}: {problem}")
    count.facts = {"named": named}
    return count


def _read_or_named(folder: Path, written: list[Any]) -> str:
    try:
        with closing(Journal.read(folder)) as journal:
            found = [(e.uid, e.data) for e in journal.entries()]
    except JournalDamaged as error:
        return "named" if "journal.db" in error.message and error.hint else f"unclear: {error.message}"
    except AutotuneError as error:
        # Another format, where just that number was hit.
        return "named" if "format" in error.message else f"called {type(error).__name__}: {error.message}"
    except Exception as error:  # noqa: BLE001 (an error here is the fault under test)
        return f"{type(error).__name__}: {error}"
    return "" if found == written else "events were read that nobody wrote"


def _events(_case: Case, folder: Path) -> Count:
    """An event file, cut at every byte of its last three messages while it is being read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.jsonl"
    writer = Writer(path, "nonce")
    reported = [
        *(
            Steps(rows=tuple(StepRow(t_ns=i * 1000 + k, wait_ns=5, samples=4) for k in range(8)))
            for i in range(4)
        ),
        Done(why="measured", steps=32),
    ]
    ends = []
    for event in reported:
        writer.write(event)
        ends.append(path.stat().st_size)
    data = path.read_bytes()
    count = Count()
    for cut in range(ends[-4], len(data) + 1):
        path.write_bytes(data[:cut])
        reader = Reader(path, "nonce")
        first = list(reader.read())
        path.write_bytes(data)
        rest = list(reader.read())
        count.injected += 1
        whole = sum(end <= cut for end in ends)
        if first == reported[:whole] and [*first, *rest] == reported:
            count.survived += 1
        else:
            count.lost += len(reported) - len(first) - len(rest)
            count.notes.append(f"cut at {cut}: {len(first)} and then {len(rest)} messages")
    return count

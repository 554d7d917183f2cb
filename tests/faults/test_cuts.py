"""Files cut and damaged at many places: what was whole is read, the rest is named."""

from __future__ import annotations

from typing import Any

import pytest
from faultbed import cuts

from autotune.protocol.lines import Reader, decode
from autotune.store.journal import Entry, Journal

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

LOG, PAGES, EVENTS = cuts.sample()


@pytest.mark.parametrize("case", cuts.sample(), ids=lambda case: case["key"])
def test_what_was_whole_is_read_and_the_rest_is_named(injected, is_clean, case) -> None:
    count = injected(cuts, case)
    is_clean(count)
    assert count.injected > 60


def test_without_digests_damage_is_read_as_if_it_were_written(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(journal: Journal, row: tuple[Any, ...], before: int, sha_before: str) -> Entry:
        import json

        seq, uid, epoch, kind, wall_s, text, _ = row
        return Entry(seq=seq, uid=uid, epoch=epoch, kind=kind, data=json.loads(text), wall_s=wall_s)

    monkeypatch.setattr(Journal, "_checked", unchecked)
    monkeypatch.setattr(Journal, "_head", lambda journal: (0, ""))
    count = injected(cuts, PAGES)
    assert count.survived < count.injected
    assert any("nobody wrote" in note for note in count.notes)


def test_a_journal_that_loses_its_last_event_is_noticed(injected, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = Journal.entries
    monkeypatch.setattr(Journal, "entries", lambda journal: iter(list(entries(journal))[:-1]))
    assert injected(cuts, LOG).lost > 0


def test_a_reader_that_takes_torn_lines_loses_messages(injected, monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(reader: Reader) -> Any:
        data = reader._path.read_bytes()[reader._offset :]
        reader._offset += len(data)
        for line in data.splitlines():
            event = decode(line, reader._nonce)
            if event is not None:
                yield event

    monkeypatch.setattr(Reader, "read", hasty)
    assert injected(cuts, EVENTS).lost > 0

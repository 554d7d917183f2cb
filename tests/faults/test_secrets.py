"""No kind of secret comes out of a search, and one that is not taken out is found."""

from __future__ import annotations

from unittest import mock

import pytest
from faultbed import secrets

pytestmark = [pytest.mark.slow, pytest.mark.mlflow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("case", secrets.sample(), ids=lambda case: case["key"])
def test_no_secret_is_written_sent_or_reported(injected, is_clean, case) -> None:
    is_clean(injected(secrets, case))


def test_a_journal_that_takes_out_nothing_is_noticed(injected) -> None:
    as_it_is = mock.patch("autotune.store.journal.redact_data", lambda data, _environ=None: data)
    case = {"key": "untaken", "kind": "option and value in two"}
    count = injected(secrets, case, patches=(as_it_is,))
    assert "it is in journal.db" in count.notes


@pytest.mark.parametrize(
    "text",
    [
        "CANARY 'it is' \"07\"",
        "CANARY &#x27;it is&#x27; &quot;07&quot;",
        "CANARY%20%27it%20is%27%20%2207%22",
        "CANARY 'it is' \\\"07\\\"",
        "CANARY \\'it is\\' \"07\"",
    ],
)
def test_every_spelling_is_recognised(text: str) -> None:
    assert secrets.is_in(secrets.QUOTED, f"x{text}y")
    assert not secrets.is_in(secrets.QUOTED, text[:-3])

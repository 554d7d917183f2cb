"""Webhooks: to hosts that are allowed, signed, retried, given up at last."""

import hashlib
import hmac

import httpx
import pytest
from service_fakes import submission

from autotune.service.states import SearchState
from autotune.service.webhooks import FIRST_RETRY_S, MOST_ATTEMPTS, SIGNATURE, Sender

URL = "https://hooks.example/x"


@pytest.fixture
def waiting(database):
    row, _ = database.submit(submission(webhook=URL))
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x")
    database.move(row.id, SearchState.STARTING, SearchState.RUNNING, "running")
    return row


@pytest.fixture
def posts(monkeypatch):
    found = []

    def post(url, **given):
        found.append((url, given))
        return httpx.Response(found_status[0])

    found_status = [200]
    monkeypatch.setattr(httpx, "post", post)
    found_list = found
    found_list_status = found_status
    return found_list, found_list_status


def test_a_webhook_is_signed_and_sent_once(database, waiting, posts):
    sent, _status = posts
    sender = Sender(database, ["hooks.example"], "key")
    assert sender.send_due() == 1
    assert sender.send_due() == 0
    ((url, given),) = sent
    assert url == URL
    expected = "sha256=" + hmac.new(b"key", given["content"], hashlib.sha256).hexdigest()
    assert given["headers"][SIGNATURE] == expected
    assert b'"text": "autotune search train.py: running' in given["content"]


def test_a_failure_is_retried_with_growing_pauses_and_given_up(database, waiting, posts, clock):
    sent, status = posts
    status[0] = 500
    sender = Sender(database, ["hooks.example"], "")
    for attempt in range(MOST_ATTEMPTS):
        assert sender.send_due() == 0
        assert len(sent) == attempt + 1
        assert sender.send_due() == 0
        assert len(sent) == attempt + 1, "not before its time"
        clock.pass_(FIRST_RETRY_S * 2**attempt + 1)
    sender.send_due()
    assert len(sent) == MOST_ATTEMPTS


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "https://hooks.example@evil.example/",
        "file:///etc/passwd",
        "https://evil.example/",
    ],
)
def test_addresses_that_are_not_allowed_are_never_called(database, posts, url):
    row, _ = database.submit(submission(webhook=url))
    database.move(row.id, SearchState.QUEUED, SearchState.STARTING, "x")
    database.move(row.id, SearchState.STARTING, SearchState.RUNNING, "x")
    Sender(database, ["hooks.example"], "").send_due()
    assert posts[0] == []
    assert database.due_webhooks() == []

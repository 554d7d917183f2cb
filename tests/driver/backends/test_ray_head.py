"""Whether a cluster's head still listens, by a server that is none of Ray's."""

from __future__ import annotations

import errno
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from autotune.driver.backends.ray_head import Head

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_head_is_dead_once_it_was_missed_twice(server: socket.socket) -> None:
    head = Head(of(server), every_s=0.0)
    assert [head.look(), head.look()] == ["", ""]
    server.close()
    assert [head.look(), head.look()] == ["", "head"]


def test_a_head_that_comes_back_between_two_looks_lives(server: socket.socket) -> None:
    head, port = Head(of(server), every_s=0.0), server.getsockname()[1]
    server.close()
    assert head.look() == ""
    with socket.create_server(("127.0.0.1", port)):
        assert head.look() == ""
    assert [head.look(), head.look()] == ["", "head"]


def test_a_head_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has lost its power refuses nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        queue = [socket.socket() for _ in range(4)]
        try:
            for line in queue:
                line.setblocking(False)
                line.connect_ex(full.getsockname())
            head = Head(of(full), every_s=0.0, within_s=0.1)
            begun_s = time.monotonic()
            assert [head.look(), head.look()] == ["", "head"]
            assert time.monotonic() - begun_s < 30.0
        finally:
            for line in queue:
                line.close()


def test_it_is_requested_now_and_then_only(server: socket.socket) -> None:
    head = Head(of(server), every_s=3600.0)
    assert head.look() == ""
    server.close()
    assert {head.look() for _ in range(3)} == {""}


def test_what_is_missing_on_our_side_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head("127.0.0.1:1", every_s=0.0)

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    assert [head.look(), head.look(), head.look()] == ["", "", ""]


@pytest.mark.parametrize("address", ["", "auto", "head:", "127.0.0.1:none"])
def test_what_is_no_address_is_reported_at_once(address: str) -> None:
    with pytest.raises((OSError, ValueError)):
        Head(address)


def test_an_address_of_version_6_is_read_with_and_without_brackets() -> None:
    assert Head("[::1]:6379")._place[:2] == Head("::1:6379")._place[:2] == ("::1", 6379)


def test_a_look_hangs_up(server: socket.socket) -> None:
    heard: list[bytes] = []

    def answer() -> None:
        line, _ = server.accept()
        with line:
            heard.append(line.recv(1))

    thread = threading.Thread(target=answer)
    thread.start()
    Head(of(server)).look()
    thread.join(30.0)
    assert heard == [b""]

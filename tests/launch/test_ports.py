"""A port of its own for every process that asks for one."""

import socket

from autotune.launch.ports import with_port
from autotune.model.distributed_launch import FREE_PORT


def test_a_free_port_takes_the_place_of_the_word_for_it() -> None:
    env = with_port({"A": "1", "MASTER_PORT": FREE_PORT})
    assert env["A"] == "1"
    with socket.socket() as free:
        free.bind(("127.0.0.1", int(env["MASTER_PORT"])))


def test_a_port_that_was_named_stays_and_none_is_added() -> None:
    assert with_port({"MASTER_PORT": "29500"}) == {"MASTER_PORT": "29500"}
    assert with_port({}) == {}

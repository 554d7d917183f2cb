"""`wait_policy`: the contract, the facts that refuse it, whose variable it takes, and what it reads."""

from dataclasses import replace

import pytest
from knob_facts import run

from autotune.knobs.host.wait_policy import WaitPolicy
from autotune.model.change import Env
from autotune.model.config import Config
from autotune.space.choose_delivery import choose
from autotune.testing.knobs import (
    CPU_HOST,
    CPU_RUN,
    GPU_HOST,
    GPU_RUN,
    FakePatches,
    FakeProcess,
    KnobContract,
    facts,
)

KNOB = WaitPolicy()


def owning(value: str):
    return facts(run=run(values={**CPU_RUN.values, "wait_policy": value}))


class TestWaitPolicy(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(host=GPU_HOST, run=GPU_RUN), "NVIDIA device"),
        (facts(host=replace(CPU_HOST, cpus=1)), "one core"),
        (owning("spincount"), "GOMP_SPINCOUNT"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None


@pytest.mark.parametrize(
    ("runtime", "name", "text"),
    [
        ("gnu", "OMP_WAIT_POLICY", "PASSIVE"),
        ("", "OMP_WAIT_POLICY", "PASSIVE"),
        ("intel", "KMP_BLOCKTIME", "0"),
        ("llvm", "KMP_BLOCKTIME", "0"),
    ],
)
def test_the_runtime_that_torch_has_loaded_decides_the_variable(runtime, name, text) -> None:
    given = facts(run=run(openmp=runtime))
    (change,), () = choose(Config({"wait_policy": "PASSIVE"}), given, {"wait_policy": KNOB})
    assert (change.spelling, change.delivered) == (Env(name), text)


def test_names_are_read_in_any_letters_and_unset_cannot_be_brought_back() -> None:
    assert KNOB.resolve("passive", facts()) == "PASSIVE"
    assert KNOB.resolve("unset", owning("unset")) == "unset"
    assert KNOB.resolve("unset", owning("PASSIVE")) is None
    assert KNOB.domain(owning("ACTIVE")) == ("ACTIVE", "PASSIVE")


def test_one_thread_waits_for_nobody() -> None:
    alone = facts(run=run(threads=1))
    assert "one thread" in (KNOB.idle(alone, ("wait_policy",)) or "")
    assert KNOB.idle(alone, ("wait_policy", "threads")) is None
    assert KNOB.settle(Config({"wait_policy": "PASSIVE"}), alone) == Config()
    both = Config({"wait_policy": "PASSIVE", "threads": 2})
    assert KNOB.settle(both, alone) == both
    assert KNOB.settle(Config({"wait_policy": "PASSIVE", "threads": 1}), facts()) == Config({"threads": 1})


def reading(**known: object):
    patches = FakePatches()
    patches.process = FakeProcess(**known)
    return KNOB.seen(patches)


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({}, "unset"),
        ({"variables": {"OMP_WAIT_POLICY": "passive"}}, "PASSIVE"),
        ({"variables": {"OMP_WAIT_POLICY": "ACTIVE"}}, "ACTIVE"),
        ({"variables": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "9"}}, "spincount"),
        ({"openmp": "intel", "blocktime_ms": 0}, "PASSIVE"),
        ({"openmp": "intel", "blocktime_ms": 200, "variables": {"OMP_WAIT_POLICY": "PASSIVE"}}, "unset"),
        ({"openmp": "llvm", "blocktime_ms": 2**31 - 1}, "ACTIVE"),
        ({"openmp": "llvm"}, None),
    ],
)
def test_it_reads_what_the_runtime_has_read(known, found) -> None:
    assert reading(**known) == found

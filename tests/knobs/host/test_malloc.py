"""`malloc`: the contract, the facts that refuse it, its two variables, and what it reads."""

from dataclasses import replace

import pytest

from autotune.knobs.host.malloc import Malloc
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

KNOB = Malloc()
JEMALLOC = {"jemalloc": "/usr/lib/libjemalloc.so.2"}
STOCKED = replace(CPU_HOST, allocators=JEMALLOC, libc="glibc 2.36", huge_pages="madvise")


class TestMalloc(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(host=replace(GPU_HOST, allocators=JEMALLOC), run=GPU_RUN), "NVIDIA device"),
        (facts(), "is installed"),
        (facts(host=replace(CPU_HOST, allocators={"jemalloc": "/my libs/libjemalloc.so.2"})), "is installed"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts(host=STOCKED)) is None
    assert KNOB.domain(facts(host=STOCKED)) == ("glibc", "jemalloc", "glibc_hugepages")


@pytest.mark.parametrize(
    ("libc", "mode"),
    [("glibc 2.34", "madvise"), ("", "madvise"), ("glibc 2.36", "always"), ("glibc 2.36", "")],
)
def test_huge_pages_require_a_glibc_and_a_kernel_that_support_them_on_request(libc, mode) -> None:
    assert "glibc_hugepages" not in KNOB.domain(facts(host=replace(STOCKED, libc=libc, huge_pages=mode)))


def test_each_value_goes_by_the_variable_that_can_say_it() -> None:
    for value, name, text in (
        ("jemalloc", "LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
        ("glibc_hugepages", "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    ):
        (change,), () = choose(Config({"malloc": value}), facts(host=STOCKED), {"malloc": KNOB})
        assert (change.spelling, change.delivered) == (Env(name), text)


def test_another_library_of_the_users_own_cannot_be_taken_out_again() -> None:
    given = facts(host=STOCKED, run=replace(CPU_RUN, values={**CPU_RUN.values, "malloc": "tcmalloc"}))
    assert KNOB.domain(given) == ("tcmalloc", "jemalloc")
    _, (refusal,) = choose(Config({"malloc": "glibc"}), given, {"malloc": KNOB})
    assert "LD_PRELOAD cannot express glibc" in refusal.reason


def reading(**known: object):
    patches = FakePatches()
    patches.process = FakeProcess(**known)
    return KNOB.seen(patches)


def test_it_reads_whose_function_the_process_calls() -> None:
    requested = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"}
    assert reading() == "glibc"
    assert reading(malloc="jemalloc", variables=requested, huge_pages=True) == "jemalloc"
    assert reading(malloc="") is None
    assert reading(variables=requested, huge_pages=True) == "glibc_hugepages"
    assert reading(variables=requested) == "glibc"
    assert reading(huge_pages=True) == "glibc"

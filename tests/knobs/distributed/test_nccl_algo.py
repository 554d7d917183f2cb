"""`nccl_algo`: the contract, the facts that refuse it, and its values."""

from knob_facts import NcclVariable, ddp

from autotune.knobs.distributed.nccl_algo import NcclAlgo
from autotune.testing.knobs import KnobContract, facts

KNOB = NcclAlgo()


class TestNcclAlgo(KnobContract):
    knob = KNOB


class TestVariable(NcclVariable):
    knob = KNOB
    variable = "NCCL_ALGO"
    values = ("default", "Ring", "Tree")


def test_the_case_of_a_word_is_that_of_nccl() -> None:
    assert KNOB.resolve("ring", facts(run=ddp(backend="nccl"))) == "Ring"
    assert KNOB.resolve("hypercube", facts(run=ddp(backend="nccl"))) is None

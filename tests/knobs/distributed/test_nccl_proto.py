"""`nccl_proto`: the contract, the facts that refuse it, and its values."""

from knob_facts import NcclVariable

from autotune.knobs.distributed.nccl_proto import NcclProto
from autotune.testing.knobs import KnobContract

KNOB = NcclProto()


class TestNcclProto(KnobContract):
    knob = KNOB


class TestVariable(NcclVariable):
    knob = KNOB
    variable = "NCCL_PROTO"
    values = ("default", "Simple", "LL")

"""`nccl_max_channels`: the contract, the facts that refuse it, and its values."""

from knob_facts import NcclVariable

from autotune.knobs.distributed.nccl_max_channels import NcclMaxChannels
from autotune.testing.knobs import KnobContract

KNOB = NcclMaxChannels()


class TestNcclMaxChannels(KnobContract):
    knob = KNOB


class TestVariable(NcclVariable):
    knob = KNOB
    variable = "NCCL_MAX_NCHANNELS"
    values = ("default", 2, 4, 8, 16)

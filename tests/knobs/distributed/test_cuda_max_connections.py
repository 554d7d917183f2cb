"""`cuda_max_connections`: the contract, the facts that refuse it, and its values."""

from knob_facts import NcclVariable

from autotune.knobs.distributed.cuda_max_connections import CudaMaxConnections
from autotune.testing.knobs import KnobContract

KNOB = CudaMaxConnections()


class TestCudaMaxConnections(KnobContract):
    knob = KNOB


class TestVariable(NcclVariable):
    knob = KNOB
    variable = "CUDA_DEVICE_MAX_CONNECTIONS"
    values = ("default", 1, 16, 32)

"""All knobs by name: the built-in ones, and those that installed packages add.

Another package adds a knob by an entry point in the group ``autotune.knobs`` that names its
`Knob` class. Those are loaded on first use.
"""

from __future__ import annotations

import functools
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from autotune.errors import UsageError
from autotune.knobs.base import Knob
from autotune.knobs.batch.accumulation import Accumulation
from autotune.knobs.batch.batch_size import BatchSize
from autotune.knobs.batch.effective_batch import EffectiveBatch
from autotune.knobs.compile.compile_mode import CompileMode
from autotune.knobs.compile.compile_region import CompileRegion
from autotune.knobs.compile.compile_shapes import CompileShapes
from autotune.knobs.compile.memory_budget import MemoryBudget
from autotune.knobs.declared import declared_knob
from autotune.knobs.distributed.cpu_affinity import CpuAffinity
from autotune.knobs.distributed.cuda_max_connections import CudaMaxConnections
from autotune.knobs.distributed.ddp_bucket_cap_mb import DdpBucketCapMb
from autotune.knobs.distributed.ddp_comm_hook import DdpCommHook
from autotune.knobs.distributed.ddp_find_unused_parameters import DdpFindUnusedParameters
from autotune.knobs.distributed.ddp_gradient_as_bucket_view import DdpGradientAsBucketView
from autotune.knobs.distributed.ddp_no_sync import DdpNoSync
from autotune.knobs.distributed.ddp_powersgd_rank import DdpPowersgdRank
from autotune.knobs.distributed.ddp_shard_optimizer import DdpShardOptimizer
from autotune.knobs.distributed.ddp_static_graph import DdpStaticGraph
from autotune.knobs.distributed.deepspeed_bucket_size import DeepspeedBucketSize
from autotune.knobs.distributed.deepspeed_overlap_comm import DeepspeedOverlapComm
from autotune.knobs.distributed.deepspeed_zero_stage import DeepspeedZeroStage
from autotune.knobs.distributed.fsdp_cpu_offload import FsdpCpuOffload
from autotune.knobs.distributed.fsdp_param_dtype import FsdpParamDtype
from autotune.knobs.distributed.fsdp_prefetch import FsdpPrefetch
from autotune.knobs.distributed.fsdp_reshard_after_forward import FsdpReshardAfterForward
from autotune.knobs.distributed.fsdp_shard_ranks import FsdpShardRanks
from autotune.knobs.distributed.nccl_algo import NcclAlgo
from autotune.knobs.distributed.nccl_buffer_mb import NcclBufferMb
from autotune.knobs.distributed.nccl_max_channels import NcclMaxChannels
from autotune.knobs.distributed.nccl_proto import NcclProto
from autotune.knobs.host.gc_control import GcControl
from autotune.knobs.host.malloc import Malloc
from autotune.knobs.host.threads import Threads
from autotune.knobs.host.wait_policy import WaitPolicy
from autotune.knobs.kernels.attention_backend import AttentionBackend
from autotune.knobs.kernels.channels_last import ChannelsLast
from autotune.knobs.kernels.cudnn_benchmark import CudnnBenchmark
from autotune.knobs.kernels.fused_optimizer import FusedOptimizer
from autotune.knobs.loader.in_order import InOrder
from autotune.knobs.loader.mp_context import MpContext
from autotune.knobs.loader.non_blocking import NonBlocking
from autotune.knobs.loader.num_workers import NumWorkers
from autotune.knobs.loader.persistent_workers import PersistentWorkers
from autotune.knobs.loader.pin_memory import PinMemory
from autotune.knobs.loader.prefetch_factor import PrefetchFactor
from autotune.knobs.memory.activation_checkpointing import ActivationCheckpointing
from autotune.knobs.memory.allocator import Allocator
from autotune.knobs.memory.set_to_none import SetToNone
from autotune.knobs.numerics.fp8 import Fp8
from autotune.knobs.numerics.precision import Precision
from autotune.knobs.numerics.pure_bf16 import PureBf16
from autotune.knobs.numerics.tf32 import Tf32
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autotune.model.study import SpaceRequest

ENTRY_POINTS: Final = "autotune.knobs"

_BUILTIN: Final[tuple[type[Knob], ...]] = (
    Precision,
    NumWorkers,
    CompileMode,
    Tf32,
    AttentionBackend,
    ChannelsLast,
    BatchSize,
    EffectiveBatch,
    Accumulation,
    FusedOptimizer,
    Threads,
    WaitPolicy,
    Malloc,
    PrefetchFactor,
    PinMemory,
    NonBlocking,
    PersistentWorkers,
    CudnnBenchmark,
    ActivationCheckpointing,
    MemoryBudget,
    Allocator,
    CompileRegion,
    CompileShapes,
    SetToNone,
    GcControl,
    MpContext,
    InOrder,
    PureBf16,
    Fp8,
    DdpBucketCapMb,
    DdpCommHook,
    DdpNoSync,
    DdpFindUnusedParameters,
    DdpGradientAsBucketView,
    DdpStaticGraph,
    FsdpReshardAfterForward,
    FsdpPrefetch,
    FsdpParamDtype,
    CpuAffinity,
    DdpShardOptimizer,
    DeepspeedZeroStage,
    DeepspeedOverlapComm,
    DeepspeedBucketSize,
    FsdpShardRanks,
    NcclMaxChannels,
    CudaMaxConnections,
    NcclAlgo,
    NcclProto,
    NcclBufferMb,
    FsdpCpuOffload,
    DdpPowersgdRank,
)
"""By expected gain per cost of trying, largest first."""


@functools.cache
def builtin() -> Mapping[str, Knob]:
    """Every knob by name, in order of expected gain per cost; knobs of other packages last.

    Raises:
        UsageError: Two knobs have one name, or an installed package's entry point is no knob.
    """
    return MappingProxyType(named([*(kind() for kind in _BUILTIN), *_installed()]))


def knobs_for(request: SpaceRequest) -> Mapping[str, Knob]:
    """Every knob that a study of this space knows: `builtin`, then those that the space declares.

    A declared knob hides a built-in one of its name: a study may be older than that one.
    """
    declared = [*request.declared, *(spec for each in request.candidates for spec in each.declared)]
    if not declared:
        return builtin()
    return MappingProxyType({**builtin(), **{spec.name: declared_knob(spec) for spec in declared}})


def needs_permission(knob: Knob) -> bool:
    """Whether a knob takes part only where the user allows it by name: it changes the training.

    The effective batch has an option of its own (`--effective-batch`) that says how far it may go.
    """
    return knob.effect is Effect.TRAINING and knob.name != EffectiveBatch.name


def named(knobs: Iterable[Knob]) -> dict[str, Knob]:
    """Knobs by their names, in the order given.

    Raises:
        UsageError: Two of them have the same name.
    """
    found: dict[str, Knob] = {}
    for knob in knobs:
        if knob.name in found:
            both = " and ".join(type(k).__module__ for k in (found[knob.name], knob))
            message = f'two knobs are called "{knob.name}": in {both}'
            raise UsageError(message, hint="Remove one of the packages, or rename its knob.")
        found[knob.name] = knob
    return found


def _installed() -> list[Knob]:
    knobs: list[Knob] = []
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        try:
            kind = point.load()
        except Exception as error:
            message = f'the knob "{point.name}" ({point.value}) cannot be loaded: {error}'
            raise UsageError(message, hint="Repair or remove the package that offers it.") from error
        if not (isinstance(kind, type) and issubclass(kind, Knob)):
            message = f'the entry point "{point.name}" ({point.value}) is not a Knob class'
            raise UsageError(message, hint="It must name a subclass of autotune.knobs.base.Knob.")
        knobs.append(kind())
    return knobs

"""`fully_shard` (FSDP2): its arguments, its prefetching, and what a run shows of both."""

# Modules are of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import importlib
import weakref
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from autotune.model.facts import ParallelFacts

if TYPE_CHECKING:
    from autotune.model.config import Value
    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

RESHARD: Final = "fsdp_reshard_after_forward"
PREFETCH: Final = "fsdp_prefetch"
DTYPE: Final = "fsdp_param_dtype"
OFFLOAD: Final = "fsdp_cpu_offload"
SHARDS: Final = "fsdp_shard_ranks"
SETTINGS: Final = (RESHARD, PREFETCH, DTYPE, OFFLOAD, SHARDS)


class Sharding:
    """Arguments of `fully_shard`, and the order in which sharded modules gather their parameters.

    Args:
        state: Shared counters.
        undo: Restores the module.
        hooks: Waits for the script's import of FSDP.
    """

    def __init__(self, state: RuntimeState, undo: Undo, hooks: AfterImport) -> None:
        self._state = state
        self._undo = undo
        self._hooks = hooks
        self._torch: Any = None
        self._settings: dict[str, Value] = {}
        self._modules: list[weakref.ref[Any]] = []
        self._last: dict[str, Value] = {}
        self._facts: ParallelFacts | None = None
        self._own_mesh = False
        self._mesh: Any = None

    def install(self, torch: Any) -> None:
        """Wrap the function once the script has imported it."""
        self._torch = torch
        self._hooks.on("torch.distributed.fsdp", self._wrap)

    def set(self, setting: str, value: Value) -> None:
        """Shard modules with this setting from now on."""
        self._settings[setting] = value

    def modules(self) -> list[Any]:
        """Return the sharded modules that are alive, in the order of their sharding."""
        return [module for reference in self._modules if (module := reference()) is not None]

    def observed(self, setting: str) -> Value | None:
        """Return the setting that all sharded modules have; None where they differ."""
        value = self._read(setting)
        if value is not None:
            self._last[setting] = value
        return self._last.get(setting) if not self.modules() else value

    def facts(self) -> ParallelFacts | None:
        """Return what the run has shown; None without a sharded module."""
        groups = self._groups()
        if groups:
            distributed = importlib.import_module("torch.distributed")
            parameters = [p.sharded_param for g in groups for p in g.fsdp_params]
            self._facts = ParallelFacts(
                wrapper="fsdp",
                count=len(groups),
                backend=str(distributed.get_backend()),
                gradient_bytes=sum(p.numel() * p.element_size() for p in parameters if p.requires_grad),
                own_mesh=self._own_mesh,
            )
        return self._facts

    def _wrap(self, package: Any) -> None:
        original: Any = getattr(package, "fully_shard", None)
        if original is None:
            return
        state = self._state

        @functools.wraps(original)
        def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not state.active:
                return original(module, *args, **kwargs)
            sharded = original(module, *args, **self._changed(kwargs))
            for each in sharded if isinstance(sharded, list) else [sharded]:
                self._modules.append(weakref.ref(each))
                each.register_forward_pre_hook(self._order, prepend=True)
            return sharded

        self._undo.assign(package, "fully_shard", fully_shard)

    def _changed(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call with the requested settings."""
        found = dict(kwargs)
        self._own_mesh = self._own_mesh or found.get("mesh") is not None
        if SHARDS in self._settings and found.get("mesh") is None:
            found["mesh"] = self._replicated(int(self._settings[SHARDS]))
        if self._settings.get(OFFLOAD) is True:
            package = importlib.import_module("torch.distributed.fsdp")
            found["offload_policy"] = package.CPUOffloadPolicy(pin_memory=self._torch.cuda.is_available())
        if RESHARD in self._settings and not _is_count(found.get("reshard_after_forward")):
            found["reshard_after_forward"] = self._settings[RESHARD]
        if DTYPE in self._settings:
            package = importlib.import_module("torch.distributed.fsdp")
            policy = found.get("mp_policy") or package.MixedPrecisionPolicy()
            dtype = getattr(self._torch, str(self._settings[DTYPE]))
            # Gradients are added up in the format that the script has.
            reduce_dtype = policy.reduce_dtype or self._torch.float32
            found["mp_policy"] = replace(policy, param_dtype=dtype, reduce_dtype=reduce_dtype)
        return found

    def _replicated(self, shards: int) -> Any:
        """Return the mesh of replicas that shard their parameters over this number of processes each."""
        ranks = importlib.import_module("torch.distributed").get_world_size()
        if shards == ranks:
            return None
        if self._mesh is None:
            package = importlib.import_module("torch.distributed.device_mesh")
            device = "cuda" if self._torch.cuda.is_available() else "cpu"
            shape, names = (ranks // shards, shards), ("replicate", "shard")
            self._mesh = package.init_device_mesh(device, shape, mesh_dim_names=names)
        return self._mesh

    def _order(self, _module: Any, _inputs: Any) -> None:
        """Set up prefetching once, before the first forward call of any sharded module."""
        depth = self._settings.get(PREFETCH, 0)
        if not isinstance(depth, int) or depth < 1 or self._torch.compiler.is_compiling():
            return
        self._settings[PREFETCH] = -depth
        try:
            inner = self._inner()
            for at, module in enumerate(inner):
                if later := inner[at + 1 : at + 1 + depth]:
                    module.set_modules_to_forward_prefetch(later)
                if earlier := inner[max(0, at - depth) : at][::-1]:
                    module.set_modules_to_backward_prefetch(earlier)
        except Exception as error:
            self._state.refusals[PREFETCH] = f"The order of the sharded modules could not be set: {error}"

    def _inner(self) -> list[Any]:
        """Return the sharded modules inside others, in the order in which a model holds them."""
        modules = self.modules()
        roots = [m for m in modules if not any(m is not o and m in set(o.modules()) for o in modules)]
        known = {id(m) for m in modules}
        return [m for root in roots for m in root.modules() if id(m) in known and m is not root]

    def _groups(self) -> list[Any]:
        states = (module._get_fsdp_state() for module in self.modules())
        return [group for state in states for group in getattr(state, "_fsdp_param_groups", ())]

    def _read(self, setting: str) -> Value | None:
        if setting == PREFETCH:
            return self._depth()
        if setting == RESHARD:
            # The outermost module keeps its parameters by FSDP's own rule.
            states = [m._get_fsdp_state() for m in self._inner()]
            found: set[Value] = {
                g.post_forward_mesh_info is not None for s in states for g in s._fsdp_param_groups
            }
        elif setting == OFFLOAD:
            found = {any(p.offload_to_cpu for p in g.fsdp_params) for g in self._groups()}
        elif setting == SHARDS:
            found = {int(g.mesh_info.shard_mesh_size) for g in self._groups()}
        else:
            found = {self._dtype(g) for g in self._groups()}
        return found.pop() if len(found) == 1 else None

    def _dtype(self, group: Any) -> str:
        dtype = group.mp_policy.param_dtype
        form = dtype if dtype is not None else group.fsdp_params[0].sharded_param.dtype
        return str(form).removeprefix("torch.")

    def _depth(self) -> int | None:
        """Return how many modules ahead parameters are gathered, by what the modules hold."""
        inner = self._inner()
        if len(inner) < 2:
            return None
        ahead = [len(m._get_fsdp_state()._states_to_forward_prefetch) for m in inner]
        follows = all(
            not m._get_fsdp_state()._states_to_forward_prefetch
            or m._get_fsdp_state()._states_to_forward_prefetch[0] is n._get_fsdp_state()
            for m, n in pairwise(inner)
        )
        return max(ahead) if follows else None


def _is_count(value: Any) -> bool:
    """Return whether the script shards to a number of processes after the forward pass, which is kept."""
    return isinstance(value, int) and not isinstance(value, bool)

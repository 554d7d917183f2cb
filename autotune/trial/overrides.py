"""Keywords with which the training loader is built instead of the script's own."""

# What scripts hand over is of any type; narrowing it yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.trial.objects import length_of

if TYPE_CHECKING:
    from inspect import Signature

    from autotune.core.config import Value
    from autotune.trial.state import State

_WORKER_ONLY = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


class Overrides:
    """What knobs want of the training loader, and which of the loaders that are built is meant."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._torch: Any = None
        self.sites: set[str] = set()
        """Where loaders that are meant are built; without any, it is told by how they are built."""
        self.wanted: dict[str, Value | None] = {}
        """Keyword -> value; None removes the argument."""

    def install(self, torch: Any) -> None:
        """Torch has been imported."""
        self._torch = torch

    def is_target(
        self, sites: list[str], signature: Signature, args: Any, kwargs: Any, *, first: bool
    ) -> bool:
        """Whether the loader that is built with these arguments is the one that is meant.

        Args:
            sites: Of the user frames that build it.
            signature: What takes the arguments.
            args: With the loader itself as the first.
            kwargs: Those by keyword.
            first: None was built before it.
        """
        if self.sites:
            return bool({sites[0], "<".join(sites)} & self.sites) if sites else False
        given = signature.bind(*args, **kwargs).arguments
        if given.get("shuffle"):
            return True
        for name in ("sampler", "batch_sampler"):
            sampler = given.get(name)
            inner = getattr(sampler, "sampler", sampler)
            if sampler is not None and type(inner).__name__ != "SequentialSampler":
                return True
        if isinstance(given.get("dataset"), self._torch.utils.data.IterableDataset):
            return True
        return first

    def apply(self, given: dict[str, Any]) -> None:
        """Put what is wanted among the arguments of a loader that is about to be built."""
        for keyword, value in self.wanted.items():
            if keyword == "batch_size":
                self._apply_batch(given, value)
            elif value is None:
                given.pop(keyword, None)
            else:
                given[keyword] = value
        if not given.get("num_workers"):
            for keyword in _WORKER_ONLY:
                if given.get(keyword) and self.wanted.get(keyword):
                    self._state.refusals[keyword] = f"{keyword} has no meaning without loader workers."
                given.pop(keyword, None)

    def _apply_batch(self, given: dict[str, Any], value: Any) -> None:
        sampler = given.get("batch_sampler")
        standard = self._torch.utils.data.BatchSampler
        if sampler is not None and type(sampler) is not standard:
            name = type(sampler).__name__
            self._state.refusals["batch_size"] = (
                f"The training loader has a batch sampler of its own ({name})."
            )
        elif sampler is not None:
            given["batch_sampler"] = standard(sampler.sampler, value, sampler.drop_last)
        elif "batch_size" in given and given["batch_size"] is None:
            self._state.refusals["batch_size"] = "The dataset makes the batches itself (batch_size=None)."
        elif length_of(given.get("dataset"), value) < value:
            self._state.refusals["batch_size"] = f"A batch of {value} is larger than the data set."
        else:
            given["batch_size"] = value

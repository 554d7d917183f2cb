"""Keyword arguments that replace the script's own in the training loader."""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.trial.records.objects import attribute_of, length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Signature

    from autotune.model.config import Value
    from autotune.trial.runtime.state import RuntimeState

_WORKER_ONLY = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


class Overrides:
    """Requested arguments of the training loader, and its identification among all loaders built."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._torch: Any = None
        self.sites: set[str] = set()
        """Places where target loaders are built; if empty, they are identified by their arguments."""
        self.wanted: dict[str, Value | None] = {}
        """Keyword -> value; None removes the argument."""

    def install(self, torch: Any) -> None:
        """Bind torch after its import."""
        self._torch = torch

        self.reference: int | None = None
        """Own batch size of the loaders in the search; else that of the first."""
        self.watched = False
        """Detect loaders of another size although no keyword is changed, as steps are accumulated."""
        self.left_alone = False
        """The last loader built has another batch size, and keeps it."""
        self.on_other_size: Callable[[int, int, str], None] | None = None
        """Called with its size, the reference size and its place, if it shuffles like a training loader."""

    def is_target(
        self, sites: list[str], signature: Signature, args: Any, kwargs: Any, *, first: bool
    ) -> bool:
        """Return whether a loader with these arguments is a target.

        Args:
            sites: User frames that build it.
            signature: Signature for the arguments.
            args: Positional arguments, the loader itself first.
            kwargs: Keyword arguments.
            first: No loader was built before it.
        """
        if self.sites:
            return bool({sites[0], "<".join(sites)} & self.sites) if sites else False
        return first or self._shuffles(signature.bind(*args, **kwargs).arguments)

    def _shuffles(self, given: Mapping[str, Any]) -> bool:
        """Return whether a loader's arguments resemble those of training loaders."""
        if given.get("shuffle"):
            return True
        for name in ("sampler", "batch_sampler"):
            sampler = given.get(name)
            inner = getattr(sampler, "sampler", sampler)
            if sampler is not None and type(inner).__name__ != "SequentialSampler":
                return True
        return isinstance(given.get("dataset"), self._torch.utils.data.IterableDataset)

    def meet(self, own: Any, given: Mapping[str, Any], site: str) -> None:
        """Compare the size of a target loader about to be built with that of the search."""
        self.left_alone = False
        if type(own) is not int:
            return
        self.reference = self.reference or own
        self.left_alone = own != self.reference
        if self.left_alone and self.on_other_size is not None and self._shuffles(given):
            self.on_other_size(own, self.reference, site)

    def own_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the script's own arguments of a loader that may be changed and restored."""
        sampler = given.get("batch_sampler")
        size = given.get("batch_size", 1) if sampler is None else attribute_of(sampler, "batch_size")
        return {
            "batch_size": size,
            "num_workers": given.get("num_workers", 0),
            "persistent_workers": given.get("persistent_workers", False),
            "prefetch_factor": given.get("prefetch_factor"),
        }

    def apply(self, given: dict[str, Any]) -> None:
        """Put the requested values into the arguments of a loader about to be built."""
        for keyword, value in self.wanted.items():
            if keyword == "batch_size":
                if not self.left_alone:
                    self._apply_batch(given, value)
            elif value is None:
                given.pop(keyword, None)
            else:
                given[keyword] = value
        if not given.get("num_workers"):
            for keyword in _WORKER_ONLY:
                if given.get(keyword) and self.wanted.get(keyword):
                    self._state.refusals[keyword] = f"{keyword} has no effect without loader workers."
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
            self._state.refusals["batch_size"] = f"A batch of {value} is larger than the dataset."
        else:
            given["batch_size"] = value


def hand_back(loader: Any, keyword: str, value: Any, torch: Any) -> None:
    """Restore the script's own value in a loader: batches at once, workers from the next pass on."""
    # DataLoader forbids assignment to these attributes.
    held: dict[str, Any] = loader.__dict__
    if held.get(keyword) == value:
        return
    if keyword == "batch_size":
        sampler: Any = held.get("batch_sampler")
        if type(sampler) is torch.utils.data.BatchSampler:
            sampler.batch_size = value
        if held.get("batch_size") is not None:
            held["batch_size"] = value
        return
    held[keyword] = value
    if not held.get("num_workers"):
        held["persistent_workers"], held["prefetch_factor"], held["timeout"] = False, None, 0
    # Live workers end with the pass that they serve.
    held["_iterator"] = None


def continue_pass(iterator: Any, size: int, torch: Any) -> None:
    """Give batches of another size for the rest of a pass; those that workers have begun are kept.

    PyTorch's sampler fixes the size of a pass that drops its last batch when the pass begins.
    """
    running = attribute_of(iterator, "_sampler_iter")
    frame = attribute_of(running, "gi_frame")
    standard = torch.utils.data.BatchSampler
    if frame is None or running.gi_code is not standard.__iter__.__code__:
        return
    indices, sampler = frame.f_locals.get("sampler_iter"), frame.f_locals.get("self")
    if indices is not None and attribute_of(sampler, "drop_last"):
        iterator._sampler_iter = iter(standard(_Rest(indices), size, drop_last=True))


class _Rest:
    """Remaining indices of a pass, as a sampler."""

    def __init__(self, indices: Any) -> None:
        self._indices = indices

    def __iter__(self) -> Any:
        return self._indices

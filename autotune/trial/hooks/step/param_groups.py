"""Parameter groups of optimizers: weights, hooks on their gradients, learning rates."""

from __future__ import annotations

import functools
from numbers import Real
from typing import TYPE_CHECKING, Any

from autotune.trial.runtime.state import is_user_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def weights_of(this: Any) -> set[int]:
    """Return the ids of the weights of an optimizer, or of a module."""
    groups = getattr(this, "param_groups", None)
    weights = this.parameters() if groups is None else (p for g in groups for p in g["params"])
    return {id(p) for p in weights}


def share_weights(optimizer: Any, other: Any) -> bool:
    """Return whether a wrapping optimizer, or a module, has the weights that this one updates."""
    return not weights_of(optimizer).isdisjoint(weights_of(other))


def gradient_hooks(parameter: Any) -> Iterator[Any]:
    """Yield the hooks on the gradient of a weight."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        yield from (getattr(parameter, name, None) or {}).values()


def is_users_hook(hook: Any) -> bool:
    """Return whether the user wrote a hook; those of libraries, mostly for logging, do not count."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    code = getattr(hook, "__code__", None) or getattr(vars(type(hook)).get("__call__"), "__code__", None)
    return code is not None and is_user_file(code.co_filename)


def rate_of(group: Any, optimizer: Any) -> Any:
    """Return the learning rate of a parameter group, without the effect of a schedule.

    A warm-up may be counted in batches, and start at zero.
    """
    rate = group.get("initial_lr", group.get("lr"))
    is_nothing = isinstance(rate, Real) and not rate
    return getattr(optimizer, "defaults", {}).get("lr", rate) if is_nothing else rate


def plain_numbers(values: Iterable[Any]) -> tuple[float, ...]:
    """Return the numbers; empty if one of them is on a device, or is no number."""
    found: list[float] = []
    for value in values:
        if not isinstance(value, Real) and getattr(value, "is_cpu", False) is not True:
            return ()
        found.append(float(value))
    return tuple(found)

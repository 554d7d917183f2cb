"""Calls for training scripts: `step` and `value`. No-ops outside a trial; standard library only.

They are needed only for loops that autotune cannot instrument itself, such as an engine without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from autotune.model.config import Value

T = TypeVar("T", bool, int, float, str)

_SWITCHES: Final = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}


class _Session(Protocol):
    def sdk_step(self, samples: int | None, loss: object) -> None: ...

    def sdk_value(self, name: str, default: Value) -> Value: ...


_session: _Session | None = None


def step(samples: int | None = None, loss: object = None) -> None:
    """Report the end of one optimizer step. From the first call on, only these calls count steps.

    Args:
        samples: Samples that this step consumed. By default the batches of the training DataLoader are
            counted; without one, throughput is in steps per second.
        loss: A number, or an array or tensor of any framework. A value that is still being computed on a
            device is read later, so this call does not block.
    """
    if _session is not None:
        _session.sdk_step(samples, loss)


def value(name: str, default: T) -> T:
    """Return the value that the current trial assigns to this name, or the default outside a trial.

    The value has the type of the default if the conversion is lossless (``1e-3`` for a float, ``on`` for a
    bool), otherwise the type that was declared.
    """
    if _session is None:
        return default
    return cast("T", _like(_session.sdk_value(name, default), default))


def attach(session: _Session | None) -> None:
    """Connect the calls to the trial of this process; None disconnects them."""
    global _session  # noqa: PLW0603 - one process, one trial
    _session = session


def _like(assigned: Value, default: object) -> object:
    """Return the value in the type of the default if that is lossless, else unchanged. Never raises."""
    kind: Any = type(default)
    if kind is type(assigned) or default is None:
        return assigned
    if isinstance(default, bool):
        return _SWITCHES.get(str(assigned).lower(), assigned)
    if isinstance(default, str):
        return str(assigned).lower() if isinstance(assigned, bool) else str(assigned)
    if not isinstance(default, (int, float)) or isinstance(assigned, bool):
        return assigned
    try:
        converted = kind(assigned)
    except (TypeError, ValueError, OverflowError):
        return assigned
    return converted if isinstance(assigned, str) or converted == assigned else assigned

"""Calls for scripts without PyTorch: `step` and `value`. No-ops outside a trial; standard library only.

Loops of PyTorch need neither of them: their steps are counted without a call.
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
    """Report the end of one optimizer step; from the first call on only these calls count steps.

    Args:
        samples: Samples of this step. Samples of a PyTorch DataLoader have priority; if neither is known,
            throughput is in steps per second.
        loss: Loss of this step: a number, or an array or tensor of any framework. A value on a device is
            read later, so the call does not synchronise.
    """
    if _session is not None:
        _session.sdk_step(samples, loss)


def value(name: str, default: T) -> T:
    """Return the value of this trial for a declared knob; the default outside a search.

    The value has the type of the default where that is lossless (``1e-3`` for a float, ``on`` for a bool),
    else the declared type.
    """
    if _session is None:
        return default
    return cast("T", _like(_session.sdk_value(name, default), default))


def attach(session: _Session | None) -> None:
    """Connect the calls to the trial of this process; None disconnects them."""
    global _session  # noqa: PLW0603 (one trial a process)
    _session = session


def _like(assigned: Value, default: object) -> object:
    """Return the value in the type of the default if that is lossless, else unchanged; never raises."""
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

"""What a script may call itself: `step` and `value`. No-ops outside a trial; standard library only.

Only for loops that nothing else reaches (no torch, an own engine): a script that calls neither is
watched from outside all the same.
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
    """Say that one optimizer step has ended; from the first call on nothing else counts steps.

    Args:
        samples: Samples this step consumed. What a training DataLoader hands over counts in its place; where
            neither is known, throughput is in steps per second.
        loss: Its loss: a number, or an array or tensor of any framework. What may still be computed on
            a device is kept and read later, so that nobody waits for it here.
    """
    if _session is not None:
        _session.sdk_step(samples, loss)


def value(name: str, default: T) -> T:
    """The value that the search asks for under this name; the default when nobody searches.

    It comes as the default's kind where that says the same (``1e-3`` for a float, ``on`` for a bool),
    else as it was declared.
    """
    if _session is None:
        return default
    return cast("T", _like(_session.sdk_value(name, default), default))


def attach(session: _Session | None) -> None:
    """Connect to the trial of this process; None disconnects."""
    global _session  # noqa: PLW0603 - one process, one trial
    _session = session


def _like(wanted: Value, default: object) -> object:
    """The same in the default's kind; nothing is cut off, and nothing is raised into the script."""
    kind: Any = type(default)
    if kind is type(wanted) or default is None:
        return wanted
    if isinstance(default, bool):
        return _SWITCHES.get(str(wanted).lower(), wanted)
    if isinstance(default, str):
        return str(wanted).lower() if isinstance(wanted, bool) else str(wanted)
    if not isinstance(default, (int, float)) or isinstance(wanted, bool):
        return wanted
    try:
        found = kind(wanted)
    except (TypeError, ValueError, OverflowError):
        return wanted
    return found if isinstance(wanted, str) or found == wanted else wanted

"""What a script may call itself: `step` and `value`. No-ops outside a trial; standard library only.

Only for loops that nothing else reaches (no torch, an own engine): a script that calls neither is
watched from outside all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from autotune.core.config import Value

T = TypeVar("T", bool, int, float, str)


class _Session(Protocol):
    def sdk_step(self, samples: int | None, loss: object) -> None: ...

    def sdk_value(self, name: str, default: Value) -> Value: ...


_session: _Session | None = None


def step(samples: int | None = None, loss: object = None) -> None:
    """Say that one optimizer step has ended; from the first call on nothing else counts steps.

    Args:
        samples: Samples this step consumed; left out, what the training loader handed over counts.
        loss: Its loss, a number or a tensor; a tensor is kept and read later.
    """
    if _session is not None:
        _session.sdk_step(samples, loss)


def value(name: str, default: T) -> T:
    """The value that the search asks for under this name; the default when nobody searches."""
    if _session is None:
        return default
    wanted = _session.sdk_value(name, default)
    return type(default)(wanted)


def attach(session: _Session | None) -> None:
    """Connect to the trial of this process; None disconnects."""
    global _session  # noqa: PLW0603 - one process, one trial
    _session = session

"""Device whose driver may hang: queried in a separate thread. Standard library only."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

from autotune.devices.common import Device, DeviceSample
from autotune.model.facts import DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

WITHIN_S = 2.0
"""A driver answers within milliseconds; one that waits for hung hardware takes a minute, or never does."""


class Bounded(Device):
    """Another device with a time limit for answers; late answers are dropped.

    While a query is pending no other is sent, without waiting; nothing is known then.

    Args:
        device: Used by one thread at a time.
        within_s: Time limit of an answer.
    """

    def __init__(self, device: Device, within_s: float = WITHIN_S) -> None:
        """Start no thread before the first query."""
        self._device = device
        self._within_s = within_s
        self._facts: DeviceFacts | None = None
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._open: threading.Event | None = None
        self._has_thread = False

    @property
    def facts(self) -> DeviceFacts:
        """Facts of the device, cached once known; those of an unnamed device until then."""
        if self._facts is None:
            device = self._device  # the thread keeps its last query, which must not reference this object
            self._facts = self._ask(lambda: device.facts)
        return self._facts or DeviceFacts(name="", uuid="", memory_bytes=0)

    @property
    def is_silent(self) -> bool:
        """Whether the device has not reported its identity yet."""
        return self._facts is None

    def sample(self) -> DeviceSample:
        """Return its own; nothing where it did not answer."""
        return self._ask(self._device.sample) or DeviceSample()

    def energy_j(self) -> float | None:
        """Return its own; None where it did not answer."""
        return self._ask(self._device.energy_j)

    def _ask(self, question: Callable[[], T]) -> T | None:
        if self._open is not None and not self._open.is_set():
            return None
        if not self._has_thread:
            self._has_thread = True
            threading.Thread(target=_answer, args=(self._questions,), daemon=True).start()
            weakref.finalize(self, self._questions.put, None)
        request = _Request(question)
        self._open = request.is_over
        self._questions.put(request.answer)
        request.is_over.wait(self._within_s)
        return request.found()


class _Request(Generic[T]):
    """One question and what came of it."""

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._answers: list[T] = []
        self._error: Exception | None = None
        self.is_over = threading.Event()

    def answer(self) -> None:
        try:
            self._answers.append(self._question())
        except Exception as error:  # noqa: BLE001 (raised again in the thread that waits)
            self._error = error
        finally:
            self.is_over.set()

    def found(self) -> T | None:
        if not self.is_over.is_set():
            return None
        if self._error is not None:
            raise self._error
        return self._answers[0]


def _answer(questions: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (question := questions.get()) is not None:
        question()

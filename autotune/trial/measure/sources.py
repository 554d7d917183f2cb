"""Inputs of the recorder that come from the hooks, set when these are installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.protocol.disturbed import Span
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.probe.bottleneck_probe import Probe
    from autotune.trial.probe.ceiling_probe import CeilingProbe
    from autotune.trial.probe.nsight_capture import Capture


def _nothing() -> None:
    """Do nothing, as no hook is installed."""


@dataclass(slots=True)
class Sources:
    """Hooks of one process; the defaults are those of a process without torch.

    Args:
        loader: The loader's hook.
        disturbed: Returns the spans disturbed by other processes, as reported by the launcher.
        stop_timing_imports: Returns the duration of the script's imports in ns; called once, after a step.
        unseen: Returns why a run had no step, if known.
        window_opens: Called as a window opens.
        skipped_steps: Returns the steps that a gradient scaler skipped.
        graph_breaks: Returns the graph breaks of dynamo.
        probe: Runs after the window, if requested.
        ceilings: Runs after the measurement was sent, if requested.
    """

    loader: Loader | None = None
    disturbed: Callable[[], Sequence[Span]] = tuple
    stop_timing_imports: Callable[[], int] = int
    unseen: Callable[[], str] = str
    window_opens: Callable[[], None] = _nothing
    skipped_steps: Callable[[], int] = int
    graph_breaks: Callable[[], int] = int
    probe: Probe | Capture | None = None
    ceilings: CeilingProbe | None = None

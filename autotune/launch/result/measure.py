"""Measurement of a segment, from the reports of the trial process and the samples of its host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.launch.result.contamination import contamination_of, lost_to_others
from autotune.launch.result.estimates import estimates_of
from autotune.launch.result.extra_metrics import extra_of
from autotune.launch.result.rank_logs import rank_figures
from autotune.launch.result.window import Window
from autotune.model.measurement import Measurement, Memory
from autotune.model.trial import Failure, FailureKind
from autotune.protocol.losses import broken_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.launch.result.host_samples import HostSamples
    from autotune.launch.result.process_reports import ProcessReports
    from autotune.model.change import Change
    from autotune.model.trial import Outcome
    from autotune.protocol.events import Closed

SKIPPED_SCALER_FRAC = 0.5


def measure(
    closed: Closed, reports: ProcessReports, outside: HostSamples, changes: Sequence[Change] = ()
) -> Outcome:
    """Return the outcome of one closed segment.

    Throughput is the ratio of sums over the window's blocks. Steps are set aside only on evidence independent
    of the step times: an evaluation or a compile inside the step, or another user of the accelerator. While a
    loader's queue drained, the drained batches are subtracted.

    Returns:
        A `Measurement`; or a `Failure` if a knob did not take effect, the loss diverged, the gradient scaler
        skipped most steps, or the accelerator was shared most of the time.
    """
    rejected = rejection(closed, changes)
    if rejected is not None:
        return rejected
    window = Window.of(closed, reports, outside)
    if not window.rows or window.seconds <= 0:
        return Failure(
            kind=FailureKind.NO_METRIC,
            message=f"no step ended inside the window ({reports.steps} steps in all)",
            evidence={"steps": reports.steps},
        )
    measurement = _measurement(window)
    lost = lost_to_others(window)
    if lost is not None:
        return replace(lost, readings=measurement)
    return _diverged(closed, measurement) or measurement


def rejection(closed: Closed, changes: Sequence[Change]) -> Failure | None:
    """Return a Failure if a requested knob did not take effect."""
    for reading in closed.readings:
        if reading.wanted is not None and reading.status != "applied":
            how = next((c.spelling.how for c in changes if c.knob == reading.knob), "")
            why = reading.reason or f"found {reading.found!r}"
            return Failure(
                kind=FailureKind.CONFIG_REJECTED,
                message=f"{reading.knob}={reading.wanted} did not take effect: {why}",
                evidence={"knob": reading.knob, "how": how, "status": reading.status},
            )
    return None


def _diverged(closed: Closed, measurement: Measurement) -> Failure | None:
    at = broken_at([p.loss for p in measurement.loss])
    if at is not None:
        bad = measurement.loss[at]
        return Failure(
            kind=FailureKind.DIVERGED,
            message=f"the loss became {bad.loss} after {bad.samples} samples",
            evidence={"samples": bad.samples},
            readings=measurement,
        )
    # Skipped steps are counted over the whole segment, not in the window alone.
    opened = int(max(closed.counters.get(name, 0) for name in ("window_steps", "guarded_steps")))
    tried = max(measurement.steps, opened, closed.skipped_scaler_steps)
    if closed.skipped_scaler_steps > SKIPPED_SCALER_FRAC * tried:
        return Failure(
            kind=FailureKind.DIVERGED,
            message=f"the gradient scaler skipped {closed.skipped_scaler_steps} of {tried} steps",
            evidence={"skipped": closed.skipped_scaler_steps, "steps": tried},
            readings=measurement,
        )
    return None


def _measurement(window: Window) -> Measurement:
    rows, closed = window.rows, window.closed
    throughput, step_time = estimates_of(window)
    first_ns = closed.first_step_ns or rows[0].t_ns
    compiled_s = window.reports.compile_s_before(first_ns)
    stopped_s = window.outside.stopped_s
    startup_s = (first_ns - window.outside.start_ns) / 1e9 - compiled_s
    startup_s = max(0.0, startup_s - stopped_s(window.outside.start_ns, first_ns))
    warmup_s = (closed.begin_ns - first_ns) / 1e9 - stopped_s(first_ns, closed.begin_ns)
    import_s = min(startup_s, _import_s(window))
    later_compiled_s = window.reports.compile_s_before(closed.begin_ns) - compiled_s
    clean = window.clean_rows()
    wait_s = sum(r.wait_ns for r, _ in clean) / 1e9
    ranks, slow = rank_figures(window)
    return Measurement(
        throughput=throughput,
        step_time_s=step_time,
        data_wait_frac=min(1.0, wait_s / (sum(s for _, s in clean) or 1.0)),
        memory=Memory(
            allocator=closed.allocator_peak_bytes,
            device=_device_bytes(window),
            pss=window.outside.peak_bytes or None,
            limit=_limit_bytes(window) or None,
        ),
        loss=closed.loss,
        compile_s=closed.compile_s,
        late_compile_s=closed.late_compile_s,
        cold_compile=window.outside.cold and closed.compile_s > 0,
        startup_s=startup_s,
        import_s=import_s,
        setup_s=startup_s - import_s,
        warmup_s=max(0.0, warmup_s - later_compiled_s),
        warmup_steps=sum(r.t_ns <= closed.begin_ns for r in window.reports.rows),
        steps=len(rows),
        window_s=window.seconds,
        effective_batch=sum(r.samples for r in rows) / len(rows),
        contamination=contamination_of(window),
        readings=closed.readings,
        ended=closed.ended,
        extra=extra_of(window, throughput.value),
        ranks=ranks,
        straggler=slow,
    )


def _import_s(window: Window) -> float:
    """Return the seconds until the process could run the script, plus its imports before the first step."""
    hello = window.reports.hello
    begun_ns = 0 if hello is None else max(0, hello.t_ns - window.outside.start_ns)
    return (begun_ns + window.closed.import_ns) / 1e9


def _device_bytes(window: Window) -> int | None:
    """Return the memory used on the device; None if the script does not train on one."""
    if window.closed.allocator_peak_bytes is None:
        return None
    return max((d.used_bytes for d in window.outside.devices), default=0) or None


def _limit_bytes(window: Window) -> int:
    """Return the limiting memory: the device's, else the limit of the process tree."""
    if window.closed.allocator_peak_bytes is None:
        return window.outside.limit_bytes
    seen = max((d.total_bytes for d in window.outside.devices), default=0)
    facts = window.reports.facts
    return seen or max((d.memory_bytes for d in facts.devices), default=0) if facts else seen

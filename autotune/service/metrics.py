"""Figures of the service in the text format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.service.states import WITH_JOB, SearchState

if TYPE_CHECKING:
    from autotune.service.store import Database


def metrics_text(database: Database, capacity: int) -> str:
    """Return counts by state, slots in use, and hours spent and saved."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    states = Gauge("autotune_searches", "Searches by state", ["state"], registry=registry)
    fleet = database.fleet()
    for state in SearchState:
        states.labels(state.value).set(fleet[f"searches_{state.value}"])
    slots = Gauge("autotune_slots", "Slots of the cluster", ["kind"], registry=registry)
    running = database.searches(states=sorted(WITH_JOB), limit=10_000)
    slots.labels("capacity").set(capacity)
    slots.labels("used").set(sum(max(1, row.gpus) for row in running))
    hours = Gauge(
        "autotune_slot_hours", "Slot-hours spent tuning, and saved since", ["kind"], registry=registry
    )
    hours.labels("spent").set(fleet["tuning_slot_hours"])
    hours.labels("saved").set(fleet["saved_slot_hours"])
    return generate_latest(registry).decode()

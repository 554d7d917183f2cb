"""`autotune report fleet`: cost and savings of a team's searches, and the bottlenecks of its scripts."""

from __future__ import annotations

from autotune.cli.outcome import print_json
from autotune.cli.remote import client


def print_fleet(*, json: bool) -> int:
    """Print the fleet report of the service."""
    found = client().request("GET", "/api/v1/fleet")
    if json:
        print_json({**found, "exit": 0})
        return 0
    print(f"spent tuning  {found['tuning_slot_hours']:.1f} slot-hours")
    print(f"saved since   {found['saved_slot_hours']:.1f} slot-hours, as `autotune apply --report` reports")
    for row in found["scripts"]:
        stale = "; stale: verify it again" if row["stale"] else ""
        print(f"{row['speedup']:.2f}x  {row['title']}  applied for {row['applied_hours']:.1f} h{stale}")
        for line in row["held_back"]:
            print(f"       {line}")
    return 0

"""Environment of a study's figures: machine, versions, script."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from autotune.compare.transfer import beliefs
from autotune.report.view import summary
from autotune.report.view.sanitize import clean, shown_command

if TYPE_CHECKING:
    from autotune.model.study import Study


def wall_text(seconds: float) -> str:
    """Format a time as ``2026-11-21 18:02 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def environment(study: Study) -> dict[str, str]:
    """Return the environment of the figures: machine, versions, script."""
    spec, facts = study.spec, study.facts
    found: dict[str, str] = {}
    if facts is not None:
        host = facts.host
        seen = (facts.run.devices if facts.run is not None else ()) or host.devices
        devices = ", ".join(f"{d.name} ({summary.bytes_text(d.memory_bytes)})" for d in seen)
        found["Device"] = devices or "none: training runs on the CPU"
        if drivers := sorted({d.driver for d in seen if d.driver}):
            found["Driver"] = ", ".join(drivers)
        cores = f"{host.cpus} CPUs ({host.physical_cores} physical cores)"
        found["CPU"] = ", ".join(filter(None, [host.cpu_model, cores]))
        found["Memory"] = summary.bytes_text(host.memory_bytes or None)
        found["Platform"] = ", ".join(filter(None, [host.platform, host.libc]))
        found["Python"] = host.python
        versions = {**host.versions, **(facts.run.versions if facts.run is not None else {})}
        found["Packages"] = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
        found["Script"] = (
            f"{spec.title}, sha256 {facts.script.sha256[:16]}" if facts.script.sha256 else spec.title
        )
    found["Git commit"] = spec.git_commit
    found["autotune"] = spec.version
    found["Study"] = f"{spec.label} ({spec.study_id})"
    found["Begun"] = wall_text(study.created)
    found["Budget"] = f"{summary.duration_text(spec.budget.seconds)}, driver {spec.driver}, seed {spec.seed}"
    found["Course"] = study.because
    found["Search space"] = summary.space_text(study) or spec.space.name
    found["Earlier studies"] = "; ".join(beliefs(study).notes)
    found["Effective batch"] = spec.effective_batch
    shown_facts = {name: clean(study, text) for name, text in found.items() if text}
    return {"Command": shown_command(summary.user_command(study)), **shown_facts}

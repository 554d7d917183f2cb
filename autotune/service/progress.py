"""Answer of an ended search, from its journal."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.model.facts import HostFacts
    from autotune.model.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """State of a study.

    Args:
        summary: Plain data: trials, elapsed seconds, headline, outcome, speedup with interval, config.
        script_sha256: Digest of the script's source.
        hardware: Key of the machine; results with other keys are never compared.
        speedup: Speedup of the pick ``best``.
        devices: CPU and accelerators.
        versions: PyTorch and the accelerators' driver, on which a gain also depends.
    """

    summary: dict[str, Any]
    is_faster: bool
    script_sha256: str
    hardware: str
    speedup: float
    devices: str = ""
    versions: str = ""


def result_of(home: Path) -> Result | None:
    """Return the result of the newest study below a home; None if none can be read yet."""
    from autotune.driver.exit_status import answer_or_none
    from autotune.driver.rebuild_space import space_of
    from autotune.driver.study_facts import study_facts
    from autotune.errors import AutotuneError
    from autotune.store.fold import fold
    from autotune.store.journal import Journal
    from autotune.store.paths import JOURNAL_FILE, newest_study_dirs

    path = next(iter(newest_study_dirs(home)), None)
    if path is None or not (path / JOURNAL_FILE).is_file():
        return None
    try:
        with Journal.read(path / JOURNAL_FILE) as journal:
            study = fold(journal.entries(), build=space_of)
        answer = answer_or_none(study)
    except AutotuneError:
        return None
    is_faster = answer is not None and answer.is_better
    return Result(
        summary=study_facts(study, answer),
        is_faster=is_faster,
        script_sha256=study.facts.script.sha256 if study.facts is not None else "",
        hardware=_key(study),
        speedup=answer.best.speedup.value if answer is not None and is_faster else 1.0,
        devices=_devices(study),
        versions=_versions(study),
    )


def unsent_trials(home: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the unsent data of an ended driver: sequence numbers of its outbox, and trials."""
    from autotune.driver.rebuild_space import space_of
    from autotune.driver.study_facts import trial_facts
    from autotune.errors import AutotuneError
    from autotune.store.fold import fold
    from autotune.store.journal import Journal
    from autotune.store.outbox import SERVICE
    from autotune.store.paths import JOURNAL_FILE, newest_study_dirs

    path = next(iter(newest_study_dirs(home)), None)
    if path is None or not (path / JOURNAL_FILE).is_file():
        return []
    try:
        with Journal.read(path / JOURNAL_FILE) as journal:
            rows = [row for row in journal.pending(SERVICE, 100_000) if row.op == "trial_ended"]
            study = fold(journal.entries(), build=space_of) if rows else None
    except AutotuneError:
        return []
    trials = {} if study is None else {trial.number: trial for trial in study.trials}
    numbered = [(row.seq, row.payload["number"]) for row in rows]
    return [(seq, trial_facts(study, trials[n])) for seq, n in numbered if study is not None and n in trials]


def verified_of(home: Path) -> Result | None:
    """Return the result of the newest verification below a home; None if none can be read."""
    from autotune.driver.verification import read_verified
    from autotune.errors import AutotuneError
    from autotune.store.paths import newest_study_dirs

    path = next(iter(newest_study_dirs(home)), None)
    if path is None:
        return None
    try:
        found = read_verified(path)
    except AutotuneError:
        return None
    ratio = None if found.comparison is None else found.comparison.speedup
    summary: dict[str, Any] = {
        "verdict": found.verdict,
        "headline": f"verified: {found.verdict.replace('_', ' ')}",
    }
    if ratio is not None:
        ends = [end if math.isfinite(end) else None for end in (ratio.low, ratio.high)]
        summary |= {"speedup": ratio.value, "interval": ends}
    return Result(
        summary=summary,
        is_faster=found.verdict == "faster",
        script_sha256=found.study.facts.script.sha256 if found.study.facts is not None else "",
        hardware=_key(found.study),
        speedup=1.0 if ratio is None else ratio.value,
        devices=_devices(found.study),
        versions=_versions(found.study),
    )


def _devices(study: Study) -> str:
    host = None if study.facts is None else study.facts.host
    return (
        "" if host is None else ", ".join([host.cpu_model, *(device.name for device in host.devices)])[:300]
    )


def _versions(study: Study) -> str:
    host = None if study.facts is None else study.facts.host
    if host is None:
        return ""
    drivers = sorted({device.driver for device in host.devices if device.driver})
    return ", ".join(
        [f"torch {dict(host.versions).get('torch', '')}", *(f"driver {one}" for one in drivers)]
    )[:300]


def _key(study: Study) -> str:
    return "" if study.facts is None else hardware_key(study.facts.host)


def hardware_key(host: HostFacts) -> str:
    """Return a digest of the conditions of results: CPU, accelerators, PyTorch."""
    parts = [
        host.cpu_model,
        host.cpus,
        [[device.name, device.memory_bytes] for device in host.devices],
        dict(host.versions).get("torch", ""),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

"""What the journal of a search says so far, as a small object for the database and the page."""

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
    """The state of a study.

    Args:
        summary: Plain data: trials, elapsed seconds, headline, outcome, speed-up with interval, config.
        script_sha256: Digest of the script's source.
        hardware: Key of the machine; results with other keys are never compared.
        speedup: Of the pick ``best``.
    """

    summary: dict[str, Any]
    is_faster: bool
    script_sha256: str
    hardware: str
    speedup: float


def result_of(home: Path) -> Result | None:
    """Return what the newest study below a home says; None where there is none that can be read yet."""
    from autotune.driver.exit_status import answer_or_none
    from autotune.driver.rebuild_space import space_of
    from autotune.errors import AutotuneError
    from autotune.model.config import config_text
    from autotune.report.view.summary import best_other, headline
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
    summary: dict[str, Any] = {
        "study": study.spec.study_id,
        "trials": len(study.told()),
        "failed": sum(trial.failure is not None for trial in study.told()),
        "elapsed_s": round(study.elapsed_s),
        "headline": headline(study, answer, interval=True),
    }
    best = best_other(study)
    if best is not None:
        summary["best_single_run"] = round(best[0], 3)
    if answer is not None:
        summary["outcome"] = answer.outcome.value
        pick = answer.best if answer.is_better else answer.likely
        if pick is not None:
            ends = (pick.speedup.low, pick.speedup.high)
            summary |= {"config": config_text(pick.config), "speedup": round(pick.speedup.value, 4)}
            summary["interval"] = [round(end, 4) if math.isfinite(end) else None for end in ends]
    is_faster = answer is not None and answer.is_better
    return Result(
        summary=summary,
        is_faster=is_faster,
        script_sha256=study.facts.script.sha256 if study.facts is not None else "",
        hardware=_key(study),
        speedup=answer.best.speedup.value if answer is not None and is_faster else 1.0,
    )


def _key(study: Study) -> str:
    return "" if study.facts is None else hardware_key(study.facts.host)


def hardware_key(host: HostFacts) -> str:
    """Return a digest of what results depend on: CPU, accelerators, PyTorch."""
    parts = [
        host.cpu_model,
        host.cpus,
        [[device.name, device.memory_bytes] for device in host.devices],
        dict(host.versions).get("torch", ""),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

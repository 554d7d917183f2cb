"""The answer of a search that has ended, from its journal."""

from __future__ import annotations

import hashlib
import json
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

"""A study and its answer as the content of best.yaml."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Literal

from autotune.answer.bottleneck import bottleneck
from autotune.answer.closest import closest
from autotune.answer.contributions import contributions
from autotune.export.parts import (
    SCHEMA,
    BaselinePart,
    BatchPart,
    BestConfig,
    BottleneckPart,
    ChangePart,
    ClosestPart,
    ContributionPart,
    EnvironmentPart,
    EstimatePart,
    LossPart,
    MemoryPart,
    ObjectivePart,
    ParetoPart,
    PickPart,
    ProvenancePart,
    StudyPart,
    sealed,
)
from autotune.knobs.distributed.wrapper_knob import PROCESSES
from autotune.knobs.registry import builtin
from autotune.model.change import Change, Flag, Keyword, Launcher, Patch
from autotune.model.config import Config, Value
from autotune.model.run_length import planned_steps
from autotune.text.redact import redact_args, redact_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autotune.answer.answer import Answer, FrontMember, Recommendation
    from autotune.loss.loss_guard import LossVerdict
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study

GIB = 1024**3

_BETWEEN_PROCESSES = frozenset({"communication", "wrapper"})
"""Knob families without effect on a training in one process."""


def build_best(
    study: Study,
    answer: Answer,
    changes_of: Callable[[Config], Sequence[Change]],
    *,
    mlflow_run: str = "",
) -> BestConfig:
    """Return the file's content for a study and its answer.

    Args:
        study: Folded study.
        answer: Its answer.
        changes_of: Deliveries of a config to this script (`space.choose_delivery.choose` with its facts).
        mlflow_run: Id of the study's MLflow run, or "".
    """
    picks = {"best": answer.best, "safe": answer.safe, "fastest": answer.fastest, "likely": answer.likely}
    memory_gib = _memory_of(study)
    return _clean(
        BestConfig(
            schema=SCHEMA,
            study=study_part(study, mlflow_run),
            is_better=answer.is_better,
            outcome=answer.outcome.value,
            resume=answer.resume or None,
            effective_batch=_batch_part(study),
            objective=ObjectivePart(
                metric=study.spec.objective,
                form="amortised" if planned_steps(study) else "steady",
                run_steps=planned_steps(study),
            ),
            baseline=BaselinePart(
                knobs=_resolved(study, Config()),
                throughput=_estimate(answer.baseline_throughput),
                peak_memory=_memory(answer.baseline_peak_bytes, memory_gib),
            ),
            picks={
                name: _pick_part(study, pick, changes_of(pick.config), memory_gib)  # pyright: ignore[reportArgumentType]
                for name, pick in picks.items()
                if pick is not None
            },
            closest=None if answer.is_better or answer.likely else _closest_part(study),
            pareto=[_pareto_part(study, member) for member in answer.front],
            environment=_environment_part(study),
            provenance=_provenance_part(study, answer),
        )
    )


def _clean(best: BestConfig) -> BestConfig:
    """Return the content with its digest and without secrets, which paths, URLs or sentences may contain."""
    return sealed(BestConfig.model_validate(redact_data(best.data())))


def fingerprint(*, devices: Iterable[str], torch: str, script_sha256: str) -> str:
    """Return a hash over the conditions of a measured gain: devices, torch, script."""
    text = "\n".join([*sorted(devices), torch, script_sha256])
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def _change_part(change: Change) -> ChangePart:
    spelling = change.spelling
    return ChangePart(
        knob=change.knob,
        how=spelling.how,  # pyright: ignore[reportArgumentType]
        spelling="" if isinstance(spelling, (Patch, Launcher)) else spelling.text,
        also=list(spelling.names[1:]) if isinstance(spelling, Flag) else [],
        value=change.value,
        delivered=change.delivered,
        site=change.site,
        defining_module=spelling.defining_module if isinstance(spelling, Keyword) else "",
    )


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def _finite(value: float) -> float | None:
    return _round(value) if math.isfinite(value) else None


def _estimate(estimate: Estimate) -> EstimatePart:
    return EstimatePart(
        value=_finite(estimate.value) or 0.0,
        low=_finite(estimate.low),
        high=_finite(estimate.high),
        n=estimate.n,
        unit=estimate.unit,
        confidence=round(estimate.confidence, 6),
    )


def _memory_of(study: Study) -> float | None:
    total = study.memory_bytes
    return None if total is None else round(total / GIB, 1)


def _memory(peak_bytes: int | None, of_gib: float | None) -> MemoryPart | None:
    return None if peak_bytes is None else MemoryPart(value=_round(peak_bytes / GIB), of=of_gib)


def _loss(verdict: LossVerdict) -> LossPart:
    return LossPart(
        level=verdict.level,
        verdict=verdict.verdict,
        delta=_finite(verdict.delta),
        margin=_finite(verdict.margin),
        steps=verdict.steps,
        delay_frac_upper95=_finite(verdict.delay_frac_upper95),
        noise_frac=_finite(verdict.noise_frac),
        paired=verdict.paired,
        reason=verdict.reason,
    )


def _resolved(study: Study, config: Config) -> dict[str, Value]:
    """Return every known value of a config; one process has none of communication between processes."""
    run = study.facts.run if study.facts else None
    own = dict(run.values) if run else {}
    known = study.space.resolved(Config()) if study.space else {}
    values = {**own, **known}
    if run is not None and run.ranks == 1:
        among = {name for name, knob in builtin().items() if knob.family in _BETWEEN_PROCESSES}
        values = {k: v for k, v in values.items() if k not in among and k != PROCESSES}
    return {**values, **config}


def _pick_part(
    study: Study, pick: Recommendation, changes: Sequence[Change], memory_gib: float | None
) -> PickPart:
    own, found = _resolved(study, Config()), contributions(study, pick)
    return PickPart(
        trial=pick.trial,
        effect=pick.effect.name,
        knobs=_resolved(study, pick.config),
        changes=[_change_part(change) for change in changes],
        speedup=_estimate(pick.speedup),
        throughput=_estimate(pick.throughput),
        peak_memory=_memory(pick.peak_bytes, memory_gib),
        loss=_loss(pick.loss),
        compile_s=_round(pick.compile_s),
        break_even_steps=pick.break_even_steps,
        pays_back_s=_round(pick.pays_back_s) if pick.pays_back_s is not None else None,
        contributions=[
            ContributionPart.model_validate(
                {
                    "knob": part.knobs[0],
                    "also": list(part.knobs[1:]),
                    "from": own.get(part.knobs[0]),
                    "to": pick.config[part.knobs[0]],
                    "gain": _round(part.ratio.value - 1.0),
                    "low": _finite(part.ratio.low - 1.0),
                    "high": _finite(part.ratio.high - 1.0),
                    "n": part.ratio.n,
                }
            )
            for part in found.parts
        ],
        not_separated=list(found.not_separated),
        reasons=list(pick.reasons),
        advice=pick.advice,
        runs=pick.runs or None,
    )


def _closest_part(study: Study) -> ClosestPart | None:
    found = closest(study)
    if found is None:
        return None
    return ClosestPart(
        trial=found.trial,
        changes=dict(found.config),
        speedup=_estimate(found.ratio),
        confirmed=found.is_paired,
    )


def _pareto_part(study: Study, member: FrontMember) -> ParetoPart:
    return ParetoPart(
        trial=member.trial,
        knobs=_resolved(study, member.config),
        throughput=_round(member.throughput),
        peak_memory=None if member.peak_bytes is None else _round(member.peak_bytes / GIB),
        loss=None if member.loss is None else _finite(member.loss),
        disturbed=member.is_disturbed or None,
    )


def study_part(study: Study, mlflow_run: str = "") -> StudyPart:
    """Return the origin of a file of this study, including its command."""
    spec = study.spec
    return StudyPart(
        id=spec.study_id,
        label=spec.label,
        script=_shown_script(spec.script, spec.cwd),
        argv=redact_args(spec.args),
        module=spec.module or None,
        options=list(spec.options) or None,
        launcher=spec.launcher or None,
        python=spec.python_unless(sys.executable) or None,
        git=spec.git_commit,
        mlflow_run=mlflow_run,
    )


def _shown_script(script: str, cwd: str) -> str:
    """Return the path relative to the folder of the search if it lies below: the file moves with the code."""
    relative = os.path.relpath(script, cwd) if cwd else script
    return script if relative.startswith("..") else relative


def _batch_part(study: Study) -> BatchPart:
    run = study.facts.run if study.facts else None
    seen = [t.measurement.effective_batch for t in study.finished() if t.measurement is not None]
    tried = sorted({round(batch) for batch in seen if batch > 0})
    return BatchPart(
        value=run.effective_batch if run else None,
        rule=study.spec.effective_batch,
        tried=[tried[0], tried[-1]] if tried else None,
    )


def _environment_part(study: Study) -> EnvironmentPart:
    if study.facts is None:
        return EnvironmentPart()
    host, run, script = study.facts.host, study.facts.run, study.facts.script
    torch = (run.versions.get("torch", "") if run else "") or host.versions.get("torch", "")
    devices = [device.name for device in host.devices]
    return EnvironmentPart(
        gpu=devices,
        driver=host.devices[0].driver if host.devices else "",
        torch=torch,
        python=host.python,
        cpu=host.cpu_model,
        cpus=host.cpus,
        script_sha256=script.sha256,
        fingerprint=fingerprint(devices=devices, torch=torch, script_sha256=script.sha256),
    )


def _provenance_part(study: Study, answer: Answer) -> ProvenancePart:
    finished = study.created + study.elapsed_s
    return ProvenancePart(
        trials=len(study.finished()),
        failed=sum(answer.failures.values()),
        seconds=_round(study.elapsed_s),
        method="rotated fresh pairs",
        space=study.spec.space.name,
        space_reason=study.spec.space.reason,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(finished)),
        autotune=study.spec.version,
        bottleneck=_bottlenecks(study, answer) or None,
    )


def _bottlenecks(study: Study, answer: Answer) -> dict[Literal["baseline", "best"], BottleneckPart]:
    """Return the probed bottlenecks; a winner that equals the baseline appears once."""
    configs: dict[Literal["baseline", "best"], Config] = {"baseline": Config()}
    if answer.is_better:
        configs["best"] = answer.best.config
    found: dict[Literal["baseline", "best"], BottleneckPart] = {}
    for name, config in configs.items():
        verdict = bottleneck(study, config)
        if verdict.evidence is not None and verdict.evidence.probed:
            found[name] = BottleneckPart(
                kind=verdict.kind,
                shares={kind: round(share, 4) for kind, share in verdict.shares.items()},
                reasons=list(verdict.reasons),
            )
    return found

"""`best.yaml`: what a search found, as a file that `autotune apply` reads and people may edit.

May import `core`, `errors` and, being a layer above it, `edge.yaml`; pydantic lives here and in
`edge` only. Sizes are GiB, times seconds, and an interval end that is infinite (a single run) is
left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from autotune.core.change import Change, Env, Flag, Keyword, Patch
from autotune.core.config import Config, Value
from autotune.core.measurement import Estimate
from autotune.errors import UsageError, did_you_mean
from autotune.export.dump import dump
from autotune.export.files import write_whole
from autotune.export.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autotune.core.facts import HostFacts
    from autotune.core.loss_guard import LossVerdict
    from autotune.core.pick import Answer, FrontMember, Recommendation
    from autotune.core.study import Study

SCHEMA = "autotune.config/v1"
_MINOR = 0
GIB = 1024**3

KnobValue = StrictBool | StrictInt | StrictFloat | StrictStr


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class EstimatePart(_Part):
    """A figure with its 95 % interval; an end that one run cannot give is absent."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit: str = ""


class StudyPart(_Part):
    """Where the file comes from."""

    id: str
    label: str = ""
    script: str
    argv: list[str] = Field(default_factory=list[str])
    git: str = ""
    mlflow_run: str = ""


class BatchPart(_Part):
    """The baseline's effective batch, the rule of the search, and the bounds it tried."""

    value: int | None = None
    rule: str = "explore"
    tried: list[int] | None = None


class ObjectivePart(_Part):
    """What faster means here."""

    metric: str = "throughput"
    form: str = "steady"
    run_steps: int | None = None


class MemoryPart(_Part):
    """Peak memory, and what the machine has."""

    value: float
    unit: str = "GiB"
    of: float | None = None


class BaselinePart(_Part):
    """The script as it is, every readable knob with the value it really had."""

    knobs: dict[str, KnobValue] = Field(default_factory=dict[str, KnobValue])
    throughput: EstimatePart
    peak_memory: MemoryPart | None = None


class ChangePart(_Part):
    """One changed knob and its way into the script; `also` holds an option's other spellings."""

    knob: str
    how: Literal["flag", "env", "keyword", "patch"]
    spelling: str = ""
    also: list[str] = Field(default_factory=list[str])
    value: KnobValue
    delivered: str = ""
    site: str = ""
    defining_module: str = ""


class LossPart(_Part):
    """The loss guard's verdict."""

    level: int
    verdict: str
    delta: float | None = None
    margin: float | None = None
    steps: int = 0
    delay_frac_upper95: float | None = None
    noise_frac: float | None = None
    paired: bool = True
    reason: str = ""


class ContributionPart(_Part):
    """What one knob brings, taken out of the winner."""

    knob: str
    from_: KnobValue | None = Field(default=None, alias="from")
    to: KnobValue | None = None
    gain: float


class PickPart(_Part):
    """One pick with its evidence."""

    trial: int
    effect: Literal["EXACT", "NUMERIC", "TRAINING"]
    knobs: dict[str, KnobValue]
    changes: list[ChangePart]
    speedup: EstimatePart
    throughput: EstimatePart
    peak_memory: MemoryPart | None = None
    loss: LossPart
    compile_s: float = 0.0
    break_even_steps: int | None = None
    contributions: list[ContributionPart] = Field(default_factory=list[ContributionPart])
    reasons: list[str] = Field(default_factory=list[str])
    advice: str = ""


class ParetoPart(_Part):
    """A further member of the front; peak memory in GiB."""

    trial: int
    knobs: dict[str, KnobValue]
    throughput: float
    peak_memory: float | None = None
    loss: float | None = None


class EnvironmentPart(_Part):
    """The machine; `fingerprint` is a hash over devices, torch and script."""

    gpu: list[str] = Field(default_factory=list[str])
    driver: str = ""
    torch: str = ""
    python: str = ""
    cpu: str = ""
    cpus: int = 0
    script_sha256: str = ""
    fingerprint: str = ""


class ProvenancePart(_Part):
    """How it came about; `digest` tells a file edited by hand from one as it was written."""

    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    method: str = ""
    created: str = ""
    autotune: str = ""
    digest: str = ""


class BestConfig(_Part):
    """The whole file."""

    schema_: str = Field(alias="schema")
    study: StudyPart
    pick: Literal["safe", "best", "fastest"] = "best"
    is_better: bool = False
    effective_batch: BatchPart = BatchPart()
    objective: ObjectivePart = ObjectivePart()
    baseline: BaselinePart
    picks: dict[Literal["safe", "best", "fastest"], PickPart]
    pareto: list[ParetoPart] = Field(default_factory=list[ParetoPart])
    environment: EnvironmentPart = EnvironmentPart()
    provenance: ProvenancePart = ProvenancePart()

    def chosen(self, pick: str = "") -> tuple[str, PickPart]:
        """The pick of that name, or the file's own choice.

        Raises:
            UsageError: The file holds no such pick.
        """
        name = pick or self.pick
        for known, part in self.picks.items():
            if known == name:
                return name, part
        there = ", ".join(self.picks)
        raise UsageError(f'this file holds no pick "{name}"', hint=f"it holds: {there}")

    def data(self) -> dict[str, Any]:
        """Plain data in the order of the file, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def build_best(
    study: Study,
    answer: Answer,
    changes_of: Callable[[Config], Sequence[Change]],
    *,
    mlflow_run: str = "",
    gains_of: Callable[[Config], Mapping[str, float]] | None = None,
) -> BestConfig:
    """The file's content for a study and its answer.

    Args:
        study: Folded study.
        answer: Its answer.
        changes_of: How a config reaches this script (`apply.choose.choose` with its facts).
        mlflow_run: Id of the study's MLflow run, empty where there is none.
        gains_of: Knob -> measured share that it adds to a config, where that is known.
    """
    picks = {"best": answer.best, "safe": answer.safe, "fastest": answer.fastest}
    memory_gib = _memory_of(study)
    return _sealed(
        BestConfig(
            schema=SCHEMA,
            study=_study_part(study, mlflow_run),
            is_better=answer.is_better,
            effective_batch=_batch_part(study),
            objective=ObjectivePart(
                form="amortised" if study.spec.run_steps else "steady", run_steps=study.spec.run_steps
            ),
            baseline=BaselinePart(
                knobs=_resolved(study, Config()),
                throughput=_estimate(answer.baseline_throughput),
                peak_memory=_memory(answer.baseline_peak_bytes, memory_gib),
            ),
            picks={
                name: _pick_part(  # pyright: ignore[reportArgumentType]
                    study,
                    pick,
                    changes_of(pick.config),
                    memory_gib,
                    gains_of(pick.config) if gains_of else {},
                )
                for name, pick in picks.items()
                if pick is not None
            },
            pareto=[_pareto_part(study, member) for member in answer.front],
            environment=_environment_part(study),
            provenance=_provenance_part(study, answer),
        )
    )


def write_best(
    path: str | os.PathLike[str],
    study: Study,
    answer: Answer,
    changes_of: Callable[[Config], Sequence[Change]],
    *,
    mlflow_run: str = "",
    gains_of: Callable[[Config], Mapping[str, float]] | None = None,
) -> BestConfig:
    """Write best.yaml whole or not at all.

    A file that is there already is kept beside it (``best.1.yaml``, ``best.2.yaml``, ...), unless
    it is an unedited one of the same study, which this one continues.

    Returns:
        What was written.

    Raises:
        OSError: The folder cannot be written.
        UsageError: What was written does not read back as meant; the old file stays in place.
    """
    best = build_best(study, answer, changes_of, mlflow_run=mlflow_run, gains_of=gains_of)
    save(Path(path), best)
    return best


def save(path: Path, best: BestConfig) -> None:
    """Write this content, keeping what is there; see `write_best`."""
    text = render(best, name=path.name)
    if parse(text, source=str(path)) != best:
        raise UsageError(f"{path} would not read back as it was meant; nothing was written")
    write_whole(path, text, keep=not _is_same_unedited(path, best))


def read_best(path: str | os.PathLike[str]) -> BestConfig:
    """Read and check a best.yaml.

    Raises:
        UsageError: It is missing, unreadable, or not of this schema.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"cannot read {os.fspath(path)}: {reason}", hint="a search writes it: autotune search"
        ) from error
    return parse(text, source=str(os.fspath(path)))


def parse(text: str, *, source: str) -> BestConfig:
    """The content of a best.yaml given as text; see `read_best`."""
    from autotune.edge.yaml import load

    data = load(text, source=source, error=UsageError)
    if not isinstance(data, dict):
        raise UsageError(f"{source} is no best.yaml: it holds no mapping", hint="a search writes it")
    is_newer = _check_schema(data, source)
    return _validate(data, source, is_newer=is_newer)


def render(best: BestConfig, *, name: str = "best.yaml") -> str:
    """The file's text: a comment that says what to do with it, then YAML."""
    return f"# {_headline(best, name)}\n{dump(best.data())}"


def _digest(best: BestConfig) -> str:
    bare = best.model_copy(update={"provenance": best.provenance.model_copy(update={"digest": ""})})
    return hashlib.sha256(json.dumps(bare.data(), sort_keys=True).encode()).hexdigest()[:16]


def _sealed(best: BestConfig) -> BestConfig:
    return best.model_copy(
        update={"provenance": best.provenance.model_copy(update={"digest": _digest(best)})}
    )


def _headline(best: BestConfig, name: str) -> str:
    made = (
        f"Made by autotune {best.provenance.autotune}." if best.provenance.autotune else "Made by autotune."
    )
    if not any(pick.changes for pick in best.picks.values()):
        return f"{made} Nothing beats your script: these picks are your script as it is."
    return f"{made} Apply: autotune apply {name} -- python {Path(best.study.script).name}"


def core_changes(pick: PickPart) -> tuple[Change, ...]:
    """The pick's changes as the launcher wants them."""
    return tuple(_core_change(change) for change in pick.changes)


def fingerprint(*, devices: Iterable[str], torch: str, script_sha256: str) -> str:
    """A hash over what makes a measured gain hold: devices, torch, script."""
    text = "\n".join([*sorted(devices), torch, script_sha256])
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(
    best: BestConfig, host: HostFacts, *, torch: str | None, script_sha256: str
) -> dict[str, str]:
    """Which parts of the fingerprint differ here: ``gpu``, ``torch``, ``script`` -> a sentence.

    Args:
        best: The file.
        host: This machine.
        torch: Version found here; None where it is not known (another interpreter).
        script_sha256: Of the script about to run.
    """
    found: dict[str, str] = {}
    then, here = best.environment, sorted(device.name for device in host.devices)
    if sorted(then.gpu) != here:
        found["gpu"] = f"the device is {_names(here)}, the search ran on {_names(then.gpu)}"
    if torch is not None and then.torch and torch != then.torch:
        found["torch"] = f"torch is {torch or 'missing'}, the search ran with {then.torch}"
    if then.script_sha256 and script_sha256 != then.script_sha256:
        found["script"] = "the script is not the one that was searched, byte for byte"
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "the CPU"


def _core_change(part: ChangePart) -> Change:
    if part.how == "flag":
        spelling: Flag | Env | Keyword | Patch = Flag((part.spelling, *part.also))
    elif part.how == "env":
        spelling = Env(part.spelling)
    elif part.how == "keyword":
        target, _, keyword = part.spelling.rpartition(":")
        spelling = Keyword(target, keyword, part.defining_module)
    else:
        spelling = Patch()
    return Change(
        knob=part.knob, value=part.value, spelling=spelling, delivered=part.delivered, site=part.site
    )


def _change_part(change: Change) -> ChangePart:
    spelling = change.spelling
    return ChangePart(
        knob=change.knob,
        how=spelling.how,  # pyright: ignore[reportArgumentType]
        spelling="" if isinstance(spelling, Patch) else spelling.text,
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
    )


def _memory_of(study: Study) -> float | None:
    if study.facts is None:
        return None
    host = study.facts.host
    total = min((device.memory_bytes for device in host.devices), default=host.memory_bytes)
    return round(total / GIB, 1) if total else None


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
    run = study.facts.run if study.facts else None
    own = dict(run.values) if run else {}
    known = study.space.resolved(Config()) if study.space else {}
    return {**own, **known, **config}


def _pick_part(
    study: Study,
    pick: Recommendation,
    changes: Sequence[Change],
    memory_gib: float | None,
    gains: Mapping[str, float],
) -> PickPart:
    own = _resolved(study, Config())
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
        contributions=[
            ContributionPart.model_validate(
                {"knob": knob, "from": own.get(knob), "to": pick.config[knob], "gain": _round(gain)}
            )
            for knob, gain in gains.items()
            if knob in pick.config
        ],
        reasons=list(pick.reasons),
    )


def _pareto_part(study: Study, member: FrontMember) -> ParetoPart:
    return ParetoPart(
        trial=member.trial,
        knobs=_resolved(study, member.config),
        throughput=_round(member.throughput),
        peak_memory=None if member.peak_bytes is None else _round(member.peak_bytes / GIB),
        loss=None if member.loss is None else _finite(member.loss),
    )


def _study_part(study: Study, mlflow_run: str) -> StudyPart:
    spec = study.spec
    return StudyPart(
        id=spec.study_id,
        label=spec.label,
        script=_shown_script(spec.script, spec.cwd),
        argv=redacted(spec.args),
        git=spec.git_commit,
        mlflow_run=mlflow_run,
    )


def _shown_script(script: str, cwd: str) -> str:
    """Relative to where the search was started, if it lies below: the file travels with the code."""
    relative = os.path.relpath(script, cwd) if cwd else script
    return script if relative.startswith("..") else relative


def _batch_part(study: Study) -> BatchPart:
    run = study.facts.run if study.facts else None
    seen = [t.measurement.effective_batch for t in study.told() if t.measurement is not None]
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
        trials=len(study.told()),
        failed=sum(answer.failures.values()),
        seconds=_round(study.elapsed_s),
        method="rotated fresh pairs",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(finished)),
        autotune=study.spec.version,
    )


def _check_schema(data: Mapping[str, Any], source: str) -> bool:
    """Whether the file is of a newer minor version; another major is refused."""
    given = data.get("schema")
    match = re.fullmatch(r"autotune\.config/v(\d+)(?:\.(\d+))?", given) if isinstance(given, str) else None
    if match is None:
        raise UsageError(
            f"{source}: schema is {given!r}, not {SCHEMA}", hint="is this a file that autotune search wrote?"
        )
    if match[1] != "1":
        raise UsageError(
            f"{source}: schema {given} is not one that this version reads ({SCHEMA})",
            hint="install the autotune that wrote it, or search again",
        )
    return int(match[2] or 0) > _MINOR


def _validate(data: dict[str, Any], source: str, *, is_newer: bool) -> BestConfig:
    try:
        return BestConfig.model_validate(data)
    except ValidationError as error:
        faults = error.errors()
    unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
    if is_newer and len(unknown) == len(faults):
        for location in unknown:
            _drop(data, location)
        return BestConfig.model_validate(data)
    fault = faults[0]
    where = ".".join(str(part) for part in fault["loc"] if part != "[key]")
    if fault["type"] == "extra_forbidden":
        hint = did_you_mean(str(fault["loc"][-1]), _field_names())
        raise UsageError(f'{source}: unknown key "{where}"', hint=hint)
    raise UsageError(
        f"{source}: {where or 'the file'}: {fault['msg']}", hint=f"found {_short(fault.get('input'))}"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _drop(data: Any, location: tuple[int | str, ...]) -> None:
    for part in location[:-1]:
        data = data[part]
    del data[location[-1]]


def _field_names() -> list[str]:
    names: list[str] = []
    for part in [*_Part.__subclasses__()]:
        names += [field.alias or name for name, field in part.model_fields.items()]
    return names


def _is_same_unedited(path: Path, best: BestConfig) -> bool:
    try:
        before = read_best(path)
    except UsageError:
        return False
    return before.study.id == best.study.id and before.provenance.digest == _digest(before)

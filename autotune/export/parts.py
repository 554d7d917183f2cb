"""The parts of best.yaml. Sizes are GiB, times seconds; an infinite interval end is left out."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from autotune.errors import UsageError

SCHEMA = "autotune.config/v1.1"
MINOR = 1
"""1 since `outcome`, `resume` and the pick ``likely``; a reader of v1.0 ignores unknown keys."""

PickName = Literal["safe", "best", "fastest", "likely"]
"""``likely`` is not confirmed: it exists for inconclusive searches and is never the file's own choice."""

KnobValue = StrictBool | StrictInt | StrictFloat | StrictStr


class Part(BaseModel):
    """A mapping of the file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class EstimatePart(Part):
    """A figure with its interval; an end that one run cannot give is absent.

    `confidence` of a speedup is above 0.95: it covers all finalists and interim analyses.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit: str = ""
    confidence: float = 0.95


class StudyPart(Part):
    """Origin of the file.

    `module` belongs to ``python -m module``, `options` to the interpreter. `python` is another interpreter
    than the one of the search. `launcher` is ``torchrun`` or ``accelerate``.
    """

    id: str
    label: str = ""
    script: str
    argv: list[str] = Field(default_factory=list[str])
    module: str | None = None
    options: list[str] | None = None
    launcher: str | None = None
    python: str | None = None
    git: str = ""
    mlflow_run: str = ""


class BatchPart(Part):
    """The baseline's effective batch, the rule of the search, and the bounds it tried."""

    value: int | None = None
    rule: str = "explore"
    tried: list[int] | None = None


class ObjectivePart(Part):
    """Objective of the search, and its meaning of faster; ``metric``: throughput, energy or cost."""

    metric: str = "throughput"
    form: str = "steady"
    run_steps: int | None = None


class MemoryPart(Part):
    """Peak memory, and the machine's total."""

    value: float
    unit: str = "GiB"
    of: float | None = None


class BaselinePart(Part):
    """The unchanged script, with the value in effect of every readable knob."""

    knobs: dict[str, KnobValue] = Field(default_factory=dict[str, KnobValue])
    throughput: EstimatePart
    peak_memory: MemoryPart | None = None


class ChangePart(Part):
    """One changed knob and its delivery; `also` contains an option's other spellings.

    `spelling` of a constant is its name, value and place: ``BATCH_SIZE=32 at train.py:12``.
    """

    knob: str
    how: Literal["flag", "env", "keyword", "patch", "constant", "launcher"]
    spelling: str = ""
    also: list[str] = Field(default_factory=list[str])
    value: KnobValue
    delivered: str = ""
    site: str = ""
    defining_module: str = ""


class LossPart(Part):
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


class ContributionPart(Part):
    """Contribution of one knob to the pick's speedup, as a share with its interval.

    `also` names knobs that were always changed with it. `n` counts the pairs of fresh runs that measured it;
    0 if it is estimated from single runs.
    """

    knob: str
    also: list[str] = Field(default_factory=list[str])
    from_: KnobValue | None = Field(default=None, alias="from")
    to: KnobValue | None = None
    gain: float
    low: float | None = None
    high: float | None = None
    n: int = 1


class PickPart(Part):
    """One pick with its evidence; `runs` counts the measured runs of a pick that is not confirmed."""

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
    pays_back_s: float | None = None
    contributions: list[ContributionPart] = Field(default_factory=list[ContributionPart])
    not_separated: list[str] = Field(default_factory=list[str])
    reasons: list[str] = Field(default_factory=list[str])
    advice: str = ""
    runs: int | None = None


class ParetoPart(Part):
    """A member of the front; peak memory in GiB. `disturbed`: other processes used the machine."""

    trial: int
    knobs: dict[str, KnobValue]
    throughput: float
    peak_memory: float | None = None
    loss: float | None = None
    disturbed: bool | None = None


class ClosestPart(Part):
    """Closest configuration if none is better; not `confirmed`: from single runs, without an interval."""

    trial: int
    changes: dict[str, KnobValue]
    speedup: EstimatePart
    confirmed: bool


class EnvironmentPart(Part):
    """The machine; `fingerprint` is a hash over devices, torch and script."""

    gpu: list[str] = Field(default_factory=list[str])
    driver: str = ""
    torch: str = ""
    python: str = ""
    cpu: str = ""
    cpus: int = 0
    script_sha256: str = ""
    fingerprint: str = ""


class BottleneckPart(Part):
    """Bottleneck of a step, the known shares of its time, and the evidence."""

    kind: str
    shares: dict[str, float] = Field(default_factory=dict[str, float])
    reasons: list[str] = Field(default_factory=list[str])


class ProvenancePart(Part):
    """Provenance of the file; `digest` shows whether it was edited by hand.

    `space` is the search space, and `space_reason` the reason for an automatic choice. `bottleneck` is that
    of the script (`baseline`) and of the winner (`best`), if probed.
    """

    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    method: str = ""
    space: str = ""
    space_reason: str = ""
    created: str = ""
    autotune: str = ""
    bottleneck: dict[Literal["baseline", "best"], BottleneckPart] | None = None
    digest: str = ""


class BestConfig(Part):
    """The whole file.

    `outcome` is absent in files of v1.0. `resume` is the command that continues an inconclusive search.
    """

    schema_: str = Field(alias="schema")
    study: StudyPart
    pick: Literal["safe", "best", "fastest"] = "best"
    is_better: bool = False
    outcome: Literal["faster", "nothing_faster", "inconclusive"] | None = None
    resume: str | None = None
    effective_batch: BatchPart = BatchPart()
    objective: ObjectivePart = ObjectivePart()
    baseline: BaselinePart
    picks: dict[PickName, PickPart]
    closest: ClosestPart | None = None
    pareto: list[ParetoPart] = Field(default_factory=list[ParetoPart])
    environment: EnvironmentPart = EnvironmentPart()
    provenance: ProvenancePart = ProvenancePart()

    def chosen(self, pick: str = "") -> tuple[str, PickPart]:
        """Return the pick of that name, or the file's own choice.

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
        """Return plain data in the order of the file, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def digest(best: BestConfig) -> str:
    """Return a hash over everything but the digest itself."""
    bare = best.model_copy(update={"provenance": best.provenance.model_copy(update={"digest": ""})})
    return hashlib.sha256(json.dumps(bare.data(), sort_keys=True).encode()).hexdigest()[:16]


def sealed(best: BestConfig) -> BestConfig:
    """Return a copy with its digest, which reveals later edits."""
    return best.model_copy(update={"provenance": best.provenance.model_copy(update={"digest": digest(best)})})

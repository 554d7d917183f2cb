"""From a trial to an assignment: everything one process needs, or the reason why it cannot be."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.knobs.batch.batch_size import said_batch
from autotune.loss.effective_batch_check import MOVES_OTHERS, OWN_WAYS
from autotune.model.trial import Assignment, Failure, FailureKind, Segment
from autotune.search.fork_eligibility import start_of
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import Dead, choose
from autotune.space.launch_command import build_launch, with_flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.base import Knob
    from autotune.model.change import Change, Refusal
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study, StudySpec
    from autotune.model.trial import Fidelity, Trial


def dead_ways(study: Study) -> Dead:
    """Ways that a trial of this study has shown not to act, read off its failures.

    An option or a constant of the script that did not act once is not tried again, nor one that acts on more
    than its knob; one that has acted for another value is dead for that value alone.
    """
    acted = {
        (change.knob, change.spelling.how)
        for trial in study.told()
        if trial.measurement is not None
        for change in trial.changes or ()
    }
    found: set[tuple[str, str] | tuple[str, str, Value]] = set()
    for trial in study.told():
        failure = trial.failure
        if failure is not None and failure.kind is FailureKind.CONFIG_REJECTED:
            knob, how = failure.evidence.get("knob", ""), failure.evidence.get("how", "")
            if not isinstance(knob, str) or not isinstance(how, str) or not knob or how not in OWN_WAYS:
                continue
            if (knob, how) not in acted or failure.evidence.get("status") == MOVES_OTHERS:
                found.add((knob, how))
            elif knob in trial.config:
                found.add((knob, how, trial.config[knob]))
    return frozenset(found)


def measured_changes(study: Study, config: Config) -> tuple[Change, ...] | None:
    """How this config reached the script when it was measured, the last time that this was kept.

    What is measured again, and what is written and applied, goes the same way: ways that were tried
    since may have turned out dead, but not the one that a figure stands for.
    """
    kept = [t.changes for t in study.of(config) if t.measurement is not None and t.changes is not None]
    return kept[-1] if kept else None


class Planner:
    """Builds spaces and assignments from a study; holds the knobs and the user's environment.

    Args:
        knobs: By name, in order of expected gain.
        environ: The environment of training processes, the user's own with quiet defaults.
        memory_limit_bytes: What a trial's process tree may use at most; 0 for no limit.
        baseline_limit_bytes: The same for the unchanged script, which is measured although it may
            need more than the user wants to allow; None for the same limit.
    """

    def __init__(
        self,
        *,
        knobs: Mapping[str, Knob],
        environ: Mapping[str, str],
        memory_limit_bytes: int,
        baseline_limit_bytes: int | None = None,
    ) -> None:
        self._knobs = knobs
        self._environ = environ
        self.limit_memory(memory_limit_bytes, baseline_limit_bytes)

    def limit_memory(self, limit_bytes: int, baseline_bytes: int | None = None) -> None:
        """Set the limits of the trials to come; those before them may be of another moment.

        Args:
            limit_bytes: As `memory_limit_bytes`.
            baseline_bytes: As `baseline_limit_bytes`.
        """
        self._memory_limit_bytes = limit_bytes
        self._baseline_limit_bytes = limit_bytes if baseline_bytes is None else baseline_bytes

    def space(
        self, spec: StudySpec, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[SearchSpace, dict[str, str]]:
        """The space this script has, and the knobs that are not varied with their reasons."""
        return build_space(spec.space, facts, self._knobs, dead=dead)

    def changes(
        self, config: Config, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """How each knob of a config reaches the script."""
        return choose(config, facts, self._knobs, dead=dead)

    def changes_in(self, study: Study, config: Config) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """The same in a study that has measured and refused already."""
        known = measured_changes(study, config)
        if known is not None:
            return known, ()
        if study.facts is None:
            return (), ()
        return self.changes(config, study.facts, dead_ways(study))

    def assign(self, study: Study, trial: Trial) -> Assignment | Failure:
        """The process that measures this trial, or a Failure where a knob has no way."""
        facts, spec = study.facts, study.spec
        if facts is None:
            return Failure(kind=FailureKind.INFRA_LOST, message="the script has not run yet")
        changes, refusals = self.changes_in(study, trial.config)
        if refusals:
            first = refusals[0]
            return Failure(
                kind=FailureKind.CONFIG_REJECTED,
                message=f"{first.knob}: {first.reason}",
                evidence={"knob": first.knob, "how": "none"},
            )
        launch = build_launch(
            script=spec.script,
            args=spec.args,
            python=spec.python,
            cwd=spec.cwd,
            env=self._environ,
            changes=changes,
            seed=trial.seed,
            cache_key=cache_key(trial.config, facts),
            module=spec.module,
            options=spec.options,
            launcher=spec.launcher,
            output_args=spec.output_args,
            batch=said_batch(facts.script, with_flags(spec.args, changes)),
            source=spec.source,
            stdin=spec.stdin,
        )
        return Assignment(
            uid=f"t{trial.number:04d}-a{trial.attempt}-{secrets.token_hex(3)}",
            study_id=spec.study_id,
            attempt=trial.attempt,
            launch=launch,
            segments=(
                Segment(trial=trial.number, config=trial.config, fidelity=as_baseline(study, trial.fidelity)),
            ),
            memory_limit_bytes=(
                self._baseline_limit_bytes if trial.config.is_baseline else self._memory_limit_bytes
            ),
            start=start_of(study, trial),
        )


def as_baseline(study: Study, fidelity: Fidelity) -> Fidelity:
    """What was decided of evaluation in the study's first window holds for all that are compared with it."""
    first = next((t.measurement for t in study.baseline if t.measurement is not None), None)
    counts = None if first is None else first.extra.get("evaluation_counts")
    return fidelity if counts is None else replace(fidelity, evaluation_counts=bool(counts))


def cache_key(config: Config, facts: Facts) -> str:
    """Names the compile caches of one config under one script, one set of versions and kinds of device.

    Processors of several generations go by one name; what a compiler makes use of tells them apart.
    """
    host = facts.host
    versions = dict(host.versions) | (dict(facts.run.versions) if facts.run else {})
    devices = sorted({(d.name, d.capability, d.driver) for d in host.devices})
    cpu = f"{host.cpu_model} {' '.join(sorted(host.cpu_flags))}"
    told = "|".join((facts.script.sha256, repr(sorted(versions.items())), cpu, repr(devices)))
    return f"{config.digest}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def clipped(trial: Trial, deadline_s: float) -> Trial:
    """The trial with its deadline, and the parts of it, brought inside what is left."""
    fidelity = trial.fidelity
    if fidelity.deadline_s <= deadline_s:
        return trial
    setup_s = min(fidelity.setup_s, deadline_s)
    return replace(trial, fidelity=replace(fidelity, deadline_s=deadline_s, setup_s=setup_s))

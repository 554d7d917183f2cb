"""Planner: from a trial to the assignment of one process, or the reason why it is not possible."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.knobs.batch.batch_size import given_batch_size
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
    """Return the deliveries that did not take effect in this study, from its failures.

    An option or a constant of the script that once had no effect is not tried again, nor one that affects
    more than its knob. One that worked for another value is dead for that value only.
    """
    acted = {
        (change.knob, change.spelling.how)
        for trial in study.finished()
        if trial.measurement is not None
        for change in trial.changes or ()
    }
    found: set[tuple[str, str] | tuple[str, str, Value]] = set()
    for trial in study.finished():
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
    """Return the deliveries with which this config was last measured successfully.

    Repeated measurements and the applied result use the same deliveries. Others may have turned out dead
    since, but not the one behind a figure.
    """
    kept = [t.changes for t in study.of(config) if t.measurement is not None and t.changes is not None]
    return kept[-1] if kept else None


class Planner:
    """Builds spaces and assignments from a study; holds the knobs and the user's environment.

    Args:
        knobs: By name, in order of expected gain.
        environ: The environment of training processes, the user's own with quiet defaults.
        memory_limit_bytes: Memory limit of a trial's process tree; 0 for no limit.
        baseline_limit_bytes: The same for the unchanged script, which is measured even if it exceeds the
            user's limit; None for the same limit.
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
        """Set the limits of future trials; earlier ones may have had other limits.

        Args:
            limit_bytes: As `memory_limit_bytes`.
            baseline_bytes: As `baseline_limit_bytes`.
        """
        self._memory_limit_bytes = limit_bytes
        self._baseline_limit_bytes = limit_bytes if baseline_bytes is None else baseline_bytes

    def space(
        self, spec: StudySpec, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[SearchSpace, dict[str, str]]:
        """Return the script's space, and the knobs that are not varied with their reasons."""
        return build_space(spec.space, facts, self._knobs, dead=dead)

    def changes(
        self, config: Config, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """Return the delivery of each knob of a config."""
        return choose(config, facts, self._knobs, dead=dead)

    def changes_in(self, study: Study, config: Config) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """Return the same for a study with earlier measurements and refusals."""
        known = measured_changes(study, config)
        if known is not None:
            return known, ()
        if study.facts is None:
            return (), ()
        return self.changes(config, study.facts, dead_ways(study))

    def assign(self, study: Study, trial: Trial) -> Assignment | Failure:
        """Return the process that measures this trial, or a Failure if a knob has no delivery."""
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
            batch=given_batch_size(facts.script, with_flags(spec.args, changes)),
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
    """Return the fidelity with the evaluation handling of the study's first window, for comparability."""
    first = next((t.measurement for t in study.baseline if t.measurement is not None), None)
    counts = None if first is None else first.extra.get("evaluation_counts")
    return fidelity if counts is None else replace(fidelity, evaluation_counts=bool(counts))


def cache_key(config: Config, facts: Facts) -> str:
    """Return the key of the compile caches for a config, script, versions and kinds of device.

    Processors of several generations share a name; the instructions used by compilers distinguish them.
    """
    host = facts.host
    versions = dict(host.versions) | (dict(facts.run.versions) if facts.run else {})
    devices = sorted({(d.name, d.capability, d.driver) for d in host.devices})
    cpu = f"{host.cpu_model} {' '.join(sorted(host.cpu_flags))}"
    text = "|".join((facts.script.sha256, repr(sorted(versions.items())), cpu, repr(devices)))
    return f"{config.digest}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def clipped(trial: Trial, deadline_s: float) -> Trial:
    """Return the trial with its deadlines reduced to the time left."""
    fidelity = trial.fidelity
    if fidelity.deadline_s <= deadline_s:
        return trial
    setup_s = min(fidelity.setup_s, deadline_s)
    return replace(trial, fidelity=replace(fidelity, deadline_s=deadline_s, setup_s=setup_s))

"""Turns a trial into the assignment of one process, or into a failure with the reason why it cannot run."""

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
    """Return the deliveries that are not tried again in this study.

    Only options and constants of the script can be among them. One that changed more than its knob, or with
    which nothing was measured, is excluded for all values. One that worked for another value is excluded for
    the failed value only.
    """
    worked = {
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
            if (knob, how) not in worked or failure.evidence.get("status") == MOVES_OTHERS:
                found.add((knob, how))
            elif knob in trial.config:
                found.add((knob, how, trial.config[knob]))
    return frozenset(found)


def measured_changes(study: Study, config: Config) -> tuple[Change, ...] | None:
    """Return the deliveries with which this config was last measured; None if it never was.

    Repeated measurements and the applied result use them again, even if a later trial has excluded one: the
    figure was measured with it.
    """
    measured = [t.changes for t in study.of(config) if t.measurement is not None and t.changes is not None]
    return measured[-1] if measured else None


class Planner:
    """Builds spaces and assignments from a study; holds the knobs and the user's environment.

    Args:
        knobs: By name, in order of expected gain.
        environ: The environment of training processes: the user's, with defaults that switch off telemetry.
        memory_limit_bytes: Memory limit of a trial's process tree; 0 for no limit.
        baseline_limit_bytes: That of the unchanged script, which is measured even if it exceeds the user's
            limit; None: `memory_limit_bytes`.
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
        """Set the limits of assignments made from now on.

        Args:
            limit_bytes: `memory_limit_bytes` of the class.
            baseline_bytes: `baseline_limit_bytes` of the class.
        """
        self._memory_limit_bytes = limit_bytes
        self._baseline_limit_bytes = limit_bytes if baseline_bytes is None else baseline_bytes

    def space(
        self, spec: StudySpec, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[SearchSpace, dict[str, str]]:
        """Return the search space, and for each knob that is not varied the reason."""
        return build_space(spec.space, facts, self._knobs, dead=dead)

    def changes(
        self, config: Config, facts: Facts, dead: Dead = frozenset()
    ) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """Return the deliveries of a config's knobs, and a refusal for each knob without one."""
        return choose(config, facts, self._knobs, dead=dead)

    def changes_in(self, study: Study, config: Config) -> tuple[Sequence[Change], Sequence[Refusal]]:
        """Return `changes` for a config of this study.

        A measured config keeps its deliveries; another gets none that is excluded. Both are empty before the
        script was inspected.
        """
        known = measured_changes(study, config)
        if known is not None:
            return known, ()
        if study.facts is None:
            return (), ()
        return self.changes(config, study.facts, dead_ways(study))

    def assign(self, study: Study, trial: Trial) -> Assignment | Failure:
        """Return the assignment of a trial; a Failure without an inspected script, or without a delivery."""
        facts, spec = study.facts, study.spec
        if facts is None:
            return Failure(kind=FailureKind.INFRA_LOST, message="the script was not inspected yet")
        changes, refusals = self.changes_in(study, trial.config)
        if refusals:
            first = refusals[0]
            return Failure(
                kind=FailureKind.CONFIG_REJECTED,
                message=f"{first.knob}: {first.reason}",
                # No delivery was tried, so `dead_ways` excludes none.
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
    """Return the fidelity with the baseline's decision on evaluation time, so that windows are comparable."""
    first = next((t.measurement for t in study.baseline if t.measurement is not None), None)
    counts = None if first is None else first.extra.get("evaluation_counts")
    return fidelity if counts is None else replace(fidelity, evaluation_counts=bool(counts))


def cache_key(config: Config, facts: Facts) -> str:
    """Return the key of the compile caches for a config, script, versions and kinds of device.

    Processors of different generations can have one model name, so their instruction sets are part of it.
    """
    host = facts.host
    versions = dict(host.versions) | (dict(facts.run.versions) if facts.run else {})
    devices = sorted({(d.name, d.capability, d.driver) for d in host.devices})
    cpu = f"{host.cpu_model} {' '.join(sorted(host.cpu_flags))}"
    text = "|".join((facts.script.sha256, repr(sorted(versions.items())), cpu, repr(devices)))
    return f"{config.digest}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def clipped(trial: Trial, left_s: float) -> Trial:
    """Return the trial with its time limits cut to `left_s` seconds."""
    fidelity = trial.fidelity
    if fidelity.deadline_s <= left_s:
        return trial
    setup_s = min(fidelity.setup_s, left_s)
    return replace(trial, fidelity=replace(fidelity, deadline_s=left_s, setup_s=setup_s))

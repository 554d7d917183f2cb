"""Preparation of a trial: its folder, plan and environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.launch.ports import with_port
from autotune.launch.workspace import compile_caches, runtime_library
from autotune.launch.workspace import isolation as isolating
from autotune.launch.workspace.folders import temporary_folder
from autotune.model import wire
from autotune.protocol.plan import HIDDEN_VARIABLE, PLAN_VARIABLE, TRIAL_VARIABLE, Plan
from autotune.space.launch_command import with_output
from autotune.text.redact import redact_args

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.model.trial import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Prepared files and environment of a trial.

    Args:
        assignment: What it runs.
        folder: Its folder in the study.
        temporary: Its TMPDIR.
        caches: Its compile caches.
        env: Environment of its processes.
        plan_path: Its plan, without secrets.
        enclosed: It runs in an overlay.
        protected: Folders that its writes do not reach, in an overlay or by redirection.
        places: The project and the working directory, without the home; the user is informed of writes there.
        beside: The project, if it is on the file system of `temporary`, so that files can be renamed into it;
            else empty.
        watched: `places` in redirect mode, where they are compared before and after the trial; else empty.
    """

    assignment: Assignment
    folder: Path
    temporary: Path
    caches: compile_caches.CompileCaches
    env: dict[str, str]
    plan_path: Path
    enclosed: bool
    protected: tuple[str, ...]
    places: tuple[str, ...]
    beside: str
    watched: tuple[str, ...]


def write_private(path: Path, text: str) -> None:
    """Write a new file that only this user can read."""
    path.unlink(missing_ok=True)
    # O_EXCL follows no link, and keeps the mode of no other file.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def without_secrets(plan: Plan, environ: Mapping[str, str]) -> tuple[Plan, dict[str, str]]:
    """Return the plan with redacted arguments, and the variable that holds the originals, if any.

    Args:
        plan: Plan of the process to start.
        environ: The environment of that process.
    """
    argv = tuple(redact_args(plan.argv, environ))
    hidden = {str(i): plan.argv[i] for i, argument in enumerate(argv) if argument != plan.argv[i]}
    if not hidden:
        return plan, {}
    return replace(plan, argv=argv), {HIDDEN_VARIABLE: json.dumps(hidden)}


def prepare(study_dir: Path, assignment: Assignment, isolation: str, library: str) -> Workspace:
    """Create a trial's folders, compile caches, plan and environment.

    Args:
        study_dir: Folder of the study; the trial's is ``trials/<uid>`` in it.
        assignment: What the trial runs.
        isolation: ``overlay`` or ``redirect``.
        library: Folder from `runtime_library.make`; empty if a test replaces the trial's command.
    """
    launch = assignment.launch
    folder = study_dir / "trials" / assignment.uid
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    temporary = temporary_folder(assignment.uid)
    # An attempt that was killed may have left it.
    isolating.remove(temporary)
    temporary.mkdir(mode=0o700)
    cached = compile_caches.prepare(study_dir, folder, launch.cache_key)
    uses_overlay = launch.protect and isolation == "overlay"
    uses_redirect = launch.protect and isolation == "redirect"
    protected = isolating.protected(launch.script, launch.cwd, launch.env) if launch.protect else ()
    if uses_redirect:
        (folder / "shadow").mkdir()
    project = isolating.project_root(launch.script)
    beside = project if _on_one_file_system(project, temporary) else ""
    # From an overlay, files can be renamed into the project out of the temporary folder alone.
    output = (temporary if uses_overlay and beside else folder) / "output"
    if launch.output_args:
        output.mkdir()
    plan_path = folder / "plan.json"
    full_plan = _plan(assignment, folder, output, protected, redirect=uses_redirect)
    plan, hidden = without_secrets(full_plan, launch.env)
    write_private(plan_path, wire.dumps(plan))
    env = {
        **with_port(launch.env),
        **cached.env,
        **hidden,
        "TMPDIR": str(temporary),
        PLAN_VARIABLE: str(plan_path),
        TRIAL_VARIABLE: assignment.uid,
    }
    if library:
        env = runtime_library.environment(env, library)
    home = os.path.realpath(launch.env.get("HOME") or "/")
    # Without the home itself, to which other programs write during a trial.
    roots = dict.fromkeys(os.path.realpath(p) for p in (project, launch.cwd))
    places = tuple(root for root in roots if root != home)
    return Workspace(
        assignment=assignment,
        folder=folder,
        temporary=temporary,
        caches=cached,
        env=env,
        plan_path=plan_path,
        enclosed=uses_overlay,
        protected=protected,
        places=places,
        watched=places if uses_redirect else (),
        beside=beside,
    )


def _on_one_file_system(one: str, other: Path) -> bool:
    try:
        return os.stat(one).st_dev == other.stat().st_dev
    except OSError:
        return False


def _plan(
    assignment: Assignment, folder: Path, output: Path, protected: tuple[str, ...], *, redirect: bool
) -> Plan:
    launch = assignment.launch
    return Plan(
        nonce=assignment.uid,
        script=launch.script,
        module=launch.module,
        argv=with_output(launch.argv, launch.output_args, str(output)),
        events_path=str(folder / "events.jsonl"),
        trial_dir=str(folder),
        changes=launch.changes,
        segments=assignment.segments,
        seed=launch.seed,
        measure=launch.measure,
        batch=launch.batch,
        shadow_dir=str(folder / "shadow") if redirect else "",
        protected=(*protected, "/") if redirect else (),
        sites=tuple(dict.fromkeys(c.site for c in launch.changes if c.site)),
        ranks=launch.world,
        local_ranks=launch.ranks if launch.nodes > 1 else 0,
        first_rank=launch.node * launch.ranks,
        source=launch.source,
    )

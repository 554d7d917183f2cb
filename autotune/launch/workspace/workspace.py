"""Preparation of a trial: its folder, plan and environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.launch.ports import with_port
from autotune.launch.workspace import compile_caches as caches
from autotune.launch.workspace import isolation as enclosure
from autotune.launch.workspace import runtime_library
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
    """Directory of a trial that is ready to start."""

    assignment: Assignment
    folder: Path
    temporary: Path
    caches: caches.CompileCaches
    env: dict[str, str]
    plan_path: Path
    enclosed: bool
    protected: tuple[str, ...]
    places: tuple[str, ...]
    """The project and the working directory; the user is informed of writes there."""
    beside: str
    """The project, if it is on the temporary folder's disk, so that files can be moved between them."""
    watched: tuple[str, ...]


def write_private(path: Path, text: str) -> None:
    """Write a file readable only by this user, as a plan holds the user's paths and arguments."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def without_secrets(plan: Plan, environ: Mapping[str, str]) -> tuple[Plan, dict[str, str]]:
    """Return the plan as written to its file, and the variables with the parts that it leaves out.

    Args:
        plan: Plan of the process to start.
        environ: The environment of that process.
    """
    argv = tuple(redact_args(plan.argv, environ))
    hidden = {str(place): plan.argv[place] for place, word in enumerate(argv) if word != plan.argv[place]}
    if not hidden:
        return plan, {}
    return replace(plan, argv=argv), {HIDDEN_VARIABLE: json.dumps(hidden)}


def prepare(study_dir: Path, assignment: Assignment, isolation: str, our_part: str) -> Workspace:
    """Create a trial's folders and its plan.

    Args:
        study_dir: Parent of ``trials``, which holds the trial's folder.
        assignment: Assignment to run.
        isolation: ``overlay`` or ``redirect``.
        our_part: From `runtime_library.make`; empty if another command is run.
    """
    launch = assignment.launch
    folder = study_dir / "trials" / assignment.uid
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    temporary = temporary_folder(assignment.uid)
    enclosure.remove(temporary)
    temporary.mkdir(mode=0o700)
    cached = caches.prepare(study_dir, folder, launch.cache_key)
    overlay = launch.protect and isolation == "overlay"
    redirect = launch.protect and isolation == "redirect"
    protected = enclosure.protected(launch.script, launch.cwd, launch.env) if launch.protect else ()
    if redirect:
        (folder / "shadow").mkdir()
    project = enclosure.project_root(launch.script)
    beside = project if _on_one_disk(project, temporary) else ""
    output = (temporary if overlay and beside else folder) / "output"
    if launch.output_args:
        output.mkdir()
    plan_path = folder / "plan.json"
    whole = _plan(assignment, folder, output, protected, redirect=redirect)
    plan, hidden = without_secrets(whole, launch.env)
    write_private(plan_path, wire.dumps(plan))
    env = {
        **with_port(launch.env),
        **cached.env,
        **hidden,
        "TMPDIR": str(temporary),
        PLAN_VARIABLE: str(plan_path),
        TRIAL_VARIABLE: assignment.uid,
    }
    if our_part:
        env = runtime_library.environment(env, our_part)
    home = os.path.realpath(launch.env.get("HOME") or "/")
    # Other programs write to the home all the time, so only the project is compared.
    roots = dict.fromkeys(os.path.realpath(p) for p in (project, launch.cwd))
    places = tuple(place for place in roots if place != home)
    return Workspace(
        assignment=assignment,
        folder=folder,
        temporary=temporary,
        caches=cached,
        env=env,
        plan_path=plan_path,
        enclosed=overlay,
        protected=protected,
        places=places,
        watched=places if redirect else (),
        beside=beside,
    )


def _on_one_disk(one: str, other: Path) -> bool:
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

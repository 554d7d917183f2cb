"""Studies on disk, reported event by event, with pairs of a fast and a lean configuration; nothing is run."""

from __future__ import annotations

from dataclasses import replace

from study_fakes import facts, failed, measured, spec

from autotune.model.config import Config
from autotune.model.facts import LoaderFacts, ModelFacts
from autotune.model.study import Budget, SpaceRequest
from autotune.model.trial import Stage
from autotune.model.wire import to_wire
from autotune.store.journal import Journal
from autotune.store.paths import study_dir

FAST = Config({"num_workers": 4})
LEAN = Config({"num_workers": 2})
SEEN = Config({"num_workers": 1})
GIB = 2**30
FIRST = "01KAK2M7Q4ZC0V9X3T5R8W6Y1B"
LATER = "01KAK2M7Q4ZC0V9X3T5R8W6Y1C"


def sized(trial, gib):
    memory = replace(trial.outcome.memory, pss=int(gib * GIB))
    return replace(trial, outcome=replace(trial.outcome, memory=memory))


def trials(gain=2.0):
    """Baselines, screening, and pairs of the script with a fast and a lean configuration."""
    rows = [
        sized(measured(0, Config(), 100.0, Stage.BASELINE), 2.0),
        sized(measured(1, Config(), 101.0, Stage.BASELINE), 2.0),
        sized(measured(2, FAST, 100.0 * gain), 3.0),
        sized(measured(3, LEAN, 150.0), 1.5),
        sized(measured(4, SEEN, 120.0), 1.2),
        failed(5, Config({"num_workers": 8})),
    ]
    for cycle in range(1, 5):
        for config, value, gib in ((Config(), 100.0, 2.0), (FAST, 100.0 * gain, 3.0), (LEAN, 150.0, 1.5)):
            trial = measured(len(rows), config, value + 0.3 * cycle, Stage.CONFIRM)
            rows.append(sized(replace(trial, group=cycle, seed=cycle), gib))
    return rows


def journaled(
    script, *, label="train-1", study_id=FIRST, rows=None, advice=(), sha256="", stopped="finished", **changes
):
    given = spec(
        script=str(script),
        cwd=str(script.parent),
        label=label,
        study_id=study_id,
        budget=Budget(seconds=600.0),
        **{
            "out": "",
            "space": SpaceRequest(name="quick", knobs={"num_workers": (0, 1, 2, 4, 8)}),
            **changes,
        },
    )
    loader = LoaderFacts(
        site="train.py:3",
        batch_size=32,
        num_workers=0,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        fetch_cpu_frac=1.0,
        fetch_s=0.01,
        length=100,
        dataset_length=3200,
    )
    known = facts()
    run = replace(known.run, loader=loader, model=ModelFacts(name="Net", parameters=10))
    known = replace(known, run=run, host=replace(known.host, cpus=8, physical_cores=8), advice=tuple(advice))
    if sha256:
        known = replace(known, script=replace(known.script, sha256=sha256))
    folder = study_dir(study_id)
    folder.mkdir(parents=True)
    journal = Journal.create(folder / "journal.db", ballast_bytes=0)
    opened = {"spec": given, "wall_s": 1.79e9, "host": "", "pid": 1, "version": "0.1.0"}
    journal.append("opened", "opened/1", to_wire(opened))
    journal.append("inspected", "inspected/1", to_wire({"facts": known}))
    for trial in trials() if rows is None else rows:
        n = trial.number
        reported = {
            "number": n,
            "attempt": 1,
            "outcome": trial.outcome,
            "seconds": 9.0,
            "elapsed_s": 9.0 * n + 9,
            "facts": known.run,
        }
        journal.append("proposed", f"proposed/{n}/1", to_wire({"trial": trial, "uid": f"t{n}"}))
        journal.append("finished", f"finished/{n}/1", to_wire(reported))
    if stopped:
        journal.append("stopped", "stopped/1", to_wire({"why": stopped, "elapsed_s": 480.0}))
    journal.close()
    return folder

"""A best.yaml as a stranger may have written it, beside a script with options; and searches of one's own."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from study_fakes import changes_of, facts, good_answer, spec, study

from autotune.export.best_config import build_best, render
from autotune.export.parts import sealed
from autotune.model.facts import ScriptFacts
from autotune.store.journal import Journal
from autotune.store.paths import study_dir

TRAIN = """import argparse
p = argparse.ArgumentParser()
p.add_argument('--batch-size', '-b', type=int, default=32)
p.add_argument('--lr', type=float)
p.add_argument('--name')
p.parse_args()
print('trained')
"""
CONTROLS = "\x1b[2J\x1b]0;owned\x07\u202egnirts\u2066\u200b\x9b31m"
"""What a terminal would obey, and what would change the order of what is read."""


def content(script, changes=None, **fields):
    """The content of a best.yaml for this script with these changes in its pick."""
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    known = replace(facts(), script=ScriptFacts(path=str(script), sha256=sha256))
    done = study(spec=spec(**{"script": str(script), "cwd": str(script.parent), **fields}), facts=known)
    return build_best(done, good_answer(), changes_of if changes is None else lambda config: changes)


def put(beside, best, **study_fields):
    """Write it beside the script, with the digest that fits it, as a stranger would."""
    if study_fields:
        best = best.model_copy(update={"study": best.study.model_copy(update=study_fields)})
    path = beside.parent / "best.yaml"
    path.write_text(render(sealed(best)), encoding="utf-8")
    return path


def searched(given):
    """The journal of a search of this account, with this request."""
    with Journal.create(study_dir(given.study_id), ballast_bytes=0, environ={}) as journal:
        opened = {"spec": given, "wall_s": 1.79e9, "host": "", "pid": 1, "version": "0.1.0"}
        journal.append("opened", "opened/1", opened)
    return study_dir(given.study_id)

"""The zoo: scripts of every kind, what is expected of each, and what really happens to them.

A *cell* is one script with one knob. `World` runs the script bare, then as a baseline, asks for the space
that its facts leave, and carries each knob out alone, to the script's end, the way `autotune apply` does.
Whether a knob was applied is judged by `zoo_observer`, which knows nothing of what the product says of
itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from autotune.errors import AutotuneError
from autotune.inspection.command_line import read_command
from autotune.inspection.host import host_facts
from autotune.inspection.script import script_facts
from autotune.knobs.batch.batch_size import given_batch_size
from autotune.knobs.registry import builtin
from autotune.launch.ports import with_port
from autotune.launch.process import LocalRunner
from autotune.loss.effective_batch_check import unlike_step
from autotune.model import wire
from autotune.model.change import Change, Constant, Env, Flag, Keyword
from autotune.model.config import Config
from autotune.model.distributed_launch import launch_variables, several
from autotune.model.effect import Effect
from autotune.model.facts import Facts, RunFacts, ScriptFacts
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.trial import Assignment, Failure, Fidelity, Segment, Stage, Trial
from autotune.protocol.events import Broke, Done, ReadBack, Steps
from autotune.protocol.lines import Reader
from autotune.protocol.plan import PLAN_VARIABLE, Plan
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import Dead, choose
from autotune.space.launch_command import build_launch
from autotune.space.training_environment import user_environment

if TYPE_CHECKING:
    from autotune.model.config import Value
    from autotune.model.space import SearchSpace

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "scripts" / "zoo"
GAPS = ROOT / "tests" / "zoo" / "known_gaps.yaml"
KNOBS = (
    *("batch_size", "accumulation", "effective_batch", "precision", "num_workers", "prefetch_factor"),
    *("persistent_workers", "pin_memory", "compile_mode", "channels_last", "fused_optimizer", "threads"),
    *("tf32", "set_to_none", "gc_control", "wait_policy"),
)
SAME_RESULT = frozenset(
    {
        "num_workers",
        "prefetch_factor",
        "persistent_workers",
        "threads",
        "set_to_none",
        "gc_control",
        "wait_policy",
    }
)
"""Knobs that may not change what is trained."""
ROUNDS_OTHERWISE = frozenset({"accumulation", "threads", "wait_policy"})
"""Knobs whose claim is the same training up to the order of summation; `wait_policy` brings threads along."""
TOGETHER = (
    ("num_workers", "prefetch_factor", "gc_control", "set_to_none"),
    ("threads", "wait_policy"),
    ("precision", "fused_optimizer", "channels_last", "effective_batch"),
)
"""Knobs that one run can show; what is wrong with it is looked for in runs of one knob each."""
_UNTUNED = 6
PATH_TOLERANCE = 0.02
"""Largest distance between two final parameters, as a share of the way they went."""
ROUNDING_STEPS = 32
"""Steps, at the least, that rounding alone may not have led astray, for an end to be excused by it."""
ENDLESS_STEPS = 300
_LONG = Fidelity(
    min_window_s=600.0,
    max_window_s=600.0,
    min_steps=10**6,
    target_width=0.01,
    setup_s=120.0,
    deadline_s=600.0,
)
_SHORT = Fidelity(
    min_window_s=0.2, max_window_s=1.0, min_steps=10, target_width=0.5, setup_s=60.0, deadline_s=60.0
)

_SPEC = StudySpec(
    study_id="zoo",
    label="zoo",
    script="",
    args=(),
    cwd="",
    python=sys.executable,
    space=SpaceRequest(name="zoo"),
    budget=Budget(seconds=600.0),
)


@dataclass(frozen=True)
class Expected:
    """What is right for one knob: one of `means`, or a refusal whose reason matches."""

    means: tuple[str, ...] = ()
    refused: str = ""

    @property
    def text(self) -> str:
        applied = f"applied by {' or '.join(self.means)}" if self.means else ""
        refused = f"refused: {self.refused}" if self.refused else ""
        return " or ".join(part for part in (applied, refused) if part)


@dataclass(frozen=True)
class Script:
    """One entry of ``expected.yaml``."""

    name: str
    steps: int | None
    samples: int | None
    ending: str = ""
    same_path: bool | None = None
    needs: tuple[str, ...] = ()
    run: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tried: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    knobs: Mapping[str, Expected] = field(default_factory=dict[str, Expected])

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed here."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


@dataclass
class Cell:
    """One script with one knob: what was expected, what came."""

    script: str
    knob: str
    expected: str
    outcome: str
    by: str = ""
    reason: str = ""
    problems: list[str] = field(default_factory=list[str])
    verdict: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def load() -> dict[str, Script]:
    """Every script with what is expected of it."""
    data = yaml.safe_load((SCRIPTS / "expected.yaml").read_text(encoding="utf-8"))
    return {name: _script(name, entry, data["profiles"]) for name, entry in data["scripts"].items()}


def _script(name: str, entry: dict[str, Any], profiles: dict[str, Any]) -> Script:
    lines = {**profiles.get(entry.get("like", ""), {}), **entry.get("knobs", {})}
    return Script(
        name=name,
        steps=entry["steps"],
        samples=entry["samples"],
        ending=entry.get("ending", ""),
        same_path=entry.get("same_path"),
        needs=tuple(entry.get("needs", ())),
        run=entry.get("run", {}),
        tried=entry.get("try", {}),
        knobs={knob: _expected(lines[knob]) for knob in KNOBS if knob in lines},
    )


def _expected(line: dict[str, Any]) -> Expected:
    applied = line.get("applied", ())
    means = (applied,) if isinstance(applied, str) else tuple(applied)
    return Expected(means=means, refused=line.get("refused", line.get("or_refused", "")))


def known_gaps() -> dict[tuple[str, str], str]:
    """Cells that are not as expected yet, with the cause."""
    data = yaml.safe_load(GAPS.read_text(encoding="utf-8")) if GAPS.exists() else None
    gaps: dict[tuple[str, str], str] = {}
    for group in data or ():
        for cell in group["cells"]:
            script, _, knob = cell.partition(" ")
            gaps[script, knob] = group["cause"]
    return gaps


def verdict_of(expected: Expected, cell: Cell) -> str:
    """``ok``, or what is wrong, the most harmful first.

    ``wrong``: reported as applied, and the training shows otherwise; ``broken``: it crashed;
    ``dangerous``: applied where only a refusal is right; ``refused``: not to be had though it should be;
    ``means``: by another way, ``reason``: for another reason than expected.
    """
    if cell.problems:
        return "wrong"
    if cell.outcome == "broken":
        return "broken"
    if cell.outcome == "applied":
        if not expected.means:
            return "dangerous"
        return "ok" if set(cell.by.split("+")) <= set(expected.means) else "means"
    if not expected.refused:
        return "refused"
    return "ok" if re.search(expected.refused, cell.reason, re.IGNORECASE) else "reason"


class World:
    """A script in a folder of its own, with everything that was seen of it."""

    def __init__(
        self,
        script: Script,
        folder: Path,
        *,
        timeout_s: float = 240.0,
        start: Callable[..., tuple[int, str]] | None = None,
    ) -> None:
        self.script = script
        self.start = start
        self.folder = folder
        self.timeout_s = timeout_s
        self.ranks = int(script.run.get("torchrun", 1))
        """Processes that train together; what the others than the first do is looked at as well."""
        self.place, self.words, self.module = self._copied()
        self.count = 0
        self.environ = {
            **user_environment(_plain(os.environ), keep_loggers=False, trial=True),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "tests" / "support"), str(ROOT))),
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("ZOO_COMPILE_CACHE", str(folder / "inductor")),
        }
        self.bare: dict[str, Any] = {}
        self.shaken: dict[str, Any] = {}
        self.refused_whole = ""
        self.outcome: Any = None
        self.facts: Facts | None = None
        self.reported: dict[str, Any] = {}

    def _copied(self) -> tuple[Path, tuple[str, ...], str]:
        top = Path(self.script.name).parts[0]
        source = SCRIPTS / top
        if source.is_dir():
            shutil.copytree(source, self.folder / top, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, self.folder / top)
            for module in SCRIPTS.glob("configurator.py"):
                shutil.copy(module, self.folder)
        if "module" in self.script.run:
            return self.folder / self.script.run["folder"], (), self.script.run["module"]
        path = self.folder / self.script.name
        return path.parent, (str(path), *self.script.run.get("args", ())), ""

    # The script by itself, and as a baseline

    def look(self) -> None:
        """Run it bare and as a baseline, and find out what may be varied."""
        launcher = ["torchrun", "--nproc-per-node", str(self.ranks)] if self.ranks > 1 else [sys.executable]
        command = self._read([*launcher, *(("-m", self.module) if self.module else self.words)])
        self.bare = self._bare()
        events = self._baseline(command)
        self.reported = _reported(events)
        seen = [e.facts for e in events if isinstance(e, ReadBack)]
        run = seen[-1] if seen else RunFacts()
        self.facts = Facts(host=host_facts(), script=self._script_facts(command), run=run)
        broke = next((e for e in events if isinstance(e, Broke)), None)
        if broke is not None:
            self.refused_whole = broke.message
        elif not self.reported["steps"]:
            outcome = self.ending()
            self.refused_whole = outcome.message if is_failure(outcome) else ""

    def _script_facts(self, inspected: str) -> ScriptFacts:
        return script_facts(inspected, self.words[1:], cwd=str(self.place))

    def _read(self, words: Sequence[str]) -> str:
        before = Path.cwd()
        try:
            os.chdir(self.place)
            return read_command(words).inspected
        except AutotuneError as error:
            self.refused_whole = str(error)
            return ""
        finally:
            os.chdir(before)

    def _bare(self) -> dict[str, Any]:
        words = ("-m", self.module) if self.module else self.words
        return self._observed(("bare", *words), {}, "bare")[0]

    def _baseline(self, inspected: str) -> list[Any]:
        plan = self._plan((), measure=True, name="baseline", inspected=inspected)
        self._observed(("trial",), {PLAN_VARIABLE: str(plan)}, "baseline")
        self.baseline_seen = self._json("baseline")
        folder = self.folder / "runs" / "baseline"
        return list(Reader(folder / "events.jsonl", "baseline").read())

    def ending(self) -> Any:
        """How a trial of the unchanged script ends: a measurement, or a Failure with its kind."""
        if self.outcome is not None:
            return self.outcome
        runner = LocalRunner(study_dir=self.folder / "study", progress_floor_s=60.0)
        launch = self._launch(())
        assignment = Assignment(
            uid="t0000-a1-000000",
            study_id="zoo",
            attempt=1,
            launch=launch,
            segments=(Segment(trial=0, config=Config(), fidelity=_SHORT),),
        )
        ended = list(runner.run(assignment))
        self.outcome = ended[0].outcome
        return self.outcome

    # Knobs

    def cells(self, knobs: Sequence[str]) -> list[Cell]:
        """Judge several knobs, those of a group in one run; where anything is wrong with it, one by one."""
        found = {knob: self._begun(knob) for knob in knobs}
        offered = {knob: wanted for knob in knobs if (wanted := self._offered(knob, found[knob])) is not None}
        for group in (*TOGETHER, *((knob,) for knob in offered if not any(knob in g for g in TOGETHER))):
            members = [knob for knob in group if knob in offered]
            if len(members) < 2 or not self._all_fine(members, offered, found):
                for knob in members:
                    self._alone(knob, offered[knob], found[knob])
        for knob, cell in found.items():
            cell.verdict = verdict_of(self.script.knobs[knob], cell)
        return list(found.values())

    def cell(self, knob: str) -> Cell:
        """Carry one knob out and judge what came of it."""
        cell = self._begun(knob)
        wanted = self._offered(knob, cell)
        if wanted is not None:
            self._alone(knob, wanted, cell)
        cell.verdict = verdict_of(self.script.knobs[knob], cell)
        return cell

    def exact(self, knobs: Sequence[str]) -> dict[str, Mapping[str, Value]]:
        """Return the knobs that are offered as EXACT, each with the values that are tried."""
        found: dict[str, Mapping[str, Value]] = {}
        for knob in knobs:
            wanted = self._offered(knob, Cell(self.script.name, knob, "", "refused"))
            if wanted is None:
                continue
            space = self._space()[0]
            config = space.complete(wanted)
            if isinstance(config, Config) and knob in config and space.effect(config) is Effect.EXACT:
                found[knob] = wanted
        return found

    def trained(
        self, offered: Mapping[str, Mapping[str, Value]], dead: Dead = frozenset()
    ) -> tuple[dict[str, Any], bool] | str:
        """Train with these knobs in one run.

        Returns:
            What was observed, and whether the space reports other random numbers for it; a sentence where
            they were not applied.
        """
        found = self._changes(list(offered), _values(offered), dead)
        if isinstance(found, str):
            return found
        cell = Cell(self.script.name, next(iter(offered)), "", "refused")
        seen = self._carry_out(cell.knob, cell, *found)
        redrawn = self._space()[0].changes_rng_streams(found[0])
        return (seen, redrawn) if cell.outcome == "applied" else f"{cell.outcome}: {cell.reason}"

    def contradicted(
        self, offered: Mapping[str, Mapping[str, Value]], dead: Dead = frozenset()
    ) -> tuple[str, str] | None:
        """Return the delivery that a search would drop after a trial of these knobs; None without one."""
        found = self._changes(list(offered), _values(offered), dead)
        return None if isinstance(found, str) else self._gives_way(*found)

    def _begun(self, knob: str) -> Cell:
        return Cell(
            self.script.name, knob, self.script.knobs[knob].text, "refused", reason=self.refused_whole
        )

    def _space(self) -> tuple[SearchSpace, dict[str, str]]:
        assert self.facts is not None
        request = SpaceRequest(name="zoo", knobs=dict.fromkeys(KNOBS, ()))
        return build_space(request, self.facts, builtin())

    def _offered(self, knob: str, cell: Cell) -> Mapping[str, Value] | None:
        """What to ask for; None where the knob is refused, with the reason in the cell."""
        if self.refused_whole:
            return None
        refusals = self._space()[1]
        if knob in refusals:
            cell.reason = refusals[knob]
            return None
        wanted = self._requested(knob)
        if wanted is None:
            cell.reason = "the script's own batch size could not be read"
        return wanted

    def _requested(self, knob: str) -> Mapping[str, Value] | None:
        """The knob with what comes along with it."""
        return self.script.tried.get(knob) or self._wanted(knob)

    def _changes(
        self, knobs: Sequence[str], wanted: Mapping[str, Value], dead: Dead = frozenset()
    ) -> tuple[Config, Sequence[Change]] | str:
        assert self.facts is not None
        config = self._space()[0].complete(wanted)
        if isinstance(config, str):
            return config
        dropped = [knob for knob in knobs if knob not in config]
        if dropped:
            return f"{dropped[0]} drops out: {config.text() or 'nothing is left'}"
        changes, refused = choose(config, self.facts, builtin(), dead=dead)
        return f"{refused[0].knob}: {refused[0].reason}" if refused else (config, changes)

    def _alone(self, knob: str, wanted: Mapping[str, Value], cell: Cell) -> None:
        dead: Dead = frozenset()
        while True:
            found = self._changes([knob], wanted, dead)
            if isinstance(found, str):
                cell.outcome, cell.by, cell.reason, cell.problems = "refused", "", found, []
                return
            cell.by = _by(knob, found[1])
            self._carry_out(knob, cell, *found)
            gone = self._gives_way(*found) if cell.problems else None
            if gone is None or gone in dead:
                return
            dead |= {gone}

    def _gives_way(self, config: Config, changes: Sequence[Change]) -> tuple[str, str] | None:
        """The way that a search would not go again after a trial of this; see decision 68."""
        assert self.facts is not None
        self.count += 1
        name = f"{self.count:02d}-trial"
        plan = self._plan(changes, measure=True, name=name)
        environ = {c.spelling.name: c.delivered for c in changes if isinstance(c.spelling, Env)}
        self._observed(("trial",), {PLAN_VARIABLE: str(plan), **environ}, name)
        events = Reader(self.folder / "runs" / name / "events.jsonl", name).read()
        seen = [e.facts for e in events if isinstance(e, ReadBack)]
        study = Study(spec=_SPEC, facts=self.facts)
        trial = Trial(number=1, config=config, stage=Stage.REFINE, fidelity=_LONG, changes=tuple(changes))
        failure = unlike_step(study, trial, seen[-1] if seen else None)
        return None if failure is None else (str(failure.evidence["knob"]), str(failure.evidence["how"]))

    def _all_fine(
        self, knobs: Sequence[str], offered: Mapping[str, Mapping[str, Value]], cells: Mapping[str, Cell]
    ) -> bool:
        found = self._changes(knobs, {name: v for knob in knobs for name, v in offered[knob].items()})
        if isinstance(found, str):
            return False
        probe = Cell(self.script.name, knobs[0], "", "refused")
        seen = self._carry_out(knobs[0], probe, *found)
        if probe.outcome != "applied" or any(self._contradictions(knob, found[0], seen) for knob in knobs):
            return False
        for knob in knobs:
            cells[knob].outcome, cells[knob].by = "applied", _by(knob, found[1])
        return True

    def _wanted(self, knob: str) -> dict[str, Value] | None:
        assert self.facts is not None
        knobs = builtin()
        micro, effective = knobs["batch_size"].own(self.facts), knobs["effective_batch"].own(self.facts)
        if knob in ("batch_size", "accumulation", "effective_batch"):
            if not isinstance(micro, int) or not isinstance(effective, int):
                return None
            return {
                "batch_size": {"batch_size": micro // 2, "effective_batch": effective // 2},
                "accumulation": {"batch_size": micro // 2},
                "effective_batch": {"batch_size": micro * 2, "effective_batch": effective * 2},
            }[knob]
        alone: dict[str, dict[str, Value]] = {
            "precision": {"precision": "bf16"},
            "num_workers": {"num_workers": 2},
            "prefetch_factor": {"num_workers": 2, "prefetch_factor": 4},
            "persistent_workers": {"num_workers": 2, "persistent_workers": True},
            "pin_memory": {"pin_memory": True},
            "compile_mode": {"compile_mode": "default"},
            "channels_last": {"channels_last": True},
            "fused_optimizer": {"fused_optimizer": True},
            "threads": {"threads": 2},
            "tf32": {"tf32": "high"},
            "set_to_none": {"set_to_none": True},
            "gc_control": {"gc_control": "freeze"},
            "wait_policy": {"threads": 2, "wait_policy": "PASSIVE"},
        }
        return alone[knob]

    def _carry_out(self, knob: str, cell: Cell, config: Config, changes: Sequence[Change]) -> dict[str, Any]:
        self.count += 1
        name = f"{self.count:02d}-{knob}"
        plan = self._plan(changes, measure=False, name=name)
        environ = {c.spelling.name: c.delivered for c in changes if isinstance(c.spelling, Env)}
        if knob == "compile_mode":
            environ["ZOO_FORWARD"] = "0"
        seen, code, error = self._observed(("trial",), {PLAN_VARIABLE: str(plan), **environ}, name)
        cell.outcome, cell.reason = self._ended(name, config, code, error, trained="steps" in seen)
        if cell.outcome == "applied":
            cell.problems = self._contradictions(knob, config, seen)
            for rank in range(1, self.ranks):
                other = self._json(name, rank)
                problems = self._contradictions(knob, config, other) if other else ["nothing was seen"]
                cell.problems += [f"rank {rank}: {problem}" for problem in problems]
        return seen

    def _ended(self, name: str, config: Config, code: int, error: str, *, trained: bool) -> tuple[str, str]:
        """What the run says of itself: an outcome and, where it is not applied, why."""
        faults = self.folder / "runs" / name / "faults.log"
        if faults.exists() and (text := faults.read_text(encoding="utf-8").strip()):
            return "broken", text.splitlines()[-1]
        requested = [r for r in self._readings(name) if r["knob"] in config]
        lost = next((r for r in requested if r["status"] != "applied"), None)
        if lost is not None:
            return lost["status"], lost["reason"] or error
        if code == _UNTUNED:
            return "not_reached", error
        if code != 0 or not trained:
            return "broken", f"exit {code}: {error}"
        return ("applied", "") if requested else ("not_reached", "no reading was written")

    # What the observer says of it

    def _contradictions(self, knob: str, config: Config, seen: dict[str, Any]) -> list[str]:
        found = [*_check(knob, config, seen, self.bare), *self._batch_contradictions(knob, config, seen)]
        same = knob in SAME_RESULT or (knob == "accumulation" and self.script.same_path)
        if same:
            found += self._astray(knob, seen)
            if seen["steps"] != self.bare["steps"]:
                found.append(f"{seen['steps']} steps instead of {self.bare['steps']}")
        return found

    def _astray(self, knob: str, seen: dict[str, Any]) -> list[str]:
        """Whether a run that may train nothing else left the way of the bare run; see decision 35."""
        facts = self.facts
        assert facts is not None
        at = None
        brought = {name for name in self._requested(knob) or () if name in SAME_RESULT}
        if any(builtin()[name].changes_rng_streams(facts) for name in {knob, *brought}):
            if facts.run and facts.run.loader and facts.run.loader.eager_order and "num_workers" in brought:
                return []  # the first batch is another one already
            # Another order is what the knob claims; it says nothing of the first pass, whose order is drawn.
            batches = facts.run.loader.length if facts.run and facts.run.loader else None
            if batches and facts.run and facts.run.loader and (sizes := facts.run.loader.sizes):
                # Of the stage with the largest batches, which has the shortest passes.
                batches = int(facts.run.loader.dataset_length or 0) // max(sizes)
            if facts.run and facts.run.pass_samples and facts.run.inputs:
                batches = facts.run.pass_samples // facts.run.inputs.batch_size
            whole = batches and facts.run and int(batches / max(1.0, facts.run.backward_per_step))
            at = last_common(seen, self.bare, whole or 1)
        away = distance(seen, self.bare, at)
        if away is not None and away > PATH_TOLERANCE and knob in ROUNDS_OTHERWISE and at is None:
            at = self._rounding_keeps()
            away = distance(seen, self.bare, at)
        if away is not None and away <= PATH_TOLERANCE:
            return []
        where = "ends with" if at is None else f"has after {at} steps"
        return [f"{where} other parameters: {away if away is None else round(away, 4)} of the way"]

    def _rounding_keeps(self) -> int | None:
        """The step up to which a bare run with one rounding error stays on its way; None: to its end."""
        if not self.shaken:
            words = ("-m", self.module) if self.module else self.words
            self.shaken = self._observed(("bare", *words), {"ZOO_ROUNDING": "1"}, "shaken")[0]
        end = distance(self.shaken, self.bare)
        if end is None or end <= PATH_TOLERANCE:
            return None
        kept = 0
        for step in sorted(map(int, self.bare["path"])):
            away = distance(self.shaken, self.bare, step)
            if away is not None and away > PATH_TOLERANCE / 2:
                break
            kept = kept if away is None else step
        return kept if kept >= ROUNDING_STEPS else None

    def _batch_contradictions(self, knob: str, config: Config, seen: dict[str, Any]) -> list[str]:
        if knob not in ("batch_size", "accumulation", "effective_batch") or "batch_size" not in config:
            return []
        micro = int(config["batch_size"])
        found: list[str] = []
        sizes = [int(n) for n in re.findall(r"\d+", _most(seen, "sizes"))]
        batch = _most(seen, "batches")
        counts = seen.get("batches") or {}
        # Two loaders that are read in turns give as many batches each.
        if batch and counts.get(str(micro), 0) < 0.9 * counts[batch]:
            found.append(f"the loader gives {batch} samples at once instead of {micro}")
        if sizes and not batch and micro not in sizes:
            found.append(f"no dimension of {sizes} is the batch of {micro}")
        before, after = self.bare, seen
        if knob == "accumulation":
            assert self.facts is not None
            times = int(config[knob]) / int(builtin()[knob].own(self.facts) or 1)
            if not 0.9 * times < after["backwards"] / max(1, before["backwards"]) < 1.05 * times:
                found.append(
                    f"{after['backwards']} backward passes instead of {times:g} x {before['backwards']}"
                )
        return found

    # Processes and files

    def _launch(self, changes: Sequence[Change], *, measure: bool = True) -> Any:
        script = self.words[0] if self.words else str(self.place / (self.module.replace(".", "/") + ".py"))
        return build_launch(
            script=script,
            args=self.words[1:],
            python=sys.executable,
            cwd=str(self.place),
            env=self.environ,
            changes=changes,
            measure=measure,
            module=self.module,
            launcher=several(self.ranks) if self.ranks > 1 else "",
        )

    def _plan(self, changes: Sequence[Change], *, measure: bool, name: str, inspected: str = "") -> Path:
        folder = self.folder / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        launch = self._launch(changes, measure=measure)
        plan = Plan(
            nonce=name,
            script=launch.script,
            module=launch.module,
            argv=launch.argv,
            events_path=str(folder / "events.jsonl"),
            trial_dir=str(folder),
            changes=tuple(changes),
            segments=(Segment(trial=0, config=Config(), fidelity=_LONG),) if measure else (),
            measure=measure,
            sites=tuple(dict.fromkeys(c.site for c in changes if c.site)),
            status_path="" if measure else str(folder / "status.json"),
            batch=given_batch_size(self._script_facts(inspected), launch.argv) if inspected else 0,
            ranks=launch.ranks,
        )
        path = folder / "plan.json"
        path.write_text(wire.dumps(plan), encoding="utf-8")
        return path

    def _observed(
        self, words: Sequence[str], environ: Mapping[str, str], name: str
    ) -> tuple[dict[str, Any], int, str]:
        folder = self.folder / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        more = {"ZOO_OBSERVED": str(folder / "seen.json")}
        if self.script.name.startswith("never_ends"):
            more["ZOO_STEPS"] = str(ENDLESS_STEPS)
        if "compile" in self.script.name:
            more["ZOO_FORWARD"] = "0"
        env = {**self.environ, **more, **environ}
        first = [sys.executable]
        if self.ranks > 1 and words[0] == "bare":
            first += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        elif self.ranks > 1:
            env = with_port({**env, **launch_variables(several(self.ranks), env)})
        elif self.start is not None and not any(name.startswith(("OMP_", "KMP_")) for name in environ):
            code, error = self.start(words, cwd=self.place, env=env, folder=folder, timeout_s=self.timeout_s)
            return self._json(name), code, (error.strip().splitlines() or [""])[-1]
        try:
            ended = subprocess.run(
                [*first, "-m", "zoo_observer", *words],
                cwd=self.place,
                env=env,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            code, error = ended.returncode, ended.stderr
        except subprocess.TimeoutExpired:
            code, error = 124, f"not ended after {self.timeout_s:g} s"
        last = (error.strip().splitlines() or [""])[-1]
        return self._json(name), code, last

    def _json(self, name: str, rank: int = 0) -> dict[str, Any]:
        path = self.folder / "runs" / name / (f"seen.{rank}.json" if rank else "seen.json")
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def _readings(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / "runs" / name / "status.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _values(offered: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    return {name: value for values in offered.values() for name, value in values.items()}


def means_of(change: Change) -> str:
    """The word of ``expected.yaml`` for the way a change takes."""
    spelling = change.spelling
    if isinstance(spelling, Flag):
        return "flag"
    if isinstance(spelling, Env):
        return "environment"
    if isinstance(spelling, Constant):
        return "constant"
    if isinstance(spelling, Keyword) and not spelling.target.startswith("torch."):
        return "framework"
    return "patch"


def distance(one: Mapping[str, Any], other: Mapping[str, Any], at: int | None = None) -> float | None:
    """How far apart two runs are, as a share of the way the second went; None where that is not known.

    Args:
        one, other: What was observed.
        at: After that many steps, one that both have a picture of; None: at the end.
    """
    a, b, begin = _parameters(one, at), _parameters(other, at), other.get("first")
    if not a or not b or not begin or not len(a) == len(b) >= len(begin):
        return None
    # Parameters that join later have no beginning: they count for how far apart the runs are.
    way = sum((y - z) ** 2 for y, z in zip(b, begin, strict=False)) ** 0.5
    away = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
    return away / way if way else (0.0 if away == 0 else None)


def _parameters(seen: Mapping[str, Any], at: int | None) -> list[float] | None:
    return seen.get("last") if at is None else (seen.get("path") or {}).get(str(at))


def last_common(one: Mapping[str, Any], other: Mapping[str, Any], most: int) -> int:
    """The latest step, up to `most`, after which both runs' parameters were looked at; 0 without one."""
    steps = {int(step) for step in one.get("path") or {}} & {int(step) for step in other.get("path") or {}}
    return max((step for step in steps if step <= most), default=0)


def _reported(events: Sequence[Any]) -> dict[str, Any]:
    rows = [row for e in events if isinstance(e, Steps) for row in e.rows]
    done = next((e for e in events if isinstance(e, Done)), None)
    return {
        "steps": done.steps if done is not None else len(rows),
        "samples": sum(row.samples for row in rows),
        "why": None if done is None else done.why,
    }


def _most(seen: Mapping[str, Any], what: str) -> str:
    counts = seen.get(what) or {}
    return max(counts, key=counts.get) if counts else ""


def _check(knob: str, config: Config, seen: dict[str, Any], bare: dict[str, Any]) -> list[str]:
    """What torch's own state says against one knob."""
    value = config.get(knob)
    workers = [i for i in seen["iterators"] if i["workers"]]
    more_children = int(_most(seen, "children") or 0) - int(_most(bare, "children") or 0)
    own_workers = max((i["workers"] for i in bare["iterators"]), default=0)
    checks: dict[str, tuple[bool, str]] = {
        "precision": (
            seen["formats"].get("bfloat16", 0) >= 0.9 * seen["backwards"],
            f"layers give {seen['formats']}",
        ),
        "num_workers": (
            bool(workers) and more_children >= int(config.get("num_workers", 0)) - own_workers,
            f"{more_children} more processes, iterators {seen['iterators']}",
        ),
        "prefetch_factor": (any(i["prefetch"] == value for i in workers), f"iterators {seen['iterators']}"),
        "persistent_workers": (
            any(i["persistent"] for i in workers) and seen["worker_starts"] == 1,
            f"{seen['worker_starts']} starts of workers for one loader: {seen['iterators']}",
        ),
        "compile_mode": (
            (seen["graphs"] == 0) if value == "off" else seen["graphs"] > 0,
            f"{seen['graphs']} graphs, frames {seen['frames']}",
        ),
        "channels_last": (
            bool(seen["channels_last"]) and all(seen["channels_last"]),
            f"layouts {seen['channels_last']}",
        ),
        "fused_optimizer": (bool(seen["fused"]) and all(seen["fused"]), f"groups {seen['fused']}"),
        "threads": (seen["threads"] == value, f"{seen['threads']} threads"),
        "set_to_none": (_most(seen, "cleared") == "none", f"gradients {seen['cleared']}"),
        "gc_control": (seen["gc"] != bare["gc"], f"collector {seen['gc']}"),
        "wait_policy": (
            seen["variables"].get("OMP_WAIT_POLICY") == value,
            f"variables {seen['variables']}",
        ),
    }
    fine, message = checks.get(knob, (True, ""))
    return [] if fine else [message]


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    dropped = ("OMP_", "KMP_", "GOMP_", "AUTOTUNE_", "ZOO_", "MLFLOW_", "WANDB_", "PYTHON")
    return {name: value for name, value in environ.items() if not name.startswith(dropped)}


def is_failure(outcome: object) -> bool:
    """A trial that yielded no measurement."""
    return isinstance(outcome, Failure)


def _by(knob: str, changes: Sequence[Change]) -> str:
    """The means of a knob; of one that others realise, theirs."""
    carried = [c for c in changes if c.knob == knob]
    if not carried:
        carried = [c for c in changes if c.knob in ("batch_size", "accumulation")]
    return "+".join(sorted({means_of(change) for change in carried}))

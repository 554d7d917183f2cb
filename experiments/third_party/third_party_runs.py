"""One candidate on this machine: unchanged, inspected, as a baseline beside a stopwatch, with each knob.

Every method gives back one JSON object with ``ok``; none raises for what a script, or our own product, does.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import third_party_envs as envs
import third_party_judge as judge

from autotune.errors import AutotuneError
from autotune.inspection.command_line import read_command, verify
from autotune.inspection.host import host_facts
from autotune.inspection.script import script_facts
from autotune.knobs.batch.batch_size import given_batch_size
from autotune.knobs.registry import builtin
from autotune.launch.process import LocalRunner
from autotune.model.change import Env, Flag, Keyword
from autotune.model.config import Config
from autotune.model.facts import Facts
from autotune.model.study import SpaceRequest
from autotune.model.trial import Assignment, Failure, Fidelity, Segment
from autotune.protocol.events import Closed, ReadBack
from autotune.protocol.lines import Reader
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import choose
from autotune.space.launch_command import build_launch, with_flags
from autotune.space.training_environment import user_environment

STOPWATCH = Path(__file__).resolve().parent / "stopwatch"
BARE_STEPS_S = 4.0
"""A bare run is ended after that much training."""
BARE_S = 240.0
INSPECT_S = 120.0
BASELINE = Fidelity(
    min_window_s=3.0, max_window_s=10.0, min_steps=20, target_width=0.05, setup_s=150.0, deadline_s=240.0
)
KNOB = Fidelity(
    min_window_s=1.0, max_window_s=4.0, min_steps=16, target_width=0.3, setup_s=150.0, deadline_s=240.0
)
PROGRESS_FLOOR_S = 60.0
REASON_CHARS = 300


class Runs:
    """One candidate in its rooms. `baseline` comes before `knob`."""

    def __init__(self, candidate, rooms):
        self.candidate = candidate
        self.rooms = rooms
        self.words = envs.words(candidate, rooms)
        self.place = rooms.place(candidate.name)
        self.command = None
        self.facts = None
        self.before = {}

    # The script by itself ---------------------------------------------------------------------

    def bare(self):
        """Whether it trains here without us: ended after some seconds of steps, or by itself."""
        folder = self.rooms.study(self.candidate.name) / "bare"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if not Path(self.words[0]).is_file():
            return {"ok": False, "reason": f"the package brings no {Path(self.words[0]).name}"}
        files = self._files()
        env = {**self._variables(), "STOPWATCH_FILE": str(folder / "steps")}
        began = time.monotonic()
        with (folder / "log.txt").open("w") as log:
            process = subprocess.Popen(
                self.words,
                cwd=self.place,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                ended = self._followed(process, folder, began)
            finally:
                end_group(process)
        records = _records(folder / "steps")
        message = _last_line(folder / "log.txt")
        stepped = len([r for r in records if r[1] == 0])
        trained = stepped > 0 or ended in ("stopped", "exit 0")
        result = {
            "ok": trained,
            "reason": "" if trained else f"{ended}: {message}",
            "ended": ended,
            "steps": stepped,
            "optimizers": len({r[1] for r in records}),
            "samples_per_step": judge.per_step(records),
            "seconds": round(time.monotonic() - began, 1),
            "wrote": sorted(Path(path).name for path in _changed(files, self._files())),
        }
        # What a bare run wrote must not be there for the next one: some entry points refuse a second time.
        why = envs.lay_out(self.candidate, self.rooms)
        return {**result, "ok": not why, "reason": why} if why else result

    def _followed(self, process, folder, began):
        while time.monotonic() - began < BARE_S:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return f"exit {process.wait(0.5)}"
            records = _records(folder / "steps")
            if records and (records[-1][0] - records[0][0]) / 1e9 > BARE_STEPS_S:
                return "stopped"
        return f"not done after {BARE_S:.0f} s"

    def _variables(self):
        ours = user_environment(self.rooms.variables(self.candidate), keep_loggers=False, trial=True)
        return {**ours, "PYTHONPATH": str(STOPWATCH)}

    def _files(self):
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in self.place.rglob("*")
            if path.is_file()
        }

    # What we say of it ------------------------------------------------------------------------

    def inspect(self):
        """The answer of ``autotune inspect --static --json``, knob by knob; `baseline` runs it."""
        python = str(self.rooms.python(self.candidate.name))
        # The product beside this file, wherever one is installed; no variable says so.
        run = "runpy.run_module('autotune', None, '__main__')"
        start = f"import sys, runpy; sys.path[0] = {str(envs.ROOT)!r}; {run}"
        command = [sys.executable, "-c", start, "inspect", "--static", "--json", "--python", python, "--"]
        began = time.monotonic()
        try:
            ended = subprocess.run(
                [*command, *self.words],
                cwd=self.place,
                env=self._plain_variables(),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=INSPECT_S,
            )
        except subprocess.TimeoutExpired:
            return {"ok": False, "reason": f"not done after {INSPECT_S:.0f} s"}
        seconds = round(time.monotonic() - began, 1)
        try:
            reported = json.loads(ended.stdout)
        except ValueError:
            last = (ended.stderr.strip().splitlines() or ["no word"])[-1]
            return {"ok": False, "reason": f"exit {ended.returncode}: {last}", "seconds": seconds}
        if "error" in reported:
            return {"ok": False, "reason": _short(reported["error"].get("message", "")), "seconds": seconds}
        knobs = {row["knob"]: [row["status"], row["how"], row["why"]] for row in reported["knobs"]}
        return {
            "ok": ended.returncode == 0,
            "reason": "",
            "seconds": seconds,
            "space": reported.get("space", {}).get("name", ""),
            "knobs": {name: knobs[name] for name in judge.SPACE if name in knobs},
            "advice": len(reported.get("advice", ())),
        }

    def _plain_variables(self):
        # Ours has to find its own interpreter's packages; nothing else of the machine's may differ.
        return {**self.rooms.variables(self.candidate), "PATH": os.environ.get("PATH", os.defpath)}

    # Trials -----------------------------------------------------------------------------------

    def baseline(self):
        """The first trial of a search, beside the stopwatch in the same process and window."""
        try:
            self._read()
            run = self._trial((), Config(), BASELINE, "baseline")
            return self._as_baseline(run)
        except AutotuneError as error:
            return _failed("refused as a whole", str(error))
        except Exception:  # noqa: BLE001 - that none comes is what is looked at
            return _failed("internal error", _own_error())

    def remember(self):
        """Take the facts of the last baseline from what it left, without a run; whether there are any."""
        folders = (self.rooms.study(self.candidate.name) / "trials").glob("baseline-*")
        for folder in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True):
            events = list(Reader(folder / "events.jsonl", folder.name).read())
            seen = [event.facts for event in events if isinstance(event, ReadBack)]
            if seen and any(isinstance(event, Closed) for event in events):
                self._read()
                self.facts = Facts(host=self.facts.host, script=self.facts.script, run=seen[-1])
                steps = folder / "steps"
                self.before = self._state({"records": _records(steps), "look": _look(steps)})
                return True
        return False

    def knob(self, knob):
        """One value of one knob, alone: applied, refused with the reason, or what went wrong."""
        try:
            return {"knob": knob, **self._knob(knob)}
        except AutotuneError as error:
            return {"knob": knob, **_failed("refused", str(error))}
        except Exception:  # noqa: BLE001 - that none comes is what is looked at
            return {"knob": knob, **_failed("internal error", _own_error())}

    def _read(self):
        before = Path.cwd()
        os.chdir(self.place)
        try:
            python = str(self.rooms.python(self.candidate.name))
            self.command = read_command(self.words, python=python)
            verify(self.command)
        finally:
            os.chdir(before)
        script = script_facts(self.command.inspected, self.command.args)
        self.facts = Facts(host=host_facts(), script=script)

    def _as_baseline(self, run):
        outcome, reported, records = run["outcome"], run["told"], run["records"]
        result = {"ok": True, "outcome": "measured", "reason": "", **self._seen_of(run)}
        if isinstance(outcome, Failure):
            closed = None
            result.update(outcome=f"failed: {outcome.kind.label}", reason=_short(outcome.message), ok=False)
        else:
            closed = reported.closed.get(0)
        if run["facts"] is not None:
            self.facts = Facts(host=self.facts.host, script=self.facts.script, run=run["facts"])
            result["facts"] = reported_facts(self.facts)
        self.before = self._state(run)
        result["state"] = self.before
        if closed is None:
            return result
        seen = judge.window(records, closed.begin_ns, closed.end_ns)
        if seen is None:
            return {**result, "clock": None}
        rows = [row.samples for row in reported.rows if closed.begin_ns < row.t_ns <= closed.end_ns]
        counts = bool(outcome.extra.get("evaluation_counts"))
        throughput = (outcome.throughput.value, outcome.throughput.unit)
        clock = judge.compared(seen, rows, throughput, counts_evaluation=counts)
        # Where both clocks stamped the same steps, this is how far apart their stamps of the two ends are.
        clock["own_seconds"] = round((closed.end_ns - closed.begin_ns) / 1e9, 3)
        return {**result, "clock": clock, "flags": list(outcome.contamination.flags)}

    def _knob(self, knob):
        space, refusals = build_space(
            SpaceRequest(name="third_party", knobs=dict.fromkeys(judge.SPACE, ())), self.facts, builtin()
        )
        if knob in refusals:
            return _failed("refused", refusals[knob], ok=True)
        wanted = wanted_value(knob, self.facts)
        if wanted is None:
            return _failed("refused", "the script's own batch size could not be read", ok=True)
        config = space.complete(wanted)
        if isinstance(config, str):
            return _failed("refused", config, ok=True)
        if knob not in config:
            return _failed("refused", f"drops out: {config.text() or 'nothing is left'}", ok=True)
        changes, refused = choose(config, self.facts, builtin())
        if refused:
            return _failed("refused", f"{refused[0].knob}: {refused[0].reason}", ok=True)
        run = self._trial(changes, config, KNOB, knob)
        return {**self._as_knob(knob, config, run), "value": config.text(), "by": _by(knob, changes)}

    def _as_knob(self, knob, config, run):
        outcome = run["outcome"]
        state = self._state(run)
        result = {"ok": True, "outcome": "applied", "reason": "", "state": state, **self._seen_of(run)}
        if isinstance(outcome, Failure):
            label = outcome.kind.label
            name = "not applied" if label == "config_rejected" else f"failed: {label}"
            return {**result, "ok": False, "outcome": name, "reason": _short(outcome.message)}
        against = judge.contradiction(knob, config[knob], state, self.before)
        return {**result, "ok": False, "outcome": "wrong", "reason": against} if against else result

    def _trial(self, changes, config, fidelity, name):
        """Run one process through the runner; its outcome, what it reported, what the stopwatch saw."""
        study = self.rooms.study(self.candidate.name)
        uid = f"{name.replace('_', '-')}-{secrets.token_hex(3)}"
        folder = study / "trials" / uid
        watch = {"STOPWATCH_FILE": str(folder / "steps")}
        if knob_formats(config):
            watch["STOPWATCH_FORMATS"] = "1"
        launch = build_launch(
            script=self.command.script,
            args=self.command.args,
            python=self.command.python,
            cwd=str(self.place),
            env={**self._variables(), **watch},
            changes=changes,
            module=self.command.module,
            options=self.command.options,
            batch=given_batch_size(self.facts.script, with_flags(self.command.args, changes)),
        )
        heard = []
        runner = LocalRunner(
            study_dir=study,
            progress_floor_s=PROGRESS_FLOOR_S,
            witness=lambda _, reported, outside: heard.append((reported, outside)),
        )
        files = self._files()
        assignment = Assignment(
            uid=uid,
            study_id="third_party",
            attempt=1,
            launch=launch,
            segments=(Segment(trial=0, config=config, fidelity=fidelity),),
        )
        (ended,) = runner.run(assignment)
        return {
            "outcome": ended.outcome,
            "facts": ended.facts,
            "seconds": ended.seconds,
            "told": heard[0][0] if heard else None,
            "records": _records(folder / "steps"),
            "look": _look(folder / "steps"),
            "faults": _last_line(folder / "faults.log"),
            "wrote": sorted(Path(path).name for path in _changed(files, self._files())),
        }

    def _state(self, run):
        return {**run["look"], "per_step": judge.per_step(run["records"])} if run["records"] else {}

    def _seen_of(self, run):
        """What every trial reports besides its outcome; faults and files outside only where there are any."""
        rare = {"faults": run["faults"], "wrote": run["wrote"]}
        return {"seconds": round(run["seconds"], 1), **{name: what for name, what in rare.items() if what}}


def knob_formats(config):
    """Formats are looked at where they are what was requested."""
    return "precision" in config


def wanted_value(knob, facts):
    """One value that is not the script's own; None where its own batch size is not known."""
    knobs = builtin()
    if knob in judge.BATCHES:
        micro, effective = knobs["batch_size"].own(facts), knobs["effective_batch"].own(facts)
        if not isinstance(micro, int) or not isinstance(effective, int):
            return None
        if knob == "effective_batch":
            return {"batch_size": micro * 2, "effective_batch": effective * 2}
        return {"batch_size": micro // 2}
    own = facts.value(knob)
    return {
        "threads": {"threads": 1 if own != 1 else 2},
        "fused_optimizer": {"fused_optimizer": True},
        "precision": {"precision": "bf16"},
        "num_workers": {"num_workers": 2 if own != 2 else 1},
        "channels_last": {"channels_last": True},
        "gc_control": {"gc_control": "freeze"},
        "compile_mode": {"compile_mode": "default"},
    }[knob]


def reported_facts(facts):
    """The facts of a run that a reader of the results needs."""
    run = facts.run
    loader = run.loader
    return {
        "optimizer": None if run.optimizer is None else run.optimizer.name,
        "optimizers": None if run.optimizer is None else run.optimizer.count,
        "model": None if run.model is None else run.model.name,
        "loader": None
        if loader is None
        else {"batch": loader.batch_size, "workers": loader.num_workers, "kind": loader.kind},
        "samples_source": run.samples_source,
        "effective_batch": run.effective_batch,
        "reduction": run.reduction,
        "owners": list(run.owners),
        "gathers": run.gathers,
        "sets_threads": run.sets_threads,
        "hazards": sorted({*facts.script.hazards, *run.loop_hazards}),
        "flags": len(facts.script.flags),
    }


def end_group(process):
    """End whatever is left of a process group that we started."""
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, wanted)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
    process.wait()


def _records(stem):
    """Of the process that stepped: its file is the stem and a number; the longest where there are several."""
    files = [path for path in stem.parent.glob(f"{stem.name}.*") if path.suffix[1:].isdigit()]
    found = [judge.read_records(path) for path in files]
    return max(found, key=len, default=[])


def _look(stem):
    files = sorted(stem.parent.glob(f"{stem.name}.*.json"))
    try:
        return json.loads(files[0].read_text(encoding="utf-8")) if files else {}
    except ValueError:
        return {}


def _changed(before, after):
    return {path for path in {*before, *after} if before.get(path) != after.get(path)}


def _failed(outcome, reason, *, ok=False):
    return {"ok": ok, "outcome": outcome, "reason": _short(reason)}


def _short(text):
    line = " ".join(str(text).split())
    return line if len(line) <= REASON_CHARS else line[: REASON_CHARS - 3] + "..."


def _own_error():
    """The exception that is being handled, with the place in our own code that it came from."""
    _, error, trace = sys.exc_info()
    ours = [f for f in traceback.extract_tb(trace) if f"{os.sep}autotune{os.sep}" in f.filename]
    file = Path(ours[-1].filename) if ours else None
    where = f" ({file.parent.name}/{file.name}:{ours[-1].lineno})" if file is not None else ""
    return f"{type(error).__name__}: {error}{where}"


def _last_line(path):
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return _short(lines[-1]) if lines else ""


def _by(knob, changes):
    """flag, environment, framework or patch; of a knob that others realise, theirs."""
    carried = [c for c in changes if c.knob == knob] or list(changes)
    return "+".join(sorted({_means(change.spelling) for change in carried}))


def _means(spelling):
    if isinstance(spelling, Flag):
        return f"flag {spelling.text}"
    if isinstance(spelling, Env):
        return f"environment {spelling.text}"
    if isinstance(spelling, Keyword) and not spelling.target.startswith("torch."):
        return f"framework {spelling.text}"
    return "patch"

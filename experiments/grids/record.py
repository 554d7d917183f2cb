"""Measure every configuration of a workload's grid, through the runner that a search has.

    python record.py text_chargpt --limit 20m     # as often as it takes; goes on where it stopped
    python record.py text_chargpt --list          # how far it is; runs nothing

Rows go to `<workload>/<device>.jsonl` as they are made (`autotune/testing/table.py` says what they hold).
Needs PyTorch and the standard library, nothing else, so that it also runs on machines that have nothing else.
"""

import argparse
import datetime
import fcntl
import importlib.util
import math
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORKLOADS = HERE.parent / "workloads"
FOR_CUDA = HERE.parent / "gpu" / "workloads"
HELD_OUT = HERE / "held_out"
if importlib.util.find_spec("autotune") is None:
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))

from grid import (  # noqa: E402 (needs the path set above)
    REMEASURED,
    compiles,
    duration_s,
    expected_s,
    focused,
    grown,
    is_lost,
    next_slot,
    planned,
    read_grid,
    scrubbed,
    slots,
    slug,
    valid_configs,
)

from autotune import __version__  # noqa: E402
from autotune.clock import SystemClock  # noqa: E402
from autotune.driver.loop.planner import Planner, cache_key  # noqa: E402
from autotune.errors import (  # noqa: E402
    EXIT_INTERRUPTED,
    AutotuneError,
    DiskFull,
    ScriptError,
    UsageError,
)
from autotune.inspection.host import host_facts  # noqa: E402
from autotune.inspection.script import script_facts  # noqa: E402
from autotune.knobs.registry import knobs_for  # noqa: E402
from autotune.launch.process import LocalRunner  # noqa: E402
from autotune.launch.runner import TrialResult  # noqa: E402
from autotune.launch.workspace import isolation  # noqa: E402
from autotune.model import wire  # noqa: E402
from autotune.model.config import Config  # noqa: E402
from autotune.model.facts import COUNTED, Facts  # noqa: E402
from autotune.model.machine_load import QUIET_CORES  # noqa: E402
from autotune.model.measurement import Measurement, Memory  # noqa: E402
from autotune.model.run_length import planned_steps  # noqa: E402
from autotune.model.study import Budget, Study, StudySpec  # noqa: E402
from autotune.model.trial import (  # noqa: E402
    Assignment,
    Failure,
    FailureKind,
    Stage,
    Trial,
    TrialState,
)
from autotune.space.training_environment import user_environment  # noqa: E402
from autotune.statistics.intervals import ratio_interval  # noqa: E402
from autotune.store.paths import home  # noqa: E402
from autotune.testing import table as tables  # noqa: E402
from autotune.testing.raw_window import raw_window  # noqa: E402
from autotune.text.redact import redact_args, redact_data  # noqa: E402

MEMORY_SHARE = 0.9
_TELLING = ("knob", "how", "error")
_VARIABLES = (
    "OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "DNNL_", "ONEDNN_", "ATEN_", "PYTORCH_", "TORCHINDUCTOR_",
    "CUDA_", "NVIDIA_TF32_OVERRIDE", "LD_PRELOAD",
)  # fmt: skip


# One run as a row -----------------------------------------------------------------------------


def row_of(slot, attempt, ended, seen, *, session, began, commit, compile_key, deadline_s):
    """The row of one ended process; `seen` is (reported, outside) of the runner, None if none started."""
    outcome = ended.outcome
    measured = outcome if isinstance(outcome, Measurement) else outcome.readings
    row = tables.TableRow(
        config=slot.config,
        digest=slot.config.digest,
        repeat=slot.repeat,
        order=slot.order,
        attempt=attempt,
        sentinel=slot.sentinel,
        session=session,
        began=began,
        seed=slot.seed,
        commit=commit,
        compile_key=compile_key,
        charged_s=round(ended.seconds, 3),
        deadline_s=deadline_s,
    )
    if isinstance(outcome, Failure):
        row = replace(
            row,
            kind=outcome.kind.label,
            phase=str(outcome.evidence.get("phase", "")),
            message=outcome.message,
            evidence={k: str(outcome.evidence[k]) for k in _TELLING if outcome.evidence.get(k)},
        )
    if seen is not None and measured is None:
        reported, outside = seen
        row = replace(
            row,
            **_read(reported.broke.readings if reported.broke is not None else ()),
            memory=Memory(pss=outside.peak_bytes or None, limit=outside.limit_bytes or None),
        )
    if seen is not None and measured is not None:
        row = _measured(row, measured, *seen)
    return clean(replace(row, is_disturbed=is_disturbed(row)))


def _read(readings):
    """What was requested in full, of the rest only what was found: most rows look alike there."""
    return {
        "readings": tuple(r for r in readings if r.wanted is not None),
        "found": {r.knob: r.found for r in readings if r.wanted is None and r.found is not None},
    }


def _measured(row, measured, reported, outside):
    """The columns that only a window fills."""
    closed = next(iter(reported.closed.values()))
    blocks, produced_frac = raw_window(closed, reported, outside)
    first_ns = closed.first_step_ns
    compiled_s = reported.compile_s_before(closed.begin_ns) - reported.compile_s_before(first_ns)
    cache = "none" if not measured.compile_s else "cold" if measured.cold_compile else "warm"
    return replace(
        row,
        **_read(measured.readings),
        effective_batch=measured.effective_batch,
        start_up_s=round(measured.startup_s, 4),
        compile_s=round(measured.compile_s, 4),
        compile_cache=cache,
        warmup_s=round(max(0.0, (closed.begin_ns - first_ns) / 1e9 - compiled_s), 4),
        warmup_steps=measured.warmup_steps,
        window_s=round(measured.window_s, 6),
        teardown_s=round(max(0.0, row.charged_s - (closed.end_ns - outside.start_ns) / 1e9), 4),
        ended=measured.ended,
        steady=closed.steady,
        produced_frac=produced_frac,
        blocks=blocks,
        memory=measured.memory,
        loss_samples=tuple(point.samples for point in measured.loss),
        loss_values=tuple(point.loss for point in measured.loss),
        loss_t_s=tuple(round(point.t_s, 4) for point in measured.loss),
        contamination=measured.contamination,
        counters=dict(measured.extra),
    )


def is_disturbed(row):
    """Another process had the machine or the device meanwhile; judged by nothing that is measured."""
    contamination = row.contamination
    if contamination is None:
        return False
    foreign = (contamination.foreign_cpu_frac or 0.0) > QUIET_CORES
    return foreign or bool({"foreign_gpu", "throttled"} & set(contamination.flags))


def nameless(facts):
    """Facts without serial numbers of devices, and without what a kernel was called by who built it."""

    def alike(devices):
        return tuple(replace(device, uuid="") for device in devices)

    return replace(
        facts,
        host=replace(
            facts.host,
            devices=alike(facts.host.devices),
            platform=re.sub(r"^(\w+-[\d.]+).*-(x86_64|aarch64)", r"\1-\2", facts.host.platform),
        ),
        run=replace(facts.run, devices=alike(facts.run.devices)),
    )


def clean(value):
    """The same without folders, addresses, secrets and the machine's name."""
    data = redact_data(scrubbed(wire.to_wire(value), platform.node()))
    return wire.from_wire(type(value), data)


# The machine ----------------------------------------------------------------------------------


def accelerators(host):
    """Names of the devices that training would see; the driver's own tool is queried without pynvml."""
    if host.devices or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return sorted({device.name for device in host.devices})
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return (
        sorted({line.strip() for line in done.stdout.splitlines() if line.strip()})
        if not done.returncode
        else []
    )


def device_name(host):
    """`NVIDIA H200`, `CPU with 2 cores, Intel(R) Xeon(R) Processor`."""
    cpu = f"CPU with {host.cpus} cores, {host.cpu_model or platform.machine()}"
    return " ".join(accelerators(host)) or cpu


def file_name(host):
    """`nvidia-h200`, `cpu2-intel-xeon-processor`, `cpu2-amd-epyc-without-bf16`.

    Some machines call processors of several generations by one name; half precision parts them most.
    """
    cpu = f"cpu{host.cpus} {host.cpu_model or platform.machine()}"
    half = "" if {"avx512_bf16", "amx_bf16"} & set(host.cpu_flags) else " without bf16"
    return slug(" ".join(accelerators(host)) or cpu + half)


def free_bytes(total, allowed_mib=0):
    """What a trial may use: the share of free memory that a search allows, no more than the grid says."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), total)
    share = int(MEMORY_SHARE * min(free, total))
    return min(share, allowed_mib << 20) if allowed_mib else share


def versions():
    """By distribution name, as installed."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit():
    """(abbreviated commit, whether what records or is recorded differs from it); empty without git."""
    parts = ("autotune", "experiments/grids/*.py", *(str(p.relative_to(ROOT)) for p in (WORKLOADS, FOR_CUDA)))

    def git(*words):
        try:
            done = subprocess.run(
                ["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    return git("rev-parse", "--short=12", "HEAD"), bool(git("status", "--porcelain", "--", *parts))


# Recording ------------------------------------------------------------------------------------


class Recorder:
    """One sitting over one table."""

    made = 0
    out_of_time = False
    fastest = None

    def __init__(self, grid, path, work, remeasured=REMEASURED, *, grows=False, sealed=False, fastest=None):
        self.grid, self.path, self.remeasured = grid, path, remeasured
        self.grows, self.sealed, self.fastest = grows, sealed, fastest
        self.clock = SystemClock()
        folder = FOR_CUDA if (FOR_CUDA / f"{grid.workload}.py").is_file() else WORKLOADS
        self.script = folder / f"{grid.workload}.py"
        self.seen = None
        self.stopped = False
        self.runner = LocalRunner(study_dir=work / grid.workload, witness=self._witness)
        self.work = work / grid.workload
        self.host = replace(host_facts(), isolation=self.runner.isolation)
        self.device = device_name(self.host)
        self.commit, self.dirty = commit()
        self.environ = user_environment(os.environ, keep_loggers=False, trial=True)
        request = grid.request()
        self.planner = Planner(
            knobs=knobs_for(request),
            environ=self.environ,
            memory_limit_bytes=free_bytes(self.host.memory_bytes, grid.memory_mib),
        )
        self.study = Study(
            spec=StudySpec(
                study_id="grid",
                label=grid.workload,
                script=str(self.script),
                args=grid.args,
                cwd=str(self.script.parent),
                python=sys.executable,
                space=request,
                budget=Budget(seconds=0.0),
                effective_batch="keep",
            ),
            facts=Facts(host=self.host, script=script_facts(str(self.script)), effective_batch_rule="keep"),
        )
        self.table = None
        self.session = 1

    def _witness(self, _assignment, reported, outside):
        self.seen = reported, outside

    # -- opening

    def open(self, file):
        """Take up the table that is there, or begin one with a run of the unchanged script."""
        data = file.read()
        if data.strip():
            self.table = tables.decode(data, source=self.path.name)
            self._refuse_another(self.table.header)
            self.study = replace(self.study, facts=replace(self.study.facts, run=self.table.header.facts.run))
            header = self._with_more()
            file.truncate(self.table.size_bytes)
            file.seek(0, os.SEEK_END)
            if header is not self.table.header:
                self._append(file, header)
                self.table = replace(self.table, header=header)
            self.session = 1 + max((row.session for row in self.table.rows), default=0)
            for row in self.table.rows:
                self._learn(row)
            return
        file.truncate(0)
        first = slots((Config(),), self.grid.seeds[:1], self.grid.sentinel_every, "")[0]
        row, facts = self._run(first, 1)
        if row is None:
            return
        if not row.is_ok or facts is None:
            raise ScriptError(
                f"{self.script.name} fails as it is: {row.message}", hint="run it by hand and see"
            )
        self.study = replace(self.study, facts=replace(self.study.facts, run=facts))
        header = self._header(facts)
        self._append(file, header)
        self.table = tables.Table(header=header)
        self._take(file, row)

    def _refuse_another(self, header):
        now, then = self._identity(), header.identity()
        changed = [name for name in then if then[name] != now[name] and not (self.grows and name == "grid")]
        if changed:
            more = "--grow adds what the grid file has more by now; " if changed == ["grid"] else ""
            reported = "; ".join(f"{name}: {then[name]} then, {now[name]} now" for name in changed)
            raise UsageError(
                f"{self.path.name} was recorded under other conditions: {reported}",
                hint=f"{more}--new keeps it beside and begins another table",
            )

    def _with_more(self):
        """The table's header with what the grid file has beyond it, or an identical header."""
        old = self.table.header
        if old.grid_sha256 == self.grid.sha256:
            return old
        begun = 1 + max((row.repeat for row in self.table.rows), default=-1)
        found = grown(old, self._header(old.facts.run), begun)
        if isinstance(found, str):
            raise UsageError(
                f"{self.path.name} cannot grow into this grid file: {found}",
                hint="--new keeps it beside and begins another table",
            )
        return found

    def _identity(self):
        """As `TableHeader.identity`, of now."""
        probe = tables.TableHeader(
            table="",
            grid_sha256=self.grid.sha256,
            recorded="",
            device=self.device,
            workload=tables.WorkloadPart(
                name=self.grid.workload,
                script_sha256=self.study.facts.script.sha256,
                args=tuple(redact_args(self.grid.args)),
            ),
            request=self.grid.request(),
            facts=Facts(host=self.host, script=self.study.facts.script),
            space=(),
            configs=(),
            protocol=tables.ProtocolPart(fidelity=self.grid.fidelity(), seeds=(), repeats=0),
            autotune=__version__,
            versions=versions(),
            environment=self._variables(),
        )
        return clean(probe).identity()

    def _variables(self):
        return {k: v for k, v in sorted(self.environ.items()) if k.startswith(_VARIABLES)}

    def _header(self, run):
        facts = self.study.facts
        space, refusals = self.planner.space(self.study.spec, facts)
        configs, left_out = valid_configs(self.grid, space)
        header = tables.TableHeader(
            table=f"{self.grid.workload}/{self.path.stem}",
            grid_sha256=self.grid.sha256,
            recorded=datetime.date.today().isoformat(),
            commit=self.commit,
            dirty=self.dirty,
            autotune=__version__,
            device=self.device,
            workload=tables.WorkloadPart(
                name=self.grid.workload,
                script_sha256=facts.script.sha256,
                args=tuple(redact_args(self.grid.args)),
                unit="samples/s" if run.samples_source in COUNTED else "steps/s",
                steps_per_epoch=run.loader.length if run.loader is not None else None,
                planned_steps=planned_steps(self.study),
                effective_batch=run.effective_batch,
            ),
            request=self.grid.request(),
            facts=nameless(facts),
            space=tuple(
                tables.KnobPart(
                    knob=d.knob,
                    values=d.values,
                    own=d.own,
                    effect=d.effect.name,
                    ordinal=d.ordinal,
                    derived=d.derived,
                    changes_rng_streams=d.changes_rng_streams,
                )
                for d in space.dimensions.values()
            ),
            refusals=refusals,
            configs=configs,
            left_out=left_out,
            protocol=tables.ProtocolPart(
                fidelity=self.grid.fidelity(),
                seeds=self.grid.seeds,
                repeats=len(self.grid.seeds),
                sentinel_every=self.grid.sentinel_every,
                remeasured=self.remeasured,
                isolation=self.runner.isolation,
            ),
            versions={**dict(run.versions), **versions()},
            environment=self._variables(),
        )
        return clean(header)

    # -- running

    def record(self, file, limit_s, repeats=None):
        """Run until all is done, the limit is near or somebody stops it; exit code.

        What runs at the limit is ended and comes again next time, but for the first run of a sitting, so that
        each goes on by one. With a number of repeats only these first ones; the rest is left for later.
        """
        alarm = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), self._ran_out)
        alarm.daemon = True
        alarm.start()
        try:
            return self._recorded(file, limit_s, repeats)
        finally:
            alarm.cancel()

    def _ran_out(self):
        self.out_of_time = True
        if self.made:
            self.runner.stop()

    def _recorded(self, file, limit_s, repeats):
        began_s = self.clock.now_s()
        self.open(file)
        while self.table is not None and not self.stopped:
            plan = [slot for slot in self.plan if repeats is None or slot.repeat < repeats]
            found = next_slot(plan, self.table, self.remeasured)
            if found is None:
                print("all runs are recorded" + ("" if repeats is None else " of these repeats"), flush=True)
                return 0
            slot, attempt = found
            left_s = limit_s - (self.clock.now_s() - began_s)
            if self.out_of_time or expected_s(slot, self.table.rows) > left_s:
                print("the limit is near; run it again to go on", flush=True)
                return 0
            row, _ = self._run(slot, attempt)
            if row is not None:
                self._take(file, row)
        print("stopped; run it again to go on", flush=True)
        return EXIT_INTERRUPTED

    @property
    def plan(self):
        """Every run of the table, in order; of later repeats those that are wanted in this sitting."""
        plan = planned(self.table.header, self.grid)
        return plan if self.fastest is None else focused(plan, self.table, self.fastest)

    def stop(self, *_):
        """End the running process; its row is not written."""
        self.stopped = True
        self.runner.stop()

    def _run(self, slot, attempt):
        """(row, facts) of one process; (None, None) where somebody stopped it."""
        trial = Trial(
            number=len(self.table.rows) if self.table is not None else 0,
            config=slot.config,
            stage=Stage.REFINE,
            fidelity=self.grid.fidelity(),
            seed=slot.seed,
            attempt=attempt,
        )
        began = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.seen = None
        planned = self.planner.assign(self.study, trial)
        if isinstance(planned, Assignment):
            ended = list(self.runner.run(planned))[-1]
            isolation.remove(self.work / "trials" / planned.uid)
        else:
            ended = TrialResult(trial=trial.number, outcome=planned, seconds=0.0)
        outcome = ended.outcome
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.DISK:
            # No run after this one would be about its configuration either.
            raise DiskFull(outcome.message, hint="free some space and run it again to go on")
        if self.stopped or (isinstance(outcome, Failure) and outcome.kind is FailureKind.KILLED_USER):
            self.stopped = self.stopped or not self.out_of_time
            return None, None
        row = row_of(
            slot,
            attempt,
            ended,
            self.seen,
            session=self.session,
            began=began,
            commit=self.commit + ("+" if self.dirty else ""),
            compile_key=cache_key(slot.config, self.study.facts) if compiles(slot.config) else "",
            deadline_s=trial.fidelity.deadline_s,
        )
        return row, ended.facts

    def _take(self, file, row):
        self.made += 1
        self._append(file, row)
        self.table = replace(self.table, rows=(*self.table.rows, row))
        self._learn(row)
        done = f"{len(self.table.settled())}/{len(self.plan)}"
        reported = f"{row.charged_s:5.1f} s" if self.sealed else message(row, self.table.header.workload.unit)
        print(done, reported, flush=True)

    def _append(self, file, line):
        file.write(tables.encode(line))
        file.flush()
        os.fsync(file.fileno())

    def _learn(self, row):
        """Options of the script that did not act are not tried again: the planner reads it off failures."""
        if row.kind != FailureKind.CONFIG_REJECTED.label:
            return
        number = len(self.study.trials)
        failure = Failure(kind=FailureKind.CONFIG_REJECTED, message=row.message, evidence=dict(row.evidence))
        self.study = self.study.with_trial(
            Trial(
                number=number,
                config=row.config,
                stage=Stage.REFINE,
                fidelity=self.grid.fidelity(),
                state=TrialState.FINISHED,
                outcome=failure,
            )
        )


# Telling --------------------------------------------------------------------------------------


def message(row, unit):
    """One row for people."""
    rate = row.throughput(unit)
    figure = f"{rate.value:8.1f} {unit}" if rate is not None else f"{row.kind}: {row.message}"
    mark = " disturbed" if row.is_disturbed else ""
    compiled = f" compiled {row.compile_s:.0f} s ({row.compile_cache})" if row.compile_s else ""
    what = "sentinel" if row.sentinel else row.config.text()
    return f"repeat {row.repeat} {figure} {row.charged_s:5.1f} s{compiled}{mark}  {what}"


def drift(table):
    """Session -> the unchanged script against itself, run after run, as a ratio with its interval."""
    found = {}
    for row in table.rows:
        rate = row.throughput(table.header.workload.unit)
        if row.config.is_baseline and rate is not None and not row.is_disturbed:
            found.setdefault(row.session, []).append(rate.value)
    logs = {}
    for session, rates in found.items():
        pairs = zip(rates[::2], rates[1::2], strict=False)
        signed = [(1 if i % 2 == 0 else -1, b / a) for i, (a, b) in enumerate(pairs)]
        if signed:
            logs[session] = ratio_interval([sign * math.log(ratio) for sign, ratio in signed])
    return logs


def listing(grid, table):
    """How far a table is, as lines."""
    header = table.header
    plan = planned(header, grid)
    settled = table.settled()
    refused = ", ".join(header.refusals) or "none"
    lines = [
        f"{header.table}: {len(header.configs)} configurations, {len(grid.seeds)} repeats",
        f"{len(header.left_out)} wanted points left out, knobs refused: {refused}",
    ]
    if header.grid_sha256 != grid.sha256:
        lines.append("the grid file is another by now; --grow adds what it has more")
    for repeat in range(len(grid.seeds)):
        members = [slot for slot in plan if slot.repeat == repeat]
        rows = [settled[slot.key] for slot in members if slot.key in settled]
        failed = [row.kind for row in rows if not row.is_ok]
        kinds = ", ".join(f"{failed.count(kind)} {kind}" for kind in sorted(set(failed)))
        disturbed = sum(row.is_disturbed or is_lost(row) for row in rows)
        missing = [slot for slot in members if slot.key not in settled]
        left_s = sum(expected_s(slot, table.rows) for slot in missing)
        lines.append(
            f"repeat {repeat}: {len(rows)} of {len(members)} runs, failed: {kinds or 'none'}, "
            f"disturbed or lost: {disturbed}, about {left_s / 60:.0f} min to go"
        )
    spent = sum(row.charged_s for row in table.rows)
    lines.append(f"{len(table.rows)} processes, {spent / 60:.0f} min in all")
    for session, ratio in drift(table).items():
        lines.append(
            f"session {session}: the script against itself {ratio.value:.3f} "
            f"[{ratio.low:.3f}, {ratio.high:.3f}] in {ratio.n} pairs"
        )
    return lines


def begin_anew(path):
    """Keep an earlier table beside: `name.1.jsonl`, `name.2.jsonl`."""
    number = next(n for n in range(1, 1000) if not path.with_suffix(f".{n}.jsonl").exists())
    path.rename(path.with_suffix(f".{number}.jsonl"))


def _at_least(least):
    """Reads a whole number that is no smaller."""

    def read(text):
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return number

    return read


def parsed(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", help="a folder here that holds a grid.json")
    parser.add_argument(
        "--limit",
        default="",
        metavar="20m",
        help="end cleanly when this much time is over, but not within the first run",
    )
    parser.add_argument(
        "--repeats", type=_at_least(1), metavar="N", help="only the first N repeats this time"
    )
    parser.add_argument(
        "--fastest",
        type=_at_least(1),
        metavar="N",
        help="after the first repeat only the script as it is and the N that are fastest so far",
    )
    parser.add_argument("--list", action="store_true", help="show how far it is, run nothing")
    parser.add_argument("--new", action="store_true", help="keep the earlier table beside, begin another")
    parser.add_argument(
        "--grow", action="store_true", help="add what the grid file has more by now to the table"
    )
    parser.add_argument(
        "--sealed", action="store_true", help="to held_out/, without a figure said: not to be known yet"
    )
    parser.add_argument(
        "--remeasure",
        type=_at_least(0),
        default=REMEASURED,
        metavar="N",
        help="repeat a run that had a neighbour on the machine so often at most",
    )
    parser.add_argument("--grid", type=Path, help="another grid file")
    parser.add_argument("--out", type=Path, help="another table file")
    parser.add_argument("--work", type=Path, help="where processes live; compile caches stay there")
    return parser.parse_args(words)


def main(words=None):
    options = parsed(words)
    try:
        return run(options)
    except AutotuneError as error:
        print(f"error: {error.message}" + (f"\n{error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code


def run(options):
    file = options.grid or HERE / options.workload / "grid.json"
    if not file.is_file():
        known = ", ".join(sorted(p.parent.name for p in HERE.glob("*/grid.json")))
        raise UsageError(f"there is no {file.parent.name}/{file.name}", hint=f"grids here: {known}")
    grid = read_grid(file)
    folder = HELD_OUT / grid.workload if options.sealed else file.parent
    path = (options.out or folder / f"{file_name(host_facts())}.jsonl").absolute()
    limit_s = duration_s(options.limit) if options.limit else float("inf")
    if options.list:
        if not path.is_file():
            print(f"{path.name}: nothing yet; up to {len(list(grid.wanted()))} points are wanted")
            return 0
        print("\n".join(listing(grid, tables.decode(path.read_bytes(), source=path.name))))
        return 0
    if options.new and path.exists():
        begin_anew(path)
    recorder = Recorder(
        grid,
        path,
        (options.work or home() / "grids").absolute(),
        options.remeasure,
        grows=options.grow,
        sealed=options.sealed,
        fastest=options.fastest,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as table:
        try:
            fcntl.flock(table, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"another recorder writes to {path.name}") from error
        table.seek(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, recorder.stop)
        try:
            return recorder.record(table, limit_s, options.repeats)
        finally:
            if table.tell() == 0 and not path.stat().st_size:
                path.unlink()


if __name__ == "__main__":
    raise SystemExit(main())

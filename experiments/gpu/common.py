"""What the checks share: what they were made on, where results go, and how a trial is run.

Needs PyTorch and the standard library, nothing else; the package is taken from this checkout where it is
not installed. This process never starts CUDA: a context of its own would be a neighbour to what is
measured.
"""

import argparse
import datetime
import importlib.util
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORKLOADS = HERE / "workloads"
STAMPS = HERE.parent / "e2e_speedup" / "stamps"
if importlib.util.find_spec("autotune") is None:
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))

from autotune.devices.find import find_devices  # noqa: E402
from autotune.launch.process import LocalRunner  # noqa: E402
from autotune.model.change import Change, Patch  # noqa: E402
from autotune.model.config import Config  # noqa: E402
from autotune.model.measurement import Measurement  # noqa: E402
from autotune.model.trial import Assignment, Fidelity, Segment  # noqa: E402
from autotune.space.launch_command import build_launch  # noqa: E402 (needs the path set above)
from autotune.space.training_environment import user_environment  # noqa: E402
from autotune.statistics.intervals import ratio_interval  # noqa: E402

sys.path.append(str(HERE.parent / "grids"))
from grid import scrubbed  # noqa: E402

SMALL = {
    "resnet50": ["--small", "--samples", "6400", "--batch-size", "16", "--workers", "0", "--epochs", "1000"],
    "gpt2": ["--small", "--length", "32", "--batch-size", "4", "--epochs", "1000"],
    "vit_b16": ["--small", "--samples", "6400", "--batch-size", "16", "--workers", "0", "--epochs", "1000"],
    "small_steps": ["--small", "--epochs", "1000"],
}
"""Arguments for a try on a CPU."""
FULL = {"resnet50": [], "gpt2": [], "vit_b16": [], "small_steps": []}

_ASK = """
import json, sys, torch
cuda = torch.cuda.is_available()
reported = {"torch": torch.__version__, "cuda": torch.version.cuda or "", "devices": []}
if cuda:
    reported["cudnn"] = str(torch.backends.cudnn.version())
    for n in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(n)
        known = {"name": p.name, "memory_bytes": p.total_memory, "capability": [p.major, p.minor]}
        reported["devices"].append(known)
json.dump(reported, sys.stdout)
"""


def parser(doc, **defaults):
    """Options that every check has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    made.add_argument(
        "--tiny", action="store_true", help="small models and short windows: does it run at all?"
    )
    made.add_argument("--out", type=Path, help="folder for the result; results/<device> where not given")
    made.add_argument("--workloads", nargs="*", choices=sorted(FULL), default=defaults.pop("workloads", None))
    for name, value in defaults.items():
        made.add_argument(f"--{name}", type=type(value), default=value)
    return made


def parsed(made, words=None):
    """The options; ends with a sentence where there is no device."""
    options = made.parse_args(words)
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    options.machine = machine()
    if options.device == "cuda" and not options.machine["devices"]:
        raise SystemExit(
            "torch sees no CUDA device here; --device cpu --tiny shows that the check itself works"
        )
    options.placed = options.out is not None
    if not options.placed:
        options.out = HERE / "results" / slug(device_name(options.machine))
    options.out = options.out.absolute()
    return options


def machine():
    """What figures are made on: no names of people or machines, no paths."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True)
    reported = json.loads(done.stdout)
    reported["python"] = platform.python_version()
    reported["driver"] = smi("driver_version")[:1]
    reported["cores"] = len(os.sched_getaffinity(0))
    reported["system"] = f"{platform.system()} {platform.machine()}"
    model = [line for line in _text("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    reported["cpu"] = model[0].split(":", 1)[1].strip() if model else platform.machine()
    if importlib.util.find_spec("triton") is not None:
        from importlib.metadata import version

        reported["triton"] = version("triton")
    git = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
    )
    reported["commit"] = git.stdout.strip() if git.returncode == 0 else ""
    return reported


def _text(path):
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def smi(*fields):
    """What nvidia-smi reports of each device, one list of words each; nothing where it is not there."""
    words = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [line.strip() if len(fields) == 1 else [w.strip() for w in line.split(",")] for line in lines]


def used_bytes():
    """Memory in use on the device that a trial takes, by everybody; None where no tool reports it."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    for index, uuid, used in smi("index", "uuid", "memory.used"):
        meant = first == index or (first.startswith("GPU-") and uuid.startswith(first))
        if meant and used.replace(".", "").isdecimal():
            return int(float(used) * 2**20)
    return None


def nvml_bytes():
    """The same by NVML, as the launcher asks it: what the driver keeps for itself is in it."""
    seen = find_devices()
    return seen[0].sample().used_bytes if seen else None


def device_name(reported):
    """Of the first device, or of the processor."""
    return reported["devices"][0]["name"] if reported["devices"] else f"cpu {reported['cpu']}"


def slug(text):
    """A folder's name."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())[:60]


def result_name(name, options):
    """A result of some workloads alone is another than that of all."""
    return "-".join([name, *(options.workloads or ()), *(["tiny"] if options.tiny else ())])


def earlier(name, options):
    """The newest result that is there, empty without one."""
    found = sorted(options.out.glob(f"????-??-??-{result_name(name, options)}.json"))
    return json.loads(found[-1].read_text())["result"] if found else {}


def write(name, result, options, *, ok=None, note=""):
    """Write a result, whole or not at all, and say it in a line; the exit code."""
    options.out.mkdir(parents=True, exist_ok=True)
    date = datetime.date.today().isoformat()
    reported = {
        "check": name,
        "date": date,
        "tiny": options.tiny,
        "ok": ok,
        "note": note,
        "machine": options.machine,
        "result": scrubbed(_finite(result), platform.node()),
    }
    path = options.out / f"{date}-{result_name(name, options)}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(reported, indent=1) + "\n")
    part.replace(path)
    word = {True: "as it should be", False: "NOT AS IT SHOULD BE", None: "recorded"}[ok]
    print(f"{name}: {word}{': ' + note if note else ''} -> {path.name}", flush=True)
    return 0 if ok is not False else 1


def _finite(data):
    """JSON has no infinity."""
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


# Trials ----------------------------------------------------------------------------------------


def patch(knob, value):
    """A change that is carried out in the process."""
    return Change(knob=knob, value=value, spelling=Patch())


class Trials:
    """Runs scripts as a search does, in one study folder that goes when the check ends."""

    def __init__(self, options):
        self.options = options
        self._folder = tempfile.TemporaryDirectory(prefix="at-gpu-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self.seen = None
        self.count = 0
        self.runner = LocalRunner(study_dir=self.folder, witness=self._witness)

    def _witness(self, _assignment, reported, outside):
        self.seen = reported, outside

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def run(self, script, args=(), changes=(), *, window_s, seed=0, key="", setup_s=600.0, env=None):
        """The outcome of one fresh process; `seen` holds what was heard and seen of it."""
        self.count += 1
        fidelity = Fidelity(
            min_window_s=window_s,
            max_window_s=window_s,
            min_steps=6,
            target_width=0.0,
            setup_s=setup_s,
            deadline_s=setup_s + 60 + 4 * window_s,
        )
        environ = user_environment(os.environ, keep_loggers=False, trial=True)
        launch = build_launch(
            script=str(script),
            args=[str(a) for a in args],
            python=sys.executable,
            cwd=str(Path(script).parent),
            env={**environ, **(env or {})},
            changes=changes,
            seed=seed,
            cache_key=key,
        )
        assignment = Assignment(
            uid=f"t{self.count:04d}-a1-{os.urandom(3).hex()}",
            study_id="gpu",
            attempt=1,
            launch=launch,
            segments=(Segment(trial=self.count, config=Config(), fidelity=fidelity),),
        )
        self.seen = None
        return list(self.runner.run(assignment))[-1].outcome

    def workload(self, name, changes=(), **more):
        """One of the four."""
        args = SMALL[name] if self.options.tiny else FULL[name]
        return self.run(WORKLOADS / f"{name}.py", [*args, *more.pop("args", ())], changes, **more)


def summary_of(outcome):
    """An outcome as data."""
    if isinstance(outcome, Measurement):
        return {
            "kind": "ok",
            "throughput": outcome.throughput.value,
            "low": outcome.throughput.low,
            "high": outcome.throughput.high,
            "unit": outcome.throughput.unit,
            "steps": outcome.steps,
            "window_s": outcome.window_s,
            "data_wait_frac": outcome.data_wait_frac,
            "compile_s": outcome.compile_s,
            "allocator_bytes": outcome.memory.allocator,
            "device_bytes": outcome.memory.device,
            "limit_bytes": outcome.memory.limit,
            "flags": list(outcome.contamination.flags),
            "readings": {
                r.knob: {"wanted": r.wanted, "found": r.found, "status": r.status}
                for r in outcome.readings
                if r.wanted is not None
            },
            "extra": dict(outcome.extra),
        }
    keep = ("error", "peak_bytes", "phase", "steps", "knob")
    return {
        "kind": outcome.kind.label,
        "message": outcome.message,
        "evidence": {k: outcome.evidence[k] for k in keep if k in outcome.evidence},
    }


# The stopwatch -----------------------------------------------------------------------------------


def stopwatch(command, *, warm_s, window_s, limit_s=600.0, sync="", env=None):
    """Samples per second of one fresh process by `e2e_speedup/stamps`, which knows nothing of autotune."""
    with tempfile.TemporaryDirectory(prefix="at-gpu-") as folder:
        stamps, log = Path(folder) / "stamps.json", Path(folder) / "log.txt"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(STAMPS), os.environ.get("PYTHONPATH", "")])),
            "STAMPS_FILE": str(stamps),
            "STAMPS_WARM_S": str(warm_s),
            "STAMPS_WINDOW_S": str(window_s),
            "STAMPS_SYNC": sync,
            **(env or {}),
        }
        with log.open("w") as stream:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end_group(process)
        if not stamps.exists():
            lines = log.read_text(errors="replace").splitlines()
            raise RuntimeError(f"no figures; the last line was: {lines[-1] if lines else 'none'}")
        figures = json.loads(stamps.read_text())
        return figures["samples"] / (figures["seconds"] - figures["evaluation_s"])


def _end_group(process):
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, wanted)
        except ProcessLookupError:
            break
        time.sleep(0.5)
    process.wait()


def interval(ratios):
    """Geometric mean of ratios with its 95 % interval."""
    found = ratio_interval([math.log(r) for r in ratios])
    high = found.high if math.isfinite(found.high) else None
    return {"value": found.value, "low": found.low, "high": high, "n": found.n}

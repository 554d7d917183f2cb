"""What each tool makes of a script: how it is installed, how it is called, and what its answer says.

An answer is given as options of the script, which every tool's user would have to type (or as `best.yaml` for
ours), and as the gain that the tool itself states. Nothing here judges it.
"""

import importlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import searching
import third_party_envs as envs
import timer
import yaml

HERE = Path(__file__).resolve().parent
SCRIPTS, ADAPTERS = HERE / "scripts", HERE / "adapters"
LIMIT_S = 1800.0
LAST_WORDS = 300
CARRIED_OUT = {"FRX_NUM_WORKERS", "FRX_PREFETCH_FACTOR", "FRX_PERSISTENT_WORKERS"}

PEERS = {
    "train-doctor": envs.Candidate(
        name="train-doctor", requires=("train-doctor==0.2.0",), entry={"console": "train-doctor"}
    ),
    "fournex": envs.Candidate(name="fournex", requires=("fournex==0.3.1",), entry={"console": "frx"}),
    "loadtune": envs.Candidate(
        name="loadtune",
        requires=("loadtune==0.3.0",),
        entry={"console": "loadtune"},
        options=("--no-deps",),
        also=("psutil", "jinja2"),
    ),
    "lightning": envs.Candidate(
        name="lightning", requires=("lightning==2.6.6",), entry={"module": "lightning"}
    ),
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where tools are run, and with what.

    Args:
        rooms: Environments and working folders of the peers.
        folder: Working folder of ours; studies and best.yaml.
        budget: Of our search.
    """

    rooms: envs.Rooms
    folder: Path
    budget: str


def autotune(bench, name):
    """Our search, by its command line; what it hands over is best.yaml."""
    folder = bench.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    best = folder / "best.yaml"
    best.unlink(missing_ok=True)
    words = ["search", "--budget", bench.budget, "--python", sys.executable, "--out", str(best)]
    began = time.monotonic()
    code = searching.run_autotune(
        [*words, "--script", str(SCRIPTS / f"{name}.py")], cwd=folder, home=folder / "home", stdout=sys.stderr
    )
    reported = {"version": version("autotune-training"), "seconds": time.monotonic() - began, "exit": code}
    if code not in (0, 1):
        return {**reported, "failed": True, "says": f"it ended with exit code {code}"}
    searching.check_answer(code, best)
    if code == 1:
        return {**reported, "flags": [], "says": "nothing is shown to be faster"}
    pick = yaml.safe_load(best.read_text())["picks"]["best"]
    changed = {change["knob"] for change in pick["changes"]}
    says = {knob: value for knob, value in pick["knobs"].items() if knob in changed}
    return {**reported, "apply": str(best), "claim": pick["speedup"], "says": json.dumps(says, default=str)}


def train_doctor(bench, name):
    """`train-doctor fix`: it sets workers, pinned memory and cuDNN's trials, and advises the rest."""
    python = str(bench.rooms.python("train-doctor"))
    words = ["fix", "--json", "--quiet", "--no-card", "--", python, str(SCRIPTS / f"{name}.py")]
    reported, message, _ = _called(bench, "train-doctor", words, label=name)
    answer = _json_in(message)
    if answer is None:
        return {**reported, "flags": [], "says": _last(message)}
    proven = answer.get("proven")
    flags = []
    tried = [*answer.get("candidates", []), *filter(None, [answer.get("combined")])]
    for entry in tried if proven else []:
        workers = entry["env"].get("TRAIN_DOCTOR_FIX_NUM_WORKERS")
        if entry["candidate"] == proven["candidate"] and workers:
            flags = ["--num-workers", workers]
    claim = None
    if proven:
        ratio = proven["ratio"]
        claim = {"value": ratio["point"], "low": ratio["low"], "high": ratio["high"], "n": ratio["n_pairs"]}
    seen = {entry["candidate"]: [entry.get("ratio"), entry.get("loss_check")] for entry in tried}
    return {**reported, "flags": flags, "claim": claim, "says": answer.get("headline", ""), "tried": seen}


def fournex(bench, name):
    """`frx tune --safe` on the unchanged script."""
    return _fournex(bench, name, [str(SCRIPTS / f"{name}.py")], "plain")


def fournex_sdk(bench, name):
    """The same on a loop of 40 lines that is registered by its SDK and obeys its variables."""
    return _fournex(bench, name, [str(ADAPTERS / "peer_fournex.py"), name], "sdk")


def _fournex(bench, name, script, how):
    python = str(bench.rooms.python("fournex"))
    words = ["tune", "--safe", "--max-trials", "4", "--time-budget-s", "20", "--", python, *script]
    reported, message, place = _called(bench, "fournex", words, label=f"{name}-{how}")
    reports = sorted(place.glob("runs/*/autopilot_report.json"))
    if not reports:
        return {**reported, "flags": [], "says": _last(message)}
    report = json.loads(reports[-1].read_text())
    winner = report["winner"]
    rates = {trial["label"]: trial["throughput_steps_per_sec"] for trial in report["trials"]}
    seen = {"baseline": report["baseline"]["throughput_steps_per_sec"], **rates}
    if not winner:
        return {**reported, "flags": [], "says": "no winner", "tried": seen}
    given = winner["env_vars"]
    flags = ["--num-workers", given.get("FRX_NUM_WORKERS", "0")]
    if flags[1] != "0":
        flags += ["--prefetch-factor", given["FRX_PREFETCH_FACTOR"]] if "FRX_PREFETCH_FACTOR" in given else []
        flags += ["--persistent-workers"] if given.get("FRX_PERSISTENT_WORKERS") == "true" else []
    else:
        flags = []
    claim = {"value": 1 + winner["throughput_delta"]}
    # The scripts have no option for pinned memory, which a CPU has no use for.
    left_out = ", ".join(sorted(given.keys() - CARRIED_OUT))
    return {
        **reported,
        "flags": flags,
        "claim": claim,
        "says": winner["label"],
        "tried": seen,
        "left_out": left_out,
    }


def loadtune(bench, name):
    """`loadtune tune` on a workload of its own kind, made from the script's parts."""
    words = ["tune", str(ADAPTERS / "peer_loadtune.py"), "--steps", "50", "--warmup", "5", "--no-plots"]
    words += ["--save-raw", "raw.json", "--out", "report.md"]
    reported, message, place = _called(bench, "loadtune", words, label=name, variables={"PEERS_SCRIPT": name})
    raw = place / "raw.json"
    if not raw.exists():
        return {**reported, "flags": [], "says": _last(message)}
    data = json.loads(raw.read_text())
    ran = [trial for trial in data["trials"] if not (trial["result"] or {"error": "none"}).get("error")]
    plain = data["baseline"]["throughput"]
    best = max(ran, key=lambda trial: trial["result"]["throughput"], default=None)
    seen = {"baseline": plain, **{json.dumps(t["knobs"]): t["result"]["throughput"] for t in ran}}
    if best is None or best["result"]["throughput"] <= plain:
        return {**reported, "flags": [], "says": "no better config", "tried": seen}
    knobs = best["knobs"]
    flags = ["--num-workers", str(knobs["num_workers"])] if knobs["num_workers"] else []
    flags += ["--prefetch-factor", str(knobs["prefetch_factor"])] if knobs["prefetch_factor"] else []
    flags += ["--persistent-workers"] if knobs["num_workers"] and knobs["persistent_workers"] else []
    flags += ["--threads", str(knobs["num_threads"])] if knobs["num_threads"] else []
    flags += ["--batch-size", str(knobs["batch_size"])] if knobs["batch_size"] else []
    flags += ["--compile"] if knobs["compile"] else []
    flags += ["--bf16"] if knobs["amp"] else []
    claim = {"value": best["result"]["throughput"] / plain}
    return {**reported, "flags": flags, "claim": claim, "says": best["reason"], "tried": seen}


def lightning(bench, name):
    """Lightning's finder of the largest batch size, on a module made from the script's parts."""
    program = [str(bench.rooms.python("lightning")), str(ADAPTERS / "peer_lightning.py"), name]
    reported, message, _ = _called(bench, "lightning", program, label=name, whole=True)
    found = [line.removeprefix("FOUND ") for line in message.splitlines() if line.startswith("FOUND ")]
    if not found:
        return {**reported, "flags": [], "says": _last(message)}
    size = json.loads(found[-1])["batch_size"]
    as_it_is = _default_batch(name)
    flags = [] if size == as_it_is else ["--batch-size", str(size)]
    return {**reported, "flags": flags, "says": f"batch size {size}", "changes_training": bool(flags)}


TOOLS = {
    "autotune": (autotune, "none"),
    "train-doctor": (train_doctor, "none"),
    "fournex": (fournex, "none"),
    "fournex by its SDK": (fournex_sdk, "a loop of its own, 40 lines"),
    "loadtune": (loadtune, "a workload file, 15 lines"),
    "lightning": (lightning, "a module and a data module, 25 lines"),
}
"""By name: how it is run, and what has to be written for it first."""


def _default_batch(name):
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))
    return importlib.import_module(name).BATCH_SIZE


def _called(bench, peer, words, *, label, variables=None, whole=False):
    """Run a peer in its environment and an empty folder of its own.

    Returns:
        (what is known of the run, what it reported, that folder).

    Raises:
        RuntimeError: It could not be installed.
    """
    candidate = PEERS[peer]
    installed = envs.install(candidate, bench.rooms)
    if not installed["ok"]:
        raise RuntimeError(f"{peer} could not be installed: {installed['reason']}")
    place = bench.rooms.place(peer) / f"{label}-{time.time_ns()}"
    for folder in (place, bench.rooms.home(peer)):
        folder.mkdir(parents=True, exist_ok=True)
    command = words if whole else [str(bench.rooms.env(peer) / "bin" / candidate.entry["console"]), *words]
    began = time.monotonic()
    log = place / "said.txt"
    with log.open("w") as stream, timer.orphans_are_ours():
        process = subprocess.Popen(
            command,
            cwd=place,
            env={**bench.rooms.variables(candidate), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            timer.end_group(process)
    reported = {
        "version": installed["versions"].get(candidate.package, candidate.version),
        "seconds": time.monotonic() - began,
        "exit": process.returncode,
    }
    return reported, log.read_text(errors="replace"), place


def _json_in(message):
    """The JSON object that begins a line of its own, or None."""
    begin = message.find("\n{") + 1 if not message.startswith("{") else 0
    try:
        return (
            json.JSONDecoder().raw_decode(message[begin:])[0] if message[begin : begin + 1] == "{" else None
        )
    except ValueError:
        return None


def _last(message):
    lines = [line for line in message.splitlines() if line.strip()]
    return (lines[-1] if lines else "it said nothing")[-LAST_WORDS:]

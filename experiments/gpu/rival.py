"""The same end to end by pytorch-autotune 2.0, the honest rival for precision, compile, layout and optimizer.

    pip install pytorch-autotune==2.0.0
    python rival.py --seconds 300          # after search.py, whose answers it stands beside; about 25 minutes
    python rival.py --device cpu --tiny

Every tool is judged by what it hands over, not by its own figure: the rival tunes the model on one batch,
and its choice is then carried out in the unchanged script, with its loader, and timed by the stopwatch that
times ours. Both get the same time. What it does not turn (workers, pinned memory, batch) stays unchanged.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import FULL, HERE, earlier, interval, parsed, parser, patch, stopwatch, write
from search import plain, work

from autotune.model import wire
from autotune.protocol.plan import PLAN_VARIABLE, Plan

CONV = ("resnet50", "vit_b16")


def changes_of(name, found):
    """The rival's choice as changes of ours: all but plain fp32 brings TF32 and cuDNN's trials with it."""
    changes = []
    half = {"amp_bf16": "bf16", "amp_fp16": "fp16"}.get(found["precision"])
    if half:
        changes.append(patch("precision", half))
    if found["precision"] != "fp32_default":
        changes.append(patch("tf32", "high"))
        if name in CONV:
            changes.append(patch("cudnn_benchmark", True))
    if found["compile"] != "off":
        changes.append(patch("compile_mode", found["compile"]))
    if found["channels_last"]:
        changes.append(patch("channels_last", True))
    if found["fused_opt"]:
        changes.append(patch("fused_optimizer", True))
    return tuple(changes)


def tuned_by_rival(options, name):
    """Its report on its search."""
    words = [sys.executable, str(HERE / "inside" / "rival.py"), name, "--budget", str(options.seconds)]
    words += ["--small"] if options.tiny else []
    limit_s = 4 * options.seconds + 600
    try:
        done = subprocess.run(
            [*words, "--device", options.device], capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"out of time after {limit_s} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORTED ")]
    if not lines:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(lines[-1].removeprefix("REPORTED "))


def compared(options, name, changes, best):
    """Rates of the unchanged script, with the rival's choice and with ours, in rotating order."""
    command = plain(options, name)
    warm_s, window_s = (0.2, 0.6) if options.tiny else (6.0, 8.0)
    arms = ["A", "rival", *(["ours"] if best.exists() else [])]
    cycles = []
    with tempfile.TemporaryDirectory(prefix="at-gpu-", ignore_cleanup_errors=True) as folder:
        plan = Plan(
            nonce="r",
            script=command[1],
            argv=tuple(command[2:]),
            events_path=f"{folder}/events.jsonl",
            trial_dir=folder,
            changes=changes,
            measure=False,
            status_path=f"{folder}/status.json",
        )
        Path(folder, "plan.json").write_text(wire.dumps(plan))
        for cycle in range(1 if options.tiny else options.pairs):
            rates = {}
            for n in range(len(arms)):
                arm = arms[(n + cycle) % len(arms)]
                if arm == "A":
                    words, env = command, {}
                elif arm == "rival":
                    words = [sys.executable, "-m", "autotune.trial"]
                    env = {PLAN_VARIABLE: f"{folder}/plan.json"}
                else:
                    words, env = [sys.executable, "-m", "autotune", "apply", str(best), "--", *command], {}
                rates[arm] = stopwatch(words, warm_s=warm_s, window_s=window_s, env=env)
            cycles.append(rates)
            print(name, rates, flush=True)
    reported = {"cycles": cycles, "rival": interval([c["rival"] / c["A"] for c in cycles])}
    if "ours" in arms:
        reported["ours"] = interval([c["ours"] / c["A"] for c in cycles])
        reported["ours_over_rival"] = interval([c["ours"] / c["rival"] for c in cycles])
    return reported


def main(words=None):
    options = parsed(parser(__doc__, seconds=300, pairs=3), words)
    options.seconds = 20 if options.tiny else options.seconds
    if importlib.util.find_spec("pytorch_autotune") is None:
        return write("rival", {}, options, note="pip install pytorch-autotune==2.0.0")
    result, before = {}, earlier("rival", options)
    for name in options.workloads or (["small_steps"] if options.tiny else list(FULL)):
        if "end_to_end" in before.get(name, {}) and not options.tiny:
            result[name] = before[name]
            continue
        reported = tuned_by_rival(options, name)
        result[name] = {"rival": reported}
        if reported.get("winner"):
            changes = changes_of(name, reported["winner"])
            result[name]["changes"] = {c.knob: c.value for c in changes}
            try:
                result[name]["end_to_end"] = compared(
                    options, name, changes, work(options, name) / "best.yaml"
                )
            except RuntimeError as error:
                result[name]["end_to_end"] = {"failed": str(error)}
        print(name, result[name].get("changes"), flush=True)
        write("rival", result, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Does each knob act on the device, and is what is read back true?

    python knobs.py                        # about 12 minutes
    python knobs.py --only tf32=high bf16  # some of them
    python knobs.py --jobs 6               # six processes at once: nothing here is timed; about 3 minutes
    python knobs.py --jobs 6 --minutes 1   # what takes longer is left out and reported
    python knobs.py --device cpu --tiny

A small training script runs under `autotune apply`'s own process with one knob changed, profiles three
steps and reports the kernels, launches and copies it saw. Beside the reading of the process ("applied")
stands what those say: `seen` is yes, no, or unclear where this device's libraries name their kernels
otherwise; the names are kept, so that a person can compare them.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common import HERE, parsed, parser, patch, write

from autotune.knobs.registry import builtin
from autotune.model import wire
from autotune.model.change import Change, Env, Keyword
from autotune.protocol.plan import PLAN_VARIABLE, Plan

LOADER = "torch.utils.data.DataLoader"
LIMIT_S = 900
KEPT = ("loss", "kernels", "calls", "copies", "launched", "waits", "graphs", "peak_bytes", "expandable")


@dataclass(frozen=True)
class Case:
    """One configuration and what it must leave behind.

    `kernels` has to match a kernel's name, `never` none; `calls` names a call of the runtime that has to be
    there, `uncalled` one that must not; `copies` a copy. `beside` is what it is compared with, the script as
    it is where empty: `other` asks for other kernels, `lower` names a figure that has to be lower, `more` one
    that is there at all. `unclear` is the answer where what it leaves behind may go by another name. `needs`
    is a package beside torch, without which the case is left out.
    """

    name: str
    model: str
    changes: tuple
    kernels: str = ""
    never: str = ""
    calls: str = ""
    uncalled: str = ""
    copies: str = ""
    beside: tuple = ()
    other: bool = False
    lower: str = ""
    more: str = ""
    unclear: bool = True
    needs: str = ""


def keyword(name, value):
    return Change(knob=name, value=value, spelling=Keyword(LOADER, name))


def variable(knob, value, name, text):
    return Change(knob=knob, value=value, spelling=Env(name), delivered=text)


BF16 = patch("precision", "bf16")
PINNED = keyword("pin_memory", True)
COMPILED = patch("compile_mode", "default")
CASES = (
    Case("bf16", "attention", (BF16,), kernels=r"bf16|bfloat16|nvjet_(?:sm\d+_)?t"),
    Case("bf16 conv", "conv", (BF16,), kernels=r"bf16|bfloat16|nvjet_(?:sm\d+_)?t", other=True),
    Case(
        "fp16",
        "attention",
        (patch("precision", "fp16"),),
        kernels=r"fp16|f16|half|nvjet_(?:sm\d+_)?h|h16816",
    ),
    Case(
        "tf32=high",
        "attention",
        (patch("tf32", "high"),),
        kernels=r"tf32|s1688|nvjet_(?:sm\d+_)?s(?!m\d)",
        other=True,
    ),
    Case("channels_last", "conv", (patch("channels_last", True),), kernels=r"nhwc", never=r"nchwToNhwc"),
    Case(
        "channels_last bf16",
        "conv",
        (patch("channels_last", True), BF16),
        kernels=r"nhwc",
        never=r"nchwToNhwc",
    ),
    Case("cudnn_benchmark", "conv", (patch("cudnn_benchmark", True),), other=True),
    Case("fused_optimizer", "attention", (patch("fused_optimizer", True),), kernels=r"(?i)fused_?adam"),
    Case("pin_memory", "conv", (PINNED,), copies=r"Pinned -> Device", unclear=False),
    Case(
        "non_blocking",
        "conv",
        (PINNED, patch("non_blocking", True)),
        beside=(PINNED,),
        lower="waits",
        unclear=False,
    ),
    Case("compile default", "attention", (COMPILED,), kernels=r"triton_", unclear=False),
    Case(
        "compile reduce-overhead",
        "attention",
        (patch("compile_mode", "reduce-overhead"),),
        calls="cudaGraphLaunch",
        unclear=False,
    ),
    Case(
        "compile reduce-overhead bf16",
        "conv",
        (patch("compile_mode", "reduce-overhead"), BF16),
        calls="cudaGraphLaunch",
        unclear=False,
    ),
    Case(
        "compile max-autotune",
        "attention",
        (patch("compile_mode", "max-autotune"),),
        calls="cudaGraphLaunch",
        kernels=r"triton_",
        unclear=False,
    ),
    Case(
        "compile max-autotune-no-cudagraphs",
        "attention",
        (patch("compile_mode", "max-autotune-no-cudagraphs"),),
        kernels=r"triton_",
        uncalled="cudaGraphLaunch",
        unclear=False,
    ),
    Case("attention flash", "attention", (patch("attention_backend", "flash"), BF16), kernels=r"flash"),
    Case(
        "attention efficient",
        "attention",
        (patch("attention_backend", "efficient"),),
        kernels=r"fmha|cutlassF",
    ),
    Case("attention cudnn", "attention", (patch("attention_backend", "cudnn"), BF16), kernels=r"cudnn"),
    Case(
        "activation_checkpointing",
        "attention",
        (patch("activation_checkpointing", "full"),),
        lower="peak_bytes",
        unclear=False,
    ),
    Case(
        "memory_budget",
        "attention",
        (COMPILED, patch("memory_budget", 0.3)),
        beside=(COMPILED,),
        lower="peak_bytes",
    ),
    Case(
        "compile_region",
        "attention",
        (COMPILED, patch("compile_region", "block")),
        kernels=r"triton_",
        beside=(COMPILED,),
        other=True,
    ),
    Case(
        "compile_shapes",
        "attention-uneven",
        (COMPILED, patch("compile_shapes", "dynamic")),
        beside=(COMPILED,),
        lower="graphs",
    ),
    Case(
        "set_to_none",
        "attention-zeros",
        (patch("set_to_none", True),),
        lower="launched",
        unclear=False,
    ),
    Case("pure_bf16", "attention", (patch("pure_bf16", True),), kernels=r"bf16|bfloat16|nvjet_(?:sm\d+_)?t"),
    Case(
        "fp8",
        "attention",
        (patch("fp8", "tensorwise"), COMPILED, BF16),
        kernels=r"e4m3|fp8|f8|nvjet_(?:sm\d+_)?q",
        needs="torchao",
    ),
    # Each PyTorch reads one of the names.
    Case(
        "allocator",
        "attention",
        tuple(
            variable("allocator", "expandable_segments", name, "expandable_segments:True")
            for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        ),
        more="expandable",
        unclear=False,
    ),
)


def run(model, changes, folder, limit_s=LIMIT_S):
    """(what the script reported, readings, how it ended)."""
    if limit_s <= 0:
        return None, [], {"code": None, "last_line": "out of time before it began"}
    folder.mkdir()
    plan = Plan(
        nonce="k",
        script=str(HERE / "inside" / "profiled.py"),
        argv=(model,),
        events_path=str(folder / "events.jsonl"),
        trial_dir=str(folder),
        changes=changes,
        measure=False,
        status_path=str(folder / "status.json"),
    )
    (folder / "plan.json").write_text(wire.dumps(plan))
    variables = {c.spelling.name: c.delivered for c in changes if isinstance(c.spelling, Env)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "autotune.trial"],
            env={**os.environ, **variables, PLAN_VARIABLE: str(folder / "plan.json")},
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return None, [], {"code": None, "last_line": f"out of time after {limit_s:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORTED ")]
    reported = json.loads(lines[-1].removeprefix("REPORTED ")) if lines else None
    status = folder / "status.json"
    readings = json.loads(status.read_text()) if status.exists() else []
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return reported, readings, {"code": done.returncode, "last_line": last[:300] if done.returncode else ""}


def judged(case, reported, base):
    """yes, no or unclear; and why."""
    names = list(reported["kernels"])
    looked = []
    if case.kernels:
        looked.append((any(re.search(case.kernels, n) for n in names), f"a kernel like {case.kernels}"))
    if case.never:
        looked.append((not any(re.search(case.never, n) for n in names), f"no kernel like {case.never}"))
    if case.calls:
        looked.append((reported["calls"].get(case.calls, 0) > 0, case.calls))
    if case.uncalled:
        looked.append((reported["calls"].get(case.uncalled, 0) == 0, f"no {case.uncalled}"))
    if case.copies:
        looked.append(
            (any(re.search(case.copies, n) for n in reported["copies"]), f"a copy like {case.copies}")
        )
    if case.other and base is not None:
        looked.append((set(names) != set(base["kernels"]), "other kernels than without it"))
    if case.lower or case.more:
        figure = case.lower or case.more
        without = None if base is None else base[figure]
        if without is None or bool(without) is bool(case.more):
            return "unclear", f"{figure} is {without} without it, which it cannot be told from"
        there = reported[figure] < without if case.lower else reported[figure] > without
        looked.append((there, f"{figure} {'below' if case.lower else 'above'} {without}"))
    if not looked:
        return "unclear", "nothing is known that it would leave behind"
    missing = [what for there, what in looked if not there]
    if not missing:
        return "yes", ", ".join(what for _, what in looked)
    return ("unclear" if case.unclear else "no"), f"not seen: {', '.join(missing)}"


def unknown(case):
    """Knobs of a case that this version does not have, or values they do not know by their hooks."""
    return [c.knob for c in case.changes if c.knob not in builtin()]


def lacks(case):
    """The package that this case needs and that is not installed; empty where there is none."""
    return case.needs if case.needs and importlib.util.find_spec(case.needs) is None else ""


def wrong_knobs(result):
    """Cases of which everything is read as applied, and whose kernels say otherwise."""
    return [
        name
        for name, row in result.items()
        if row.get("seen") == "no"
        and row["readings"]
        and all(r["status"] == "applied" for r in row["readings"].values())
    ]


def main(words=None):
    made = parser(__doc__, jobs=1, minutes=0.0)
    made.add_argument("--only", nargs="*", default=[], help="names of cases")
    options = parsed(made, words)
    cases = [c for c in CASES if not options.only or c.name in options.only]
    if options.tiny and not options.only:
        cases = [c for c in CASES if c.name in ("bf16 conv", "fused_optimizer")]
    until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")

    def left_s():
        return min(LIMIT_S, until - time.monotonic())

    result = {}
    with tempfile.TemporaryDirectory(prefix="at-gpu-", ignore_cleanup_errors=True) as name:
        wanted = [
            (c.model, changes)
            for c in cases
            if not unknown(c) and not lacks(c)
            for changes in (c.changes, c.beside)
        ]
        wanted = list(dict.fromkeys([*((c.model, ()) for c in cases), *wanted]))
        with ThreadPoolExecutor(max(1, options.jobs)) as several:
            folders = [Path(name) / str(n) for n in range(len(wanted))]
            reported = several.map(
                lambda requested, folder: run(*requested, folder, left_s()), wanted, folders
            )
            ran = dict(zip(wanted, reported, strict=True))
        for model in sorted({c.model for c in cases}):
            reported, _, ended = ran[model, ()]
            result[f"as it is, {model}"] = {"ended": ended, **(reported or {})}
        for case in cases:
            if unknown(case):
                continue
            if lacks(case):
                print(f"{case.name:32} left out: {case.needs} is not installed", flush=True)
                continue
            reported, readings, ended = ran[case.model, case.changes]
            base = ran[case.model, case.beside][0]
            requested = {
                r["knob"]: {k: r[k] for k in ("found", "status", "reason")}
                for r in readings
                if r["wanted"] is not None
            }
            out_of_time = reported is None and ended["code"] is None
            seen, why = (
                judged(case, reported, base)
                if reported
                else ("unclear" if out_of_time else "no", ended["last_line"])
            )
            result[case.name] = {
                "readings": requested,
                "seen": seen,
                "why": why,
                "ended": ended,
                **({k: reported[k] for k in KEPT} if reported else {}),
            }
            states = ", ".join(sorted({r["status"] for r in requested.values()})) or "no reading"
            print(f"{case.name:32} read: {states:12} seen: {seen:8} {why}", flush=True)
    wrong = wrong_knobs(result)
    note = f"read as applied and not seen: {', '.join(wrong)}" if wrong else ""
    return write("knobs", result, options, ok=None if options.device == "cpu" else not wrong, note=note)


if __name__ == "__main__":
    raise SystemExit(main())

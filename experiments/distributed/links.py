"""Searches over a slow and a fast link: what is found of the communication family."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parent / "scripts" / "slow_link.py"
LINKS = {
    "slow": ("--delay-ms", "10", "--ns-per-byte", "10"),
    "fast": (),
}
KNOBS = ("ddp_bucket_cap_mb", "ddp_comm_hook")
BUDGET = "6m"
REPEATS = 3


def cases() -> list[dict[str, Any]]:
    """Return every case; each link once before any is repeated."""
    return [{"key": f"{link} #{repeat}", "group": link} for repeat in range(REPEATS) for link in LINKS]


def run(case: dict[str, Any], _plain: object) -> dict[str, Any]:
    """Search; return what was answered of the communication knobs."""
    folder = Path(tempfile.mkdtemp(prefix="links-"))
    shutil.copy(SCRIPT, folder / "train.py")
    words = [
        sys.executable,
        "-m",
        "autotune",
        "search",
        "--driver",
        "inline",
        "--budget",
        BUDGET,
        "--json",
        "-q",
    ]
    words += [word for knob in KNOBS for word in ("--knob", knob)]
    words += ["--", "torchrun", "--nproc-per-node", "2", "train.py", *LINKS[case["group"]]]
    env = {**os.environ, "AUTOTUNE_HOME": str(folder / "home"), "AUTOTUNE_TRANSFER": "off"}
    try:
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1, 8):
            return {"ok": False, "error": f"code {done.returncode}: {done.stderr[-500:]}"}
        answer = json.loads(done.stdout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    picks = answer.get("picks") or {}
    name = next((name for name in ("best", "likely") if name in picks), "")
    config = dict(picks[name]["knobs"]) if name else {}
    size, hook = config.get("ddp_bucket_cap_mb", 1), config.get("ddp_comm_hook", "own")
    is_claimed = done.returncode == 0 and (size > 1 or hook == "fp16")
    return {
        "code": done.returncode,
        "pick": name,
        "answer": config,
        "sentence": answer.get("sentence", ""),
        "ok": is_claimed is (case["group"] == "slow"),
    }

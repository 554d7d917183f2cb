"""Record fresh runs of a workload as it is, one after the other: the noise that `run.py` draws from.

    python record.py photos_denoise --runs 20 --window 4 --limit 10m

Each run is a process measured as a search measures it; what others used of the machine is kept beside it.
Goes on where it stopped.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
sys.path.insert(0, str(HERE))

import proofs  # noqa: E402 - a neighbour of this file

from autotune.apply.command import build_launch  # noqa: E402
from autotune.apply.environment import user_environment  # noqa: E402
from autotune.core.config import Config  # noqa: E402
from autotune.core.measurement import Measurement  # noqa: E402
from autotune.core.trial import Assignment, Fidelity, Segment  # noqa: E402
from autotune.edge.duration import duration_s  # noqa: E402
from autotune.launch.measure import raw_window  # noqa: E402
from autotune.launch.process import LocalRunner  # noqa: E402


class Recording:
    """One workload's runs in a file."""

    def __init__(self, script, window_s, folder):
        self.script, self.window_s = script, window_s
        self.seen = None
        self.runner = LocalRunner(study_dir=folder, witness=self._witness)

    def _witness(self, _assignment, told, outside):
        self.seen = told, outside

    def run(self, number):
        """A line of the file, None where the run failed."""
        fidelity = Fidelity(
            min_window_s=self.window_s,
            max_window_s=self.window_s,
            min_steps=8,
            target_width=0.0,
            setup_s=120.0,
            deadline_s=120.0 + 4 * self.window_s,
        )
        launch = build_launch(
            script=str(self.script),
            args=[],
            python=sys.executable,
            cwd=str(self.script.parent),
            env=user_environment(os.environ, keep_loggers=False, trial=True),
            changes=[],
            seed=number,
        )
        assignment = Assignment(
            uid=f"t{number:04d}-a1-{os.urandom(3).hex()}",
            study_id="noise",
            attempt=1,
            launch=launch,
            segments=(Segment(trial=number, config=Config(), fidelity=fidelity),),
        )
        self.seen = None
        ended = list(self.runner.run(assignment))[-1]
        if not isinstance(ended.outcome, Measurement) or self.seen is None:
            return None
        told, outside = self.seen
        blocks, produced = raw_window(next(iter(told.closed.values())), told, outside)
        kept = [k for k, clean in enumerate(blocks.clean()) if clean]
        found = ended.outcome
        return {
            "seed": number,
            "rate": round(found.throughput.value, 4),
            "foreign": found.contamination.foreign_cpu_frac,
            "pressure": found.contamination.pressure_frac,
            "flags": list(found.contamination.flags),
            "produced": produced,
            "samples": [blocks.num_samples[k] for k in kept],
            "steps": [blocks.num_steps[k] for k in kept],
            "seconds": [round(blocks.elapsed_s[k] - blocks.aside_s[k], 6) for k in kept],
            "loss_samples": [p.samples for p in found.loss],
            "loss": [p.loss for p in found.loss],
        }


def main(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=sorted(p.stem for p in WORKLOADS.glob("*.py")))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--window", type=float, default=4.0, help="seconds measured per run")
    parser.add_argument("--limit", default="", metavar="10m")
    parser.add_argument("--name", default="", help="of the file, where several machines or hours are kept")
    chosen = parser.parse_args(words)
    path = HERE / "results" / "noise" / f"{chosen.workload}{'-' + chosen.name if chosen.name else ''}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.exists() else b""
    data = data[: data.rfind(b"\n") + 1]
    if not data:
        header = {
            "workload": chosen.workload,
            "window_s": chosen.window,
            "date": datetime.date.today().isoformat(),
            "machine": proofs.machine(),
        }
        data = json.dumps(header).encode() + b"\n"
    path.write_bytes(data)
    number = data.count(b"\n") - 1
    ends_s = time.monotonic() + (duration_s(chosen.limit) if chosen.limit else float("inf"))
    longest_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(WORKLOADS / f"{chosen.workload}.py", chosen.window, Path(folder))
        while number < chosen.runs and time.monotonic() + longest_s < ends_s:
            began_s = time.monotonic()
            line = recording.run(number)
            longest_s = max(longest_s, time.monotonic() - began_s)
            if line is None:
                raise SystemExit("a run failed; nothing is kept of it")
            with path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
            number += 1
            print(
                f"{number}/{chosen.runs}  {line['rate']:.1f}  others {line['foreign'] or 0:.2f} cores",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Record fresh runs of an unchanged workload, one after the other: the noise that `run.py` draws from.

    python record.py photos_denoise --runs 20 --window 4 --limit 10m

Each run is a process measured as a search measures it; what others used of the machine is kept beside it.
Goes on where it stopped.
"""

import argparse
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
sys.path.insert(0, str(HERE))

import proofs  # noqa: E402 (needs the path set above)
import recording  # noqa: E402 (needs the path set above)

from autotune.config_files.duration import duration_s  # noqa: E402


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
        recorder = recording.Recording(WORKLOADS / f"{chosen.workload}.py", chosen.window, Path(folder))
        while number < chosen.runs and time.monotonic() + longest_s < ends_s:
            began_s = time.monotonic()
            line = recorder.run(number)
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

"""How long does the first compile of a training step take at the least?

python experiments/compile_floor/run.py
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.inspection.host import host_facts

RESULTS = Path(__file__).resolve().parent / "results" / "compile_floor.json"
TRAIN = """
import json, time, torch
model = torch.compile(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = []
for _ in range(5):
    began = time.perf_counter()
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    steps.append(time.perf_counter() - began)
print(json.dumps(steps))
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    compile_s = [round(first_compile_s(), 2) for _ in range(args.repeats)]
    host = host_facts()
    machine = {"cpu": host.cpu_model, "cores": host.cpus, "torch": host.versions["torch"]}
    found = {"compile_s": compile_s, "machine": machine, "date": datetime.date.today().isoformat()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(f"shortest {min(compile_s):.2f} s of {compile_s}")


def first_compile_s():
    """Return the seconds of the first step beyond a later one, in a process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, "-c", TRAIN], env=variables, capture_output=True, text=True, check=True
        )
    steps = json.loads(done.stdout)
    return steps[0] - statistics.median(steps[1:])


if __name__ == "__main__":
    main()

"""Searches again and again in one process, as a program with `autotune.tune` would; a line of JSON for each.

python soak_neighbour.py SCRIPT BUDGET
"""

import gc
import itertools
import json
import os
import sys

import soak_measures as measures

import autotune


def main():
    script, budget = sys.argv[1:]
    waits = 0
    for number in itertools.count(1):
        try:
            out = f"{os.environ['HOME']}/best.yaml"
            found = autotune.tune(script, budget=budget, trials=3, out=out, wait="1h")
            ended, waits = found.reason, waits + (found.study.waited_s > 0.0)
        except autotune.AutotuneError as error:
            ended = f"{type(error).__name__}: {error}"
        gc.collect()
        row = {"search": number, "ended": ended, "waits": waits, **measures.process_holds(os.getpid())}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

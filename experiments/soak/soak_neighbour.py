"""Searches again and again in one process, as a program with `autotune.tune` would; a line of JSON for each.

python soak_neighbour.py SCRIPT BUDGET
"""

import itertools
import json
import sys
import time

import autotune


def main():
    script, budget = sys.argv[1:]
    for number in itertools.count(1):
        began_s = time.monotonic()
        try:
            ended = autotune.tune(
                script, budget=budget, trials=3, out=f"{script}.best.yaml", wait="1h"
            ).reason
        except autotune.AutotuneError as error:
            ended = f"{type(error).__name__}: {error}"
        row = {"search": number, "ended": ended, "seconds": round(time.monotonic() - began_s, 1)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

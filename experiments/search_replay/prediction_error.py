"""Are runs that were left out predicted better by levels than by means?

    python prediction_error.py ../grids/photos_denoise/cpu2-intel-xeon-processor-without-bf16.jsonl ...

Every run of a configuration that has others, but for the unchanged script, is left out in turn, under the
sizes fitted to all. Beside the mixed model stands what means say: levels that have nothing in common, with a
machine and noise of sizes of their own, fitted as well. The error is of ln rate, noise of the run included.
Runs of the first repeat and of later ones are separate: who was run again was chosen by the first, so the
first was lucky. Only open tables are taken.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import levels
import numpy as np
import worlds

from autotune.testing.table import decode

MEANS_SD = 0.35
"""Of levels that have nothing in common, in ln rate: a run or two decide each."""


def predicted(table):
    """(repeats, who predicts) -> (runs, error of one in ln rate, mean ln likelihood of one).

    Repeats are ``first`` or ``later``, who predicts is ``levels`` or ``means``; only of what has runs.
    """
    runs = worlds.runs_of(table)
    model = levels.Model(runs, worlds.knobs_of(table))
    count = Counter(model.at)
    again = np.array([count[at] > 1 and not model.configs[at].is_baseline for at in model.at])
    later = np.array([repeat > 0 for (repeat, _), _, _, _ in runs])
    found = {}
    for name, x in (("levels", model.fit()), ("means", model.fit_alone(MEANS_SD))):
        missed, sd = model.left_out(x)
        likely = -0.5 * (missed / sd) ** 2 - np.log(sd)
        for which, mine in (("first", again & ~later), ("later", again & later)):
            if mine.any():
                error = float(np.sqrt(np.mean(missed[mine] ** 2)))
                found[which, name] = int(mine.sum()), error, float(likely[mine].mean())
    return found


def main():
    # Other folders have a run.py as well; beside this one it is the replay's.
    import run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    may = set(run.develop_files())
    for file in parser.parse_args().files:
        if file.resolve() not in may:
            sys.exit(f"{file} is no open table")
        table = decode(file.read_bytes(), source=file.name)
        found = predicted(table)
        if not found:
            print(f"{table.header.table}: no configuration ran twice")
        for (which, name), (number, error, likely) in found.items():
            print(
                f"{table.header.table}: {name} miss {number} {which} runs by {error:.1%}, "
                f"ln likelihood of a run {likely:.3f}"
            )


if __name__ == "__main__":
    main()

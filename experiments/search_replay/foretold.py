"""Are runs that were left out foretold better by levels than by means?

    python foretold.py ../grids/photos_denoise/cpu2-intel-xeon-processor-without-bf16.jsonl ...

Every run of a configuration that has others, but for the script as it is, is left out in turn, under the
sizes fitted to all. Beside the mixed model stands what means say: the same machine and the same noise, and
levels that have nothing in common. The error is of ln rate, noise of the run included. Only open tables are
taken.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import levels
import numpy as np
import run
import worlds

from autotune.core.table import decode

MEANS_SD = 0.35
"""Of levels that have nothing in common, in ln rate: a run or two decide each."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    may = set(run.develop_files())
    for file in parser.parse_args().files:
        if file.resolve() not in may:
            sys.exit(f"{file} is no open table")
        table = decode(file.read_bytes(), source=file.name)
        model = levels.Model(worlds.runs_of(table), worlds.knobs_of(table))
        runs = Counter(model.at)
        repeated = [runs[at] > 1 and not model.configs[at].is_baseline for at in model.at]
        if not any(repeated):
            print(f"{table.header.table}: no configuration ran twice")
            continue
        fitted = model.fit()
        for name, x in (("levels", fitted), ("means", model.unlike(fitted, MEANS_SD))):
            missed, sd = model.left_out(x)
            missed, sd = missed[repeated], sd[repeated]
            likely = np.mean(-0.5 * (missed / sd) ** 2 - np.log(sd))
            print(
                f"{table.header.table}: {name} miss {len(missed)} runs by "
                f"{np.sqrt(np.mean(missed**2)):.1%}, ln likelihood of a run {likely:.3f}"
            )


if __name__ == "__main__":
    main()

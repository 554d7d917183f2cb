"""Draws the live view of a search on this terminal again, from the study's journal.

    python experiments/screens/live_replay.py STUDY [--until TRIALS]

The view is the product's own. It receives the journal's events in their order and with their times, only
faster. With `--until` it stays after so many trials until Ctrl-C; else the answer follows, as after a search.
"""

import argparse
import sys
import time

import autotune
from autotune.cli.outcome import terminal_columns
from autotune.clock import SimulatedClock
from autotune.driver.rebuild_space import space_of
from autotune.report.terminal.live_view import Progress
from autotune.report.text.terminal_text import wrapped
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import JOURNAL_FILE, find_study

EVENT_S = 0.02
"""Between two events; the view itself is drawn by a thread of its own."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("study")
    parser.add_argument("--until", type=int, default=0, metavar="TRIALS")
    given = parser.parse_args()
    path = find_study(given.study)
    with Journal.read(path / JOURNAL_FILE) as journal:
        entries = list(journal.entries())
    clock = SimulatedClock()
    shown = Progress(sys.stderr, live=True, clock=clock)
    began, finished, running = False, set(), set()
    for count in range(1, len(entries) + 1):
        study = fold(iter(entries[:count]), build=space_of)
        clock.sleep(max(0.0, study.elapsed_s - clock.now_s()))
        if not began:
            shown.study_began(study)
            began = True
        for trial in study.trials:
            if (trial.measurement or trial.failure) and trial.number not in finished:
                finished.add(trial.number)
                shown.trial_ended(study, trial)
            elif trial.number not in running:
                running.add(trial.number)
                shown.trial_started(study, trial)
        time.sleep(EVENT_S)
        if given.until and len(finished) >= given.until and running - finished:
            # A moment in the running trial.
            clock.sleep(3.0)
            while True:
                time.sleep(3600)
    shown.study_ended(study)
    print(wrapped(str(autotune.load(given.study)), terminal_columns()), end="")


if __name__ == "__main__":
    main()

"""Runs of an unchanged workload: each a process measured as a search does, with its witness."""

import os
import sys

from autotune.launch.process import LocalRunner
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Fidelity, Segment
from autotune.space.launch_command import build_launch
from autotune.space.training_environment import user_environment
from autotune.testing.raw_window import raw_window


class Recording:
    """Runs processes of one script, one after the other.

    Args:
        script: To be run unchanged.
        window_s: Measured of each.
        folder: Where they may write; of ours, and empty.
        args: Of the script, such as for how long it trains.
    """

    def __init__(self, script, window_s, folder, args=()):
        self.script, self.window_s, self.args = script, window_s, args
        self.seen = None
        self.runner = LocalRunner(study_dir=folder, witness=self._witness)

    def _witness(self, _assignment, reported, outside):
        self.seen = reported, outside

    def run(self, number, *, seed=None):
        """A line of the file, None where the run failed; `seed` is the number where none is given."""
        seed = number if seed is None else seed
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
            args=self.args,
            python=sys.executable,
            cwd=str(self.script.parent),
            env=user_environment(os.environ, keep_loggers=False, trial=True),
            changes=[],
            seed=seed,
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
        reported, outside = self.seen
        blocks, produced = raw_window(next(iter(reported.closed.values())), reported, outside)
        kept = [k for k, clean in enumerate(blocks.clean()) if clean]
        found = ended.outcome
        return {
            "seed": seed,
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

"""Scripts that end before the usual warm-up or window is over are measured over the steps they have."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.inspection.host import host_facts
from autotune.inspection.script import script_facts
from autotune.knobs.batch.batch_size import given_batch_size
from autotune.knobs.registry import builtin
from autotune.launch.process import LocalRunner
from autotune.model.change import Change, Patch
from autotune.model.config import Config
from autotune.model.facts import Facts
from autotune.model.measurement import Measurement
from autotune.model.study import SpaceRequest
from autotune.model.trial import Assignment, Failure, FailureKind, Fidelity, Segment
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import choose
from autotune.space.launch_command import build_launch
from autotune.space.training_environment import user_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from trial_kit import Ran

    from autotune.launch.runner import TrialResult

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPTS = Path(__file__).parents[1] / "scripts"
BATCH = ("batch_size", "accumulation", "effective_batch")
USUAL = Fidelity(
    min_window_s=2.0, max_window_s=6.0, min_steps=10, target_width=0.05, setup_s=120.0, deadline_s=120.0
)


class Place:
    """A script in a folder of its own, run by the real launcher."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.script = folder / Path(script).name
        shutil.copy(SCRIPTS / script, self.script)
        self.count = 0
        self.facts: Facts | None = None

    def run(self, changes: Any = (), args: tuple[str, ...] = ()) -> TrialResult:
        self.count += 1
        launch = build_launch(
            script=str(self.script),
            args=args,
            python=sys.executable,
            cwd=str(self.folder),
            env={
                **user_environment(dict(os.environ), keep_loggers=False, trial=True),
                "OMP_NUM_THREADS": "1",
            },
            changes=changes,
            batch=given_batch_size(script_facts(str(self.script)), args),
        )
        assignment = Assignment(
            uid=f"t{self.count:04d}-a1-{os.getpid() % 2**24:06x}",
            study_id="short",
            attempt=1,
            launch=launch,
            segments=(Segment(trial=self.count, config=Config(), fidelity=USUAL),),
        )
        (ended,) = LocalRunner(study_dir=self.folder / "study", progress_floor_s=60.0).run(assignment)
        return ended

    def baseline(self) -> Measurement:
        ended = self.run()
        assert isinstance(ended.outcome, Measurement), ended.outcome
        assert ended.facts is not None
        self.facts = Facts(host=host_facts(), script=script_facts(str(self.script)), run=ended.facts)
        return ended.outcome

    def tuned(self, **wanted: Any) -> Measurement:
        """The script with these values, each of them read back as applied."""
        assert self.facts is not None
        request = SpaceRequest(name="short", knobs=dict.fromkeys((*wanted, *BATCH), ()))
        space, refused = build_space(request, self.facts, builtin())
        assert not set(wanted) & set(refused), refused
        config = space.complete(wanted)
        assert isinstance(config, Config), config
        changes, gone = choose(config, self.facts, builtin())
        assert not gone, gone
        outcome = self.run(changes).outcome
        assert isinstance(outcome, Measurement), outcome
        read = {r.knob: r for r in outcome.readings if r.wanted is not None}
        assert set(read) >= set(wanted) - {"effective_batch"}, "it follows from the batch size"
        assert all(r.status == "applied" for r in read.values()), read
        assert "short" in outcome.contamination.flags
        return outcome


CASES = [
    ("short/workers_two_epochs.py", 4, {"precision": "bf16", "num_workers": 0, "batch_size": 8}),
    ("short/epochs_of_two.py", 8, {"precision": "bf16", "num_workers": 1, "batch_size": 16}),
    ("short/no_loader.py", 4, {"precision": "bf16", "batch_size": 8, "effective_batch": 8}),
    ("ends_early.py", 2, {"precision": "bf16", "num_workers": 1, "batch_size": 8}),
]


@pytest.mark.parametrize(("script", "timed", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_a_short_script_is_measured_and_tuned(
    tmp_path: Path, script: str, timed: int, wanted: dict[str, Any]
) -> None:
    place = Place(tmp_path, script)
    found = place.baseline()
    assert found.ended == "script_end"
    assert "short" in found.contamination.flags
    assert found.steps == timed
    assert found.throughput.unit == "samples/s"
    assert 0.0 <= found.throughput.low < found.throughput.value < found.throughput.high
    place.tuned(**wanted)


def test_one_step_is_refused_in_words_that_say_how_many_are_needed(tmp_path: Path) -> None:
    place = Place(tmp_path, "short/no_loader.py")
    outcome = place.run(args=("--batch-size", "80")).outcome
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.WARMUP_SHORT
    assert "after 1 optimizer step, and the first one cannot be timed" in outcome.message
    assert "at least 3 steps" in outcome.message


def test_two_steps_give_a_rate_of_which_nothing_more_is_known(tmp_path: Path) -> None:
    outcome = Place(tmp_path, "short/no_loader.py").run(args=("--batch-size", "40")).outcome
    assert isinstance(outcome, Measurement)
    assert (outcome.steps, outcome.throughput.n) == (1, 1)
    assert outcome.throughput.low == 0.0
    assert outcome.throughput.value > 0.0
    assert "short" in outcome.contamination.flags


def test_a_pass_that_workers_loaded_before_its_second_step_is_timed_from_its_start(tmp_path: Path) -> None:
    """What is left after the first step would say what the model does alone."""
    place = Place(tmp_path, "short/workers_two_epochs.py")
    outcome = place.run(args=("--nEpochs", "1")).outcome
    assert isinstance(outcome, Measurement)
    assert outcome.steps == 4
    assert outcome.data_wait_frac > 0.0
    assert outcome.contamination.flags.count("short") == 1


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_apply_trains_a_script_of_a_few_steps_with_its_changes(run: Callable[..., Ran], steps: int) -> None:
    text = (SCRIPTS / "short" / "no_loader.py").read_text()
    bf16 = Change(knob="precision", value="bf16", spelling=Patch())
    size = ("--batch-size", str(80 // steps))
    tuned = run(text, changes=[bf16], argv=size, measure=False)
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    assert tuned.out != run(text, argv=size, bare=True).out, "bf16 rounds"

"""What of earlier studies counts, how much, and when it no longer does."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from search_world import World, dimension, measurement, spec, tell

from autotune.compare.transfer import NOTHING, Kinship, beliefs, fingerprint, kinship
from autotune.model.config import Config
from autotune.model.facts import DeviceFacts, Facts, HostFacts, ModelFacts, RunFacts, ScriptFacts
from autotune.model.history_record import Earlier, Fingerprint, Gain, Read, Setting, Transfer
from autotune.model.measurement import Contamination, Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage
from autotune.model.wire import dumps, loads

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
SPACE = SearchSpace(
    dimensions={
        "precision": dimension("precision", ("fp32", "bf16"), "fp32"),
        "threads": dimension("threads", (1, 2, 4), 2, ordinal=True),
        "fused": dimension("fused", (False, True), False),
    }
)
BF16, FOUR = Config({"precision": "bf16"}), Config({"threads": 4})
BOTH = Config({"precision": "bf16", "threads": 4})
FACTS = Facts(
    host=HostFacts(cpus=4, physical_cores=4, memory_bytes=2**33, cpu_model="X", versions={"torch": "2.13"}),
    script=ScriptFacts(path="train.py", sha256="ab"),
    run=RunFacts(model=ModelFacts(name="Net", has_4d=True), effective_batch=32),
)
CRASH = Failure(kind=FailureKind.CRASH_EXIT, message="crash")
SLOW = Failure(kind=FailureKind.TIMEOUT_TOTAL, message="too slow")
OOM = Failure(kind=FailureKind.OOM_HOST, message="out of memory")


def present(*runs: tuple[Config, float | Failure], facts: Facts = FACTS, wait: float = 0.0) -> Study:
    """The script twice at 100 samples/s, then these, in the present space."""
    study = Study(spec=spec(args=("--lr", "1")), space=SPACE, facts=facts)
    for config, rate in ((Config(), 100.0), (Config(), 100.0), *runs):
        stage = Stage.REFINE if config else Stage.BASELINE
        outcome: Measurement | Failure = rate if isinstance(rate, Failure) else measurement(rate, wait=wait)
        study = tell(study, Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x"), outcome, 7.0)
    return study


def reported(study: Study, *earlier: Earlier) -> Study:
    """The study with these records at its start."""
    bare = replace(study, trials=(), facts=replace(study.facts, run=None))  # type: ignore[type-var]
    return replace(study, transfer=Transfer(present=fingerprint(bare), earlier=earlier))


def lesson(study: Study, name: str = "first", **more: object) -> Earlier:
    plain = Earlier(
        study_id=name,
        label=name,
        fingerprint=fingerprint(study),
        starts=(Read(config=BOTH, log=math.log(1.8)),),
        seen=(
            Read(config=BOTH, log=math.log(1.8)),
            Read(config=BF16, log=math.log(1.5)),
            Read(config=FOUR, log=math.log(1.2)),
        ),
        gains=(
            Gain(knob="precision", value="bf16", log=math.log(1.5), sd=0.02),
            Gain(knob="threads", value=4, log=math.log(1.2), sd=0.02),
            Gain(knob="threads", value=1, log=math.log(0.8), sd=0.02),
        ),
        owns={"precision": "fp32", "threads": 2, "fused": False},
        compile_s={"default": 90.0},
        doubted=(Setting(knob="fused", value=True),),
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def changed_script(study: Study, **more: object) -> Earlier:
    given = {"fingerprint": replace(fingerprint(study), script="other"), **more}
    return lesson(study, "other", **given)


# Who is akin -------------------------------------------------------------------------------------


def test_the_same_in_everything_is_the_same() -> None:
    mine = fingerprint(present())
    assert kinship(mine, mine) is Kinship.SAME


@pytest.mark.parametrize("name", ["args", "versions", "modules", "data", "script", "path"])
def test_what_has_changed_of_a_script_leaves_it_the_same_script(name: str) -> None:
    mine = fingerprint(present())
    expected = Kinship.SAME if name == "path" else Kinship.CHANGED
    assert kinship(mine, replace(mine, **{name: "another"})) is expected


def test_another_script_is_not_akin() -> None:
    mine = fingerprint(present())
    other = replace(mine, script="other", path="other")
    assert kinship(mine, other) is None
    assert not beliefs(reported(present(), lesson(present(), "other", fingerprint=other))).notes


@pytest.mark.parametrize("name", ["device", "power"])
def test_on_another_device_nothing_is_akin(name: str) -> None:
    mine = fingerprint(present())
    assert kinship(mine, replace(mine, **{name: "another"})) is None


def test_a_fingerprint_reports_devices_apart_and_holds_nothing_that_can_be_read() -> None:
    gpu = DeviceFacts(name="GPU", uuid="u", memory_bytes=2**36, capability=(9, 0), power_limit_w=700.0)

    def on(*devices: DeviceFacts) -> Fingerprint:
        return fingerprint(present(facts=replace(FACTS, host=replace(FACTS.host, devices=devices))))

    assert on().device != on(gpu).device
    assert on(gpu) == on(replace(gpu, uuid="another of its kind"))
    assert on(gpu).power != on(replace(gpu, power_limit_w=350.0)).power
    secret = present()
    secret = replace(secret, spec=replace(secret.spec, args=("--token", "hunter22"), script="/home/me/t.py"))
    text = dumps(fingerprint(secret))
    assert not {w for w in ("hunter22", "/home/me", "train.py", "--lr") if w in text}
    assert {f.name for f in fields(Fingerprint)} > {"device", "script", "args", "data", "versions"}


# What it reports -----------------------------------------------------------------------------------


def test_nothing_is_believed_before_the_script_has_run_or_where_nothing_was_reported() -> None:
    study = present()
    known = reported(study, lesson(study))
    assert beliefs(study) is NOTHING
    assert beliefs(replace(known, space=None)) is NOTHING
    assert beliefs(replace(known, facts=replace(FACTS, run=None))) is NOTHING
    assert beliefs(known).starts


def test_a_study_of_the_same_script_gives_starts_readings_costs_and_doubts() -> None:
    study = present()
    found = beliefs(reported(study, lesson(study)))
    assert [s.config for s in found.starts] == [BOTH]
    assert "first: 1.80 times your script there" in found.starts[0].reason
    assert {f.config: f.log for f in found.first} == pytest.approx(
        {BF16: math.log(1.5), FOUR: math.log(1.2), BOTH: math.log(1.8)}
    )
    assert all(0.02 < f.sd < 0.1 for f in found.first)
    assert found.compile_s == {"default": 90.0}
    assert found.doubted == {("fused", True)}
    assert found.notes == (
        "start points from 1 earlier study of this script (first), none taken over unmeasured",
    )


def test_a_script_that_has_changed_gives_starts_and_what_single_values_did() -> None:
    study = present()
    changed = lesson(study, fingerprint=replace(fingerprint(study), script="before"))
    found = beliefs(reported(study, changed))
    assert [s.config for s in found.starts] == [BOTH]
    assert {f.config for f in found.first} == {BF16, FOUR, Config({"threads": 1})}
    assert all(f.sd > 0.1 for f in found.first)
    assert "(first (changed since))" in found.notes[0]


def test_gains_count_over_what_the_script_has_now() -> None:
    study = present()
    # There it had one thread, and two were a quarter faster.
    gains = (
        Gain(knob="threads", value=2, log=math.log(1.25), sd=0.02),
        Gain(knob="threads", value=4, log=math.log(1.5), sd=0.02),
    )
    moved = changed_script(study, gains=gains, owns={"threads": 1, "precision": "bf16"})
    found = {f.config: f.log for f in beliefs(reported(study, moved)).first}
    assert found == pytest.approx({FOUR: math.log(1.2), Config({"threads": 1}): -math.log(1.25)})


def test_start_points_that_the_present_space_does_not_hold_are_left_out() -> None:
    study = present()
    strange = (Read(config=Config({"threads": 16}), log=0.5), Read(config=Config({"other": 1}), log=0.5))
    found = beliefs(reported(study, lesson(study, starts=strange)))
    assert not found.starts
    # What the script itself has by now is no change.
    own = (Read(config=Config({"threads": 2, "precision": "bf16"}), log=0.4),)
    changed = lesson(study, starts=own, fingerprint=replace(fingerprint(study), args="before"))
    assert [s.config for s in beliefs(reported(study, changed)).starts] == [BF16]


# What contradicts --------------------------------------------------------------------------------


def test_a_reading_that_was_predicted_otherwise_drops_the_study_for_good() -> None:
    runs = ((BF16, 148.0), (BOTH, 90.0), (FOUR, 120.0))
    studies = [reported(present(*runs[:n]), lesson(present())) for n in range(4)]
    counted = [bool(beliefs(s).first) for s in studies]
    assert counted == [True, True, False, False]
    last = beliefs(studies[-1])
    assert last == replace(NOTHING, notes=last.notes)
    assert last.notes[0].startswith("start points from 1 earlier study")
    assert last.notes[1] == (
        "first no longer counts: precision=bf16 threads=4 reads 0.90 times your script, 1.80 were predicted"
    )


def test_noise_is_no_contradiction() -> None:
    within = reported(present((BF16, 140.0)), lesson(present()))
    assert beliefs(within).first
    beyond = reported(present((BF16, 130.0)), lesson(present()))
    assert not beliefs(beyond).first
    # Where runs of the script differed by four per cent, a seventh is nothing.
    assert beliefs(reported(present((BF16, 130.0)), lesson(present(), noise=0.04))).first


def test_what_ran_there_and_crashes_here_contradicts_and_another_limit_does_not() -> None:
    assert not beliefs(reported(present((BOTH, CRASH)), lesson(present()))).first
    for limit in (SLOW, OOM):
        assert beliefs(reported(present((BOTH, limit)), lesson(present()))).first


def test_two_readings_that_agree_spare_the_others_a_look() -> None:
    one = beliefs(reported(present((BF16, 148.0)), lesson(present())))
    assert not one.trusted
    two = beliefs(reported(present((BF16, 148.0), (BOTH, 175.0)), lesson(present())))
    assert two.trusted == {BF16, FOUR, BOTH}
    changed = lesson(present(), fingerprint=replace(fingerprint(present()), script="before"))
    assert not beliefs(reported(present((BF16, 148.0), (BOTH, 175.0)), changed)).trusted


def test_one_study_that_is_contradicted_leaves_the_others() -> None:
    study = present((BOTH, 100.0))
    true = lesson(study, "second", starts=(Read(config=BF16, log=0.4),), seen=())
    found = beliefs(reported(study, lesson(study), true))
    assert [s.config for s in found.starts] == [BF16]
    assert [text.split()[0] for text in found.notes[1:]] == ["first"]


def test_single_values_are_dropped_where_they_foretell_worse_than_nothing() -> None:
    study = present((BF16, 70.0), (FOUR, 90.0), (Config({"threads": 1}), 120.0))
    found = beliefs(reported(study, changed_script(study)))
    assert not found.first
    assert "other no longer counts: what 3 configurations read" in found.notes[1]
    early = present((BF16, 70.0), (FOUR, 90.0))
    assert beliefs(reported(early, changed_script(early))).first
    # Twice as much as was predicted is still better predicted than not at all.
    more = present((BF16, 225.0), (FOUR, 144.0), (Config({"threads": 1}), 64.0))
    assert beliefs(reported(more, changed_script(more))).first


def test_it_is_data_that_survives_the_journal() -> None:
    study = reported(present(), lesson(present()), changed_script(present()))
    assert study.transfer is not None
    assert loads(Transfer, dumps(study.transfer)) == study.transfer


def test_the_worlds_of_other_tests_have_a_device() -> None:
    study = Study(spec=spec(), facts=World(space=SPACE, speed={}).facts())
    assert fingerprint(study).device


def test_with_other_arguments_a_compile_takes_another_time() -> None:
    changed = lesson(present(), fingerprint=replace(fingerprint(present()), args="another"))
    found = beliefs(reported(present(), changed))
    assert found.starts
    assert not found.compile_s


def test_a_winner_that_is_another_config_here_is_no_start_and_none_is_reported() -> None:
    """What is pinned here would be tried under the name and the figure of something else."""
    pinned = replace(present(), space=replace(SPACE, fixed={"precision": "bf16"}))
    found = beliefs(reported(pinned, lesson(present(), starts=(Read(config=FOUR, log=math.log(1.2)),))))
    assert not found.starts
    assert found.notes[0].endswith("whose winners cannot be tried here")


def test_what_a_neighbour_has_slowed_down_contradicts_nothing() -> None:
    slow = reported(present((BF16, 60.0)), lesson(present()))
    assert not beliefs(slow).first
    trial = slow.trials[-1]
    assert isinstance(trial.outcome, Measurement)
    marked = replace(trial.outcome, contamination=Contamination(flags=("cpu_contended",)))
    beside = replace(slow, trials=(*slow.trials[:-1], replace(trial, outcome=marked)))
    assert beliefs(beside).first

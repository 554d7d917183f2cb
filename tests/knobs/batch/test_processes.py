"""`processes`: the contract, the facts that refuse it, and how the effective batch is kept."""

from dataclasses import replace

import pytest
from knob_facts import ddp, fsdp

from autotune.knobs.batch.processes import Processes
from autotune.knobs.registry import builtin
from autotune.model.change import Launcher
from autotune.model.config import Config
from autotune.model.distributed_launch import DEEPSPEED, launcher_text, several
from autotune.model.effect import Effect
from autotune.model.facts import ModelFacts
from autotune.model.study import SpaceRequest
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import choose
from autotune.testing.knobs import CPU_HOST, GPU_HOST, LOADER, SPLIT_RUN, KnobContract, facts

KNOB = Processes()
OF_TWO = facts(run=SPLIT_RUN, launcher=several(2))


class TestProcesses(KnobContract):
    knob = KNOB


def split(**changed):
    return replace(SPLIT_RUN, **changed)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=SPLIT_RUN), "No launcher starts the processes"),
        (facts(run=None), "No launcher starts the processes"),
        (facts(run=SPLIT_RUN, launcher=several(2, 2)), "on several machines"),
        (facts(run=split(ranks=1), launcher=several(1, 1) or "torchrun"), "One process trains"),
        (facts(run=SPLIT_RUN, launcher=several(4)), "starts processes itself"),
        (facts(run=split(parallel=None), launcher=several(2)), "No DistributedDataParallel was seen"),
        (facts(run=fsdp(), launcher=several(2)), "No DistributedDataParallel was seen"),
        (facts(run=split(owners=("lightning",)), launcher=several(2)), "Lightning's Trainer"),
        (facts(run=split(owners=("deepspeed",)), launcher=launcher_text(DEEPSPEED, 2)), "DeepSpeed's batch"),
        (facts(run=split(loader=None, samples_source="none", values={}), launcher=several(2)), "own batch"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_processes_of_a_launcher_that_average_gradients_may_be_more_or_fewer() -> None:
    assert KNOB.refuse(OF_TWO) is None
    assert (KNOB.own(OF_TWO), KNOB.domain(OF_TWO)) == (2, (1, 2, 4, 8))


def test_on_devices_no_more_processes_are_tried_than_the_search_reserves_devices_for() -> None:
    on_cuda = split(ranks=4, model=ModelFacts(name="Net", device="cuda"))
    given = facts(host=GPU_HOST, run=on_cuda, launcher=several(4))
    assert KNOB.domain(given) == (1, 2, 4)
    assert KNOB.resolve(8, given) is None


def test_before_a_run_the_launcher_names_the_own_number() -> None:
    assert KNOB.own(facts(run=None, launcher=several(4))) == 4


@pytest.mark.parametrize(
    ("given", "effect", "words"),
    [
        (SPLIT_RUN, Effect.EXACT, ""),
        (split(model=ModelFacts(name="Net", dropout=True)), Effect.NUMERIC, "Random numbers"),
        (split(model=ModelFacts(name="Net", batch_norm=True)), Effect.TRAINING, "BatchNorm"),
        (split(reduction="sum"), Effect.TRAINING, "averaged over processes"),
        (ddp(), Effect.TRAINING, "No DistributedSampler"),
        (split(loader=replace(LOADER, is_split=True, dataset_length=32001)), Effect.TRAINING, "evenly"),
    ],
)
def test_facts_decide_how_far_it_reaches(given, effect, words) -> None:
    known = facts(run=given, launcher=several(2))
    assert KNOB.effect_for(known) is effect
    assert words in KNOB.raised(known)


BOTH = ("processes", "batch_size", "accumulation")


@pytest.mark.parametrize(
    ("wanted", "varied", "settled"),
    [
        # 64 samples per step, by two processes with 32 each.
        ({"processes": 4}, BOTH, {"processes": 4, "batch_size": 16}),
        ({"processes": 1}, ("processes", "batch_size"), {"processes": 1, "batch_size": 64}),
        ({"processes": 1}, ("processes", "accumulation"), {"processes": 1, "accumulation": 2}),
        ({"processes": 1, "batch_size": 16}, BOTH, {"processes": 1, "batch_size": 16, "accumulation": 4}),
        # A space does not distinguish the script's own micro-batch from none.
        ({"processes": 1, "batch_size": 32}, BOTH, {"processes": 1, "batch_size": 64}),
        ({"processes": 4, "batch_size": 8}, BOTH, {"processes": 4, "batch_size": 8, "accumulation": 2}),
        (
            {"processes": 4, "effective_batch": 128},
            (*BOTH, "effective_batch"),
            {"processes": 4, "effective_batch": 128},
        ),
    ],
)
def test_the_effective_batch_is_kept_by_the_micro_batch_or_by_accumulation(wanted, varied, settled) -> None:
    assert KNOB.settle(Config(wanted), OF_TWO, varied) == Config(settled)


@pytest.mark.parametrize(
    ("wanted", "varied", "words"),
    [
        ({"processes": 4}, ("processes", "accumulation"), "does not fit"),
        ({"processes": 3}, BOTH, "cannot be divided over 3 processes"),
        ({"processes": 4, "batch_size": 8}, ("processes", "batch_size"), "has to be named"),
    ],
)
def test_a_number_that_cannot_keep_the_batch_is_refused(wanted, varied, words) -> None:
    reason = KNOB.settle(Config(wanted), OF_TWO, varied)
    assert isinstance(reason, str)
    assert words in reason


def test_it_is_idle_where_nothing_keeps_the_batch() -> None:
    assert "change the effective batch" in (KNOB.idle(OF_TWO, ("processes",)) or "")


@pytest.mark.parametrize("rule", ["keep", "explore"])
def test_a_search_that_names_it_has_every_number_at_the_scripts_own_batch(rule) -> None:
    given = facts(run=SPLIT_RUN, launcher=several(2), rule=rule)
    space, _ = build_space(SpaceRequest(name="own", knobs={"processes": ()}), given, builtin())
    assert space.dimensions["processes"].values == (1, 2, 4, 8)
    assert space.dimensions["processes"].effect is Effect.EXACT
    assert [d.knob for d in space.free()] == ["processes"]
    for count in (1, 4, 8):
        config = space.complete({"processes": count})
        assert isinstance(config, Config)
        assert space.contains(config)
        assert config["batch_size"] * count == 64


def test_a_search_of_the_micro_batch_beside_it_accumulates() -> None:
    request = SpaceRequest(name="own", knobs={"processes": (), "batch_size": ()})
    space, _ = build_space(request, OF_TWO, builtin())
    config = space.complete({"processes": 4, "batch_size": 8})
    assert config == Config({"processes": 4, "batch_size": 8, "accumulation": 2})
    assert space.contains(config)


def test_with_one_process_the_settings_of_several_are_left_out() -> None:
    request = SpaceRequest(
        name="own",
        knobs={"processes": (), "ddp_gradient_as_bucket_view": (), "ddp_comm_hook": (), "cpu_affinity": ()},
    )
    host = replace(CPU_HOST, cpus=8)
    space, _ = build_space(request, facts(host=host, run=SPLIT_RUN, launcher=several(2)), builtin())
    rest = {"ddp_gradient_as_bucket_view": True, "ddp_comm_hook": "fp16", "cpu_affinity": "block"}
    assert space.complete({"processes": 1, **rest}) == Config({"processes": 1, "batch_size": 64})
    four = space.complete({"processes": 4, **rest})
    assert four == Config({"processes": 4, "batch_size": 16, **rest})


def test_the_launcher_delivers_it() -> None:
    (change,), refusals = choose(Config({"processes": 4}), OF_TWO, {KNOB.name: KNOB})
    assert (change.spelling, change.value, refusals) == (Launcher(), 4, ())

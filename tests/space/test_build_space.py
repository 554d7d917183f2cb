"""The space of one script: the request, narrowed by facts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config_files.presets import find_spaces, load_space
from autotune.errors import InvalidSpace, UnknownKnob
from autotune.knobs.registry import builtin
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import ModelFacts
from autotune.model.study import SpaceRequest
from autotune.space.build_space import build_space, not_here
from autotune.testing.knobs import CPU_RUN, GPU_HOST, GPU_RUN, LOADER, example_facts, facts

KNOBS = builtin()
ALL = dict.fromkeys(KNOBS, ())
ALONE = replace(CPU_RUN, zero_grad_seen=False)
"""A script that cannot be made to accumulate."""


def space_of(knobs, given_=None, **rest):
    return build_space(SpaceRequest(name="t", knobs=knobs, **rest), given_ or facts(), KNOBS)


def test_every_knob_is_a_dimension_or_has_a_reason() -> None:
    for each in example_facts():
        space, refusals = space_of(ALL, each)
        assert set(space.dimensions) | set(refusals) == set(KNOBS)
        assert not set(space.dimensions) & set(refusals)


def test_every_dimension_holds_the_scripts_own_value() -> None:
    for each in example_facts():
        for dimension in space_of(ALL, each)[0].dimensions.values():
            assert dimension.own is None or dimension.own in dimension.values


def test_wanted_values_are_resolved_and_joined_with_the_scripts_own() -> None:
    space, _ = space_of({"threads": ("half", "physical", 3)})
    assert space.dimensions["threads"].values == (2, 3, 4)


def test_values_that_mean_nothing_here_leave_a_reason() -> None:
    _, refusals = space_of({"compile_mode": ("reduce-overhead",), "threads": ()})
    assert (
        refusals["compile_mode"]
        == "None of reduce-overhead means anything here; only the script's own value off is left."
    )


def test_a_kept_effective_batch_is_made_up_for_by_accumulation() -> None:
    space, _ = space_of({"batch_size": ()}, facts(rule="keep"))
    assert space.complete({"batch_size": 8}) == Config({"batch_size": 8, "accumulation": 4})
    assert space.dimensions["batch_size"].values == (4, 8, 16, 32)
    assert space.dimensions["accumulation"].derived


def test_a_micro_batch_that_does_not_divide_is_refused_in_words() -> None:
    answer = space_of({"batch_size": ()})[0].complete({"batch_size": 12})
    assert answer == "A micro-batch of 12 does not divide the effective batch of 32."


def test_without_accumulation_the_effective_batch_moves_the_micro_batch() -> None:
    space, refusals = space_of({"batch_size": (), "effective_batch": ()}, facts(run=ALONE))
    assert "zero_grad" in refusals["accumulation"]
    assert space.complete({"effective_batch": 64}) == Config({"batch_size": 64, "effective_batch": 64})
    assert space.dimensions["batch_size"].derived
    assert not space.dimensions["effective_batch"].derived
    assert space.effect(Config({"batch_size": 64, "effective_batch": 64})) is Effect.TRAINING


def test_without_accumulation_a_micro_batch_alone_is_refused() -> None:
    space, _ = space_of({"batch_size": (), "effective_batch": ()}, facts(run=ALONE))
    assert "effective_batch=64 has to be named" in str(space.complete({"batch_size": 64}))


def test_without_accumulation_and_with_a_kept_effective_batch_the_batch_is_refused() -> None:
    space, refusals = space_of({"batch_size": (), "effective_batch": ()}, facts(run=ALONE, rule="keep"))
    assert not space.dimensions
    assert "would change the effective batch" in refusals["batch_size"]


def test_wanted_micro_batches_bind_the_effective_batch_that_follows() -> None:
    space, _ = space_of({"batch_size": (64,), "effective_batch": ()}, facts(run=ALONE))
    assert space.dimensions["effective_batch"].values == (32, 64)


def test_a_micro_batch_no_effective_batch_can_hold_is_dropped() -> None:
    space, refusals = space_of({"batch_size": ("x2",)}, facts(rule="keep"))
    assert not space.dimensions
    assert "does not fit" in refusals["batch_size"]


def test_bounds_of_the_users_are_kept() -> None:
    space, _ = space_of({"effective_batch": ()}, facts(rule="64..256"))
    assert space.dimensions["effective_batch"].values == (32, 64, 128, 256)


def test_explore_is_half_to_eight_times_the_baselines() -> None:
    assert space_of({"effective_batch": ()})[0].dimensions["effective_batch"].values == (16, 32, 64, 128, 256)


def test_loader_settings_need_workers() -> None:
    space, _ = space_of({"num_workers": (), "prefetch_factor": (), "persistent_workers": ()})
    assert space.complete({"prefetch_factor": 4, "persistent_workers": True}) == Config()
    assert space.complete({"num_workers": 2, "prefetch_factor": 4}) == Config(
        {"num_workers": 2, "prefetch_factor": 4}
    )
    assert space.complete({"num_workers": 2, "prefetch_factor": 2}) == Config({"num_workers": 2})


def test_loader_settings_are_refused_where_there_can_be_no_workers() -> None:
    _, refusals = space_of({"prefetch_factor": (), "threads": ()})
    assert refusals["prefetch_factor"] == "The loader has no workers, and num_workers is not varied."


def test_the_scripts_own_workers_count() -> None:
    own = replace(CPU_RUN, loader=replace(LOADER, num_workers=4), values={**CPU_RUN.values, "num_workers": 4})
    space, _ = space_of({"num_workers": (), "prefetch_factor": ()}, facts(run=own))
    assert space.complete({"prefetch_factor": 4}) == Config({"prefetch_factor": 4})
    assert space.complete({"prefetch_factor": 4, "num_workers": 0}) == Config({"num_workers": 0})


def test_tf32_is_dropped_under_half_precision() -> None:
    space, _ = space_of({"tf32": (), "precision": ()}, facts(host=GPU_HOST, run=GPU_RUN))
    assert space.complete({"tf32": "high", "precision": "bf16"}) == Config({"precision": "bf16"})


def test_refused_knobs_drop_out_of_starts_and_equal_starts_count_once() -> None:
    starts = (
        {"precision": "bf16"},
        {"precision": "bf16", "pin_memory": True},
        {"pin_memory": True},
        {"batch_size": "x2"},
    )
    space, _ = space_of(ALL, starts=starts)
    assert space.starts == (Config({"precision": "bf16"}), Config({"batch_size": 64, "effective_batch": 64}))


def test_a_start_that_the_rule_forbids_is_left_out() -> None:
    space, _ = space_of({"batch_size": ()}, facts(rule="keep"), starts=({"batch_size": "x2"},))
    assert not space.starts


def test_a_pin_is_in_every_config() -> None:
    space, _ = space_of({"num_workers": (0, 2)}, fixed={"precision": "bf16"})
    assert space.complete({"num_workers": 2}) == Config({"num_workers": 2, "precision": "bf16"})
    assert list(space.enumerate()) == [
        Config({"precision": "bf16"}),
        Config({"num_workers": 2, "precision": "bf16"}),
    ]


def test_a_pinned_micro_batch_takes_its_effective_batch_along() -> None:
    space, _ = space_of({"effective_batch": ()}, facts(run=ALONE), fixed={"batch_size": 64})
    assert space.complete({}) == Config({"batch_size": 64, "effective_batch": 64})


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"pin_memory": True}, "training runs on the CPU"),
        ({"accumulation": 2}, "follows from other knobs"),
        ({"compile_mode": "reduce-overhead"}, "means anything"),
        ({"batch_size": 12}, "does not divide"),
    ],
)
def test_an_impossible_pin_is_an_error_with_the_reason(fixed, words) -> None:
    with pytest.raises(InvalidSpace, match=words):
        space_of({"threads": ()}, fixed=fixed)


def test_values_for_a_derived_knob_are_an_error() -> None:
    with pytest.raises(InvalidSpace, match="takes no values"):
        space_of({"accumulation": (2,)})


def test_an_unknown_knob_is_an_error_with_a_guess() -> None:
    with pytest.raises(UnknownKnob) as caught:
        space_of({"num_worker": ()})
    assert "num_workers" in caught.value.hint


def test_nothing_to_vary_is_an_error_before_a_run_and_an_answer_after_it() -> None:
    with pytest.raises(InvalidSpace, match="nothing is left to vary"):
        space_of({"pin_memory": ()}, facts(run=None))
    space, refusals = space_of({"pin_memory": ()})
    assert not space.dimensions
    assert set(refusals) == {"pin_memory"}


def test_ways_that_do_not_act_are_taken_out() -> None:
    dead = frozenset({("num_workers", "keyword"), ("accumulation", "patch")})
    space, refusals = build_space(SpaceRequest(name="t", knobs=ALL), facts(), KNOBS, dead=dead)
    assert "num_workers" in refusals
    assert "accumulation" in refusals
    assert "prefetch_factor" in refusals
    assert space.dimensions["batch_size"].derived


def test_batch_norm_makes_the_micro_batch_a_change_of_training() -> None:
    run = replace(CPU_RUN, model=ModelFacts(name="Net", batch_norm=True))
    assert space_of({"batch_size": ()}, facts(run=run))[0].dimensions["batch_size"].effect is Effect.TRAINING


@pytest.mark.parametrize("name", [found.name for found in find_spaces(cwd="/")])
def test_every_preset_gives_a_space_for_every_script(name) -> None:
    request = load_space(name, cwd="/")
    for each in example_facts():
        space, _ = build_space(request, each, KNOBS)
        if each.run is not None:
            assert all(space.contains(start) for start in space.starts)
    assert len(build_space(request, facts(host=GPU_HOST, run=GPU_RUN), KNOBS)[0].starts) >= 3


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_completing_twice_changes_nothing_more(data) -> None:
    each = data.draw(st.sampled_from(range(len(example_facts()))))
    space, _ = space_of(ALL, example_facts()[each])
    free = {d.knob: d for d in space.free()}
    if not free:
        return
    names = data.draw(st.lists(st.sampled_from(sorted(free)), unique=True))
    wanted = {n: data.draw(st.sampled_from(free[n].values)) for n in names}
    config = space.complete(wanted)
    if isinstance(config, Config):
        assert space.complete(config) == config
        assert space.contains(config), (wanted, config)
        assert space.complete(space.resolved_free(config)) == config
    else:
        assert config.endswith(".")


def test_cuda_graphs_stay_in_a_space_only_where_zeroed_gradients_can_go() -> None:
    """No rule of `requires` ties the two: what any other knob makes possible is possible."""
    zeroes = facts(host=GPU_HOST, run=replace(GPU_RUN, zeroes_gradients=True))
    both, _ = space_of({"compile_mode": (), "set_to_none": ()}, zeroes)
    assert {"reduce-overhead", "max-autotune"} <= set(both.dimensions["compile_mode"].values)
    assert "set_to_none=True" in str(both.complete({"compile_mode": "reduce-overhead"}))
    wanted = Config({"compile_mode": "reduce-overhead", "set_to_none": True})
    assert both.complete(wanted) == wanted
    alone, _ = space_of({"compile_mode": ()}, zeroes)
    assert "default" in alone.dimensions["compile_mode"].values
    assert not {"reduce-overhead", "max-autotune"} & set(alone.dimensions["compile_mode"].values)
    _, refusals = space_of({"compile_mode": ("reduce-overhead",)}, zeroes)
    assert "set_to_none=True" in refusals["compile_mode"]


def test_values_that_cannot_be_had_here_are_named() -> None:
    requested = {
        "precision": ("asis", "bf16", "fp16"),
        "compile_mode": ("off", "default", "reduce-overhead"),
        "pin_memory": (True,),
        "threads": (),
    }
    request = SpaceRequest(name="t", knobs=requested)
    space, refusals = build_space(request, facts(), builtin())
    assert "pin_memory" in refusals
    lost = not_here(request, facts(), builtin(), space)
    assert lost == ("precision=fp16", "compile_mode=reduce-overhead")


def test_a_share_is_not_judged_before_the_scripts_own_value_is_known() -> None:
    request = SpaceRequest(name="t", knobs={"num_workers": ("x2", 2, 4), "precision": ("bf16", "fp16")})
    static = facts(run=None)
    space, _ = build_space(request, static, builtin())
    assert not_here(request, static, builtin(), space) == ("precision=fp16",)

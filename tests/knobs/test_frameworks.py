"""Frameworks as owners: their arguments come first, and nothing else may reach past them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from knob_facts import gpu, run

from autotune.knobs import frameworks
from autotune.knobs.frameworks import ACCELERATOR, ARGUMENTS, DEEPSPEED, LIGHTNING, TRAINER
from autotune.knobs.registry import builtin
from autotune.model.change import Change, Keyword, Patch
from autotune.model.config import Config
from autotune.model.facts import Facts, OptimizerFacts, ScriptFlag
from autotune.model.study import SpaceRequest
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import choose, way
from autotune.testing.knobs import CPU_RUN, GPU_RUN, LOADER, SCRIPT, facts

if TYPE_CHECKING:
    from autotune.model.config import Value

KNOBS = builtin()
HF: dict[str, Value] = {
    "transformers.per_device_train_batch_size": 32,
    "transformers.optim": "adamw_torch",
    "transformers.divides": False,
}
ENGINE: dict[str, Value] = {
    "deepspeed.divides": True,
    "deepspeed.managed": True,
    "deepspeed.pipeline": False,
    "deepspeed.torch_autocast": False,
}
ACCUMULATION_OPTION = ScriptFlag(names=("--accum-steps",), dest="accum_steps", kind="int", default=1)


def trained_by(*owners: str, settings: dict[str, Value] | None = None, **changed: Any) -> Facts:
    """The example loop under these frameworks, outermost first."""
    given = dict(HF) if "transformers" in owners else {}
    if "accelerate" in owners:
        given["accelerate.accumulates"] = True
    if "deepspeed" in owners:
        given.update(ENGINE)
    given.update(settings or {})
    return facts(run=run(owners=owners, owner_settings=given, **changed))


def way_of(name: str, value: Value, given: Facts) -> str:
    """``transformers.TrainingArguments:bf16``, or the refusal."""
    found = way(KNOBS[name], value, given)
    return found.spelling.text if isinstance(found, Change) else found


@pytest.mark.parametrize(
    ("owners", "name", "value", "text"),
    [
        (("transformers", "accelerate"), "precision", "bf16", f"{ARGUMENTS}:bf16"),
        (("transformers", "accelerate"), "num_workers", 2, f"{ARGUMENTS}:dataloader_num_workers"),
        (("transformers", "accelerate"), "prefetch_factor", 4, f"{ARGUMENTS}:dataloader_prefetch_factor"),
        (("transformers",), "persistent_workers", True, f"{ARGUMENTS}:dataloader_persistent_workers"),
        (("transformers",), "batch_size", 16, f"{ARGUMENTS}:per_device_train_batch_size"),
        (("transformers",), "accumulation", 2, f"{TRAINER}:gradient_accumulation_steps"),
        (("transformers",), "compile_mode", "default", f"{ARGUMENTS}:torch_compile"),
        (("transformers",), "fused_optimizer", True, f"{ARGUMENTS}:optim"),
        (("transformers",), "channels_last", True, "in-process patch"),
        (("lightning",), "precision", "bf16", f"{LIGHTNING}:precision"),
        (("lightning",), "accumulation", 2, f"{LIGHTNING}:accumulate_grad_batches"),
        (("lightning",), "num_workers", 2, "torch.utils.data.DataLoader:num_workers"),
        (("lightning",), "batch_size", 16, "torch.utils.data.DataLoader:batch_size"),
        (("lightning",), "compile_mode", "default", "in-process patch"),
        (("lightning",), "fused_optimizer", True, "in-process patch"),
        (("accelerate",), "precision", "bf16", f"{ACCELERATOR}:mixed_precision"),
        (("accelerate",), "accumulation", 2, f"{ACCELERATOR}:gradient_accumulation_steps"),
        (("deepspeed",), "precision", "bf16", f"{DEEPSPEED}:torch_autocast"),
        (("deepspeed",), "accumulation", 2, f"{DEEPSPEED}:gradient_accumulation_steps"),
        (("deepspeed",), "batch_size", 16, "torch.utils.data.DataLoader:batch_size"),
        (("deepspeed",), "compile_mode", "default", "in-process patch"),
        ((), "precision", "bf16", "in-process patch"),
        ((), "num_workers", 2, "torch.utils.data.DataLoader:num_workers"),
    ],
)
def test_the_outermost_framework_that_has_the_setting_owns_it(owners, name, value, text) -> None:
    assert way_of(name, value, trained_by(*owners)) == text


def test_the_order_in_which_frameworks_were_built_does_not_matter() -> None:
    assert way_of("precision", "bf16", trained_by("accelerate", "transformers")).startswith(ARGUMENTS)


def test_every_other_way_past_an_owner_is_refused() -> None:
    given = trained_by("transformers", "accelerate")
    for name in ("precision", "num_workers", "batch_size", "accumulation", "compile_mode", "fused_optimizer"):
        for spelling in KNOBS[name].spellings:
            ours = (
                isinstance(spelling, Keyword) and frameworks.OWNER_OF.get(spelling.target) == "transformers"
            )
            if isinstance(spelling, (Keyword, Patch)) and not ours:
                reason = KNOBS[name].refuse_spelling(spelling, given)
                assert reason == f"{name} belongs to transformers, which this script uses."


def test_the_refusal_of_a_plain_script_speaks_of_no_framework() -> None:
    found = way(KNOBS["accumulation"], 2, facts(run=run(zero_grad_seen=False)))
    assert isinstance(found, str)
    assert "transformers" not in found
    assert "lightning" not in found


def test_before_a_run_no_framework_is_taken_for_the_owner() -> None:
    assert way_of("precision", "bf16", facts(run=None)) == "in-process patch"


def test_where_the_loop_is_the_scripts_own_its_option_is_better_than_the_frameworks_argument() -> None:
    script = replace(SCRIPT, flags=(ACCUMULATION_OPTION,))
    assert way_of("accumulation", 2, replace(trained_by("accelerate"), script=script)) == "--accum-steps"
    assert way_of("accumulation", 2, replace(trained_by("lightning"), script=script)).startswith(LIGHTNING)


@pytest.mark.parametrize(
    ("name", "value", "target", "wanted"),
    [
        ("precision", "bf16", ARGUMENTS, {"bf16": True, "fp16": False}),
        ("precision", "fp32", ARGUMENTS, {"bf16": False, "fp16": False}),
        ("precision", "bf16", LIGHTNING, {"precision": "bf16-mixed"}),
        ("precision", "fp32", LIGHTNING, {"precision": "32-true"}),
        ("precision", "bf16", ACCELERATOR, {"mixed_precision": "bf16"}),
        ("precision", "fp32", ACCELERATOR, {"mixed_precision": "no"}),
        ("num_workers", 4, ARGUMENTS, {"dataloader_num_workers": 4}),
        (
            "num_workers",
            0,
            ARGUMENTS,
            {
                "dataloader_num_workers": 0,
                "dataloader_prefetch_factor": None,
                "dataloader_persistent_workers": False,
            },
        ),
        ("compile_mode", "default", ARGUMENTS, {"torch_compile": True, "torch_compile_mode": "default"}),
        (
            "compile_mode",
            "off",
            ARGUMENTS,
            {"torch_compile": False, "torch_compile_mode": None, "torch_compile_backend": None},
        ),
        ("fused_optimizer", True, ARGUMENTS, {"optim": "adamw_torch_fused"}),
        ("accumulation", 4, LIGHTNING, {"accumulate_grad_batches": 4}),
    ],
)
def test_a_value_is_reported_in_the_words_of_the_framework(name, value, target, wanted) -> None:
    row = next(s for s in KNOBS[name].spellings if isinstance(s, Keyword) and s.target == target)
    assert KNOBS[name].arguments(value, row) == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (trained_by("lightning", reduction="unknown"), "correct for a mean only"),
        (trained_by("lightning", reduction="sum"), "correct for a mean only"),
        (trained_by("lightning", settings={"lightning.automatic_optimization": False}), "manual optim"),
        (trained_by("lightning", settings={"lightning.counts_batches": True}), "limit_train_batches"),
        (trained_by("lightning", optimizer=OptimizerFacts(name="LBFGS", closure=True)), "closure"),
        (trained_by("lightning", scheduler_per_step=True), "per step"),
        (trained_by("lightning", averages_apart=True), "would change its rate"),
        (trained_by("lightning", loader=None), "micro-batch"),
        (trained_by("accelerate", settings={"accelerate.accumulates": False}), "Accelerator.accumulate"),
        (trained_by("accelerate", settings={"accelerate.plugin": True}), "A plugin"),
        (trained_by("accelerate", loop_hazards=("step_counted_loop",)), "counts steps"),
        (trained_by("accelerate", loop_hazards=("own_clipping",)), "sync_gradients"),
        (trained_by("accelerate", settings={"accelerate.zeroes_first": True}), "discards"),
        (trained_by("accelerate", settings={"accelerate.zeroes_module": True}), "by the module"),
        (trained_by("lightning", settings={"lightning.after_backward": True}), "on_after_backward"),
        (
            trained_by(
                "transformers",
                settings={"transformers.loss_per_item": True, "transformers.own_loss": True},
            ),
            "adds to the model's loss",
        ),
        (
            trained_by(
                "transformers",
                settings={"transformers.loss_per_item": True, "transformers.router_loss": True},
            ),
            "router",
        ),
        (trained_by("transformers", reduction="unknown"), "correct for a mean only"),
        (trained_by("transformers", settings={"transformers.deepspeed": True}), "DeepSpeed"),
        (trained_by("transformers", settings={"transformers.own_loss": True}), "computes the loss itself"),
        (
            trained_by(
                "transformers", scheduler_per_step=True, settings={"transformers.own_scheduler": True}
            ),
            "learning-rate schedule to the Trainer",
        ),
    ],
)
def test_accumulation_that_would_not_be_that_of_the_full_batch_is_refused(given, words) -> None:
    reason = KNOBS["accumulation"].refuse(given)
    assert reason is not None
    assert words in reason


def test_the_schedule_of_the_trainer_itself_does_not_refuse_accumulation() -> None:
    assert KNOBS["accumulation"].refuse(trained_by("transformers", scheduler_per_step=True)) is None


@pytest.mark.parametrize(
    ("settings", "reduction", "target"),
    [
        ({"transformers.divides": True}, "mean", ARGUMENTS),
        ({"transformers.divides": False}, "mean", TRAINER),
        ({"transformers.loss_per_item": True}, "unknown", ARGUMENTS),
        ({"transformers.takes_items": True, "transformers.divides": False}, "sum", ARGUMENTS),
    ],
)
def test_the_trainer_is_set_to_divide_the_loss_where_the_model_does_not(settings, reduction, target) -> None:
    given = trained_by("transformers", settings=settings, reduction=reduction)
    assert way_of("accumulation", 2, given) == f"{target}:gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("owner", "length", "possible"),
    [
        ("lightning", 32000, True),
        ("lightning", 32010, False),
        ("lightning", None, False),
        ("transformers", 32010, False),
        ("accelerate", 32010, False),
    ],
)
def test_a_rest_of_samples_is_not_accumulated_by_frameworks(owner, length, possible) -> None:
    loader = replace(LOADER, dataset_length=length)
    settled = KNOBS["accumulation"].settle(Config({"batch_size": 16}), trained_by(owner, loader=loader))
    if possible:
        assert settled == Config({"batch_size": 16, "accumulation": 2})
    else:
        assert isinstance(settled, str)
        assert owner in settled


@pytest.mark.parametrize("batches", [None, 9, 999, 1001])
def test_a_pass_over_some_of_the_samples_is_not_accumulated_by_frameworks(batches) -> None:
    loader = replace(LOADER, length=batches)
    settled = KNOBS["accumulation"].settle(Config({"batch_size": 16}), trained_by("lightning", loader=loader))
    assert "not over all of the 32000 samples" in settled


def test_clipping_in_the_loop_is_deferred_with_the_step_and_hinders_none_of_ours() -> None:
    assert KNOBS["accumulation"].refuse(facts(run=run(loop_hazards=("own_clipping",)))) is None


def test_a_model_that_divides_by_the_items_of_the_step_may_have_a_rest() -> None:
    given = trained_by(
        "transformers",
        loader=replace(LOADER, dataset_length=32010),
        settings={"transformers.loss_per_item": True},
        reduction="unknown",
    )
    settled = KNOBS["accumulation"].settle(Config({"batch_size": 16}), given)
    assert settled == Config({"batch_size": 16, "accumulation": 2})


def test_a_space_under_a_framework_keeps_the_effective_batch_by_its_accumulation() -> None:
    request = SpaceRequest(name="test", knobs={"batch_size": (), "accumulation": ()})
    space, refusals = build_space(
        request, replace(trained_by("lightning"), effective_batch_rule="keep"), KNOBS
    )
    assert not refusals
    config = space.complete({"batch_size": 8})
    assert config == Config({"batch_size": 8, "accumulation": 4})
    changes, refused = choose(config, trained_by("lightning"), KNOBS)
    assert not refused
    assert sorted(c.spelling.text for c in changes) == [
        f"{LIGHTNING}:accumulate_grad_batches",
        "torch.utils.data.DataLoader:batch_size",
    ]


def test_a_batch_that_several_devices_share_is_not_set_by_the_trainers_argument() -> None:
    given = trained_by("transformers", settings={"transformers.per_device_train_batch_size": 16})
    assert "not of the 16 samples" in way_of("batch_size", 64, given)


def test_plugins_of_lightning_may_set_the_number_format() -> None:
    reason = KNOBS["precision"].refuse(trained_by("lightning", settings={"lightning.plugins": True}))
    assert reason is not None
    assert "plugins" in reason


def test_the_hazards_of_half_precision_hold_under_a_framework() -> None:
    assert "BCELoss" in str(KNOBS["precision"].refuse(trained_by("accelerate", bce_outside=True)))
    assert "enters autocast" in str(KNOBS["precision"].refuse(trained_by("lightning", own_autocast=True)))


def test_cuda_graphs_through_a_framework_are_not_offered() -> None:
    modes = KNOBS["compile_mode"].domain(facts(host=gpu(9, 0), run=GPU_RUN))
    owned = KNOBS["compile_mode"].domain(
        facts(host=gpu(9, 0), run=replace(GPU_RUN, owners=("transformers",)))
    )
    assert "reduce-overhead" in modes
    assert owned == ("off", "default", "max-autotune-no-cudagraphs")


def test_fp16_through_a_framework_is_not_offered() -> None:
    turing = facts(host=gpu(7, 5), run=replace(GPU_RUN, owners=("lightning",)))
    assert "fp16" not in KNOBS["precision"].domain(turing)
    assert KNOBS["precision"].resolve("fp16", turing) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"transformers.optim": "adafactor"}, "adafactor"),
        ({"transformers.own_optimizer": True}, "in-process patch"),
        ({"transformers.optim": "adamw_torch"}, f"{ARGUMENTS}:optim"),
    ],
)
def test_the_trainers_optimizer_stays_the_one_it_is(settings, text) -> None:
    assert text in way_of("fused_optimizer", True, trained_by("transformers", settings=settings))


def test_a_fused_kernel_of_the_trainer_is_there_already() -> None:
    fused = trained_by("transformers", optimizer=replace(CPU_RUN.optimizer, fused=True, kernel_given=True))
    assert "already" in str(KNOBS["fused_optimizer"].refuse(fused))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("batch_size", 16, "Keras counts the batches"),
        ("precision", "bf16", "by a dtype policy"),
    ],
)
def test_what_keras_decides_itself_is_refused_with_its_reason(name: str, value: Value, words: str) -> None:
    given = trained_by("keras")
    reason = KNOBS[name].refuse(given) or way_of(name, value, given)
    assert words in reason
    assert words not in str(KNOBS[name].refuse(facts()) or way_of(name, value, facts()))


def test_the_script_may_have_an_option_for_the_batch_size_that_it_gives_to_keras() -> None:
    option = ScriptFlag(names=("--batch-size",), dest="batch_size", kind="int", default=32)
    given = replace(trained_by("keras"), script=replace(SCRIPT, flags=(option,)))
    assert way_of("batch_size", 16, given) == "--batch-size"


@pytest.mark.parametrize(("shuffles", "changes_rng_streams"), [(True, True), (False, False)])
def test_workers_under_keras_deal_a_drawn_order_otherwise(shuffles: bool, changes_rng_streams: bool) -> None:
    given = trained_by("keras", loader=replace(LOADER, shuffles=shuffles))
    assert KNOBS["num_workers"].changes_rng_streams(given) is changes_rng_streams
    plain = trained_by(loader=replace(LOADER, shuffles=shuffles))
    assert not KNOBS["num_workers"].changes_rng_streams(plain)


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({"deepspeed.torch_autocast": None}, "precision", "has no torch_autocast"),
        ({"deepspeed.pipeline": True}, "accumulation", "pipeline"),
        ({"deepspeed.managed": False}, "accumulation", "loop decides when"),
        ({"deepspeed.divides": False}, "accumulation", "backward"),
        ({"deepspeed.zero": 2}, "channels_last", "ZeRO"),
    ],
)
def test_what_deepspeed_would_not_do_is_refused(
    settings: dict[str, Value | None], name: str, reason: str
) -> None:
    reported = {key: value for key, value in settings.items() if value is not None}
    given = trained_by("deepspeed", settings=reported)
    if None in settings.values():
        assert given.run is not None
        kept = {k: v for k, v in given.run.owner_settings.items() if k not in settings}
        given = replace(given, run=replace(given.run, owner_settings=kept))
    refused = KNOBS[name].refuse(given)
    assert refused is not None
    assert reason in refused


def test_a_loop_that_counts_by_deepspeeds_loader_keeps_the_batches_of_its_configuration() -> None:
    given, way = (
        trained_by("deepspeed", settings={"deepspeed.counts_batches": True}),
        Keyword("torch.utils.data.DataLoader", "batch_size"),
    )
    assert "depends on its configuration" in str(KNOBS["batch_size"].refuse_spelling(way, given))
    assert KNOBS["batch_size"].refuse_spelling(way, trained_by("deepspeed")) is None


def test_the_loop_of_the_script_may_not_count_the_parts_that_deepspeed_makes_of_a_step() -> None:
    given = trained_by("deepspeed", scheduler_per_step=True)
    assert "scheduled per step" in str(KNOBS["accumulation"].refuse(given))
    owned = trained_by("deepspeed", scheduler_per_step=True, settings={"deepspeed.own_schedule": True})
    assert KNOBS["accumulation"].refuse(owned) is None
    assert "for one process only" in str(KNOBS["accumulation"].refuse(trained_by("deepspeed", ranks=2)))


@pytest.mark.parametrize("owner", ["accelerate", "lightning"])
def test_frameworks_that_hand_over_to_deepspeed_are_not_the_last_word(owner: str) -> None:
    given = trained_by(owner, "deepspeed")
    for name in ("precision", "accumulation"):
        assert f"{owner} delegates the training to DeepSpeed" in str(KNOBS[name].refuse(given))

"""Each fact that makes a knob harmful or void, and the sentence it leads to."""

from dataclasses import replace

import pytest

from autotune.core.change import Keyword, Patch
from autotune.core.effect import Effect
from autotune.core.facts import DeviceFacts, ModelFacts, OptimizerFacts, RunFacts, ScriptFlag
from autotune.knobs.common import LOADER as DATALOADER
from autotune.knobs.registry import builtin
from autotune.testing.knobs import CPU_HOST, CPU_RUN, GPU_HOST, GPU_RUN, LOADER, SCRIPT, facts

KNOBS = builtin()


def run(**changed: object) -> RunFacts:
    return replace(CPU_RUN, **changed)


def loader(**changed: object) -> RunFacts:
    return replace(CPU_RUN, loader=replace(LOADER, **changed))


def model(**changed: object) -> RunFacts:
    return replace(CPU_RUN, model=replace(ModelFacts(name="Net", has_4d=True), **changed))


def optimizer(**changed: object) -> RunFacts:
    return replace(CPU_RUN, optimizer=replace(OptimizerFacts(name="AdamW", can_fuse=True), **changed))


def gpu(*capability: int):
    return replace(
        CPU_HOST, devices=(DeviceFacts(name="x", uuid="u", memory_bytes=1, capability=capability),)
    )


TABLE = [
    ("precision", facts(run=run(own_autocast=True)), "enters autocast itself"),
    ("precision", facts(run=model(dtypes=("float32", "float64"))), "not all float32 but float32 and float64"),
    ("precision", facts(run=run(bce_outside=True)), "BCELoss"),
    ("precision", facts(run=None, script=replace(SCRIPT, hazards=("bce_on_sigmoid",))), "BCELoss"),
    ("precision", facts(run=run(owners=("accelerate",))), "belongs to accelerate"),
    ("precision", facts(run=run(model=None)), "No trained module"),
    ("precision", facts(host=replace(CPU_HOST, cpu_flags=("avx2",))), "no bf16 in hardware"),
    ("precision", facts(host=gpu(6, 1), run=GPU_RUN), "no bf16 in hardware"),
    ("tf32", facts(), "NVIDIA devices only"),
    ("tf32", facts(host=gpu(7, 5), run=GPU_RUN), "no TF32"),
    ("num_workers", facts(run=run(loader=None)), "No training DataLoader"),
    ("num_workers", facts(run=loader(kind="iterable")), "repeat all of it"),
    ("num_workers", facts(run=loader(cuda_tensors=True)), "workers cannot share"),
    ("prefetch_factor", facts(run=run(loader=None)), "No training DataLoader"),
    ("persistent_workers", facts(run=run(loader=None)), "No training DataLoader"),
    ("pin_memory", facts(), "training runs on the CPU"),
    (
        "pin_memory",
        facts(host=GPU_HOST, run=replace(GPU_RUN, loader=replace(LOADER, cuda_tensors=True))),
        "pinned",
    ),
    ("batch_size", facts(run=replace(loader(batch_size=None), values={})), "no batch size of its own"),
    ("batch_size", facts(run=run(loader=None)), "No training DataLoader"),
    ("effective_batch", facts(rule="keep"), "kept, as asked"),
    ("effective_batch", facts(run=run(samples_source="input")), "not confirmed"),
    ("compile_mode", facts(host=replace(CPU_HOST, cxx="")), "needs a C++ compiler"),
    ("compile_mode", facts(run=model(roots=5)), "5 separate modules"),
    ("compile_mode", facts(run=model(forward_direct=True)), ".forward()"),
    ("compile_mode", facts(run=run(model=None)), "No trained module"),
    ("channels_last", facts(run=model(has_4d=False)), "no 4-D parameters"),
    ("channels_last", facts(run=run(model=None)), "No trained module"),
    ("fused_optimizer", facts(run=optimizer(can_fuse=False)), "no fused kernel"),
    ("fused_optimizer", facts(run=optimizer(kernel_given=True)), "chooses the kernel"),
    ("fused_optimizer", facts(run=optimizer(fused=True)), "already uses"),
    ("fused_optimizer", facts(run=run(optimizer=None)), "No optimizer was seen"),
    ("threads", facts(host=GPU_HOST, run=GPU_RUN), "NVIDIA device"),
    ("cudnn_benchmark", facts(), "NVIDIA devices only"),
    ("cudnn_benchmark", facts(host=GPU_HOST, run=replace(GPU_RUN, input_shapes_vary=True)), "shapes vary"),
    ("accumulation", facts(run=optimizer(count=2)), "2 optimizers step"),
    ("accumulation", facts(run=optimizer(closure=True)), "closure"),
    ("accumulation", facts(run=run(optimizer=None)), "No optimizer was seen"),
    ("accumulation", facts(run=run(explicit_backward_gradient=True)), "its own gradient"),
    ("accumulation", facts(run=run(backward_per_step=3.0)), "3 backward passes per step"),
    ("accumulation", facts(run=run(backward_per_step=0.0)), "No backward pass"),
    ("accumulation", facts(run=run(own_accumulation=True)), "accumulates by itself"),
    ("accumulation", facts(run=loader(custom_batch_sampler=True)), "not under our control"),
    ("accumulation", facts(run=run(loader=None)), "not under our control"),
    ("accumulation", facts(run=run(zero_grad_seen=False)), "No zero_grad"),
    ("accumulation", facts(run=run(reduction="unknown")), "reduced over the batch"),
    ("accumulation", facts(run=run(owners=("lightning",))), "belongs to lightning"),
    ("accumulation", facts(run=run(own_scaler=True)), "gradient scaler"),
    ("accumulation", facts(script=replace(SCRIPT, hazards=("step_counted_loop",))), "counts steps"),
]


@pytest.mark.parametrize(("name", "given", "words"), TABLE)
def test_the_fact_refuses_the_knob_in_words(name, given, words) -> None:
    reason = KNOBS[name].refuse(given)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize("name", sorted({row[0] for row in TABLE}))
def test_without_the_fact_the_knob_is_not_refused(name) -> None:
    on_gpu = name in ("tf32", "pin_memory", "cudnn_benchmark")
    assert KNOBS[name].refuse(facts(host=GPU_HOST, run=GPU_RUN) if on_gpu else facts()) is None


def test_a_custom_batch_sampler_leaves_only_the_scripts_option() -> None:
    given = facts(run=loader(custom_batch_sampler=True))
    assert "batch sampler" in str(
        KNOBS["batch_size"].refuse_spelling(Keyword(DATALOADER, "batch_size"), given)
    )


def test_an_option_of_the_script_lifts_what_only_concerns_the_patch() -> None:
    option = ScriptFlag(names=("--gradient_accumulation_steps",), dest="g", kind="int", default=8)
    given = facts(run=run(own_accumulation=True), script=replace(SCRIPT, flags=(option,)))
    assert KNOBS["accumulation"].refuse(given) is None
    assert KNOBS["accumulation"].refuse_spelling(Patch(), given) is not None


def test_fp16_is_for_volta_and_turing_alone() -> None:
    fp16 = [
        c
        for c in ((6, 1), (7, 0), (7, 5), (8, 0), (9, 0))
        if "fp16" in KNOBS["precision"].domain(facts(host=gpu(*c), run=GPU_RUN))
    ]
    assert fp16 == [(7, 0), (7, 5)]
    assert KNOBS["precision"].resolve("fp16", facts(host=gpu(9, 0), run=GPU_RUN)) is None


def test_a_loader_that_computes_gets_workers_up_to_the_cores_and_a_bit() -> None:
    assert KNOBS["num_workers"].domain(facts()) == (0, 1, 2, 4, 8)


def test_a_loader_that_waits_gets_workers_far_above_the_cores() -> None:
    two_cores = replace(CPU_HOST, cpus=2, physical_cores=2)
    assert KNOBS["num_workers"].domain(facts(host=two_cores, run=loader(fetch_cpu_frac=0.1))) == (
        0,
        1,
        2,
        4,
        8,
        16,
        32,
    )
    assert KNOBS["num_workers"].domain(facts(host=two_cores)) == (0, 1, 2, 4)


def test_workers_of_a_loader_that_waits_are_bounded_by_memory() -> None:
    small = replace(CPU_HOST, memory_bytes=2 << 30)
    assert max(KNOBS["num_workers"].domain(facts(host=small, run=loader(fetch_cpu_frac=0.1)))) == 4


def test_cuda_graphs_are_for_cuda_and_fixed_shapes() -> None:
    graphs = {"reduce-overhead", "max-autotune"}
    domain = KNOBS["compile_mode"].domain
    assert set(domain(facts())) == {"off", "default", "max-autotune"}
    assert graphs <= set(domain(facts(host=GPU_HOST, run=GPU_RUN)))
    assert not graphs & set(domain(facts(host=GPU_HOST, run=replace(GPU_RUN, input_shapes_vary=True))))


@pytest.mark.parametrize(
    ("wanted", "plain"),
    [
        ("physical", 4),
        ("physical-1", 3),
        ("half", 2),
        (1, 1),
        ("asis", 4),
        ("x0.5", 2),
        ("x3", 12),
        ("x0.3", None),
    ],
)
def test_names_of_thread_counts(wanted, plain) -> None:
    assert KNOBS["threads"].resolve(wanted, facts()) == plain


@pytest.mark.parametrize(
    ("wanted", "plain"), [("cores_per_gpu", 8), ("x2", None), (64, 64), (-1, None), (2.0, 2), (True, None)]
)
def test_names_of_worker_counts(wanted, plain) -> None:
    assert KNOBS["num_workers"].resolve(wanted, facts(run=loader(batch_size=32))) == (
        0 if wanted == "x2" else plain
    )


@pytest.mark.parametrize(
    ("wanted", "plain"),
    [("x2", 64), ("x1.5", 48), ("x0.5", 16), (7, 7), (0, None), ("xnan", None), (32001, None)],
)
def test_batches_relative_to_the_scripts_own(wanted, plain) -> None:
    assert KNOBS["batch_size"].resolve(wanted, facts()) == plain


@pytest.mark.parametrize(
    ("name", "given", "effect"),
    [
        ("batch_size", facts(), Effect.EXACT),
        ("batch_size", facts(run=model(dropout=True)), Effect.NUMERIC),
        ("batch_size", facts(run=model(batch_norm=True)), Effect.TRAINING),
        ("batch_size", facts(run=run(model=None)), Effect.NUMERIC),
        ("accumulation", facts(run=model(batch_norm=True, dropout=True)), Effect.TRAINING),
        ("num_workers", facts(), Effect.EXACT),
        ("num_workers", facts(run=loader(random=True)), Effect.NUMERIC),
        ("effective_batch", facts(), Effect.TRAINING),
        ("precision", facts(), Effect.NUMERIC),
        ("threads", facts(), Effect.EXACT),
    ],
)
def test_facts_decide_how_far_a_knob_reaches(name, given, effect) -> None:
    assert KNOBS[name].effect_for(given) is effect


@pytest.mark.parametrize("name", ["batch_size", "accumulation", "compile_mode", "channels_last"])
def test_dropout_re_deals_random_streams(name) -> None:
    assert KNOBS[name].redeals(facts(run=model(dropout=True)))
    assert not KNOBS[name].redeals(facts())

"""Which space `auto` takes: a function of what the first run showed."""

from dataclasses import replace

import pytest

from autotune.answer.space_selection import CANDIDATES, likely, settled
from autotune.model.config import Config
from autotune.model.facts import AttentionFacts, Facts, LoaderFacts, ModelFacts, ParallelFacts, RunFacts
from autotune.model.measurement import Estimate, Measurement, Memory
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.trial import Failure, FailureKind, Fidelity, Stage, Trial, TrialState
from autotune.testing.knobs import CPU_HOST, CPU_RUN, GPU_HOST, LOADER, SCRIPT

GIB = 1 << 30
AUTO = SpaceRequest(
    name="auto", candidates=tuple(SpaceRequest(name=name, source=f"{name}.yaml") for name in CANDIDATES)
)
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=9, deadline_s=9)
CPU = RunFacts(loader=LOADER, model=ModelFacts(name="Net"))
GPU = replace(CPU, model=ModelFacts(name="Net", device="cuda", parameter_bytes=GIB))


def measured(wait: float = 0.0, peak: int = GIB, limit: int = 20 * GIB) -> Measurement:
    one = Estimate(value=1.0, low=1.0, high=1.0, n=1, unit="samples/s")
    return Measurement(
        throughput=one, step_time_s=one, data_wait_frac=wait, memory=Memory(pss=peak, limit=limit)
    )


def study(run: RunFacts | None, *outcomes, host=CPU_HOST, **more) -> Study:
    spec = StudySpec(
        study_id="1", label="t", script="/t.py", args=(), cwd="/", python="p", space=AUTO,
        budget=Budget(seconds=60.0), **more,
    )  # fmt: skip
    trials = [
        Trial(
            number=n, config=Config(), stage=Stage.BASELINE, fidelity=FIDELITY, state=TrialState.FINISHED,
            outcome=outcome,
        )
        for n, outcome in enumerate(outcomes)
    ]  # fmt: skip
    return Study(spec=spec, facts=Facts(host=host, script=SCRIPT, run=run), trials=tuple(trials))


def taken(run: RunFacts, one: Measurement, host=CPU_HOST, **more) -> SpaceRequest:
    space = settled(study(run, one, host=host, **more)).space
    assert space.candidates == ()
    assert space.source == f"{space.name}.yaml"
    assert space.reason
    return space


def loader(**changed: object) -> LoaderFacts:
    return replace(LOADER, **changed)  # type: ignore[arg-type]


ATTENDS = replace(GPU, attention=AttentionFacts(calls=12))
IMAGES = replace(GPU, model=ModelFacts(name="Net", device="cuda", has_4d=True))


@pytest.mark.parametrize(
    ("run", "one", "host", "name", "reason"),
    [
        (CPU, measured(), CPU_HOST, "cpu", "training runs on the CPU"),
        (CPU, measured(wait=0.67), CPU_HOST, "cpu", "waits for data 67 % of its time"),
        (CPU, measured(), GPU_HOST, "cpu", "training runs on the CPU"),
        (IMAGES, measured(), GPU_HOST, "gpu_vision", "convolutions over images"),
        (ATTENDS, measured(), GPU_HOST, "gpu_transformer", "has attention"),
        (replace(ATTENDS, model=IMAGES.model), measured(), GPU_HOST, "default", "attention and conv"),
        (GPU, measured(), GPU_HOST, "default", "neither attention nor convolutions"),
        (RunFacts(), measured(), GPU_HOST, "default", "no trained model was observed"),
        (replace(CPU, model=ModelFacts(name="Net", device="mps")), measured(), CPU_HOST, "default", "mps"),
        (CPU, measured(peak=18 * GIB), CPU_HOST, "memory", "90 % of the memory"),
        (GPU, measured(peak=130 * GIB), GPU_HOST, "memory", "92 % of the memory"),
        (
            replace(GPU, model=replace(IMAGES.model, parameter_bytes=30 * GIB)),
            measured(peak=100 * GIB),
            GPU_HOST,
            "memory",
            "the model and its optimizer take about 85 %",
        ),
    ],
)
def test_the_first_run_decides(run, one, host, name, reason) -> None:
    space = taken(run, one, host)
    assert space.name == name
    assert reason in space.reason


@pytest.mark.parametrize(
    ("changed", "wait", "cpus", "starved"),
    [
        ({}, 0.67, 2, False),
        ({}, 0.9, 2, True),
        ({}, 0.9, 16, False),
        ({"num_workers": 4}, 0.9, 4, True),
        ({"num_workers": 4}, 0.6, 4, False),
        ({"num_workers": 2}, 0.7, 16, False),
        ({"fetch_cpu_frac": 0.1}, 0.9, 2, False),
        ({"fetch_cpu_frac": 0.1}, 0.99, 2, True),
    ],
)
def test_only_a_loop_that_would_still_wait_with_every_core_loading_gets_the_loaders_space(
    changed, wait, cpus, starved
) -> None:
    run, host = replace(CPU, loader=loader(**changed)), replace(CPU_HOST, cpus=cpus)
    assert taken(run, measured(wait=wait), host).name == ("dataloader" if starved else "cpu")


def test_beside_a_gpu_the_loader_has_the_cores_for_itself() -> None:
    run = replace(IMAGES, loader=loader(num_workers=4))
    assert taken(run, measured(wait=0.6), replace(GPU_HOST, cpus=4)).name == "dataloader"
    assert taken(run, measured(wait=0.6), replace(GPU_HOST, cpus=16)).name == "gpu_vision"


def test_the_users_bound_counts_as_memory() -> None:
    assert taken(CPU, measured(), max_memory_bytes=GIB).name == "memory"


def test_the_first_measured_baseline_decides_and_nothing_after_it() -> None:
    fast, slow = measured(), measured(wait=0.95)
    failed = Failure(kind=FailureKind.CONTENDED, message="busy")
    run = replace(CPU, loader=LOADER)
    host = replace(CPU_HOST, cpus=1)
    assert settled(study(run, fast, slow, host=host)).space.name == "cpu"
    assert settled(study(run, failed, slow, fast, host=host)).space.name == "dataloader"


def test_before_there_is_a_baseline_nothing_is_settled() -> None:
    for open_study in (study(None), study(None, measured()), study(CPU_RUN)):
        assert settled(open_study).space is AUTO


@pytest.mark.parametrize(("frac", "takes_part"), [(None, False), (0.0, False), (0.019, False), (0.06, True)])
def test_when_garbage_is_looked_for_takes_part_where_that_takes_time(
    frac: float | None, takes_part: bool
) -> None:
    knobs = {"precision": ("fp32", "bf16"), "threads": ()}
    candidates = tuple(replace(c, knobs=knobs) for c in AUTO.candidates)
    one = study(replace(CPU, collecting_frac=frac), measured())
    one = replace(one, spec=replace(one.spec, space=replace(AUTO, candidates=candidates)))
    space = settled(one).space
    if not takes_part:
        assert dict(space.knobs) == knobs
        assert "garbage" not in space.reason
        return
    assert list(space.knobs) == ["precision", "gc_control", "threads"]
    assert space.knobs["gc_control"] == ("auto", "freeze")
    assert space.reason.endswith("gc_control is included: garbage collection takes 6 % of the time")


@pytest.mark.parametrize(
    "given", [{"knobs": {"gc_control": ("auto", "boundary")}}, {"fixed": {"gc_control": "auto"}}]
)
def test_what_a_space_says_of_it_stands(given: dict[str, object]) -> None:
    candidates = tuple(replace(c, **given) for c in AUTO.candidates)
    one = study(replace(CPU, collecting_frac=0.5), measured())
    one = replace(one, spec=replace(one.spec, space=replace(AUTO, candidates=candidates)))
    space = settled(one).space
    assert {"knobs": space.knobs, "fixed": space.fixed}[next(iter(given))] == next(iter(given.values()))


@pytest.mark.parametrize("why", ["the user left knobs out", "the script says when"])
def test_it_takes_no_part_against_what_somebody_has_reported(why: str) -> None:
    narrowed = why.startswith("the user")
    candidates = tuple(replace(c, knobs={"threads": ()}, narrowed=narrowed) for c in AUTO.candidates)
    values = {"gc_control": "auto" if narrowed else "own"}
    one = study(replace(CPU, collecting_frac=0.5, values=values), measured())
    one = replace(one, spec=replace(one.spec, space=replace(AUTO, candidates=candidates)))
    assert dict(settled(one).space.knobs) == {"threads": ()}


def test_a_named_space_stays() -> None:
    named = study(CPU_RUN, measured())
    named = replace(named, spec=replace(named.spec, space=SpaceRequest(name="quick")))
    assert settled(named) is named.spec


def test_the_bound_of_the_space_that_is_taken_holds_with_the_users_own() -> None:
    bounded = tuple(replace(c, memory_frac=0.5) for c in AUTO.candidates)
    for given, bound in ((None, 16 * GIB), (4 * GIB, 4 * GIB)):
        known = study(CPU, measured(), max_memory_bytes=given)
        known = replace(known, spec=replace(known.spec, space=replace(AUTO, candidates=bounded)))
        assert settled(known).max_memory_bytes == bound


@pytest.mark.parametrize(
    ("host", "imports", "name"),
    [
        (CPU_HOST, ("torch", "transformers"), "cpu"),
        (GPU_HOST, ("torch", "transformers"), "gpu_transformer"),
        (GPU_HOST, ("timm",), "gpu_vision"),
        (GPU_HOST, ("torch",), "default"),
    ],
)
def test_before_a_run_the_source_says_what_is_likely(host, imports, name) -> None:
    facts = Facts(host=host, script=replace(SCRIPT, imports=imports))
    space = likely(AUTO, facts)
    assert (space.name, bool(space.reason)) == (name, True)
    assert likely(SpaceRequest(name="quick"), facts) == SpaceRequest(name="quick")


BIG = GPU_HOST.devices[0]
SMALL = replace(BIG, name="NVIDIA T400", uuid="GPU-2", memory_bytes=4 * GIB)
BOTH = replace(GPU_HOST, devices=(BIG, SMALL))


def test_memory_is_that_of_the_devices_that_train_and_not_of_others_in_the_machine() -> None:
    on_big, on_small = replace(GPU, devices=(BIG,)), replace(GPU, devices=(SMALL,))
    assert taken(on_big, measured(peak=6 * GIB), BOTH).name == "default"
    assert taken(on_small, measured(peak=4 * GIB), BOTH).name == "memory"


@pytest.mark.parametrize(
    ("host", "run", "whole"),
    [
        (CPU_HOST, None, CPU_HOST.memory_bytes),
        (CPU_HOST, CPU, CPU_HOST.memory_bytes),
        (BOTH, None, SMALL.memory_bytes),
        (BOTH, GPU, SMALL.memory_bytes),
        (BOTH, replace(GPU, devices=(BIG,)), BIG.memory_bytes),
        (BOTH, replace(GPU, devices=(BIG, SMALL)), SMALL.memory_bytes),
        (BOTH, CPU, CPU_HOST.memory_bytes),
        (CPU_HOST, GPU, None),
        (replace(BOTH, devices=(replace(BIG, memory_bytes=0), SMALL)), None, SMALL.memory_bytes),
    ],
)
def test_the_memory_that_training_may_fill_and_a_share_of_it(host, run, whole) -> None:
    known = replace(study(run), facts=Facts(host=host, script=SCRIPT, run=run))
    assert known.memory_bytes == whole
    half = SpaceRequest(name="s", memory_frac=0.5).bound_bytes(host, run)
    assert half == (None if whole is None else whole // 2)


def test_a_knob_that_the_space_fixes_is_not_among_the_first_candidates() -> None:
    run = replace(CPU, ranks=2, parallel=ParallelFacts(wrapper="ddp", backend="gloo"))
    one = study(run, measured())
    assert {"ddp_comm_hook": "fp16"} in settled(one).space.starts
    fixing = tuple(replace(c, fixed={"ddp_comm_hook": "off"}) for c in AUTO.candidates)
    space = settled(replace(one, spec=replace(one.spec, space=replace(AUTO, candidates=fixing)))).space
    assert not any("ddp_comm_hook" in values for values in (*space.starts, space.knobs))

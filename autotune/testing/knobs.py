"""Contract of every knob, as tests: subclass `KnobContract` and name the knob.

```python
class TestMyKnob(KnobContract):
    knob = MyKnob()
```

`FakePatches` replaces the training process, `example_facts` scripts and machines.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.knobs.base import Patches
from autotune.knobs.vocabulary import is_value
from autotune.model.change import Change, Env, Flag
from autotune.model.config import Config, Value
from autotune.model.effect import Effect
from autotune.model.facts import (
    OPTION,
    AttentionFacts,
    BlockFacts,
    DeviceFacts,
    Facts,
    HostFacts,
    InputFacts,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    ParallelFacts,
    RunFacts,
    ScriptFacts,
    ScriptFlag,
)
from autotune.model.knob_families import FAMILIES
from autotune.model.wire import dumps, loads
from autotune.space.choose_delivery import choose, way
from autotune.testing.fake_model import FakeModelHooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autotune.knobs.base import Knob

CPU_HOST = HostFacts(
    cpus=8,
    physical_cores=4,
    memory_bytes=32 << 30,
    cpu_flags=("avx2", "avx512_bf16"),
    cxx="/usr/bin/g++",
)
GPU_HOST = replace(
    CPU_HOST,
    devices=(DeviceFacts(name="NVIDIA H200", uuid="GPU-1", memory_bytes=141 << 30, capability=(9, 0)),),
)
LOADER = LoaderFacts(
    site="train.py:12",
    batch_size=32,
    num_workers=0,
    prefetch_factor=None,
    pin_memory=False,
    persistent_workers=False,
    length=1000,
    dataset_length=32000,
    fetch_cpu_frac=0.9,
)
CPU_RUN = RunFacts(
    loader=LOADER,
    model=ModelFacts(name="Net", has_4d=True),
    optimizer=OptimizerFacts(name="AdamW", can_fuse=True),
    samples_source="loader",
    effective_batch=32,
    zero_grad_seen=True,
    reduction="mean",
    threads=4,
    values={
        "batch_size": 32,
        "accumulation": 1,
        "precision": "fp32",
        "tf32": "highest",
        "compile_mode": "off",
        "num_workers": 0,
        "pin_memory": False,
        "persistent_workers": False,
        "channels_last": False,
        "fused_optimizer": False,
        "threads": 4,
        "cudnn_benchmark": False,
    },
)
GPU_RUN = replace(CPU_RUN, model=ModelFacts(name="Net", has_4d=True, device="cuda"))
DDP = ParallelFacts(wrapper="ddp", backend="gloo", gradient_bytes=90 << 20, all_used=True)
"""Facts of two processes that train one model."""
DDP_RUN = replace(
    CPU_RUN,
    ranks=2,
    parallel=DDP,
    values={
        **CPU_RUN.values,
        "ddp_bucket_cap_mb": 25,
        "ddp_find_unused_parameters": False,
        "ddp_gradient_as_bucket_view": False,
        "ddp_static_graph": False,
        "ddp_comm_hook": "none",
        "ddp_powersgd_rank": 0,
        "ddp_no_sync": 1,
        "ddp_shard_optimizer": False,
        "cpu_affinity": "none",
    },
)
FSDP_RUN = replace(
    CPU_RUN,
    ranks=2,
    parallel=ParallelFacts(wrapper="fsdp", count=6, backend="gloo", gradient_bytes=90 << 20),
    values={
        **CPU_RUN.values,
        "fsdp_reshard_after_forward": True,
        "fsdp_prefetch": 0,
        "fsdp_param_dtype": "float32",
        "fsdp_cpu_offload": False,
        "fsdp_shard_ranks": 2,
    },
)
DEEPSPEED_RUN = replace(
    CPU_RUN,
    ranks=2,
    owners=("deepspeed",),
    owner_settings={"deepspeed.zero": 1},
    values={
        **CPU_RUN.values,
        "deepspeed_zero_stage": 1,
        "deepspeed_bucket_size": 500_000_000,
        "deepspeed_overlap_comm": False,
    },
)
SCRIPT = ScriptFacts(path="/home/me/train.py", sha256="0" * 64, imports=("torch",))


def facts(
    *,
    host: HostFacts = CPU_HOST,
    script: ScriptFacts = SCRIPT,
    run: RunFacts | None = CPU_RUN,
    rule: str = "explore",
) -> Facts:
    """Facts of a small training loop on a CPU machine, but for what is given."""
    return Facts(host=host, script=script, run=run, effective_batch_rule=rule)


def example_facts() -> Sequence[Facts]:
    """Scripts and machines that differ in everything a knob may ask about."""
    flagged = replace(
        SCRIPT,
        flags=(
            ScriptFlag(names=("-b", "--batch-size"), dest="batch_size", kind="int", default=32),
            ScriptFlag(names=("--workers",), dest="workers", kind="int", default=0),
            ScriptFlag(names=("--accum-steps",), dest="accum_steps", kind="int", default=1),
            ScriptFlag(names=("--channels-last",), dest="channels_last", kind="switch", default=False),
        ),
    )
    switched = replace(
        SCRIPT,
        flags=(ScriptFlag(names=("--amp", "--no-amp"), dest="amp", kind="pair", autocast="bf16"),),
        hazards=("own_autocast",),
    )
    seen = InputFacts(batch_size=32, dims=(1,), shape=(16, 32))
    by_option = replace(CPU_RUN, loader=None, samples_source=OPTION, inputs=seen)
    unlike = replace(by_option, samples_source="input", inputs=InputFacts(batch_size=32))
    twice = replace(unlike, inputs=replace(seen, calls_per_backward=2.0))
    bare = RunFacts()
    workers = replace(LOADER, num_workers=4, prefetch_factor=2, random=True, fetch_cpu_frac=0.05)
    with_workers = replace(CPU_RUN, loader=workers, values={**CPU_RUN.values, "num_workers": 4})
    normed = replace(CPU_RUN, model=ModelFacts(name="Net", batch_norm=True, dropout=True, has_4d=True))
    stocked = replace(
        CPU_HOST,
        allocators={"jemalloc": "/usr/lib/libjemalloc.so.2", "tcmalloc": "/usr/lib/libtcmalloc.so.4"},
        libc="glibc 2.36",
        huge_pages="madvise",
    )
    sent = replace(workers, mp_context="fork", unsendable="", own_code=True)
    settled = {
        "malloc": "jemalloc",
        "wait_policy": "PASSIVE",
        "gc_control": "own",
        "mp_context": "spawn",
        "in_order": False,
        "allocator": "expandable_segments",
        "non_blocking": True,
        "pin_memory": True,
    }
    runs = replace(SCRIPT, import_runs=True)
    watched = BlockFacts(name="Layer", count=6, alike=True, watched=True)
    model = ModelFacts(name="Net", blocks=replace(watched, checkpointed=True))
    attention = AttentionFacts(calls=24, kernel="flash", dtype="float32")
    transformer = replace(CPU_RUN, model=model, attention=attention, zeroes_gradients=True)
    on_gpu = replace(GPU_RUN, attention=replace(attention, kernel="efficient", dropout=True))
    nccl = replace(DDP, backend="nccl", all_used=True)
    busy = {"ddp_find_unused_parameters": True, "ddp_comm_hook": "own", "ddp_no_sync": 1}
    in_model = {"attention_backend": "math", "compile_mode": "default", "memory_budget": 0.9}
    owned = replace(CPU_RUN, owners=("accelerate",), own_autocast=True, own_compile=True, own_scaler=True)
    of_four = replace(FSDP_RUN, ranks=4, values={**FSDP_RUN.values, "fsdp_shard_ranks": 4})
    return (
        facts(),
        facts(run=None),
        facts(run=bare),
        facts(script=flagged),
        facts(host=GPU_HOST, run=GPU_RUN),
        facts(host=GPU_HOST, run=None),
        facts(run=with_workers),
        facts(run=normed),
        facts(run=owned),
        facts(rule="keep"),
        facts(rule="64..512"),
        facts(host=replace(CPU_HOST, cpu_flags=(), cxx="", cpus=1, physical_cores=1)),
        facts(run=replace(CPU_RUN, loader=None)),
        facts(run=replace(CPU_RUN, zero_grad_seen=False)),
        facts(script=switched),
        facts(script=flagged, run=by_option),
        facts(script=flagged, run=by_option, rule="keep"),
        facts(script=flagged, run=unlike),
        facts(script=flagged, run=twice),
        facts(script=flagged, run=replace(unlike, inputs=seen)),
        facts(host=stocked),
        facts(host=stocked, run=replace(CPU_RUN, openmp="intel", threads=1)),
        facts(host=stocked, run=replace(with_workers, loader=sent)),
        facts(run=replace(with_workers, loader=replace(sent, unsendable="It holds a lock."))),
        facts(host=stocked, run=replace(with_workers, values={**with_workers.values, **settled})),
        facts(host=GPU_HOST, run=replace(GPU_RUN, loader=sent, values={**with_workers.values, **settled})),
        facts(host=GPU_HOST, run=replace(GPU_RUN, versions={"torch": "2.9.1+cu128"})),
        facts(host=GPU_HOST, run=replace(GPU_RUN, versions={"torch": "2.13.0+cu130"})),
        facts(script=runs),
        facts(script=runs, run=None),
        facts(run=transformer),
        facts(host=GPU_HOST, run=on_gpu),
        facts(run=replace(transformer, model=replace(model, blocks=watched), input_shapes_vary=True)),
        facts(run=replace(transformer, gradients_pause=True, values={**CPU_RUN.values, **in_model})),
        facts(run=DDP_RUN),
        facts(run=FSDP_RUN),
        facts(run=DEEPSPEED_RUN),
        facts(host=GPU_HOST, run=replace(DEEPSPEED_RUN, model=GPU_RUN.model)),
        facts(host=GPU_HOST, run=replace(of_four, model=GPU_RUN.model)),
        facts(host=GPU_HOST, run=replace(DDP_RUN, model=GPU_RUN.model, parallel=nccl)),
        facts(run=replace(DDP_RUN, own_accumulation=True, backward_per_step=4.0)),
        facts(run=replace(DDP_RUN, parallel=None)),
        facts(run=replace(DDP_RUN, parallel=replace(nccl, no_sync=True), values={**DDP_RUN.values, **busy})),
    )


class KnobContract:
    """Tests that hold for every knob; collected by pytest through a subclass named ``Test...``."""

    knob: ClassVar[Knob]
    facts: ClassVar[Sequence[Facts]] = example_facts()
    torch_parts: ClassVar[Mapping[str, object]] = {}
    """Attributes of torch that the knob needs, and their values: ``backends.mkldnn.enabled`` -> True."""
    hooks: ClassVar[Mapping[str, Callable[[FakePatches], Any]]] = {}
    """Substitutes of classes that the knob gets from `Patches.hook`, by the same path."""

    def test_it_says_what_it_is(self) -> None:
        knob = self.knob
        assert knob.name.isidentifier()
        assert knob.name == knob.name.lower()
        assert isinstance(knob.effect, Effect)
        assert knob.summary.endswith(".") or ":" in knob.summary
        assert knob.family in FAMILIES
        text = type(knob).__doc__ or ""
        for part in ("Effect:", "Unit:", "Source:"):
            assert part in text, f"the docstring of {knob.name} lacks {part}"

    def test_its_spellings_are_unique(self) -> None:
        texts = [spelling.text for spelling in self.knob.spellings]
        assert len(texts) == len(set(texts))
        assert bool(texts) is not self.knob.virtual

    def test_its_domain_holds_the_scripts_own_value(self) -> None:
        for given in self.facts:
            own, domain = self.knob.own(given), list(self.knob.domain(given))
            if own is not None and domain:
                assert any(type(v) is type(own) and v == own for v in domain), (own, domain)
            assert len(domain) == len({(type(v), v) for v in domain})

    def test_an_ordinal_domain_ascends(self) -> None:
        for given in self.facts if self.knob.ordinal else ():
            numbers = [v for v in self.knob.domain(given) if isinstance(v, (int, float))]
            assert numbers == sorted(numbers)
            assert len(numbers) == len(self.knob.domain(given))

    def test_asis_means_the_scripts_own_value(self) -> None:
        for given in self.facts:
            assert self.knob.resolve("asis", given) == self.knob.own(given)

    def test_plain_values_resolve_to_themselves(self) -> None:
        for given in self.facts:
            if self.knob.refuse(given) is None:
                assert [self.knob.resolve(v, given) for v in self.knob.domain(given)] == list(
                    self.knob.domain(given)
                )

    def test_nonsense_resolves_to_nothing(self) -> None:
        for given in self.facts:
            assert self.knob.resolve("no such value", given) is None
            assert self.knob.resolve(-7, given) is None

    def test_a_refusal_is_a_whole_sentence(self) -> None:
        for reason in self.refusals():
            assert len(reason.split()) >= 4, reason
            assert reason.endswith("."), reason

    def refusals(self) -> Iterator[str]:
        """Every refusal that the example facts lead to."""
        for given in self.facts:
            found = [self.knob.refuse(given), self.knob.idle(given, (self.knob.name,))]
            found += [self.knob.refuse_spelling(spelling, given) for spelling in self.knob.spellings]
            yield from (reason for reason in found if reason is not None)

    def test_facts_raise_its_effect_and_never_lower_it(self) -> None:
        for given in self.facts:
            assert self.knob.effect_for(given).rank >= self.knob.effect.rank

    def test_settling_twice_changes_nothing_more(self) -> None:
        for given, value in self.values():
            once = self.knob.settle(Config({self.knob.name: value}), given)
            if isinstance(once, Config):
                assert self.knob.settle(once, given) == once
            else:
                assert once.endswith(".")

    def test_settling_leaves_the_baseline_alone(self) -> None:
        for given in self.facts:
            assert self.knob.settle(Config(), given) == Config()

    def test_its_values_survive_the_wire(self) -> None:
        for given, value in self.values():
            assert loads(Config, dumps(Config({self.knob.name: value}))) == Config({self.knob.name: value})
            change = None if self.knob.virtual else way(self.knob, value, given)
            if isinstance(change, Change):
                assert loads(Change, dumps(change)) == change

    def test_it_is_applied_or_refused_and_never_both(self) -> None:
        for given, value in self.values():
            changes, refusals = choose(Config({self.knob.name: value}), given, {self.knob.name: self.knob})
            expected = 0 if self.knob.virtual and not refusals else 1
            assert len(changes) + len(refusals) == expected

    def test_a_flag_is_one_of_the_scripts_own(self) -> None:
        for given, value in self.values():
            change = None if self.knob.virtual else way(self.knob, value, given)
            if isinstance(change, Change) and isinstance(change.spelling, Flag):
                assert given.script.flag(change.spelling.names[0]) is not None

    def test_a_variable_says_a_value_in_words_or_not_at_all(self) -> None:
        variables = [s for s in self.knob.spellings if isinstance(s, Env)]
        for given, value in self.values() if variables else ():
            texts = [self.knob.environment(value, spelling, given) for spelling in variables]
            assert all(text is None or (text and text == text.strip()) for text in texts)

    def test_what_it_patches_is_read_back_and_can_be_undone(self) -> None:
        if not any(s.how in ("patch", "keyword") for s in self.knob.spellings):
            return
        for given, value in self.values():
            patches = self.patches()
            before = patches.state()
            self.knob.patch(value, patches)
            if value != self.knob.own(given):
                assert self.knob.seen(patches) == value
            patches.undo()
            assert patches.state() == before
            # A part that was made for this knob alone is none of the state's.
            assert self.knob.seen(patches) == self.knob.seen(self.patches()), "what it patched is not undone"

    def patches(self) -> FakePatches:
        """Return a substitute of a training process that has what this knob needs."""
        return FakePatches(self.torch_parts, self.hooks)

    def test_a_gain_is_expected_of_values_that_it_can_have(self) -> None:
        prior = self.knob.prior
        expected = {value for gains in (*prior.gain.values(), prior.host) for value in gains}
        assert all(is_value(self.knob, value) for value in expected), expected

    def values(self) -> Iterator[tuple[Facts, Value]]:
        """Every value of the domain under all example facts."""
        for given in self.facts:
            for value in self.knob.domain(given):
                yield given, value


class FakePatches(Patches):
    """Scripted training process that restores its state on `undo`."""

    def __init__(
        self,
        torch_parts: Mapping[str, object] | None = None,
        hooks: Mapping[str, Callable[[FakePatches], Any]] | None = None,
    ) -> None:
        """Begin with torch's own defaults, and with these attributes of torch and these hooks."""
        self.threads = 4
        self.matmul = "highest"
        self.cudnn = SimpleNamespace(benchmark=False)
        self.done: list[Callable[[], None]] = []
        self.torch: Any = SimpleNamespace(
            get_num_threads=lambda: self.threads,
            set_num_threads=self._set_threads,
            get_float32_matmul_precision=lambda: self.matmul,
            set_float32_matmul_precision=self._set_matmul,
            backends=SimpleNamespace(cudnn=self.cudnn),
        )
        for path, value in (torch_parts or {}).items():
            *parents, name = path.split(".")
            owner = self.torch
            for parent in parents:
                owner = owner.__dict__.setdefault(parent, SimpleNamespace())
            setattr(owner, name, value)
        self._hooks = {path: made(self) for path, made in (hooks or {}).items()}
        loader, precision, mode = _Loader(self), _Precision(self, "fp32"), _Compile(self, "off")
        layout, optimizer, count = _Switch(self), _Switch(self), _Count(self)
        self._seams = (precision, mode, layout, optimizer, count)
        self._keywords = loader.keywords
        self.loader = loader
        self.precision = precision
        self.compile = mode
        self.layout = layout
        self.optimizer = optimizer
        self.accumulation = count
        self.process = FakeProcess()
        self._collector, self._copies = _Collector(self, "auto"), _Copies(self)
        self.collector = self._collector
        self.copies = self._copies
        self._distributed = _Settings(self)
        self.distributed = self._distributed
        self._model = model = FakeModelHooks(self.assign)
        self.attention = model.attention
        self.checkpointing = model.checkpointing
        self.budget = model.budget
        self.shapes = model.shapes
        self.region = model.region
        self.gradients = model.gradients
        self.weights = model.weights
        self.float8 = model.float8

    def _set_threads(self, count: int) -> None:
        self.threads = count

    def _set_matmul(self, word: str) -> None:
        self.matmul = word

    def assign(self, owner: object, attribute: str, value: object) -> None:
        """Set an attribute and remember the old one."""
        old = getattr(owner, attribute)
        self.done.append(lambda: setattr(owner, attribute, old))
        setattr(owner, attribute, value)

    def hook(self, path: str) -> Any:
        """Return the substitute of a class of a training process."""
        return self._hooks[path]

    def call(self, setter: Any, value: object, *, undo: object) -> None:
        """Call a setter now, and with `undo` later."""
        setter(value)
        self.done.append(lambda: setter(undo))

    def undo(self) -> None:
        """Take back everything, last first."""
        while self.done:
            self.done.pop()()

    def state(self) -> tuple[object, ...]:
        """All that a knob could have changed."""
        hooks = tuple(hook.value for hook in self._seams)
        kept = (self._collector.value, self._copies.value, *self._model.state())
        settings = (dict(self._keywords), dict(self._distributed.settings))
        return (self.threads, self.matmul, self.cudnn.benchmark, *settings, *kept, *hooks)


class _Loader:
    def __init__(self, patches: FakePatches) -> None:
        self.patches = patches
        self.keywords: dict[str, Value] = {}

    def override(self, keyword: str, value: Value | None) -> None:
        old = dict(self.keywords)
        self.patches.done.append(lambda: self._restore(old))
        if value is None:
            self.keywords.pop(keyword, None)
        else:
            self.keywords[keyword] = value

    def give_back(self, keyword: str) -> bool:
        return self.keywords.pop(keyword, None) is not None

    def _restore(self, old: dict[str, Value]) -> None:
        self.keywords.clear()
        self.keywords.update(old)

    def observed(self, keyword: str) -> Value | None:
        return self.keywords.get(keyword)


class _Word:
    def __init__(self, patches: FakePatches, value: str) -> None:
        self.patches = patches
        self.value = value

    def observed(self) -> str | None:
        return self.value


class _Precision(_Word):
    def set(self, dtype: str) -> None:
        self.patches.assign(self, "value", dtype)

    def end_precision(self) -> None:
        self.value = "fp32"


class _Compile(_Word):
    def set(self, mode: str) -> None:
        self.patches.assign(self, "value", mode)

    def end(self) -> bool:
        self.value = "off"
        return True


class _Collector(_Word):
    def set(self, mode: str) -> None:
        self.patches.assign(self, "value", mode)


class _Copies:
    def __init__(self, patches: FakePatches) -> None:
        self.patches = patches
        self.value: bool | None = None

    def non_blocking(self, on: bool) -> None:
        self.patches.assign(self, "value", on)

    def observed(self) -> bool | None:
        return self.value


class _Settings:
    """Wrappers that have what was set."""

    def __init__(self, patches: FakePatches) -> None:
        self.patches = patches
        self.settings: dict[str, Value] = {}

    def set(self, setting: str, value: Value, /) -> None:
        self.patches.assign(self, "settings", {**self.settings, setting: value})

    def observed(self, setting: str, /) -> Value | None:
        return self.settings.get(setting)


class FakeProcess:
    """Process with the values of a test; by default one of glibc and GNU's OpenMP."""

    def __init__(self, **known: Any) -> None:
        """Take `malloc`, `openmp`, `huge_pages`, `blocktime_ms` and `variables`."""
        self._known = known

    def variable(self, name: str) -> str:
        """Return the value in `variables`."""
        return self._known.get("variables", {}).get(name, "")

    def malloc(self) -> str:
        """Return the value of the test, by default ``glibc``."""
        return self._known.get("malloc", "glibc")

    def huge_pages(self) -> bool:
        """Return the value of the test, by default False."""
        return self._known.get("huge_pages", False)

    def openmp(self) -> str:
        """Return the value of the test, by default ``gnu``."""
        return self._known.get("openmp", "gnu")

    def blocktime_ms(self) -> int | None:
        """Return the value of the test, by default None."""
        return self._known.get("blocktime_ms")


class _Switch:
    def __init__(self, patches: FakePatches) -> None:
        self.patches = patches
        self.value = False

    def channels_last(self) -> None:
        self.patches.assign(self, "value", True)

    def fuse(self) -> None:
        self.patches.assign(self, "value", True)

    def observed(self) -> bool | None:
        return self.value


class _Count:
    def __init__(self, patches: FakePatches) -> None:
        self.patches = patches
        self.value = 1

    def set(self, factor: int) -> None:
        self.patches.assign(self, "value", factor)

    def observed(self) -> int | None:
        return self.value


__all__ = ["FakePatches", "FakeProcess", "KnobContract", "example_facts", "facts"]

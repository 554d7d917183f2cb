"""Facts about host, devices, script and the script's own run. Standard library only.

Refusals and domains are functions of `Facts` alone, so they are tested without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from autotune.model.config import Value

OPTION: Final = "option"
"""Value of `RunFacts.samples_source`: the model's input has the size of the script's own option."""
REPORTED: Final = "reported"
"""Likewise: the script reports the samples of each step itself, by `autotune.sdk.step`."""
COUNTED: Final = ("loader", OPTION, REPORTED)
"""Sources by which samples are the unit that runs are compared in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One accelerator.

    Args:
        capability: CUDA compute capability as (major, minor).
        power_limit_w: Power limit in watts; 0 if unknown.
    """

    name: str
    uuid: str
    memory_bytes: int
    capability: tuple[int, int] = (0, 0)
    driver: str = ""
    power_limit_w: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The machine a trial runs on.

    Args:
        cpus: CPUs this process may use (affinity and cgroup quota taken in).
        physical_cores: Physical cores among them.
        memory_bytes: Memory this process may use (cgroup limit taken in).
        cpu_flags: Interesting instruction sets: ``avx512_bf16``, ``amx_bf16``, ``avx2``, ...
        devices: Accelerators, empty for a CPU machine.
        cxx: Path of a C++ compiler, empty where none was found.
        cc: Path of a C compiler, empty where none was found.
        allocators: Paths of libraries that can take the place of `malloc`, by ``jemalloc`` and
            ``tcmalloc``; those that are installed.
        libc: ``glibc 2.36``; empty where it is another one.
        huge_pages: Mode of transparent huge pages: ``always``, ``madvise``, ``never``; empty where
            the kernel has none.
        isolation: ``overlay`` or ``redirect``: how a trial's writes are kept off the user's files.
        nsys: Path of NVIDIA Nsight Systems' command; empty where it is not installed.
    """

    cpus: int
    physical_cores: int
    memory_bytes: int
    cpu_flags: tuple[str, ...] = ()
    devices: tuple[DeviceFacts, ...] = ()
    cpu_model: str = ""
    platform: str = ""
    python: str = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    cxx: str = ""
    allocators: Mapping[str, str] = field(default_factory=dict[str, str])
    libc: str = ""
    huge_pages: str = ""
    isolation: str = "redirect"
    nsys: str = ""
    cc: str = ""

    @property
    def has_cuda(self) -> bool:
        """At least one NVIDIA device is there."""
        return bool(self.devices)

    @property
    def has_bf16(self) -> bool:
        """bf16 is done in hardware on what would train here."""
        if self.devices:
            return all(device.capability >= (8, 0) for device in self.devices)
        return bool({"avx512_bf16", "amx_bf16"} & set(self.cpu_flags))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFlag:
    """One option of the script's own, read from its source.

    Args:
        names: All spellings (``--batch-size``, ``-b``).
        dest: Name of the value in the script.
        kind: ``int``, ``float``, ``str``, ``switch`` (store_true), ``off_switch`` (store_false),
            ``pair`` (``--amp/--no-amp``), ``bool`` (takes the word True or False), ``opaque``
            (takes a value whose notation is not known; never used).
        default: As written, None where it is no constant.
        choices: Where the script lists them.
        autocast: For a switch: format of the autocast that it puts on (``bf16``, ``fp16``), by the source;
            empty where it does nothing of the kind.
    """

    names: tuple[str, ...]
    dest: str
    kind: str = "str"
    default: Value | None = None
    choices: tuple[str, ...] = ()
    autocast: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptConstant:
    """A named value in the user's source that a knob may replace.

    Args:
        name: As in `autotune.source.constants`: ``CONFIG.train.batch_size``.
        file: Path relative to the folder of the script.
        line: Its line.
        value: Its value in the source.
        times: Number of assignments to this name in the file; only a single one can be replaced.
        is_chosen: The user has selected this name.
    """

    name: str
    file: str
    line: int
    value: Value
    times: int = 1
    is_chosen: bool = False

    @property
    def place(self) -> str:
        """``BATCH_SIZE (train.py:12)``."""
        return f"{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """Facts from the source, without running it.

    Args:
        sha256: Digest of the script's bytes.
        flags: The script's own options, those that modules beside it declare among them.
        imports: Top-level names of packages that it imports, or that its own modules import when loaded.
        hazards: Words from a closed list, and those of `autotune.source.loops`. ``bare_except``,
            ``own_autocast``, ``own_scaler``, ``own_compile``, ``lbfgs``, ``float64``, ``bce_on_sigmoid``.
            ``own_bf16``: it names the format. ``exec_config``: globals are overridden from the command line.
            ``hf_arguments``: options are made from dataclasses. ``hidden_state``: a hidden state has the size
            of the batch. ``saves_optimizer``: a state_dict is saved that need not be a model's. ``forks``:
            `os.fork` is called. ``stdin``: standard input is read.
        import_runs: Importing the script does its work: some of it is outside functions and the main guard.
        constants: Named constants that knobs may replace, in the order of files and lines.
    """

    path: str
    sha256: str = ""
    flags: tuple[ScriptFlag, ...] = ()
    imports: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()
    import_runs: bool = False
    constants: tuple[ScriptConstant, ...] = ()

    def flag(self, *names: str) -> ScriptFlag | None:
        """Return the script's option that has one of these spellings, by order of `names`.

        One that can be given by a letter alone is known by the name of its value.
        """
        for name in names:
            for option in self.flags:
                if name in option.names:
                    return option
        short = {f"--{o.dest}": o for o in self.flags if not any(n.startswith("--") for n in o.names)}
        return next((short[name] for name in names if name in short), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchState:
    """State of a loader's dataset, collate function or sampler that a fetch was seen to change.

    Args:
        what: Start of a sentence: ``your dataset draws from its own generator (rng) at data.py:31``.
        by: ``dataset``, ``collate_fn`` or ``sampler``: what holds it; ``indices`` for a sampler whose state
            moves as indices are drawn.
        sure: A sample depends on earlier fetches; False where that was not found out.
        apart: Each worker was seen to begin with another state, as by a `worker_init_fn` that seeds it.
    """

    what: str
    by: str = "dataset"
    sure: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """The training DataLoader: the one whose batches were followed by a backward.

    Args:
        site: ``train.py:124``, the place of its construction.
        batch_size: Its own batch size; None for ``batch_size=None`` or a custom batch sampler.
        kind: ``map`` or ``iterable``.
        custom_batch_sampler: A batch sampler that is not torch's own.
        shards: For ``iterable``: the dataset calls `get_worker_info`.
        length: Batches per epoch; None if unknown.
        dataset_length: Samples; None if unknown.
        fetch_cpu_frac: CPU seconds per wall second of fetching in the main process, 0..1; low if the loader
            waits (storage, network). None if unobserved (workers).
        fetch_s: Seconds per fetched batch.
        cuda_tensors: The dataset holds tensors on an accelerator.
        random: The dataset draws random numbers in the process that loads (augmentation).
        shuffles: The order of the samples changes with every epoch.
        shared_handle: Class of an open file or database reachable from the dataset or the collate function
            before the first fetch, or ``file NAME`` for a descriptor whose position a fetch moves. Forked
            workers would share it. Empty without one.
        mp_context: Start method of workers: ``fork``, ``forkserver``, ``spawn``.
        unsendable: Why the dataset cannot be sent to a non-forked worker, a whole sentence; empty if it can,
            None if not tried.
        own_code: Sending it takes classes or functions of the user's own, not of a library.
        beside: Other training loaders, used in the same steps or alternately.
        changed: The script changes state read by a fetch, ``between`` two passes or ``inside`` one; empty if
            neither source nor run showed that.
        changed_at: The changed state: ``noise.strength (train.py:52)``; without a place if only the run
            showed it.
        sizes: Batch sizes of the training loaders built there, if they differ.
        takes_one: Batches have one sample, passed through unchanged by the script's collate function.
        eager_order: The script's code fixes the order when its iterator is created. A loader creates one per
            pass without workers, and two when it starts some.
        rebuilt: Several loaders were built there and each was read once: one per pass.
        fetch_state: State that its fetches change; None without any, or for a cache of unchanging samples.
        shares: For a stream: samples of a pass, and of each of two workers; empty if unknown.
        is_split: Its sampler gives each process its own part of every effective batch.
    """

    site: str
    batch_size: int | None
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    kind: str = "map"
    custom_batch_sampler: bool = False
    drop_last: bool = False
    shards: bool = False
    length: int | None = None
    dataset_length: int | None = None
    fetch_cpu_frac: float | None = None
    fetch_s: float | None = None
    cuda_tensors: bool = False
    random: bool = False
    shuffles: bool = False
    shared_handle: str = ""
    mp_context: str = ""
    unsendable: str | None = None
    own_code: bool = False
    beside: int = 0
    changed: str = ""
    changed_at: str = ""
    sizes: tuple[int, ...] = ()
    takes_one: bool = False
    eager_order: bool = False
    rebuilt: bool = False
    fetch_state: FetchState | None = None
    shares: tuple[int, ...] = ()
    is_split: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """The repeated blocks of the trained module: several modules of one class in a container.

    Args:
        name: Their class.
        count: How many there are.
        alike: All of them have parameters of the same shapes.
        watched: They were seen running, so that what follows is known.
        checkpointed: The script computes activations again in the backward pass already.
        changes_input: A block changes a tensor that it was given.
        changes_state: A block changes buffers or attributes of its own (running statistics).
        host_random: A block draws from the random numbers of Python or NumPy.
    """

    name: str
    count: int
    alike: bool = False
    watched: bool = False
    checkpointed: bool = False
    changes_input: bool = False
    changes_state: bool = False
    host_random: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts:
    """Calls of `scaled_dot_product_attention` with gradients, during detection.

    Args:
        calls: Number of calls.
        kernel: Torch's own choice: ``flash``, ``efficient``, ``cudnn``, ``math``; empty if unknown (inside
            compiled code).
        dtype: Format of the queries: ``float32``, ``bfloat16``; empty inside compiled code.
        dropout: Attention weights are dropped out.
        restricted: The script narrows the choice of kernels itself.
        masked: A mask is passed as a tensor; not observed inside compiled code.
    """

    calls: int
    kernel: str = ""
    dtype: str = ""
    dropout: bool = False
    restricted: bool = False
    masked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The outermost trained module.

    Args:
        roots: Number of outermost trained modules.
        dtypes: Names of the parameters' dtypes.
        has_4d: There are 4-D parameters (convolutions over images).
        has_5d: There are 5-D parameters (convolutions over volumes).
        convolves: It has convolution modules, over signals, images or volumes.
        batch_norm: A module whose training statistics depend on the micro-batch.
        dropout: Random numbers are drawn per batch, by known modules or as observed in the first calls.
        moves: State that changes in each training call, BatchNorm's aside: a momentum encoder, a codebook, a
            counter.
        device: ``cpu`` or ``cuda``.
        blocks: Its repeated blocks, None without any.
        products: Matrix products or convolutions were observed in its first training calls; also True if they
            could not be examined.
        mkldnn: Layers were observed to multiply in MKL-DNN's own memory layout (`Tensor.to_mkldnn`).
    """

    name: str
    roots: int = 1
    parameters: int = 0
    parameter_bytes: int = 0
    dtypes: tuple[str, ...] = ("float32",)
    has_4d: bool = False
    has_5d: bool = False
    convolves: bool = False
    batch_norm: bool = False
    dropout: bool = False
    moves: bool = False
    device: str = "cpu"
    blocks: BlockFacts | None = None
    products: bool = True
    mkldnn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """The optimizer whose step is the boundary.

    Args:
        count: Optimizers that stepped.
        can_fuse: The exact class has a fused kernel for these parameters.
        kernel_given: The user passed `fused` or `foreach`.
        closure: `step(closure)` was used.
        rates: Learning rate of each parameter group at its first step: the initial one of a schedule, if
            there is one. Empty if reading it would wait for a device.
        decays: Weight decay of each, likewise; also empty if it has none.
    """

    name: str
    count: int = 1
    fused: bool = False
    can_fuse: bool = False
    kernel_given: bool = False
    closure: bool = False
    rates: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """Inputs of the trained module, if the script creates batches without a loader.

    Args:
        batch_size: Batch size by the script's own option in this run.
        tensor: Index of the argument with a dimension of that size; tensors in lists and dictionaries count
            one by one.
        dims: Its dimensions of that size; empty if no argument has one.
        shape: Its usual sizes, 0 for one that varies.
        calls_per_backward: Training calls of the module per backward pass, for nearly all passes; the mean if
            they vary.
        rare_frac: If no argument usually has that size: the largest share of the calls in which one had it.
        reported_per_sample: Samples reported by the script per sample counted here; 0 if not at every step.
    """

    batch_size: int
    tensor: int = 0
    dims: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    calls_per_backward: float = 1.0
    rare_frac: float = 0.0
    reported_per_sample: float = 0.0

    @property
    def counts(self) -> bool:
        """Return whether every backward pass has as many samples as the option sets."""
        return bool(self.dims) and abs(self.calls_per_backward - 1.0) < 0.1

    @property
    def place(self) -> str:
        """Return the position that shows another batch size, as in `Change.site`: ``input:0:1:16x20``.

        With reported samples, their ratio to the counted ones follows: ``input:0:1:16x20:1``.
        """
        dims, sizes = ",".join(map(str, self.dims)), "x".join(map(str, self.shape))
        reported = f":{self.reported_per_sample:.6g}" if self.reported_per_sample else ""
        return f"input:{self.tensor}:{dims}:{sizes}{reported}"

    @classmethod
    def at(cls, place: str, batch_size: int) -> InputFacts | None:
        """Return the facts in `place` with the present option; None for any other text."""
        kind, *parts = place.split(":")
        if kind != "input" or len(parts) not in (3, 4):
            return None
        try:
            dims = tuple(int(word) for word in parts[1].split(","))
            shape = tuple(int(word) for word in parts[2].split("x"))
            reported = float(parts[3]) if len(parts) == 4 else 0.0
            found = cls(
                batch_size=batch_size,
                tensor=int(parts[0]),
                dims=dims,
                shape=shape,
                reported_per_sample=reported,
            )
        except ValueError:
            return None
        return found if all(0 <= dim < len(shape) for dim in dims) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelFacts:
    """Exchange of gradients and parameters between the processes of a run, observed on rank 0.

    Args:
        wrapper: ``ddp`` (`DistributedDataParallel`) or ``fsdp`` (`fully_shard`, FSDP2).
        count: Wrappers of that kind: models under DDP, sharded modules under FSDP.
        backend: Backend of the process group: ``gloo``, ``nccl``.
        gradient_bytes: Gradients of one backward pass, per process.
        all_used: Every parameter got a gradient on every process in every observed backward pass; None if
            unknown.
        no_sync: The script itself leaves exchanges out (`no_sync`).
        mixed_precision: DDP was given a policy of its own for number formats.
        own_mesh: The script gives FSDP a device mesh of its own.
    """

    wrapper: str
    count: int = 1
    backend: str = ""
    gradient_bytes: int = 0
    all_used: bool | None = None
    no_sync: bool = False
    mixed_precision: bool = False
    own_mesh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts from the baseline's own process.

    Args:
        loader: The training loader, None if batches have another source.
        model: The trained module, None without one.
        optimizer: None for manual updates.
        samples_source: ``loader``; ``option``: the model's input has the size of the script's own option, and
            a run without its size is refused. ``reported``: by the script for every step; ``input``:
            unconfirmed; ``none``.
        inputs: If batches come without a loader and the script has an option for their size; else None.
        backward_per_step: Backward passes per optimizer step.
        own_accumulation: The script itself accumulates (more than one micro-batch per step).
        zero_grad_seen: `zero_grad` was called between steps.
        reduction: How the loss is reduced over the batch: ``mean``, ``sum``, ``unknown``.
        loss_scale: Factor of a mean loss before its backward pass; 1/4 if a script divides by four parts.
            None if unknown.
        bce_outside: `binary_cross_entropy` was applied to the model's output.
        own_autocast, own_scaler, own_compile: The script does it itself.
        owners: Frameworks that were constructed: ``accelerate``, ``lightning``, ``transformers``; and
            ``keras`` if its `fit` was called.
        owner_settings: Their settings, as in ``transformers.optim``.
        threads: `torch.get_num_threads()` after the first steps.
        sets_threads: The script, or a library of it, called `torch.set_num_threads`, and not for a variable
            of the environment.
        openmp: OpenMP of torch: ``gnu``, ``intel``, ``llvm``; empty if unknown.
        scheduler_per_step: The learning rate changes once per optimizer step, by any code.
        input_shapes_vary: More than one input shape was observed (without the last batch).
        attention: None without a call of it.
        zeroes_gradients: `zero_grad(set_to_none=False)` was called.
        gradients_pause: A parameter that had a gradient got none in a later step.
        loop_hazards: Words of `autotune.source.loops` for the loop that calls `backward`; in the baseline
            only.
        loop_draws: Random numbers are drawn between the fetch of a batch and its backward pass, in loop or
            model. ``host`` or ``device``, by the changed generators; empty without any.
        averages_apart: A moving average of the weights (`torch.optim.swa_utils`) was updated, but not once
            after every step.
        collecting_frac: Share of the time from the third step on in garbage collection; None if unknown.
        devices: Accelerators that the process used; empty on the CPU.
        triton: The compiler of kernels for NVIDIA devices is installed there; None if not checked.
        deterministic: The script requested deterministic results, of all operators or of cuDNN's.
        values: Every knob that could be read, with the script's own value: the resolved baseline.
        environ_set: Variables changed by the script or its earlier imports when it imported PyTorch; None if
            unknown.
        loaded_first: Packages with native libraries loaded before PyTorch, if one of them loaded its own
            OpenMP.
        gathers: The script collects its training data by its model or in environments: rollouts.
        loader_in_thread: A DataLoader was used in another thread than the training thread.
        modules: Files of the user's own that the script has imported -> SHA-256 of their content; those of
            `autotune.trial.runtime.user_modules`, without the script itself.
        ranks: Number of processes that trained together; this was rank 0. Loader, model and optimizer are its
            own; `effective_batch` is that of all.
        fixed_steps: A step count that does not follow the loader's length: ``OneCycleLR of 250 steps
            (train.py:21)``; empty without one.
        option_batch: Batch size of the script's own option in this run; 0 if unknown.
        options: Numbers and switches that the script's parser returned, by name.
        pass_samples: Samples of a pass over the data, if batches come without a loader and the loop iterates
            over a pass, by the batch size in its source; else 0.
        parallel: Exchange of gradients between processes; None for one process, and without a wrapper of
            PyTorch.
    """

    loader: LoaderFacts | None = None
    model: ModelFacts | None = None
    optimizer: OptimizerFacts | None = None
    samples_source: str = "none"
    inputs: InputFacts | None = None
    effective_batch: int | None = None
    backward_per_step: float = 1.0
    own_accumulation: bool = False
    zero_grad_seen: bool = False
    reduction: str = "unknown"
    loss_scale: float | None = None
    bce_outside: bool = False
    own_autocast: bool = False
    own_scaler: bool = False
    own_compile: bool = False
    owners: tuple[str, ...] = ()
    threads: int = 0
    sets_threads: bool = False
    openmp: str = ""
    scheduler_per_step: bool = False
    input_shapes_vary: bool = False
    explicit_backward_gradient: bool = False
    attention: AttentionFacts | None = None
    zeroes_gradients: bool = False
    gradients_pause: bool = False
    loop_hazards: tuple[str, ...] = ()
    averages_apart: bool = False
    loop_draws: str = ""
    collecting_frac: float | None = None
    devices: tuple[DeviceFacts, ...] = ()
    triton: bool | None = None
    gathers: bool = False
    loader_in_thread: bool = False
    values: Mapping[str, Value] = field(default_factory=dict[str, Value])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    modules: Mapping[str, str] = field(default_factory=dict[str, str])
    owner_settings: Mapping[str, Value] = field(default_factory=dict[str, Value])
    environ_set: tuple[str, ...] | None = None
    loaded_first: tuple[str, ...] = ()
    deterministic: bool = False
    ranks: int = 1
    fixed_steps: str = ""
    option_batch: int = 0
    options: Mapping[str, Value] = field(default_factory=dict[str, Value])
    pass_samples: int = 0
    parallel: ParallelFacts | None = None

    @property
    def was_seen(self) -> bool:
        """Return whether these are facts of a process, which always reports its Python version."""
        return "python" in self.versions

    @property
    def without_torch(self) -> bool:
        """The process never imported PyTorch."""
        return self.was_seen and "torch" not in self.versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on the script's own code that no knob covers.

    Args:
        kind: ``read``, ``log``, ``checkpoint``, ``preprocess``, ``shape``, ``copy``, ``samples`` or
            ``rollout``.
        file, line: Location; the file is relative to the script's folder.
        text: A whole sentence.
        part: Part of a step that it concerns: ``host``, ``input``, ``compute``, ``transfer``; ``search`` for
            the results of a search.
        gain_frac_at_most: Largest share of a step that it may save; None if not measured.
    """

    kind: str
    file: str
    line: int
    text: str
    part: str
    gain_frac_at_most: float | None = None

    @property
    def place(self) -> str:
        """``train.py:42``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it. `run` is None until the baseline has ended.

    Args:
        declared: What the command line, the environment or the option's default give for knobs that
            the user declared; absent where it could not be read.
        advice: On the script as it was inspected, in the order of files and lines.
        launcher: The command's launcher, as in `autotune.model.distributed_launch`; empty without one.
    """

    host: HostFacts
    script: ScriptFacts
    run: RunFacts | None = None
    effective_batch_rule: str = "explore"
    declared: Mapping[str, Value] = field(default_factory=dict[str, Value])
    advice: tuple[Advice, ...] = ()
    launcher: str = ""

    def value(self, knob: str) -> Value | None:
        """Return the script's own value of this knob, None if it could not be read."""
        return None if self.run is None else self.run.values.get(knob)


def training_memory_bytes(host: HostFacts, run: RunFacts | None = None) -> int:
    """Memory that training may fill: of the smallest device that it uses, of the machine on the CPU.

    A machine may have other devices than those that the run used, and a script may use none of them. Before a
    run it is assumed to use all that a process started there would see.

    Returns:
        Bytes; 0 where it is not known.
    """
    model = None if run is None else run.model
    on_cuda = model is not None and model.device.startswith("cuda")
    devices = run.devices if run is not None and run.devices else host.devices
    if (model is not None and not on_cuda) or not (devices or on_cuda):
        return host.memory_bytes
    return min((device.memory_bytes for device in devices if device.memory_bytes > 0), default=0)

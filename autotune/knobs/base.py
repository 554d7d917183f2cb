"""What a knob is. Standard library only: torch is handed in through `Patches`.

A knob is one file. Its class attributes are the row that `inspect`, YAML validation, export and
the reference are made from; `domain`, `refuse`, `effect_for` and `settle` are functions of facts;
`patch` and `seen` run in the training process.

A *virtual* knob has no delivery of its own: it is realised by other knobs (`effective_batch` by
`batch_size` times `accumulation`), so no `Change` is made for it and it is never read back; the
readings of the knobs that realise it are its reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from autotune.knobs.frameworks import refuse_by_owner
from autotune.knobs.traits import Prior

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import ActsAt, Fields, LateHarm, MemoryUse, Setting
    from autotune.model.change import Change, Env, Keyword, Spelling
    from autotune.model.config import Config, Value
    from autotune.model.effect import Effect
    from autotune.model.facts import Facts, RunFacts, ScriptFlag


class LoaderHook(Protocol):
    """The training DataLoader."""

    def override(self, keyword: str, value: Value | None) -> None:
        """Build the training loader with this keyword from now on; None removes the argument."""

    def observed(self, keyword: str) -> Value | None:
        """What the training loader in use really has (living workers, batch of the last step).

        None before a batch of it was followed by a backward.
        """

    def give_back(self, keyword: str) -> bool:
        """Loaders have the script's own value again: batches at once, workers from the next pass on."""
        ...


class PrecisionHook(Protocol):
    """Autocast around the trained module's call."""

    def set(self, dtype: str) -> None:
        """``bf16`` or ``fp16`` (with a gradient scaler of ours)."""

    def end_precision(self) -> None:
        """Calls are in the script's own number format from the next one on."""

    def observed(self) -> str | None:
        """``fp32``, ``bf16``, ``fp16``: that of most of what products made in the last training calls."""


class CompileHook(Protocol):
    """In-place compilation of the trained module, or the mode of the script's own compile."""

    def set(self, mode: str) -> None:
        """``off``, ``default``, ``reduce-overhead``, ``max-autotune``, ``max-autotune-no-cudagraphs``."""

    def end(self) -> bool:
        """Run trained modules eagerly from the next call on; False where the script compiles them itself."""
        ...

    def observed(self) -> str | None:
        """The mode in effect, ``off`` for eager.

        None before the first training call, or when the compiler fell back to eager.
        """


class LayoutHook(Protocol):
    """Memory layout of 4-D parameters and inputs."""

    def channels_last(self) -> None:
        """Convert the trained module and its inputs from the first call on."""

    def observed(self) -> bool | None:
        """Whether 4-D parameters and the last input are channels-last."""


class OptimizerHook(Protocol):
    """Construction of optimizers."""

    def fuse(self) -> None:
        """Build optimizers of the exact classes with a fused kernel with ``fused=True``."""

    def observed(self) -> bool | None:
        """Whether the anchor optimizer's groups are fused; None before it stepped."""


class AccumulationHook(Protocol):
    """Deferral of the optimizer step."""

    def set(self, factor: int) -> None:
        """Let the optimizer step take effect every `factor` micro-batches."""

    def observed(self) -> int | None:
        """Backward passes per step that took effect, of the last complete step."""


class AttentionHook(Protocol):
    """Which kernels `scaled_dot_product_attention` may choose from."""

    def force(self, kernel: str, /) -> None:
        """Only ``flash``, ``efficient``, ``cudnn`` or ``math`` from now on; ``auto`` leaves the choice."""

    def observed(self) -> str | None:
        """The one kernel that was left when attention was called, ``auto`` for torch's own choice.

        None before a call of it was seen.
        """


class CheckpointingHook(Protocol):
    """Activations of repeated blocks that are computed again in the backward pass."""

    def set(self, which: str, /) -> None:
        """``none``, ``selective`` (every second block) or ``full``."""

    def observed(self) -> str | None:
        """By the blocks that a backward pass computed again; None before one was seen."""


class BudgetHook(Protocol):
    """Memory that a compiled forward pass may keep for its backward pass."""

    def set(self, share: float, /) -> None:
        """Share of what it would keep by itself, 0..1."""

    def observed(self) -> float | None:
        """The share in force when code was compiled; None before that."""


class ShapesHook(Protocol):
    """How compiled code treats sizes."""

    def set(self, shapes: str, /) -> None:
        """``auto``, ``static`` or ``dynamic``."""

    def observed(self) -> str | None:
        """The rule in force when code was compiled; None before that."""


class RegionHook(Protocol):
    """What is compiled as one piece."""

    def set(self, region: str, /) -> None:
        """``whole`` for the trained module, ``block`` for each of its repeated blocks."""

    def observed(self) -> str | None:
        """What compiled code was really called for; None before that."""


class GradientsHook(Protocol):
    """What `zero_grad` leaves behind."""

    def drop(self) -> None:
        """Let gradients go where the script wants them filled with zeros."""

    def observed(self) -> bool | None:
        """Whether gradients were gone after the last `zero_grad`; None before one was seen."""


class WeightsHook(Protocol):
    """Number format of the trained module's parameters."""

    def halve(self) -> None:
        """Parameters, buffers and floating inputs in bf16 from the first training call on."""

    def restore(self) -> bool:
        """Parameters and buffers in the script's own format again; False where that is not possible."""
        ...

    def observed(self) -> bool | None:
        """Whether parameters and optimizer state are bf16; None before a step was taken."""


class ProcessHook(Protocol):
    """The process itself: its variables and what is mapped into it."""

    @abstractmethod
    def variable(self, name: str) -> str:
        """An environment variable when torch had been imported, which is when its libraries read theirs.

        Empty where it was not set.
        """

    @abstractmethod
    def malloc(self) -> str:
        """Whose `malloc` the process uses: ``glibc``, ``jemalloc``, ``tcmalloc``; empty where unknown."""

    @abstractmethod
    def huge_pages(self) -> bool:
        """A large block of memory is marked for transparent huge pages when it is taken."""

    @abstractmethod
    def openmp(self) -> str:
        """Whose OpenMP torch uses: ``gnu``, ``intel``, ``llvm``; empty where unknown."""

    def blocktime_ms(self) -> int | None:
        """How long a thread of Intel's or LLVM's OpenMP spins; None under another one."""


class CollectorHook(Protocol):
    """When Python looks for garbage."""

    def set(self, mode: str) -> None:
        """``auto``, ``freeze`` or ``boundary``, from the first steps on."""

    def observed(self) -> str | None:
        """One of these as the interpreter has it, ``own`` for anything else."""


class CopiesHook(Protocol):
    """Copies of a loader's pinned batches to a CUDA device."""

    def non_blocking(self, on: bool) -> None:
        """Copy without waiting where the script does not say whether to wait."""

    def observed(self) -> bool | None:
        """Whether all of the last copies were made without waiting; None before there was one."""


class Float8Hook(Protocol):
    """Linear layers whose products are computed in 8 bits."""

    def set(self, recipe: str, /) -> None:
        """``off``, ``tensorwise`` or ``rowwise``, for every trained module from its first call on."""

    def observed(self) -> str | None:
        """The recipe of layers that were compiled, ``off`` without any; None before that."""


class DistributedHook(Protocol):
    """How processes that train together exchange gradients and parameters."""

    def set(self, setting: str, value: Value, /) -> None:
        """Construct wrappers with this setting, which has the name of its knob, from now on."""

    def observed(self, setting: str, /) -> Value | None:
        """The setting of every wrapper in use; None before there was one, and where they differ."""


class Patches(Protocol):
    """What a knob may touch in the training process; everything set here can be undone."""

    torch: Any
    loader: LoaderHook
    precision: PrecisionHook
    compile: CompileHook
    layout: LayoutHook
    optimizer: OptimizerHook
    accumulation: AccumulationHook
    attention: AttentionHook
    checkpointing: CheckpointingHook
    budget: BudgetHook
    shapes: ShapesHook
    region: RegionHook
    gradients: GradientsHook
    weights: WeightsHook
    float8: Float8Hook
    process: ProcessHook
    collector: CollectorHook
    copies: CopiesHook
    distributed: DistributedHook

    def assign(self, owner: object, attribute: str, value: object) -> None:
        """Set an attribute and remember the old one."""

    def hook(self, path: str) -> Any:
        """Return the one object of a class ``package.module:Class``, built with (state, undo, torch)."""
        ...

    def call(self, setter: Any, value: object, *, undo: object) -> None:
        """Call a setter now, and again with `undo` when patches are undone."""


class Knob(ABC):
    """One thing that can be turned.

    Contract: instances carry no state; every method but `patch` is pure; `domain` contains the
    script's own value wherever that is known; a refusal is a whole sentence. Tested by
    `autotune.testing.knobs.KnobContract`.
    """

    name: ClassVar[str]
    effect: ClassVar[Effect]
    spellings: ClassVar[Sequence[Spelling]]
    ordinal: ClassVar[bool] = False
    derived: ClassVar[bool] = False
    virtual: ClassVar[bool] = False
    """Realised by other knobs alone: no spellings, no `Change`, no reading of its own."""
    requires: ClassVar[Sequence[str]] = ()
    """Knobs that a space gets along with this one, because this one acts through them."""
    unit: ClassVar[str] = ""
    family: ClassVar[str] = "own"
    """One of `autotune.model.knob_families.FAMILIES`: knobs of a family act on the same part of a step."""
    withdraws_with: ClassVar[Sequence[str]] = ()
    """Knobs that make no sense, or another training, where this one is withdrawn (`withdraw`)."""
    rank: ClassVar[int] = 1000
    """Place among all knobs by expected gain per cost of trying, smallest first."""
    prior: ClassVar[Prior] = Prior()
    late_harms: ClassVar[Sequence[LateHarm]] = ()
    """Harms of its values that a short trace of the loss cannot show."""
    permission: ClassVar[str] = ""
    """The option of its own that lets a knob take part that changes the training; empty for ``--allow``."""
    acts_at: ClassVar[ActsAt] = "call"
    memory: ClassVar[MemoryUse] = "any"
    feeds: ClassVar[bool] = False
    """Whether it acts on the loading of batches and not on computing."""
    loads_compiler: ClassVar[bool] = False
    """Whether a process in which it is changed imports PyTorch's compiler."""
    wrapper: ClassVar[str] = ""
    """Wrapper of several processes (``ddp``, ``fsdp``, ``any``) with which an automatic space varies it."""
    first_value: ClassVar[Value | None] = None
    """Value that such a space tries first."""

    @property
    def summary(self) -> str:
        """First line of the class docstring."""
        return (type(self).__doc__ or "").strip().splitlines()[0]

    @abstractmethod
    def domain(self, facts: Facts) -> Sequence[Value]:
        """Values worth trying for this script and machine, the script's own included."""

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        """A value in the notation of space files made plain: ``x2``, ``physical``, ``asis``.

        Returns:
            The plain value (also one outside `domain`, if it could be delivered), or None where
            it means nothing here. The default passes values on, and ``asis`` as the script's own.
        """
        return self.own(facts) if wanted == "asis" else wanted

    def own(self, facts: Facts) -> Value | None:
        """The script's own value; None where it could not be read."""
        return facts.value(self.name)

    def refuse(self, facts: Facts) -> str | None:
        """Why this knob must not be varied for this script: a whole sentence, or None."""
        return None

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        """Why this one way must not be used for this script: a whole sentence, or None.

        The default refuses ways past the framework that owns the knob.
        """
        return refuse_by_owner(self.name, self.spellings, spelling, facts)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        """Why the knob could change nothing in a space of exactly these knobs, or None.

        Args:
            facts: Of this script and machine.
            varied: Names of all knobs of the space, this one included.
        """
        return None

    def derived_in(self, facts: Facts, varied: Collection[str]) -> bool:
        """Whether a rule sets this knob in a space of these knobs, so that it is never sampled."""
        return self.derived

    def follow(self, values: Mapping[str, Sequence[Value]], facts: Facts) -> Sequence[Value]:
        """Every value that a rule can give to this knob, for spaces in which it is derived.

        Args:
            values: The values of the space's other knobs.
            facts: Of this script and machine.
        """
        return ()

    def added_by(self, run: RunFacts) -> tuple[Sequence[Value], str] | None:
        """Values with which an automatic space varies this knob after a run, and the reason; or None."""
        return None

    def expected_gain(self, value: Value, setting: Setting) -> float:
        """Ln of the rate of computing with this value, before it was measured."""
        known = self.prior.gain.get(setting.device, {}) if isinstance(value, (str, bool)) else {}
        return known.get(value, 0.0)

    def effect_for(self, facts: Facts) -> Effect:
        """The declared effect, raised where facts demand it; never lowered."""
        return self.effect

    def raised(self, facts: Facts) -> str:
        """Why facts raise the effect above the declared one, a whole sentence; empty where they do not."""
        return ""

    def changes_rng_streams(self, facts: Facts) -> bool:
        """Whether a change re-deals random streams (judged by distribution)."""
        return False

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        """Ties to other knobs: complete the config, drop what does not apply, or say why not.

        Args:
            config: What is wanted; knobs at the script's own value are absent.
            facts: Of this script and machine.
            varied: Names of the space's knobs; None: every knob that facts do not refuse.
        """
        return config

    def deliver(self, value: Value) -> str:
        """The text of a value on a command line or in the environment."""
        return str(value)

    def environment(self, value: Value, spelling: Env, facts: Facts) -> str | None:
        """The text that this variable gets for a value; None where it cannot say the value.

        What the user has in a variable that holds a list is kept (`autotune.model.environment_variables`).
        """
        return self.deliver(value)

    def shown_at(self, facts: Facts) -> str:
        """Where in the running process a value shows that the script's own option says, for `Change.site`.

        Empty where nothing has to be known beforehand to read it.
        """
        return ""

    def option_value(self, value: Value, facts: Facts) -> Value | None:
        """The value that the script's own option takes for this one; None where no option value gives it."""
        return value

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        """How the script's own option says this value.

        Returns:
            The spelling to use and the text to hand over (empty for a switch), or None where
            the option cannot say it: a switch can be set, never unset, and `choices` bind.
        """
        name = next((n for n in flag.names if n.startswith("--")), flag.names[0])
        if flag.choices and self.deliver(value) not in flag.choices:
            return None
        match flag.kind:
            case "switch":
                return (name, "") if value is True else None
            case "off_switch":
                return (name, "") if value is False else None
            case "pair":
                wanted = [n for n in flag.names if n.startswith("--no") is (value is False)]
                return (wanted[0], "") if wanted and isinstance(value, bool) else None
            case "bool":
                return (name, str(value)) if isinstance(value, bool) else None
            case "int":
                fits = isinstance(value, int) and not isinstance(value, bool)
                return (name, self.deliver(value)) if fits else None
            case "float":
                fits = isinstance(value, (int, float)) and not isinstance(value, bool)
                return (name, self.deliver(value)) if fits else None
            case "str":
                return (name, value) if isinstance(value, str) else None
            case _:
                return None

    def written(self, value: Value, was: Value) -> Value | None:
        """What a constant of the source becomes for a value; None where it cannot hold it.

        Args:
            value: The knob's.
            was: What is written there now, by which the notation is known: ``"float32"``, ``False``.
        """
        return value if type(value) is type(was) else None

    def arguments(self, value: Value, spelling: Keyword) -> Mapping[str, Value | None]:
        """What a framework's callable is called with to have this value; None takes an argument away."""
        return {spelling.name: value}

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        """What the configuration of a framework contains for a value, where its arguments do not express it.

        Args:
            change: The value, and the spelling on which it was measured.
            target: Of the framework's rows (`autotune.knobs.frameworks`).
            changed: Every changed knob of the same pick.

        Returns:
            Its fields; the reason why it has none; or None where the rows of `spellings` decide.
        """
        return None

    def patch(self, value: Value, patches: Patches) -> None:
        """Apply the value in the training process, before the script builds anything.

        Called once torch has been imported, for `Patch` changes, and for `Keyword` changes on
        torch's own callables. Must be reversible through `patches`.
        """
        message = f"{self.name} has no in-process patch"
        raise NotImplementedError(message)

    def withdraw(self, patches: Patches) -> bool:
        """Go back to the script's own value in a running training, where something contradicts this one.

        Called between two optimizer steps. Knobs of the loader's workers end with the pass that goes on.
        Knobs that do not define it hold to the end of the process.

        Returns:
            Whether that was possible.
        """
        return False

    def seen(self, patches: Patches) -> Value | None:
        """What the running process really does, in the notation of `domain`; None: not yet."""
        return None

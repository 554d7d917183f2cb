"""Base class of knobs, and the hooks through which knobs act on the training process.

Standard library only: torch is passed in through `Patches`.

A knob is one file. `inspect`, YAML validation, export and the reference read its class attributes. `domain`,
`refuse`, `effect_for` and `settle` are functions of facts. `patch` and `seen` run in the training process.

A *virtual* knob has no delivery of its own. Other knobs realise it: `effective_batch` is `batch_size` times
`accumulation`. No `Change` is made for it, and its value is read back from those knobs.
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
        """Return the value that the training loader in use has (living workers, batch of the last step).

        Returns:
            The value, or None before a batch of the loader was followed by a backward pass.
        """

    def give_back(self, keyword: str) -> bool:
        """Return loaders to the script's own value: batches at once, workers from the next pass on."""
        ...


class PrecisionHook(Protocol):
    """Autocast around the trained module's call."""

    def set(self, dtype: str) -> None:
        """Compute in ``bf16``, or in ``fp16`` with a gradient scaler of autotune."""

    def end_precision(self) -> None:
        """Return calls to the script's own number format from the next call on."""

    def observed(self) -> str | None:
        """Return the format of most products in the last training calls: ``fp32``, ``bf16`` or ``fp16``."""


class CompileHook(Protocol):
    """In-place compilation of the trained module, or the mode of the script's own compile."""

    def set(self, mode: str) -> None:
        """Compile in one of the modes of `compile_mode`, or ``off`` for eager."""

    def end(self) -> bool:
        """Run trained modules eagerly from the next call on; False where the script compiles them itself."""
        ...

    def observed(self) -> str | None:
        """Return the mode in effect, ``off`` for eager.

        Returns:
            The mode, or None before the first training call, or when the compiler fell back to eager.
        """


class LayoutHook(Protocol):
    """Memory layout of 4-D parameters and inputs."""

    def channels_last(self) -> None:
        """Convert the trained module and its inputs from the first call on."""

    def observed(self) -> bool | None:
        """Return whether 4-D parameters and the last input are channels-last."""


class OptimizerHook(Protocol):
    """Construction of optimizers."""

    def fuse(self) -> None:
        """Build optimizers of the exact classes with a fused kernel with ``fused=True``."""

    def observed(self) -> bool | None:
        """Return whether the anchor optimizer's groups are fused, or None before its first step."""


class AccumulationHook(Protocol):
    """Deferral of the optimizer step."""

    def set(self, factor: int) -> None:
        """Let the optimizer step take effect every `factor` micro-batches."""

    def observed(self) -> int | None:
        """Return the backward passes per effective step, of the last complete step."""


class AttentionHook(Protocol):
    """Choice of kernels for `scaled_dot_product_attention`."""

    def force(self, kernel: str, /) -> None:
        """Allow only ``flash``, ``efficient``, ``cudnn`` or ``math``; ``auto`` leaves the choice to torch."""

    def observed(self) -> str | None:
        """Return the one kernel that was allowed when attention was called, ``auto`` for torch's own choice.

        Returns:
            The kernel, or None before the first call of attention.
        """


class CheckpointingHook(Protocol):
    """Activations of repeated blocks that are recomputed in the backward pass."""

    def set(self, which: str, /) -> None:
        """Recompute ``none``, ``selective`` (every second block) or ``full``."""

    def observed(self) -> str | None:
        """Return the setting according to the blocks that a backward pass recomputed, or None before one."""


class BudgetHook(Protocol):
    """Memory that a compiled forward pass may keep for its backward pass."""

    def set(self, share: float, /) -> None:
        """Set the share that is kept, 0..1 of the default."""

    def observed(self) -> float | None:
        """Return the share in effect when code was compiled, or None before that."""


class ShapesHook(Protocol):
    """Rule by which compiled code treats input sizes."""

    def set(self, shapes: str, /) -> None:
        """Compile with the rule ``auto``, ``static`` or ``dynamic``."""

    def observed(self) -> str | None:
        """Return the rule in effect when code was compiled, or None before that."""


class RegionHook(Protocol):
    """Unit of compilation."""

    def set(self, region: str, /) -> None:
        """Compile ``whole`` trained modules, or each ``block`` that repeats."""

    def observed(self) -> str | None:
        """Return the region for which compiled code was called, or None before that."""


class GradientsHook(Protocol):
    """State of gradients after `zero_grad`."""

    def drop(self) -> None:
        """Set gradients to None where the script requests zeros."""

    def observed(self) -> bool | None:
        """Return whether gradients were None after the last `zero_grad`; None before the first one."""


class WeightsHook(Protocol):
    """Number format of the trained module's parameters."""

    def halve(self) -> None:
        """Convert parameters, buffers and floating inputs to bf16 from the first training call on."""

    def restore(self) -> bool:
        """Restore the script's own format of parameters and buffers; return False if that is not possible."""
        ...

    def observed(self) -> bool | None:
        """Return whether parameters and optimizer state are bf16; None before the first step."""


class ProcessHook(Protocol):
    """The process itself: its variables and what is mapped into it."""

    @abstractmethod
    def variable(self, name: str) -> str:
        """Return an environment variable as it was when torch, and with it its libraries, was imported.

        Returns:
            The text, or "" if the variable was not set.
        """

    @abstractmethod
    def malloc(self) -> str:
        """Return the implementation of `malloc`: ``glibc``, ``jemalloc``, ``tcmalloc``, or "" if unknown."""

    @abstractmethod
    def huge_pages(self) -> bool:
        """Return whether a newly allocated large block is marked for transparent huge pages."""

    @abstractmethod
    def openmp(self) -> str:
        """Return the OpenMP library that torch uses: ``gnu``, ``intel``, ``llvm``, or "" if unknown."""

    def blocktime_ms(self) -> int | None:
        """Return how long a thread of Intel's or LLVM's OpenMP spins, or None under another library."""


class CollectorHook(Protocol):
    """Garbage collection of Python."""

    def set(self, mode: str) -> None:
        """Set the mode ``auto``, ``freeze`` or ``boundary``, from the first steps on."""

    def observed(self) -> str | None:
        """Return the mode of the interpreter, or ``own`` for any other state."""


class CopiesHook(Protocol):
    """Copies of a loader's pinned batches to a CUDA device."""

    def non_blocking(self, on: bool) -> None:
        """Copy without waiting where the script does not set `non_blocking`."""

    def observed(self) -> bool | None:
        """Return whether all of the last copies were made without waiting; None before the first copy."""


class Float8Hook(Protocol):
    """Linear layers whose products are computed in 8 bits."""

    def set(self, recipe: str, /) -> None:
        """Set the recipe ``off``, ``tensorwise`` or ``rowwise``, before the first call of trained modules."""

    def observed(self) -> str | None:
        """Return the recipe of compiled layers, ``off`` if there are none, or None before compilation."""


class DistributedHook(Protocol):
    """Exchange of gradients and parameters between the processes of a training."""

    def set(self, setting: str, value: Value, /) -> None:
        """Construct wrappers with this setting from now on. A setting has the name of its knob."""

    def observed(self, setting: str, /) -> Value | None:
        """Return the setting of the wrappers in use, or None without a wrapper or where they differ."""


class Patches(Protocol):
    """Parts of the training process that a knob may change; every change can be undone."""

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
        """Set an attribute and store the old value for undo."""

    def hook(self, path: str) -> Any:
        """Return the one object of a class ``package.module:Class``, built with (state, undo, torch)."""
        ...

    def call(self, setter: Any, value: object, *, undo: object) -> None:
        """Call a setter now, and again with `undo` when patches are undone."""


class Knob(ABC):
    """One setting that can be changed in a training script.

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
    """Other knobs realise it: no spellings, no `Change`, no reading of its own."""
    requires: ClassVar[Sequence[str]] = ()
    """Knobs that are added to a space with this one, because it acts through them."""
    unit: ClassVar[str] = ""
    family: ClassVar[str] = "own"
    """One of `autotune.model.knob_families.FAMILIES`: knobs of a family act on the same part of a step."""
    withdraws_with: ClassVar[Sequence[str]] = ()
    """Knobs that are withdrawn with this one: alone, they have no effect or change the training."""
    rank: ClassVar[int] = 1000
    """Position in the order of expected gain per cost of a trial, smallest first."""
    prior: ClassVar[Prior] = Prior()
    late_harms: ClassVar[Sequence[LateHarm]] = ()
    """Harms of its values that a short trace of the loss cannot show."""
    permission: ClassVar[str] = ""
    """Option that permits a knob with effect TRAINING, or "" for ``--allow``."""
    acts_at: ClassVar[ActsAt] = "call"
    memory: ClassVar[MemoryUse] = "any"
    feeds: ClassVar[bool] = False
    """True for knobs that act on data loading, not on computing."""
    loads_compiler: ClassVar[bool] = False
    """True if a change makes the process import PyTorch's compiler."""
    wrapper: ClassVar[str] = ""
    """Distributed wrapper (``ddp``, ``fsdp``, ``any``) with which an automatic space varies it."""
    first_value: ClassVar[Value | None] = None
    """Value that an automatic space tries first."""

    @property
    def summary(self) -> str:
        """First line of the class docstring."""
        return (type(self).__doc__ or "").strip().splitlines()[0]

    @abstractmethod
    def domain(self, facts: Facts) -> Sequence[Value]:
        """Return the values to search for this script and machine, including the script's own."""

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        """Convert a value in the notation of space files (``x2``, ``physical``, ``asis``) to a plain one.

        Returns:
            The plain value (also one outside `domain`, if it can be delivered), or None if it has no meaning
            here. The default returns values unchanged, and the script's own value for ``asis``.
        """
        return self.own(facts) if wanted == "asis" else wanted

    def own(self, facts: Facts) -> Value | None:
        """Return the script's own value, or None if it could not be read."""
        return facts.value(self.name)

    def refuse(self, facts: Facts) -> str | None:
        """Return why this knob must not be varied for this script, as a whole sentence, or None."""
        return None

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        """Return why this delivery must not be used for this script, as a whole sentence, or None.

        The default refuses deliveries that bypass the framework that owns the knob.
        """
        return refuse_by_owner(self.name, self.spellings, spelling, facts)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        """Return why the knob would have no effect in a space of exactly these knobs, or None.

        Args:
            facts: Of this script and machine.
            varied: Names of all knobs of the space, this one included.
        """
        return None

    def derived_in(self, facts: Facts, varied: Collection[str]) -> bool:
        """Return whether a rule sets this knob in a space of these knobs, so that it is never sampled."""
        return self.derived

    def follow(self, values: Mapping[str, Sequence[Value]], facts: Facts) -> Sequence[Value]:
        """Return every value that a rule can give to this knob, for spaces in which it is derived.

        Args:
            values: The values of the space's other knobs.
            facts: Of this script and machine.
        """
        return ()

    def added_by(self, run: RunFacts) -> tuple[Sequence[Value], str] | None:
        """Return values that an automatic space adds after a run, with the reason, or None."""
        return None

    def expected_gain(self, value: Value, setting: Setting) -> float:
        """Return the ln of the rate of computing with this value that is expected before a measurement."""
        known = self.prior.gain.get(setting.device, {}) if isinstance(value, (str, bool)) else {}
        return known.get(value, 0.0)

    def effect_for(self, facts: Facts) -> Effect:
        """Return the declared effect, raised where facts require it, never lowered."""
        return self.effect

    def raised(self, facts: Facts) -> str:
        """Return why facts raise the effect above the declared one, as a whole sentence, or ""."""
        return ""

    def changes_rng_streams(self, facts: Facts) -> bool:
        """Return whether a change alters random streams, so that losses are compared as distributions."""
        return False

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        """Resolve dependencies on other knobs: complete the config, drop knobs without effect, or refuse it.

        Args:
            config: The requested values; knobs at the script's own value are absent.
            facts: Of this script and machine.
            varied: Names of the space's knobs; None: every knob that facts do not refuse.
        """
        return config

    def deliver(self, value: Value) -> str:
        """Return the text of a value for a command line or the environment."""
        return str(value)

    def environment(self, value: Value, spelling: Env, facts: Facts) -> str | None:
        """Return the text of this variable for a value, or None if it cannot express the value.

        Entries of the user in a variable that holds a list are retained
        (`autotune.model.environment_variables`).
        """
        return self.deliver(value)

    def shown_at(self, facts: Facts) -> str:
        """Return where the running process shows the value of the script's own option, for `Change.site`.

        Returns:
            The place, or "" if none is needed to read the value.
        """
        return ""

    def option_value(self, value: Value, facts: Facts) -> Value | None:
        """Return the value of the script's own option that results in this one, or None if there is none."""
        return value

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        """Return the option and the text by which the script's own option expresses this value.

        Returns:
            The option's name and its text ("" for a switch), or None if the option cannot express the
            value: a switch can be set, never unset, and `choices` bind.
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
        """Return the literal by which a constant of the source expresses a value, or None if it cannot.

        Args:
            value: The knob's.
            was: The literal in the source, which shows the notation: ``"float32"``, ``False``.
        """
        return value if type(value) is type(was) else None

    def arguments(self, value: Value, spelling: Keyword) -> Mapping[str, Value | None]:
        """Return the keyword arguments of a framework's callable for this value; None removes an argument."""
        return {spelling.name: value}

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        """Return the fields of a framework's configuration for a value that its arguments do not express.

        Args:
            change: The value, and the spelling on which it was measured.
            target: Target of the framework's rows (`autotune.knobs.frameworks`).
            changed: Every changed knob of the same pick.

        Returns:
            The fields; the reason why there are none; or None where the rows of `spellings` decide.
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
        """Return to the script's own value during training, where another setting contradicts this one.

        Called between two optimizer steps. Knobs of loader workers end with the current pass. Knobs that do
        not define it last until the end of the process.

        Returns:
            Whether that was possible.
        """
        return False

    def seen(self, patches: Patches) -> Value | None:
        """Return the value in effect in the running process, in the notation of `domain`; None if unknown."""
        return None

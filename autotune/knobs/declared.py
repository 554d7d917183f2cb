"""Knobs that a user declares in a space file: an option of the script, a variable, a keyword.

A declaration is data (`model.study.DeclaredSpec`), from which a knob is made here. The value of such a knob
is not read back: it counts as applied once it was delivered.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

from autotune.errors import did_you_mean
from autotune.knobs.base import Knob
from autotune.knobs.common import as_switch
from autotune.knobs.traits import LateHarm
from autotune.model.change import Env, Flag, Keyword, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.knobs.traits import ChangedKnob
    from autotune.model.config import Value
    from autotune.model.facts import Facts, ScriptFacts, ScriptFlag
    from autotune.model.study import DeclaredSpec

SDK_VALUE: Final = "autotune.sdk.value"
"""Callable by which a script requests a value itself; the keyword is the name."""

_RUNS_CODE: Final = re.compile(
    r"(LD|DYLD|BASH|GIT)_.*|PATH|ENV|IFS|HOME|SHELL|CC|CXX|NODE_OPTIONS|(PERL5|RUBY)(LIB|OPT|DB)|.*JAVA\w*_OPTIONS"
    r"|PYTHON(PATH|HOME|STARTUP|USERBASE|PLATLIBDIR|PYCACHEPREFIX|BREAKPOINT|WARNINGS|EXECUTABLE)"
    r"|.*_(PATH|PRELOAD|PLUGINS?|LIBRARY|LIBRARIES|HOOKS?|CMD|COMMAND)"
)
"""Variables that choose the code that the loader, Python, a shell or a library runs."""
_STARTS: Final = frozenset(
    {
        *("os", "posix", "pty", "subprocess", "shutil", "builtins", "importlib", "runpy", "code"),
        *("pickle", "marshal", "ctypes"),
    }
)
"""Modules whose calls start programs, load code or delete files."""
_LOADS: Final = frozenset({"torch.load", "numpy.load", "joblib.load"})
_TRUSTS: Final = frozenset({"trust_remote_code", "weights_only", "allow_pickle"})
"""Arguments that let a file that is loaded run code."""

_SWITCHES: Final = ("switch", "off_switch", "pair", "bool")
_NO: Final = frozenset({"false", "f", "0", "no", "off"})


_FEW_BITS: Final = re.compile(r"(?<![0-9])[48][ _-]?bit", re.IGNORECASE)


def compresses_state(changed: ChangedKnob) -> bool:
    """Return whether a value of a declared knob stores the optimizer's state in 4 or 8 bits."""
    return isinstance(changed.value, str) and _FEW_BITS.search(changed.value) is not None


_ROUNDED_STATE: Final = LateHarm(
    applies=compresses_state,
    harm="optimizer state of 4 or 8 bits rounds values accumulated over many steps",
    source="arXiv 2110.02861",
)


class DeclaredKnob(Knob):
    """A knob that the user declares, delivered verbatim and never read back.

    `declared_knob` makes one class per declaration. An option has to exist in the script's source.

    Effect: as declared. Unit: as declared. Source: the user's space file.
    """

    declared: ClassVar[DeclaredSpec]

    @property
    def summary(self) -> str:
        """The user's help text, or the delivery."""
        return self.declared.help or f"Your own knob: {self.declared.spelling.text}"

    def own(self, facts: Facts) -> Value | None:
        known = facts.declared.get(self.name)
        if known is None and self._is_requested and (found := facts.value(self.name)) is not None:
            return _among(found, self.declared.values)
        return known

    @property
    def _is_requested(self) -> bool:
        """True if the script requests the value itself, so that its run shows its own value."""
        spelling = self.declared.spelling
        return isinstance(spelling, Keyword) and spelling.target == SDK_VALUE

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        values = [v for v in self.declared.values if v != "asis"]
        if own is not None and not any(_same(own, v) for v in values):
            values.insert(0, own)
        numbers = [v for v in values if isinstance(v, (int, float))]
        return tuple(sorted(numbers)) if self.ordinal and len(numbers) == len(values) else tuple(values)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        meant = _among(wanted, self.domain(facts))
        return meant if any(_same(meant, v) for v in self.domain(facts)) else None

    def holds(self, value: Value) -> bool:
        """Return whether the declaration contains this value, in any notation."""
        return any(_same(_among(value, self.declared.values), v) for v in self.declared.values)

    def refuse(self, facts: Facts) -> str | None:
        spelling, run = self.declared.spelling, facts.run
        if self._is_requested and run is not None and run.was_seen and self.name not in run.values:
            return _never_requested(self.name, run.values)
        if not isinstance(spelling, Flag) or facts.script.flag(*spelling.names) is not None:
            return None
        return no_option(spelling.text, facts.script)

    def changes_rng_streams(self, facts: Facts) -> bool:
        return self.effect is Effect.TRAINING

    def deliver(self, value: Value) -> str:
        return _text(value)

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        """Return the option and text for a value, with the name that the user declared.

        Returns:
            As in the base class, except that an option of unknown notation receives the text verbatim. For an
            option without a value, true, 1 and ``on`` put it on the command line.
        """
        name, switch = self.declared.spelling.text, as_switch(value)
        if flag.kind in _SWITCHES and switch is None:
            return None
        match flag.kind:
            case "switch" | "off_switch":
                return (name, "") if switch else None
            case "pair":
                spelled = name if switch else _opposite(name, flag)
                return None if spelled is None else (spelled, "")
            case "bool":
                return name, str(switch)
            case "int" | "float":
                spelled = super().option(value, replace(flag, names=(name,)))
                return None if spelled is None else (name, spelled[1])
            case _:
                text = self.deliver(value)
                return None if flag.choices and text not in flag.choices else (name, text)


def declared_knob(spec: DeclaredSpec) -> DeclaredKnob:
    """Return the knob that a declaration describes."""
    numbers = [v for v in spec.values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    row: dict[str, object] = {
        "name": spec.name,
        "effect": spec.effect,
        "spellings": (spec.spelling,),
        "ordinal": len(numbers) == len([v for v in spec.values if v != "asis"]) > 2,
        "declared": spec,
        "late_harms": (_ROUNDED_STATE,) if _may_compress(spec) else (),
        "__doc__": DeclaredKnob.__doc__,
        "__module__": __name__,
    }
    kind = cast("type[DeclaredKnob]", type(f"Declared_{spec.name}", (DeclaredKnob,), row))
    return kind()


def _may_compress(spec: DeclaredSpec) -> bool:
    named = "optim" in spec.name.lower() or "optim" in spec.spelling.text.lower()
    return named and any(isinstance(value, str) and _FEW_BITS.search(value) for value in spec.values)


def refuse_powerful(spelling: Spelling, values: Iterable[Value]) -> str | None:
    """Return why a declaration would decide which code runs, as a whole sentence, or None.

    A space file or a best.yaml from another person may declare any variable or argument.
    """
    if isinstance(spelling, Env):
        if _RUNS_CODE.fullmatch(spelling.name):
            return f"{spelling.name} decides which code runs and cannot be a knob."
        if any(isinstance(value, str) and {"/", "\\"} & set(value) for value in values):
            return f"A value of {spelling.name} names a file, which could be code."
    if isinstance(spelling, Keyword):
        root = spelling.target.partition(".")[0]
        if root in _STARTS or spelling.target in _LOADS or spelling.name in _TRUSTS:
            return f"{spelling.text} decides which code runs and cannot be a knob."
    return None


def _never_requested(name: str, known: Mapping[str, Value]) -> str:
    """Return why a value cannot be varied that the script's run did not request."""
    what = f'The script did not call autotune.value("{name}", ...) in its first run, so nothing would change.'
    return f"{what} {did_you_mean(name, known)}".strip()


def own_values(
    declared: Sequence[DeclaredSpec],
    *,
    script: ScriptFacts,
    args: Sequence[str],
    environ: Mapping[str, str],
) -> dict[str, Value]:
    """Return the script's own value of each declared knob, where it can be read.

    An option: its last value on the command line, or its default. A variable: its value. The own value of a
    keyword is known in the running script only.

    Args:
        declared: Declarations of the space.
        script: Options that the source shows.
        args: Arguments of the script from the user.
        environ: The user's environment.
    """
    found = {spec.name: _own(spec, script, args, environ) for spec in declared}
    return {name: value for name, value in found.items() if value is not None}


def no_option(name: str, script: ScriptFacts) -> str:
    """Return why an option cannot be passed to this script, as a whole sentence."""
    if not script.flags:
        return (
            "No options of the script could be read from its source, so it is not known whether it has "
            f"{name}."
        )
    known = [spelling for flag in script.flags for spelling in flag.names]
    return f"The script has no option {name}. {did_you_mean(name, known)}".strip()


def same_way(one: Spelling, other: Spelling) -> bool:
    """Return whether two spellings set the same option, variable or keyword."""
    if isinstance(one, Flag) and isinstance(other, Flag):
        return bool(set(one.names) & set(other.names))
    if isinstance(one, Env) and isinstance(other, Env):
        return one.name == other.name
    if isinstance(one, Keyword) and isinstance(other, Keyword):
        return one.text == other.text
    return False


def _own(
    spec: DeclaredSpec, script: ScriptFacts, args: Sequence[str], environ: Mapping[str, str]
) -> Value | None:
    spelling = spec.spelling
    if isinstance(spelling, Env):
        text = environ.get(spelling.name)
        return None if text is None else _among(text, spec.values)
    if not isinstance(spelling, Flag):
        return None
    flag = script.flag(*spelling.names)
    if flag is None:
        return None
    raw = _switched(spelling.text, flag, args) if flag.kind in _SWITCHES[:3] else given_value(flag, args)
    return None if raw is None else _among(raw, spec.values)


def _switched(name: str, flag: ScriptFlag, args: Sequence[str]) -> bool:
    """Return whether an option without a value is on, by the command line or by its default."""
    if flag.kind != "pair":
        return any(word in flag.names for word in _options(args))
    opposite = _opposite(name, flag)
    # absl takes --amp=false as well; the last one counts, with a value or without.
    given = [
        (word, text) for word, _, text in (w.partition("=") for w in _options(args)) if word in flag.names
    ]
    if given:
        word, text = given[-1]
        return (word != opposite) == (text.lower() not in _NO)
    return flag.default is True if not name.startswith("--no") else flag.default is False


def _opposite(name: str, flag: ScriptFlag) -> str | None:
    """Return the opposite of an option, as in ``--amp`` and ``--no-amp``, or None."""
    no = name.startswith("--no")
    others = [n for n in flag.names if n.startswith("--") and n != name]
    marked = [n for n in others if n.startswith("--no") is not no]
    return (marked or others or [None])[0]


def given_value(flag: ScriptFlag, args: Sequence[str]) -> Value | None:
    """Return the last value of an option on the command line, or its default; None if neither can be read."""
    text: Value | None = flag.default
    words = _options(args)
    for place, word in enumerate(words):
        name, equals, after = word.partition("=")
        if name in flag.names:
            text = after if equals else (words[place + 1] if place + 1 < len(words) else text)
    if not isinstance(text, str):
        return text
    try:
        if flag.kind == "int":
            return int(text)
        if flag.kind == "float":
            return float(text)
    except ValueError:
        return None
    return text


def _options(args: Sequence[str]) -> list[str]:
    words = list(args)
    return words[: words.index("--")] if "--" in words else words


def _among(value: Value, values: Sequence[Value]) -> Value:
    """Return the one of `values` with the same meaning, or the value itself."""
    for test in (_same, _equal, _alike):
        for other in values:
            if other != "asis" and test(value, other):
                return other
    return value


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other


def _equal(one: Value, other: Value) -> bool:
    numbers = not isinstance(one, (bool, str)) and not isinstance(other, (bool, str))
    return one == other if numbers else _text(one) == _text(other)


def _alike(one: Value, other: Value) -> bool:
    """Return whether both are the same switch, in any notation."""
    if not isinstance(one, bool) and not isinstance(other, bool):
        return False
    switch = as_switch(one)
    return switch is not None and switch == as_switch(other)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""A pick as a unified diff of the script, for values that are literals there. Pure.

A literal is changed only where the effect is the measured one. Such places are the call that built the
training loader, the only call of a framework, and the default of an option that the command line does not
set. Ambiguous values are left out with the reason.
"""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from autotune.errors import UsageError
from autotune.export.formats.content import Exported, Left, arguments_of, python_literal, why_left
from autotune.export.formats.source import (
    Edit,
    ScriptSource,
    is_literal,
    is_open,
    keyword_of,
    last_name,
    literal_of,
)
from autotune.knobs.common import LOADER
from autotune.knobs.frameworks import ARGUMENTS, DEEPSPEED, TRAINER
from autotune.model.change import Constant, Env, Flag, Keyword
from autotune.source.constants import named_values, rank_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autotune.export.formats.content import TunedValues
    from autotune.model.change import Change
    from autotune.model.config import Value

_POSITIONS: Final = {"batch_size": 1, "num_workers": 5, "pin_memory": 7, "multiprocessing_context": 11}
"""Arguments of the DataLoader that may be positional."""
_WITHOUT_WORKERS: Final[dict[str, Value | None]] = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}
"""Arguments that are an error without worker processes, with the DataLoader's own defaults."""
_SDK_VALUE: Final = "autotune.sdk.value"
_NAMES: Final = {ARGUMENTS: ("TrainingArguments", "Seq2SeqTrainingArguments")}


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A literal to be replaced."""

    source: ScriptSource
    node: ast.expr
    text: str


@dataclass(frozen=True, slots=True)
class _Added:
    """A keyword to be added to a call."""

    source: ScriptSource
    call: ast.Call
    name: str
    text: str


_Action = _Replaced | _Added


@dataclass(slots=True)
class _Draft:
    """The edits of one file, gathered change by change."""

    source: ScriptSource
    replaced: list[Edit] = field(default_factory=list[Edit])
    added: dict[int, tuple[ast.Call, list[str]]] = field(
        default_factory=dict[int, tuple[ast.Call, list[str]]]
    )

    def take(self, action: _Action) -> None:
        if isinstance(action, _Replaced):
            self.replaced.append(Edit(*self.source.span(action.node), action.text))
            return
        start = self.source.span(action.call)[0]
        self.added.setdefault(start, (action.call, []))[1].append(f"{action.name}={action.text}")

    def wants(self, action: _Action) -> bool:
        """Return whether an earlier change has taken the same place."""
        if isinstance(action, _Replaced):
            start, end = self.source.span(action.node)
            return any(edit.start < end and start < edit.end for edit in self.replaced)
        held = self.added.get(self.source.span(action.call)[0])
        return held is not None and any(word.startswith(f"{action.name}=") for word in held[1])

    def text(self) -> str:
        edits = list(self.replaced)
        for call, words in self.added.values():
            edits += self.source.with_arguments(call, words)
        return self.source.edited(edits)


def script_diff(
    tuned: TunedValues,
    script: ScriptSource,
    read: Callable[[str], ScriptSource | str],
    args: Sequence[str],
    *,
    trust_lines: bool = True,
) -> Exported:
    """Return the edits that set the pick in the source, for ``patch -p0`` and ``patch -R``.

    Args:
        tuned: The pick.
        script: The script's source.
        read: Reads another file by its name in a `Change.site`; returns the reason if it cannot.
        args: Arguments of the script, which override defaults of options.
        trust_lines: The script is the one of the search, so that recorded line numbers apply.
    """
    finder = _Finder(script=script, read=read, args=args, trust_lines=trust_lines)
    drafts: dict[str, _Draft] = {}
    rows: list[dict[str, Value]] = []
    included: list[str] = []
    left: list[Left] = []
    for change in tuned.changes:
        found = finder.actions(change)
        if not isinstance(found, str) and any(
            drafts[a.source.name].wants(a) for a in found if a.source.name in drafts
        ):
            found = "another knob of this pick changes the same place"
        if isinstance(found, str):
            left.append(Left(knob=change.knob, value=change.value, reason=found))
            continue
        included.append(change.knob)
        for action in found:
            drafts.setdefault(action.source.name, _Draft(action.source)).take(action)
            rows.append(_row(change, action))
    try:
        text = "".join(_unified(draft) for draft in drafts.values())
    except SyntaxError as error:
        raise UsageError(
            f"the edits of {script.name} would be no valid Python: {error.msg}",
            hint="use --as argv, or autotune apply",
        ) from error
    return Exported(
        text=text,
        data={"files": list(drafts), "edits": rows},
        included=tuple(included),
        left=tuple(left),
        notes=tuple(
            f"{name} was located by its recorded line; it may have changed since"
            for name in drafts
            if name != script.name
        ),
    )


def _row(change: Change, action: _Action) -> dict[str, Value]:
    at = action.node if isinstance(action, _Replaced) else action.call
    before = action.source.written(action.node) if isinstance(action, _Replaced) else ""
    after = action.text if isinstance(action, _Replaced) else f"{action.name}={action.text}"
    line = action.source.line_of(action.source.span(at)[0])
    return {"file": action.source.name, "line": line, "knob": change.knob, "from": before, "to": after}


def _unified(draft: _Draft) -> str:
    name = draft.source.name
    # A name with a blank in it ends at a tab.
    header = f"{name}\t" if re.search(r"\s", name) else name
    lines = difflib.unified_diff(_lines(draft.source.text), _lines(draft.text()), header, header)
    return "".join(x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in lines)


def _lines(text: str) -> list[str]:
    """Return the lines as `patch` counts them, with their ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finder:
    """Search for the literals of changes."""

    script: ScriptSource
    read: Callable[[str], ScriptSource | str]
    args: Sequence[str]
    trust_lines: bool

    def actions(self, change: Change) -> list[_Action] | str:
        """Return the edits for a change, or why there are none."""
        match change.spelling:
            case Flag():
                return self._default(change, change.spelling)
            case Env():
                return why_left(change, "the source")
            case Keyword():
                return self._keyword(change, change.spelling)
            case Constant():
                return self._written(change, change.spelling)
            case _:
                return self._patched(change)

    # An option -----------------------------------------------------------------------------

    def _default(self, change: Change, flag: Flag) -> list[_Action] | str:
        if any(_gives(word, flag.names) for word in self.args):
            return f"the command line sets {flag.text}, which overrides a default in the script (--as argv)"
        declared = [c for c in self.script.calls("add_argument", "option") if _spelled(c) & set(flag.names)]
        if not declared:
            return self._constant(change, flag)
        if len(declared) > 1:
            return f"{flag.text} is declared {_times(declared)}, and which one applies is not known"
        if self.script.calls("set_defaults"):
            return f"the script calls set_defaults, which may override the default of {flag.text}"
        call = declared[0]
        if is_open(call):
            return f"{flag.text} is declared with * or **, which may hold its default"
        new = _new_default(change, flag, call)
        return _set(self.script, call, {"default": new}, positions={}, what=f"the declaration of {flag.text}")

    def _constant(self, change: Change, flag: Flag) -> list[_Action] | str:
        """Edit a global, an entry or a field that the script's own code lets the command line override."""
        name = flag.text.removeprefix("--")
        given = [
            found
            for found in named_values(self.script.tree)
            if rank_of(found.name) == 0 and found.name.rpartition(".")[2] == name
        ]
        overrides = self.script.calls("exec") or "argv" in self.script.text
        if not overrides or not (given or self.script.constants(name)):
            return f"where the script declares {flag.text} was not found"
        if any(not word.startswith("-") and "=" not in word for word in self.args):
            return "a configuration file on the command line may set it (--as argv)"
        if len(given) != 1 or given[0].times > 1:
            return f"{name} is not a literal that is assigned once"
        new = _typed(change, given[0].value)
        return [_Replaced(self.script, given[0].node, python_literal(new))]

    def _written(self, change: Change, constant: Constant) -> list[_Action] | str:
        """Edit the literal that the source assigns to a name."""
        source = self.read(constant.file)
        if isinstance(source, str):
            return source
        is_script = source is self.script
        found = [n for n in named_values(source.tree, is_script=is_script) if n.name == constant.names[0]]
        if len(found) != 1 or found[0].value != constant.was:
            return f"{source.name} does not set {constant.names[0]}={constant.was} exactly once"
        return [_Replaced(source, found[0].node, python_literal(change.literal))]

    # An argument of a call -----------------------------------------------------------------

    def _keyword(self, change: Change, spelling: Keyword) -> list[_Action] | str:
        if spelling.target == TRAINER:
            return "the Trainer must also divide the loss, which is not a literal (--as hf)"
        if spelling.target == DEEPSPEED:
            return f"{spelling.name} is an entry of DeepSpeed's configuration, no argument (--as deepspeed)"
        if spelling.target == _SDK_VALUE:
            return self._sdk_default(spelling, change)
        wanted = arguments_of(change, (spelling.target,)) or {spelling.name: change.value}
        name = spelling.target.rpartition(".")[2]
        found = self._call(_NAMES.get(spelling.target, (name,)), change.site)
        if isinstance(found, str):
            return found
        source, call = found
        is_loader = spelling.target == LOADER
        if is_loader and not (change.site and self.trust_lines) and not source.runs_once(call):
            return f"{name} on line {call.lineno} may build several loaders; only the training one is meant"
        if not is_loader and len(call.args) > 2:
            return f"{name} is called with arguments without names on line {call.lineno}"
        if is_loader and spelling.name == "batch_size" and keyword_of(call, "batch_sampler") is not None:
            return "the loader has a batch sampler, which decides the batches"
        if is_loader and spelling.name == "num_workers" and change.value == 0:
            present = {
                key: value for key, value in _WITHOUT_WORKERS.items() if _argument(call, key) is not None
            }
            wanted = {**wanted, **present}
        return _set(source, call, wanted, positions=_POSITIONS if is_loader else {}, what=name)

    def _sdk_default(self, spelling: Keyword, change: Change) -> list[_Action] | str:
        """Edit the script's own value in its call of `autotune.value`."""
        calls = [c for c in self.script.calls("value") if c.args and literal_of(c.args[0]) == spelling.name]
        if len(calls) != 1:
            return f"the script does not ask for {spelling.name} exactly once"
        return _set(self.script, calls[0], {"default": change.value}, positions={"default": 1}, what="value")

    def _call(self, names: tuple[str, ...], site: str) -> tuple[ScriptSource, ast.Call] | str:
        """Return the call that is meant: by its recorded line, or else the only one of the script."""
        place, _, outer = site.partition("<") if self.trust_lines else ("", "", "")
        if outer:
            return f"{place} builds other loaders as well, which would change with it"
        file, _, number = place.rpartition(":")
        source = self.read(file) if file else self.script
        if isinstance(source, str):
            return source
        calls = source.calls(*names)
        if number.isdecimal():
            calls = [call for call in calls if call.lineno <= int(number) <= (call.end_lineno or 0)]
        if not calls:
            where = f"line {number} of {source.name}" if number else source.name
            return f"{where} does not call {names[0]} by this name"
        if len(calls) > 1:
            return f"{names[0]} is called {_times(calls)} in {source.name}; which one is meant is not known"
        return source, calls[0]

    # What a patch sets ---------------------------------------------------------------------

    def _patched(self, change: Change) -> list[_Action] | str:
        calls = [call for call in self.script.calls("compile") if _is_of_torch(call.func)]
        if change.knob != "compile_mode" or change.value == "off" or not calls:
            return why_left(change, "the source")
        if len(calls) > 1:
            return f"torch.compile is called {_times(calls)}; which one is meant is not known"
        for name in ("options", "backend"):
            if keyword_of(calls[0], name) is not None:
                return f"torch.compile is given `{name}` on line {calls[0].lineno}, which a mode may not suit"
        return _set(self.script, calls[0], {"mode": change.value}, positions={}, what="torch.compile")


def _set(
    source: ScriptSource,
    call: ast.Call,
    wanted: Mapping[str, Value | None],
    *,
    positions: Mapping[str, int],
    what: str,
) -> list[_Action] | str:
    """Return the edits that give a call these arguments; None is omitted if the call has no such argument."""
    actions: list[_Action] = []
    for name, value in wanted.items():
        node = _argument(call, name, positions)
        text = python_literal(value)
        if node is None:
            if is_open(call):
                return f"{what} is called with * or ** on line {call.lineno}, which may hold {name}"
            if value is not None:
                actions.append(_Added(source, call, name, text))
            continue
        held = source.only_value_of(node) if isinstance(node, ast.Name) else node
        if held is None or not is_literal(held):
            where = f"line {node.lineno} of {source.name}"
            return f"{name} is not a literal on {where}, but {source.written(node)}"
        if source.written(held) != text:
            actions.append(_Replaced(source, held, text))
    return actions


def _argument(call: ast.Call, name: str, positions: Mapping[str, int] = _POSITIONS) -> ast.expr | None:
    """Return the value of an argument by name, or by position for the DataLoader."""
    found = keyword_of(call, name)
    at = positions.get(name)
    if found is not None or at is None or at >= len(call.args):
        return found
    before = call.args[: at + 1]
    return None if any(isinstance(arg, ast.Starred) for arg in before) else call.args[at]


def _new_default(change: Change, flag: Flag, declaration: ast.Call) -> Value:
    """Return the default that is equivalent to the option."""
    if change.delivered:
        return _typed(change, literal_of(keyword_of(declaration, "default")))
    if literal_of(keyword_of(declaration, "action")) == "store_false":
        return False
    pair = next((text for text in _texts(declaration) if "/" in text), "")
    if pair:
        return flag.text == pair.partition("/")[0].strip()
    return not flag.text.startswith(("--no-", "--no_"))


def _typed(change: Change, before: Value | None) -> Value:
    """Return the value in the type of the existing literal."""
    text = change.delivered
    if isinstance(before, bool) and text in ("True", "False"):
        return text == "True"
    if isinstance(before, str) or not isinstance(change.value, (bool, int, float)):
        return text or change.value
    return change.value


def _texts(call: ast.Call) -> list[str]:
    return [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]


def _spelled(call: ast.Call) -> set[str]:
    """Return the spellings of an option in its declaration; click has both of a pair in one text."""
    return {part.strip() for text in _texts(call) for part in text.split("/") if part.strip().startswith("-")}


def _gives(word: str, names: Collection[str]) -> bool:
    """Return whether a word of the command line is this option, in full, shortened, or with its value."""
    head = word.partition("=")[0]
    if head in names:
        return True
    if head.startswith("--") and len(head) > 2:
        return any(name.startswith(head) for name in names)
    return any(
        len(name) == 2 and word.startswith(name) and not word.startswith("--") and len(word) > 2
        for name in names
    )


def _is_of_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and last_name(node.value) == "torch"


def _times(calls: Sequence[ast.Call]) -> str:
    lines = sorted({call.lineno for call in calls})
    shown = ", ".join(map(str, lines))
    return f"{len(calls)} times (line{'s' if len(lines) > 1 else ''} {shown})"

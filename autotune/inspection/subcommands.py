"""Sub-commands of a program that take an option, from its source.

Parses how parsers are created, named and passed on: argparse's sub-parsers, click's and typer's groups. If
that cannot be followed, an option belongs to all commands.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from autotune.model.facts import ScriptFlag

Names = frozenset[str]
"""One command's name and its aliases."""
_SWITCHES: Final = ("switch", "off_switch", "pair")
_GROUPS: Final = ("add_argument_group", "add_mutually_exclusive_group")
_MOST_ROUNDS: Final = 12
_ROUND_AGAIN: Final = 2
"""The body of a loop is analysed again with the state at its end."""
_DEEPEST: Final = 8
_CLICK_ENDS: Final = ("_command", "_cmd", "_group", "_grp")
"""Suffixes that newer click removes from a function's name."""


@dataclass(eq=False)
class Parser:
    """A parser on which options are declared.

    Args:
        names: Its names as a command; empty for the program's own.
        above: Its parent parsers; None among them stands for an unknown one.
        parts_of: Parsers that include its options (``parents=[...]``).
        children: Names of its own commands.
        closed: `children` are complete.
    """

    names: Names = frozenset()
    above: set[Parser | None] = field(default_factory=set)
    parts_of: set[Parser] = field(default_factory=set)
    children: set[str] = field(default_factory=set)
    closed: bool = True

    def behind(self, words: Sequence[str], depth: int = 0) -> int | None:
        """Return the index after this command's name in the words; None if they do not name it."""
        if not self.names or depth > _DEEPEST:
            return 0
        found: list[int] = []
        for each in self.above or {None}:
            begin = 0 if each is None else each.behind(words, depth + 1)
            if begin is None:
                continue
            # The first word that is a command of the group counts; in an unknown group it may be any.
            rivals = self.names if each is None else each.children | self.names
            at = next((at for at in range(begin, len(words)) if words[at] in rivals), None)
            if at is not None and words[at] in self.names:
                found.append(at + 1)
        return min(found, default=None)

    def bearers(self) -> set[Parser]:
        """Return the parsers that include its options."""
        own = set[Parser]() if self.parts_of and not self.children and not self.names else {self}
        return own.union(*(each.bearers() if each is not self else {self} for each in self.parts_of))


Owner = frozenset[Parser] | None
"""Parsers that an option is declared on; None if unknown."""


def applies(flag: ScriptFlag, owner: Owner, args: Sequence[str], positional: Sequence[str]) -> bool:
    """Return whether a command line can take an option.

    Args:
        flag: The option.
        owner: Parsers of the option.
        args: The command line.
        positional: Its words that may name a command.
    """
    if owner is None:
        return True
    return any(_takes(bearer, flag, args, positional) for parser in owner for bearer in parser.bearers())


def _takes(parser: Parser, flag: ScriptFlag, args: Sequence[str], positional: Sequence[str]) -> bool:
    begin = parser.behind(positional)
    if begin is None:
        return False
    # After a command's name that command's parser continues. An option of the whole program can be changed in
    # place, but not appended.
    named = parser.closed and not parser.children.isdisjoint(positional[begin:])
    return not named or any(word.partition("=")[0] in flag.names for word in args)


def positional_words(flags: Iterable[ScriptFlag], owners: Iterable[Owner], args: Sequence[str]) -> list[str]:
    """Return words that may name a command: neither options nor their values."""
    switches = {name for flag in flags if flag.kind in _SWITCHES for name in flag.names}
    words = [word for word in args if not word.startswith("-")]
    plain = [
        word
        for before, word in zip(("", *args), args, strict=False)
        if not word.startswith("-") and (not before.startswith("-") or "=" in before or before in switches)
    ]
    commands = {
        name
        for owner in owners
        for parser in owner or ()
        for bearer in parser.bearers()
        for name in (*bearer.names, *bearer.children)
    }
    # An unknown option may be a switch, so that the command follows it directly.
    return plain if commands & set(plain) else words


# argparse -----------------------------------------------------------------------------------

_Value = frozenset["Parser | _Subparsers"] | None
"""Possible values of an expression; None if it may be anything."""
_NOTHING: Final[_Value] = frozenset()


@dataclass(eq=False)
class _Subparsers:
    """Return value of ``add_subparsers()``."""

    of: set[Parser | None] = field(default_factory=set)


def _union(one: _Value, other: _Value) -> _Value:
    return None if one is None or other is None else one | other


class _Scope:
    """Names of one function: their current values, and all values so far."""

    def __init__(self, outer: Mapping[str, _Value]) -> None:
        self.now: dict[str, _Value] = dict(outer)
        self.ever: dict[str, _Value] = dict(outer)

    def bind(self, name: str, value: _Value) -> None:
        self.now[name] = value
        self.ever[name] = _union(self.ever[name], value) if name in self.ever else value

    def merge(self, branches: Sequence[dict[str, _Value]]) -> None:
        names = {name for branch in branches for name in branch}
        merged: dict[str, _Value] = {}
        for name in names:
            value: _Value = _NOTHING
            for branch in branches:
                value = _union(value, branch.get(name, _NOTHING))
            merged[name] = value
        self.now = merged


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def argparse_owners(tree: ast.Module, outside: Collection[str] | None) -> dict[ast.Call, Owner]:
    """Return the parsers of every ``add_argument``.

    Args:
        tree: The file.
        outside: Names that other files may import from this one; None for the script itself, whose functions
            may be
            called from anywhere.
    """
    commands = ("add_parser", "add_subparsers")
    if not any(isinstance(node, ast.Attribute) and node.attr in commands for node in ast.walk(tree)):
        return {}
    return _Argparse(tree, outside).read()


class _Argparse:
    """Follows parsers through one file, until a fixed point is reached."""

    def __init__(self, tree: ast.Module, outside: Collection[str] | None) -> None:
        self.tree = tree
        found: dict[str, list[_Function]] = {}
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                found.setdefault(node.name, []).append(node)
        top = {node for node in tree.body if isinstance(node, _Function)}
        # A call may mean any of several functions with a name.
        self.functions = {
            name: nodes[0] for name, nodes in found.items() if len(nodes) == 1 and nodes[0] in top
        }
        self.dead = _unreached(tree, self.functions, outside)
        self.open = self._called_elsewhere(outside or ())
        self.made: dict[ast.Call, Parser | _Subparsers] = {}
        self.given: dict[tuple[str, str], _Value] = {}
        self.returned: dict[str, _Value] = {}
        self.declared: dict[ast.Call, _Value] = {}
        self.queue: list[tuple[_Function, dict[str, _Value]]] = []
        self.inside = ""

    def read(self) -> dict[ast.Call, Owner]:
        before: object = None
        for _ in range(_MOST_ROUNDS):
            self.declared = {}
            scope = _Scope({})
            self._block(self.tree.body, scope)
            self._drain(scope)
            after = (dict(self.given), dict(self.returned), dict(self.declared))
            if after == before:
                return {call: _parsers(value) for call, value in self.declared.items()}
            before = after
        return {}

    def _called_elsewhere(self, outside: Collection[str]) -> set[str]:
        """Return functions that may be called by unknown code."""
        called = {
            id(node.func)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        names = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name)]
        values = {node.id for node in names if id(node) not in called}
        never = set(self.functions) - {node.id for node in names if id(node) in called}
        return (set(outside) | values | never) & set(self.functions)

    def _drain(self, scope: _Scope) -> None:
        """Analyse bodies of functions, which may use all values of the surrounding names."""
        waiting, self.queue = [(node, scope.ever) for node, _ in self.queue], []
        for node, outer in waiting:
            if node.name in self.dead:
                continue
            inner, before = _Scope(outer), self.inside
            known = self.functions.get(node.name) is node
            self.inside = node.name if known else ""
            for name in _parameters(node):
                given = self.given.get((node.name, name), _NOTHING) if known else None
                inner.now[name] = inner.ever[name] = None if node.name in self.open else given
            self._block(node.body, inner)
            self.inside = before
            self._drain(inner)

    def _block(self, body: Sequence[ast.stmt], scope: _Scope) -> None:
        for node in body:
            self._statement(node, scope)

    def _statement(self, node: ast.stmt, scope: _Scope) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.queue.append((node, {}))
            case ast.ClassDef():
                self._block(node.body, scope)
            case ast.Assign():
                value = self._value(node.value, scope)
                for target in node.targets:
                    _bind(target, value, scope)
            case ast.AnnAssign():
                _bind(node.target, None if node.value is None else self._value(node.value, scope), scope)
            case ast.Return():
                value = None if node.value is None else self._value(node.value, scope)
                self.returned[self.inside] = _union(self.returned.get(self.inside, _NOTHING), value)
            case ast.If():
                self._value(node.test, scope)
                self._branches([node.body, node.orelse], scope)
            case ast.For() | ast.AsyncFor():
                items = self._items(node.iter, scope)
                for _ in range(_ROUND_AGAIN):
                    _bind(node.target, items, scope)
                    self._branches([[*node.body, *node.orelse], []], scope)
            case ast.While():
                self._value(node.test, scope)
                for _ in range(_ROUND_AGAIN):
                    self._branches([[*node.body, *node.orelse], []], scope)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        _bind(item.optional_vars, None, scope)
                self._block(node.body, scope)
            case ast.Try():
                self._branches([[*node.body, *node.orelse], *(h.body for h in node.handlers)], scope)
                self._block(node.finalbody, scope)
            case ast.Match():
                self._value(node.subject, scope)
                self._branches([case.body for case in node.cases], scope)
            case _:
                self._parts(node, scope)

    def _branches(self, bodies: Sequence[Sequence[ast.stmt]], scope: _Scope) -> None:
        before, ends = scope.now, list[dict[str, _Value]]()
        for body in bodies:
            scope.now = dict(before)
            self._block(body, scope)
            ends.append(scope.now)
        scope.merge(ends)

    def _items(self, node: ast.expr, scope: _Scope) -> _Value:
        """Return the values of a loop's name: ``for p in (train, test)``."""
        if not isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            self._value(node, scope)
            return None
        found: _Value = _NOTHING
        for item in node.elts:
            found = _union(found, self._value(item, scope))
        return found

    def _parts(self, node: ast.AST, scope: _Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(child, scope)
            else:
                self._parts(child, scope)

    def _value(self, node: ast.expr, scope: _Scope) -> _Value:
        match node:
            case ast.Name() | ast.Attribute():
                return scope.now.get(ast.unparse(node))
            case ast.IfExp():
                self._value(node.test, scope)
                return _union(self._value(node.body, scope), self._value(node.orelse, scope))
            case ast.NamedExpr():
                value = self._value(node.value, scope)
                _bind(node.target, value, scope)
                return value
            case ast.Call():
                return self._call(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                # Local names, which hide those of outer scopes.
                before, scope.now = scope.now, dict(scope.now)
                for part in node.generators:
                    items = self._items(part.iter, scope)
                    for name in ast.walk(part.target):
                        if isinstance(name, ast.Name):
                            scope.now[name.id] = items if name is part.target else None
                self._parts(node, scope)
                scope.now = before
                return None
            case ast.Lambda():
                before, scope.now = scope.now, dict(scope.now)
                scope.now |= dict.fromkeys(
                    each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)
                )
                self._value(node.body, scope)
                scope.now = before
                return None
            case _:
                self._parts(node, scope)
                return None

    def _call(self, node: ast.Call, scope: _Scope) -> _Value:
        arguments = [self._value(argument, scope) for argument in node.args]
        keywords = {k.arg: self._value(k.value, scope) for k in node.keywords}
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        receiver = self._value(node.func.value, scope) if isinstance(node.func, ast.Attribute) else None
        if method == "add_argument":
            self.declared[node] = _union(self.declared.get(node, _NOTHING), receiver)
            return None
        if method in _GROUPS:
            return receiver
        if method == "add_subparsers":
            return self._subparsers(node, receiver)
        if method == "add_parser" and node.args and _text(node.args[0]):
            return self._command(node, receiver, scope)
        if method == "add_parser":
            # A computed name may equal any of the others' names.
            for each in receiver or ():
                for parser in each.of if isinstance(each, _Subparsers) else ():
                    if parser is not None:
                        parser.closed = False
            return None
        if (method or _name(node.func)).endswith("ArgumentParser"):
            parser = self.made.setdefault(node, Parser())
            self._inherits(node, parser, scope)
            return frozenset({parser})
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            return self._own_call(node, arguments, keywords)
        return None

    def _subparsers(self, node: ast.Call, receiver: _Value) -> _Value:
        made = self.made.setdefault(node, _Subparsers())
        if isinstance(made, _Subparsers):
            made.of |= {None} if receiver is None else {p for p in receiver if isinstance(p, Parser)}
        return frozenset({made})

    def _command(self, node: ast.Call, receiver: _Value, scope: _Scope) -> _Value:
        aliases = next((k.value for k in node.keywords if k.arg == "aliases"), None)
        others = aliases.elts if isinstance(aliases, (ast.List, ast.Tuple, ast.Set)) else []
        if aliases is not None and not (others and all(_text(item) for item in others)):
            return None
        names = frozenset({_text(node.args[0]), *(_text(item) for item in others)})
        parser = self.made.setdefault(node, Parser(names=names))
        if isinstance(parser, Parser):
            for each in receiver if receiver is not None else (_Subparsers({None}),):
                for above in each.of if isinstance(each, _Subparsers) else ():
                    parser.above.add(above)
                    if above is not None:
                        above.children |= names
            self._inherits(node, parser, scope)
        return frozenset({parser})

    def _inherits(self, node: ast.Call, parser: Parser | _Subparsers, scope: _Scope) -> None:
        parents = next((k.value for k in node.keywords if k.arg == "parents"), None)
        if parents is None or not isinstance(parser, Parser):
            return
        for each in self._items(parents, scope) or ():
            if isinstance(each, Parser) and each is not parser:
                each.parts_of.add(parser)

    def _own_call(
        self, node: ast.Call, arguments: Sequence[_Value], keywords: Mapping[str | None, _Value]
    ) -> _Value:
        function = self.functions[_name(node.func)]
        names = _parameters(function)
        given = dict[str, _Value](zip(names, arguments, strict=False))
        given |= {name: value for name, value in keywords.items() if name is not None}
        spread = None in keywords or any(isinstance(a, ast.Starred) for a in node.args)
        for name in names:
            value = None if spread else given.get(name)
            key = (function.name, name)
            self.given[key] = _union(self.given.get(key, _NOTHING), value)
        return self.returned.get(function.name, _NOTHING)


def _parsers(value: _Value) -> Owner:
    if not value or any(not isinstance(each, Parser) for each in value):
        return None
    return frozenset(each for each in value if isinstance(each, Parser))


def _bind(target: ast.expr, value: _Value, scope: _Scope) -> None:
    if isinstance(target, (ast.Name, ast.Attribute)):
        scope.bind(ast.unparse(target), value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            _bind(item, None, scope)


def _parameters(node: _Function) -> list[str]:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    rest = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [argument.arg for argument in (*named, *rest)]


def _unreached(
    tree: ast.Module, functions: Mapping[str, _Function], outside: Collection[str] | None
) -> set[str]:
    """Return functions of a module that are never reached: its parsing as a script of its own."""
    if outside is None or "*" in outside:
        return set()
    waiting: list[ast.AST] = [node for node in tree.body if node not in functions.values()]
    waiting += [functions[name] for name in functions if name in outside]
    reached = {name for name in functions if name in outside}
    while waiting:
        named = {n.id for n in ast.walk(waiting.pop()) if isinstance(n, ast.Name)} & set(functions)
        waiting += [functions[name] for name in named - reached]
        reached |= named
    return set(functions) - reached


# click and typer ----------------------------------------------------------------------------


def click_owners(trees: Sequence[ast.Module]) -> dict[ast.AST, Owner]:
    """Return function -> command, for every decorated function."""
    return _by_decorators(trees, _click_names)


def typer_owners(trees: Sequence[ast.Module]) -> dict[ast.AST, Owner]:
    """Return the same for typer, where a program's only command is the program itself."""
    return _by_decorators(trees, _typer_names)


def _by_decorators(trees: Sequence[ast.Module], names_of: Callable[[str], Names]) -> dict[ast.AST, Owner]:
    made = _Decorated(names_of)
    for file, tree in enumerate(trees):
        made.read(file, tree)
    return made.owners()


@dataclass(frozen=True)
class _Command:
    """A function that is a command: of the group with this name in its file, or of an unknown one."""

    node: _Function
    file: int
    by: str
    names: Names


class _Decorated:
    """Commands that are functions, and their groups."""

    def __init__(self, names_of: Callable[[str], Names]) -> None:
        self.names_of = names_of
        self.groups: dict[tuple[int, str], Parser] = {}
        self.commands: list[_Command] = []
        self.added: list[tuple[int, str, ast.expr, str]] = []
        self.callbacks: list[tuple[int, str, _Function]] = []
        self.file = 0

    def read(self, file: int, tree: ast.Module) -> None:
        self.file = file
        modules = {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {"click", "typer"}
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                for decorator in node.decorator_list:
                    self._decorated(node, decorator, modules)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                if _last(node.value.func) in ("Typer", "Group"):
                    for target in node.targets:
                        self.groups.setdefault((file, _last(target)), Parser())
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                self._call(node, node.func)

    def _decorated(self, node: _Function, decorator: ast.expr, modules: set[str]) -> None:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        kind = _last(call)
        by = _last(call.value) if isinstance(call, ast.Attribute) else ""
        by = "" if by in modules else by
        name = _command_name(decorator)
        if kind == "callback" and by:
            self.callbacks.append((self.file, by, node))
        if kind not in ("command", "group") or name is None:
            return
        names = frozenset({name}) if name else self.names_of(node.name)
        self.commands.append(_Command(node, self.file, by, names))
        if kind == "group":
            self.groups[self.file, node.name] = Parser()

    def _call(self, node: ast.Call, func: ast.Attribute) -> None:
        if func.attr not in ("add_command", "add_typer") or not node.args:
            return
        named = node.args[1] if len(node.args) > 1 else None
        named = next((k.value for k in node.keywords if k.arg == "name"), named)
        name = _text(named) if named is not None else ""
        if name or named is None:
            self.added.append((self.file, _last(func.value), node.args[0], name))

    def owners(self) -> dict[ast.AST, Owner]:
        functions = [command.node.name for command in self.commands]
        found: dict[ast.AST, Owner] = {}
        for command in self.commands:
            # It is unknown which of several functions with a name is passed on.
            if functions.count(command.node.name) == 1 or command.by:
                self._place(command, found)
        for file, above, what, name in self.added:
            group = self._group(file, what) if name else None
            if group is not None and isinstance(what, (ast.Name, ast.Attribute)) and not group.names:
                group.names = frozenset({name})
                self._below(group, self._named(file, above))
        for file, name, node in self.callbacks:
            group = self._named(file, name)
            found[node] = None if group is None else frozenset({group})
        return found

    def _place(self, command: _Command, found: dict[ast.AST, Owner]) -> None:
        places = [
            (self._named(file, above), frozenset({name}) if name else command.names)
            for file, above, what, name in self.added
            if _last(what) == command.node.name
        ]
        above = self._named(command.file, command.by)
        places += [(above, command.names)] if command.by else []
        group = self.groups.get((command.file, command.node.name))
        if group is None and above is not None and self._is_alone(command):
            found[command.node] = frozenset({above})
            return
        parser = group or Parser()
        for above, names in places:
            parser.names |= names
            self._below(parser, above)
        found[command.node] = frozenset({parser})

    def _is_alone(self, command: _Command) -> bool:
        """Return whether the command is the program's only one, and there is no callback."""
        if self.names_of is not _typer_names:
            return False
        place = self._named(command.file, command.by)
        beside = [each for each in self.commands if self._named(each.file, each.by) is place]
        others = [each for each in (*self.added, *self.callbacks) if self._named(each[0], each[1]) is place]
        handed_on = any(self._group(file, what) is place for file, _, what, _ in self.added)
        return len(beside) == 1 and not others and not handed_on

    def _named(self, file: int, name: str) -> Parser | None:
        """Return the group of this name: in this file, else the only one in any file."""
        if (file, name) in self.groups:
            return self.groups[file, name]
        known = [group for (_, other), group in self.groups.items() if other == name]
        return known[0] if len(known) == 1 else None

    def _group(self, file: int, what: ast.expr) -> Parser | None:
        """Return the same for an expression; ``module.app`` is not in this file."""
        if not isinstance(what, ast.Attribute):
            return self._named(file, _last(what))
        known = [group for (other, name), group in self.groups.items() if other != file and name == what.attr]
        return known[0] if len(known) == 1 else None

    def _below(self, parser: Parser, above: Parser | None) -> None:
        if above is not parser:
            parser.above.add(above)
            if above is not None:
                above.children |= parser.names


def _click_names(function: str) -> Names:
    short = next((function[: -len(end)] for end in _CLICK_ENDS if function.endswith(end)), function)
    return frozenset(name.lower().replace("_", "-") for name in (function, short))


def _typer_names(function: str) -> Names:
    return frozenset({function.lower().replace("_", "-")})


def _command_name(decorator: ast.expr) -> str | None:
    """Return the name that a decorator sets; empty for the function's, None if it is computed."""
    if not isinstance(decorator, ast.Call):
        return ""
    named = next((k.value for k in decorator.keywords if k.arg == "name"), None)
    named = decorator.args[0] if named is None and decorator.args else named
    if named is None or (isinstance(named, ast.Constant) and named.value is None):
        return ""
    return _text(named) or None


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else _name(node)

"""Calls of `autotune.value` and `autotune.step` in a script. Parsed, not run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.inspection.sources import shown, sources
from autotune.text.redact import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.model.config import Value

_PACKAGE: Final = "autotune"
_SDK: Final = "autotune.sdk"


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkValue:
    """A value that the script takes from `autotune.value`.

    Args:
        file, line: Location; the file is relative to the script's folder.
        default: Its value without a search; None if that is no constant.
    """

    name: str
    file: str
    line: int
    default: Value | None = None

    @property
    def place(self) -> str:
        """``train.py:42``."""
        return f"{self.file}:{self.line}"


def requested_values(path: str) -> tuple[SdkValue, ...]:
    """Return every name that the script and its own modules request, with its first location.

    Args:
        path: Path of the script. One that is unreadable, or not Python, has none.
    """
    script, found = Path(path), dict[str, SdkValue]()
    for file, tree in sources(script):
        for call in calls_of(tree, "value"):
            name, default = _argument(call, 0, "name"), _argument(call, 1, "default")
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                plain = default.value if isinstance(default, ast.Constant) else None
                plain = None if is_secret_name(name.value) else plain
                value = SdkValue(
                    name=name.value,
                    file=shown(file, script.parent),
                    line=call.lineno,
                    default=plain if isinstance(plain, (bool, int, float, str)) else None,
                )
                found.setdefault(value.name, value)
    return tuple(found.values())


def calls_of(tree: ast.Module, function: str) -> Iterator[ast.Call]:
    """Yield calls of one of the two functions, however imported, in line order."""
    modules, names = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known = [a for a in node.names if a.name in (_PACKAGE, _SDK)]
            modules |= {a.asname or a.name for a in known}
        elif isinstance(node, ast.ImportFrom) and node.module in (_PACKAGE, _SDK) and not node.level:
            names |= {a.asname or a.name for a in node.names if a.name == function}
            modules |= {a.asname or a.name for a in node.names if a.name == "sdk"}
    dotted = {f"{module}.{function}" for module in modules} | names
    dotted |= {f"{module}.sdk.{function}" for module in modules if module == _PACKAGE}
    calls = (node for node in ast.walk(tree) if dotted and isinstance(node, ast.Call))
    yield from sorted((c for c in calls if ast.unparse(c.func) in dotted), key=lambda call: call.lineno)


def constant_samples(call: ast.Call) -> int | None:
    """Return the literal number passed to `autotune.step`; None if it is computed, or left out."""
    given = _argument(call, 0, "samples")
    plain = given.value if isinstance(given, ast.Constant) else None
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else None


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    named = next((k.value for k in call.keywords if k.arg == name), None)
    return call.args[place] if named is None and len(call.args) > place else named

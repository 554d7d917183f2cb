"""Replacement of constants in the user's source on compilation; the files are not changed.

A syntax tree with the new values is compiled under the file's own name, so that tracebacks and line numbers
match the file. Python's compiled files are neither read nor written.
"""

from __future__ import annotations

import ast
import os
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

from autotune.model.change import Constant
from autotune.source.constants import rewritten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from autotune.model.change import Change
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class Constants:
    """New values for each file.

    Args:
        changes: Changes of the plan.
        source: File that their places are relative to.
        state: Receives a message if a file no longer has the former value of a name.
    """

    def __init__(self, changes: Sequence[Change], source: str, state: RuntimeState) -> None:
        self._state = state
        self._wanted: dict[str, list[Change]] = {}
        folder = os.path.dirname(os.path.abspath(source))
        for change in changes:
            if isinstance(change.spelling, Constant):
                path = os.path.realpath(os.path.join(folder, change.spelling.file))
                self._wanted.setdefault(path, []).append(change)

    def install(self, undo: Undo) -> None:
        """Compile modules imported from these files with the new values."""
        if not self._wanted:
            return
        original = SourceFileLoader.get_code

        def get_code(loader: Any, fullname: str) -> Any:
            if os.path.realpath(loader.path) in self._wanted:
                return self.compiled(loader.path, loader.get_data(loader.path))
            return original(loader, fullname)

        undo.assign(SourceFileLoader, "get_code", get_code)

    def compiled(self, path: str, source: bytes) -> CodeType:
        """Return the code of a file with the new values.

        Raises:
            SyntaxError, ValueError: As raised by Python for this file.
        """
        changes = self._wanted.get(os.path.realpath(path), ())
        # Compiler flags of this module, such as those for annotations, must not apply to it.
        if not changes:
            return compile(source, path, "exec", dont_inherit=True)
        tree = ast.parse(source, path)
        names = {c.spelling.names[0]: c for c in changes if isinstance(c.spelling, Constant)}
        wanted = {
            name: (c.spelling.was, c.literal) for name, c in names.items() if isinstance(c.spelling, Constant)
        }
        for name in rewritten(tree, wanted):
            change = names[name]
            self._state.refusals[change.knob] = f"{change.spelling.text} is no longer in the file."
        return compile(tree, path, "exec", dont_inherit=True)

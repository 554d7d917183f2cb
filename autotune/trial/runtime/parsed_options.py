"""Values of the script's options as its parser returned them: with defaults and a configuration file."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from autotune.text.redact import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class ParsedOptions:
    """Numbers and switches in the results of `argparse`, by name.

    The source may compute a default, or replace it by `set_defaults` from a file. Text is left out, as it may
    contain secrets.

    Args:
        state: State of the training process.
        undo: Removes the hook.
    """

    def __init__(self, state: RuntimeState, undo: Undo) -> None:
        self._state = state
        self._undo = undo
        self.values: dict[str, bool | int | float] = {}
        self.on_parsed: Callable[[], None] = _nothing

    def watch(self, hooks: AfterImport) -> None:
        """Hook the parser once the script, or a library, has imported it."""
        hooks.on("argparse", self._install)

    def size(self, names: Iterable[str]) -> int:
        """Return the first positive integer among these options (``--batch-size``); 0 without one."""
        found = (self.values.get(name.lstrip("-").replace("-", "_")) for name in names)
        return next((value for value in found if type(value) is int and value > 0), 0)

    def _install(self, argparse: Any) -> None:
        parse = argparse.ArgumentParser.parse_known_args

        @functools.wraps(parse)
        def parse_known_args(*args: Any, **kwargs: Any) -> Any:
            found = parse(*args, **kwargs)
            if self._state.here():
                self._note(found)
            return found

        self._undo.assign(argparse.ArgumentParser, "parse_known_args", parse_known_args)

    def _note(self, found: Any) -> None:
        try:
            for name, value in vars(found[0]).items():
                if type(value) in (bool, int, float) and not is_secret_name(name):
                    self.values[name] = value
            self.on_parsed()
        except Exception as error:
            self._state.faults.note("parsed_options", error)


def _nothing() -> None:
    return

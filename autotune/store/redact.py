"""Secrets, which the journal does not hold (`text.redact`); a resume reads them from the environment."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.errors import UsageError
from autotune.text.redact import is_incomplete, missing_names, restore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.model.study import StudySpec


def with_secrets(spec: StudySpec, environ: Mapping[str, str] | None = None) -> StudySpec:
    """Return the spec of a journal with its secrets restored from the environment.

    Raises:
        UsageError: The script's arguments, or a required path, contained a secret that this environment
            does not have.
    """
    args = tuple(restore(arg, environ) for arg in spec.args)
    if missing := [arg for arg in args if is_incomplete(arg)]:
        message = f"the script's arguments held a secret, which is not kept: {' '.join(missing)}"
        raise UsageError(message, hint=_remedy(missing))
    options = tuple(restore(option, environ) for option in spec.options)
    restored = replace(
        spec,
        args=args,
        options=options,
        script=restore(spec.script, environ),
        source=restore(spec.source, environ),
        cwd=restore(spec.cwd, environ),
        python=restore(spec.python, environ),
        out=restore(spec.out, environ),
        tracking_uri=restore(spec.tracking_uri, environ),
    )
    needed = (restored.script, restored.source, restored.cwd, restored.python, *options)
    if missing := [text for text in needed if is_incomplete(text)]:
        message = f"a path of the command held a secret, which is not kept: {missing[0]}"
        raise UsageError(message, hint=_remedy(missing))
    return restored


def _remedy(missing: list[str]) -> str:
    names = sorted({name for text in missing for name in missing_names(text)})
    return f"Set {', '.join(names)} as before." if names else "Begin a new search with `autotune search`."

"""Secrets never reach the journal (`core.redact`); resuming takes them from the environment again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.core.redact import is_incomplete, missing_names, restore
from autotune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.study import StudySpec


def with_secrets(spec: StudySpec, environ: Mapping[str, str] | None = None) -> StudySpec:
    """The spec of a journal made fit for running: secrets taken from the environment again.

    Raises:
        UsageError: The script's arguments held a secret that this environment does not have.
    """
    args = tuple(restore(arg, environ) for arg in spec.args)
    if missing := [arg for arg in args if is_incomplete(arg)]:
        message = f"the script's arguments held a secret, which is not kept: {' '.join(missing)}"
        names = sorted({name for arg in missing for name in missing_names(arg)})
        hint = f"Set {', '.join(names)} as before." if names else "Begin a new search with `autotune search`."
        raise UsageError(message, hint=hint)
    return replace(spec, args=args, tracking_uri=restore(spec.tracking_uri, environ))

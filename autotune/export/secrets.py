"""A command line without its secrets. Pure."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HIDDEN = "<redacted>"
_SECRET_OPTION = re.compile(
    r"(secret|[-_]token$|passw|passphrase|(api|access|private|auth)[-_]?key|credential|dsn)", re.IGNORECASE
)
_SECRET_NAME = re.compile(r"(TOKEN|KEY|SECRET|PASS|CRED|DSN)(?!.*(_DIR|_FILE|_HOME)$)")
_SECRET_LENGTH = 8


def redacted(args: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """Arguments without secrets: values of options that are called like one, and of variables.

    Args:
        args: The script's arguments.
        environ: Where values of secret variables are looked up; this process's own by default.
    """
    source = os.environ if environ is None else environ
    secrets = {v: k for k, v in source.items() if _SECRET_NAME.search(k) and len(v) >= _SECRET_LENGTH}
    shown: list[str] = []
    hide_next = False
    for arg in args:
        name, equals, _value = arg.partition("=")
        is_secret = name.startswith("-") and bool(_SECRET_OPTION.search(name))
        if hide_next and not arg.startswith("-"):
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if is_secret and equals else _without(arg, secrets))
        hide_next = is_secret and not equals
    return shown


def _without(arg: str, secrets: Mapping[str, str]) -> str:
    for value, name in secrets.items():
        arg = arg.replace(value, f"<redacted:{name}>")
    return arg

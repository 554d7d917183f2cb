"""Names and texts without secrets, for a report that is sent to others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.model import config as configs
from autotune.report.view import summary
from autotune.text.redact import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.model.config import Value
    from autotune.model.study import Study

_BEFORE: Final = r"(?:(?<![\w./~-])|(?<=://)|(?<=:///)|(?<=\s-[A-Za-z]))"
"""Possible start of a path: not within another one, but after a scheme or a compiler's option."""
_BEHIND: Final = r"(?![\w~-]|\.\w)"


def clean(study: Study, text: str) -> str:
    """Return a text other than a command, without secrets and without the user's folders."""
    shown = redact(text, free=True)
    for path, short in ((study.spec.cwd, "."), (str(Path("~").expanduser()), "~")):
        if len(whole := path.rstrip("/")) > 1:
            shown = re.sub(f"{_BEFORE}{re.escape(whole)}{_BEHIND}", short, shown)
    return shown


def shown_command(text: str) -> str:
    """Return a command to be copied, without secrets; paths are kept, as shortened ones would not work."""
    return redact(text, free=True)


def shown_config(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return a configuration without secrets: a user's own knob may hold text."""
    return {k: redact(v, free=True) if isinstance(v, str) else v for k, v in config.items()}


def config_text(config: Mapping[str, Value]) -> str:
    """Return `autotune.model.config.config_text` of a configuration, without secrets."""
    return redact(configs.config_text(config), free=True)


def value_text(value: Value | None) -> str:
    """Return `autotune.model.config.value_text` of a value, without secrets."""
    return redact(configs.value_text(value), free=True)


def script_name(study: Study) -> str:
    """Return ``train_gpt.py``, without secrets and without the user's folders."""
    return clean(study, summary.script_name(study))

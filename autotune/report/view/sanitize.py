"""Names and texts as a report may show them: it is sent to others, so nothing in it is secret."""

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
"""Where a path begins: not within another one; behind a scheme and a compiler's option it does."""
_BEHIND: Final = r"(?![\w~-]|\.\w)"


def clean(study: Study, text: str) -> str:
    """A text that is no command, without secrets, and without the folders of the person who searched."""
    shown = redact(text, free=True)
    for path, short in ((study.spec.cwd, "."), (str(Path("~").expanduser()), "~")):
        if len(whole := path.rstrip("/")) > 1:
            shown = re.sub(f"{_BEFORE}{re.escape(whole)}{_BEHIND}", short, shown)
    return shown


def shown_command(text: str) -> str:
    """A command to be copied, without secrets; its paths stay, as no shell would find shortened ones."""
    return redact(text, free=True)


def shown_config(config: Mapping[str, Value]) -> dict[str, Value]:
    """A configuration without secrets: a knob of the user's own may be of text."""
    return {k: redact(v, free=True) if isinstance(v, str) else v for k, v in config.items()}


def config_text(config: Mapping[str, Value]) -> str:
    """Return `autotune.model.config.config_text` of a configuration, without secrets."""
    return redact(configs.config_text(config), free=True)


def value_text(value: Value | None) -> str:
    """Return `autotune.model.config.value_text` of a value, without secrets."""
    return redact(configs.value_text(value), free=True)


def script_name(study: Study) -> str:
    """``train_gpt.py``, without secrets and without folders of the person who searched."""
    return clean(study, summary.script_name(study))

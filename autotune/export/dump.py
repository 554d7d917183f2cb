"""Plain data as YAML that every reader reads alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALWAYS = frozenset({"knobs", "argv", "changes", "gpu", "value", "from", "to"})


def dump(data: Mapping[str, Any]) -> str:
    """Return YAML text: keys in their order, empty fields omitted, flat mappings on one line.

    Texts that a YAML reader may parse as a boolean, a number or null are quoted.
    """
    return yaml.dump(_lean(dict(data)), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096)


def _lean(data: Any) -> Any:
    """Return the data without empty fields; all knob values are kept."""
    if isinstance(data, list):
        return [_lean(item) for item in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    fields = cast("dict[str, Any]", data).items()
    return {
        key: value if key == "knobs" else _lean(value)
        for key, value in fields
        if key in _ALWAYS or value not in ("", [])
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


_AMBIGUOUS = re.compile(
    r"(?:|~|null|true|false|yes|no|on|off|y|n|[-+]?(?:\.inf|\.nan)"
    r"|[-+]?(?:0[xob])?[0-9_.:]+(?:e[-+]?[0-9]*)?|[-+]?[0-9].*)",
    re.IGNORECASE,
)


def _represent_text(dumper: Any, data: str) -> Any:
    style = '"' if _AMBIGUOUS.fullmatch(data) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


def _represent_mapping(dumper: Any, data: dict[str, Any]) -> Any:
    node = dumper.represent_mapping("tag:yaml.org,2002:map", data)
    for key, _value in node.value:
        # The key of every estimate; only YAML 1.1 by the letter would read it as a boolean.
        if key.value == "n":
            key.style = None
    node.flow_style = bool(data) and _is_flat(data)
    return node


def _represent_list(dumper: Any, data: list[Any]) -> Any:
    node = dumper.represent_sequence("tag:yaml.org,2002:seq", data)
    node.flow_style = all(not isinstance(item, (dict, list)) for item in data)
    return node


def _is_flat(data: Mapping[str, Any]) -> bool:
    """Return whether a mapping fits one line: it contains no mapping and only lists of scalars."""
    return all(
        not isinstance(item, dict)
        and not (isinstance(item, list) and any(isinstance(inner, (dict, list)) for inner in item))
        for item in data.values()
    )


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(dict, _represent_mapping)
_Dumper.add_representer(list, _represent_list)

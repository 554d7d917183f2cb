"""Environment variables with several settings, merged with the user's. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_ALLOCATOR: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Names of one thing: PyTorch reads the first of them that is set."""
_OUTSIDE_BRACKETS: Final = re.compile(r",(?![^\[]*\])")


def with_setting(env: Mapping[str, str], name: str, text: str) -> dict[str, str]:
    """Return the variables to change so that `name` contains `text` in addition to its settings.

    A setting with the same key is replaced, others are retained; a library to preload comes before others.
    Most variables hold one value, which is replaced as a whole.
    """
    if name not in _ALLOCATOR:
        return {name: _joined(name, text, env.get(name, ""))}
    set_already = [other for other in _ALLOCATOR if env.get(other)]
    before = env.get(name) or next((env[other] for other in set_already), "")
    joined = _joined(name, text, before)
    # Both names get the same value.
    return dict.fromkeys([name, *set_already], joined)


def contains_setting(env: Mapping[str, str], name: str, text: str) -> bool:
    """Return whether the variable holds this setting, perhaps among others."""
    present = env.get(name)
    if present is None:
        return False
    return present == text or set(_items(name, text)) <= set(_items(name, present))


def _joined(name: str, text: str, before: str) -> str:
    ours = _items(name, text)
    keys = {_key(name, item) for item in ours}
    kept = [item for item in _items(name, before) if _key(name, item) not in keys]
    if name == "LD_PRELOAD":
        return ":".join([*ours, *kept])
    if name == "GLIBC_TUNABLES":
        return ":".join([*kept, *ours])
    if name in _ALLOCATOR:
        return ",".join([*kept, *ours])
    return text


def _items(name: str, text: str) -> list[str]:
    if name == "LD_PRELOAD":
        return re.split(r"[\s:]+", text.strip(" :")) if text.strip(" :") else []
    if name == "GLIBC_TUNABLES":
        return [item for item in text.split(":") if item]
    if name in _ALLOCATOR:
        return [item.strip() for item in _OUTSIDE_BRACKETS.split(text) if item.strip()]
    return [text]


def _key(name: str, item: str) -> str:
    if name == "GLIBC_TUNABLES":
        return item.partition("=")[0]
    return item.partition(":")[0].strip() if name in _ALLOCATOR else item

"""`autotune schema`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer


class Which(str, Enum):
    """The two files that users read and write."""

    space = "space"
    config = "config"


def schema(
    which: Annotated[Which, typer.Argument(help="space: search_spaces/*.yaml; config: best.yaml.")],
) -> int:
    """Print the JSON Schema of best.yaml or of a space file, for editors."""
    from autotune.cli.outcome import print_json

    print_json(file_schema(which.value))
    return 0


def file_schema(which: str) -> dict[str, Any]:
    """Return the JSON Schema of ``space`` or ``config``, with a title and the file's own schema name."""
    from pydantic import BaseModel

    from autotune.config_files.presets import SCHEMA as SPACE
    from autotune.config_files.presets import SpaceFile
    from autotune.export.best_config import SCHEMA as CONFIG
    from autotune.export.best_config import BestConfig

    kinds: dict[str, tuple[str, type[BaseModel]]] = {
        "space": (SPACE, SpaceFile),
        "config": (CONFIG, BestConfig),
    }
    name, model = kinds[which]
    made = model.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": name}

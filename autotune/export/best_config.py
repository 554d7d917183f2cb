"""`best.yaml`: the picks of a search, as a file that `autotune apply` reads and users may edit.

`parts` contains its parts, `build` makes it, `read` and `write` handle files. Import from here. pydantic is
used here (`parts`, `read`) and in `config_files` only.
"""

from __future__ import annotations

from autotune.export.build import GIB, build_best, fingerprint, study_part
from autotune.export.edits import edited
from autotune.export.parts import (
    SCHEMA,
    BaselinePart,
    BatchPart,
    BestConfig,
    ChangePart,
    ContributionPart,
    EnvironmentPart,
    EstimatePart,
    KnobValue,
    LossPart,
    MemoryPart,
    ObjectivePart,
    ParetoPart,
    PickPart,
    ProvenancePart,
    StudyPart,
)
from autotune.export.read import core_changes, differences, parse, read_best
from autotune.export.write import render, save, write_best

__all__ = [
    "GIB",
    "SCHEMA",
    "BaselinePart",
    "BatchPart",
    "BestConfig",
    "ChangePart",
    "ContributionPart",
    "EnvironmentPart",
    "EstimatePart",
    "KnobValue",
    "LossPart",
    "MemoryPart",
    "ObjectivePart",
    "ParetoPart",
    "PickPart",
    "ProvenancePart",
    "StudyPart",
    "build_best",
    "core_changes",
    "differences",
    "edited",
    "fingerprint",
    "parse",
    "read_best",
    "render",
    "save",
    "study_part",
    "write_best",
]

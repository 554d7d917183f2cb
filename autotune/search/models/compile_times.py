"""Expected seconds of a first compile, from the study, earlier studies, or a usual value; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.compare.transfer import beliefs
from autotune.knobs.declared import SDK_VALUE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autotune.model.config import Value
    from autotune.model.study import Study

_USUAL_S: Final = {"default": 40.0, "reduce-overhead": 45.0, "max-autotune": 120.0}
_OTHER_MODE_S: Final = 45.0
_LEAST_S: Final = 1.0
"""Shorter compile times in a run are ignored."""


@dataclass(frozen=True, slots=True)
class CompileTimes:
    """Seconds of first compiles, by compile mode; built by `CompileTimes.of`.

    Args:
        measured_s: The longest of this study.
        believed_s: Those of earlier studies of the script.
        set_by_script: Knobs whose value the script reads itself, so its effect on compiling is unknown.
    """

    measured_s: Mapping[object, float]
    believed_s: Mapping[str, float]
    set_by_script: frozenset[str]

    @classmethod
    def of(cls, study: Study) -> CompileTimes:
        """Learn from the cold compiles of a study."""
        declared = study.spec.space.declared
        set_by_script = frozenset(s.name for s in declared if s.spelling.text.startswith(f"{SDK_VALUE}:"))
        measured_s: dict[object, float] = {}
        for trial in study.finished():
            m = trial.measurement
            if m is not None and trial.seconds > 0 and m.compile_s > _LEAST_S and m.cold_compile:
                mode = _mode(trial.config, set_by_script)
                measured_s[mode] = max(measured_s.get(mode, 0.0), m.compile_s)
        return cls(measured_s, beliefs(study).compile_s, set_by_script)

    def first(self, values: Mapping[str, Value | None]) -> float:
        """Return the expected seconds of a first compile; 0 for a config that does not compile.

        Args:
            values: Values by knob; None where the script's own is unknown.
        """
        mode = _mode(values, self.set_by_script)
        if mode is None:
            return 0.0
        if mode in self.measured_s:
            return self.measured_s[mode]
        if str(mode) in self.believed_s:
            return self.believed_s[str(mode)]
        usual_s = _USUAL_S.get(str(mode), _OTHER_MODE_S)
        default_s = self.measured_s.get("default")
        return usual_s if default_s is None else default_s * usual_s / _USUAL_S["default"]


def _mode(values: Mapping[str, Value | None], set_by_script: Collection[str]) -> object:
    """Return the compile mode; None if these values do not set one."""
    for knob, value in values.items():
        if "compile" in knob and knob not in set_by_script and value not in (None, "off", False):
            return value
    return None

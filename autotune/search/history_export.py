"""Export of an ended study for later searches; pure.

Contains numbers, values of knobs and the study's label, but no file names or arguments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from autotune.answer.pick import answer_or_none
from autotune.compare.amortised_rate import objective_value
from autotune.compare.comparison import compare
from autotune.compare.failed_configs import broken
from autotune.compare.finalists import may_win
from autotune.compare.rounds import in_own_unit
from autotune.compare.transfer import SPOILED, fingerprint
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.history_record import Earlier, Gain, Read, Setting
from autotune.model.objective import ENERGY
from autotune.model.trial import Stage
from autotune.search.models.compile_times import CompileTimes
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.screening.feasible import QUARANTINE, Feasible
from autotune.statistics.intervals import sd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.model.config import Value
    from autotune.model.study import Study

DISTURBED_SHARE: Final = 0.5
"""Share of disturbed runs above which a study is not exported."""

NOISIEST: Final = 0.12
"""Difference between runs of the unchanged script above which a study is not exported, in ln rate."""

_LEAST_NOISE: Final = 0.02
_MOST_STARTS: Final = 3
_MOST_SEEN: Final = 32
_SURE: Final = 1.0
"""Uncertainty of the model, in ln rate, above which a value counts as unmeasured."""


def unfit(study: Study) -> str:
    """Return why nothing should be learned from a study, as a sentence; empty if it is suitable."""
    measured = [t for t in study.finished() if t.measurement is not None]
    if study.facts is None or study.facts.run is None or not any(t.config.is_baseline for t in measured):
        return "its script was not measured."
    if not study.facts.run.was_seen:
        return "it was kept by a version that wrote down too little of the script's own run."
    if all(t.config.is_baseline for t in measured):
        return "it measured nothing but the script."
    spoiled = sum(
        bool(SPOILED & set(t.measurement.contamination.flags)) for t in measured if t.measurement is not None
    )
    if spoiled >= DISTURBED_SHARE * len(measured):
        return f"the machine was disturbed, or held down, in {spoiled} of {len(measured)} runs."
    noise = _noise(study)
    if noise > NOISIEST:
        return f"runs of the unchanged script differed by {100 * noise:.0f} % there."
    return ""


def lessons(study: Study) -> Earlier | None:
    """Return the history record of a study; None if it has no usable measurement.

    Args:
        study: Ended study with its space.
    """
    space = study.space
    model = None if space is None else ThroughputModel.of(study, space)
    if space is None or model is None or len(model.seen) < 2:
        return None
    paired = {c.config: math.log(c.speedup.value) for c in compare(study) if c.speedup.value > 0}
    # For compiled configs single runs pay a cold compile and pairs a warm one, so only single runs compare.
    compiled = {
        t.config for t in study.finished() if t.measurement is not None and t.measurement.compile_s > 0
    }
    is_speed = study.spec.objective != ENERGY
    surer = {c: log for c, log in paired.items() if is_speed and c not in compiled}
    read = {c: surer.get(c, log) for c, log in model.seen.items() if not c.is_baseline}
    starts = _confirmed(study)
    return Earlier(
        study_id=study.spec.study_id,
        label=study.spec.label,
        fingerprint=fingerprint(study),
        starts=tuple(Read(config=c, log=paired[c]) for c in starts),
        seen=tuple(Read(config=c, log=read[c]) for c in _telling(read, starts)),
        gains=tuple(_gains(model)),
        owns={k: d.own for k, d in space.dimensions.items() if d.own is not None},
        compile_s={str(mode): seconds for mode, seconds in CompileTimes.of(study).measured_s.items()},
        doubted=tuple(Setting(knob=k, value=v) for k, v in _failed(study, Feasible.of(study, space))),
        noise=max(_LEAST_NOISE, _noise(study)),
    )


def _noise(study: Study) -> float:
    """Return the noise between runs of the unchanged script; 0 with fewer than three."""
    finished = study.finished(Stage.BASELINE, Stage.DRIFT_CHECK, Stage.CONFIRM)
    own = [t for t in in_own_unit(study, finished) if t.config.is_baseline]
    rates = [objective_value(study, t.measurement) for t in own if t.measurement is not None]
    logs = [math.log(rate) for rate in rates if rate > 0]
    return sd(logs) if len(logs) > 2 else 0.0


def _confirmed(study: Study) -> list[Config]:
    """Return configs that pairs have shown to be faster without objection, the recommended one first."""
    found = [
        c
        for c in compare(study)
        if c.wins and c.effect is not Effect.TRAINING and c.loss.verdict != "fail" and not c.loss.rule
    ]
    ranked = sorted(found, key=lambda c: (-c.speedup.value, c.config.canonical()))
    failed = broken(study)
    configs = [c.config for c in ranked if c.config not in failed and may_win(study, c.config)]
    answer = answer_or_none(study)
    if answer is not None and answer.is_better:
        configs = [answer.best.config, *configs]
    return list(dict.fromkeys(configs))[:_MOST_STARTS]


def _telling(read: Mapping[Config, float], starts: Sequence[Config]) -> list[Config]:
    """Return few enough configs for a fast model: winners, the fastest, single changes, then the rest."""
    fastest = sorted(read, key=lambda c: (-read[c], c.canonical()))
    singles = [c for c in fastest if len(c) == 1]
    first = [c for c in starts if c in read]
    return list(dict.fromkeys([*first, *fastest[: _MOST_SEEN // 2], *singles, *fastest]))[:_MOST_SEEN]


def _gains(model: ThroughputModel) -> list[Gain]:
    seen = {(k, v) for c in model.seen for k, v in c.items()}
    free = {d.knob for d in model.space.free()}
    found: list[Gain] = []
    for knob, value in sorted((i for i in seen if i[0] in free), key=repr):
        log, doubt = model.predict(Config({knob: value}))
        if doubt < _SURE:
            found.append(Gain(knob=knob, value=value, log=log, sd=doubt))
    return found


def _failed(study: Study, feasible: Feasible) -> list[tuple[str, Value]]:
    """Values that never worked: of several configs, alone, or refused."""
    alone = {
        item
        for t in study.finished()
        if t.failure is not None and t.failure.kind.teaches and len(t.config) == 1
        for item in t.config.items()
    }
    certain = {
        item
        for item, count in feasible.failed.items()
        if item not in feasible.worked and (count >= QUARANTINE or item in alone)
    }
    return sorted(certain | feasible.quarantined, key=repr)

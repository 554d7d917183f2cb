"""Answer as display-ready values for the terminal, the HTML report and MLflow's notes.

Renderers arrange these texts and do not format figures. Numeric figures for JSON and best.yaml are in
`autotune.report.view.report_data` and `autotune.export.build`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.report.view.bottleneck_text import pays_back_text
from autotune.report.view.picks import effect_word, picks
from autotune.report.view.summary import (
    LOSS_WORDS,
    bytes_text,
    likely_text,
    loss_sentence,
    number_text,
    plural,
    ratio_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.answer.answer import Answer, Recommendation
    from autotune.model.measurement import Estimate


def rate_text(rate: Estimate) -> str:
    """Return ``1505 samples/s``."""
    return f"{number_text(rate.value)} {rate.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PickView:
    """Texts of one pick.

    Args:
        speedup: ``3.10x [2.99, 3.21]``; for a likely candidate its unconfirmed ratio.
        pairs: ``5 pairs``; empty for a likely candidate.
        rate: ``193.7 samples/s``.
        memory: Peak memory: ``2.8 GiB``.
        loss: Verdict of the loss guard, in two words.
        loss_verdict: ``pass``, ``fail`` or ``unclear``.
        loss_sentence: Description of the loss comparison and its result.
        training: Effect on the training.
        pays_back: Time until its compile is paid back; empty if it does not compile.
    """

    speedup: str
    pairs: str
    rate: str
    memory: str
    loss: str
    loss_verdict: str
    loss_sentence: str
    training: str
    pays_back: str

    @classmethod
    def of(cls, pick: Recommendation) -> PickView:
        """Return the texts of a recommendation."""
        is_likely = pick.pick == "likely"
        return cls(
            speedup=likely_text(pick) if is_likely else ratio_text(pick.speedup),
            pairs="" if is_likely else plural(pick.speedup.n, "pair"),
            rate=rate_text(pick.throughput),
            memory=bytes_text(pick.peak_bytes),
            loss=LOSS_WORDS.get(pick.loss.verdict, pick.loss.verdict),
            loss_verdict=pick.loss.verdict,
            loss_sentence=loss_sentence(pick),
            training=effect_word(pick),
            pays_back=pays_back_text(pick),
        )

    @property
    def claim(self) -> str:
        """Return speedup and evidence: ``3.10x [2.99, 3.21], 5 pairs``."""
        return ", ".join(text for text in (self.speedup, self.pairs) if text)

    @property
    def costs(self) -> str:
        """Return rate and costs: ``193.7 samples/s, 2.8 GiB, loss holds``."""
        return f"{self.rate}, {self.memory}, {self.loss}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerView:
    """Texts of an answer.

    Args:
        own_rate: Rate of the unchanged script.
        own_memory: Peak memory of the unchanged script.
        memory_ratio: ``1.56 times``, the recommendation's peak over the script's; empty if one is unknown.
        picks: Picks by name, as in best.yaml.
    """

    own_rate: str
    own_memory: str
    memory_ratio: str
    picks: Mapping[str, PickView]

    @classmethod
    def of(cls, answer: Answer) -> AnswerView:
        """Return the texts of an answer."""
        mine, base = answer.best.peak_bytes, answer.baseline_peak_bytes
        return cls(
            own_rate=rate_text(answer.baseline_throughput),
            own_memory=bytes_text(base),
            memory_ratio=f"{mine / base:.2f} times" if mine is not None and base else "",
            picks={name: PickView.of(pick) for name, pick in picks(answer).items()},
        )

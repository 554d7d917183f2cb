"""The command line inside this process, over a driver that runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from study_fakes import facts, good_answer, study

from autotune.model.facts import ScriptFacts


@dataclass
class FakeTune:
    """Stands for `autotune.driver.tune`; `end` makes what a search returns, or raises."""

    end: Callable[[Any], Any] | None = None
    specs: list[Any] = field(default_factory=list)
    resumed: list[Any] = field(default_factory=list)
    waits: list[Any] = field(default_factory=list)
    turns: list[Any] = field(default_factory=list)
    owned: list[bool] = field(default_factory=list)

    def run_search(self, spec, *, listeners=(), head_start_s=0.0, owns_process=True, last_words=None):
        self.owned.append(owns_process)
        assert head_start_s >= 0, "the time since this process began, a whole test run it may be"
        self.specs.append(spec)
        for listener in listeners:
            listener.study_began(study(spec=spec))
            listener.study_ended(study(spec=spec))
        return (self.end or ended)(spec)

    def resume_search(
        self,
        directory,
        *,
        budget_s=None,
        wait_for_quiet_s=None,
        wait_s=None,
        share=False,
        trials=None,
        listeners=(),
        owns_process=True,
        last_words=None,
    ):
        self.owned.append(owns_process)
        self.resumed.append((directory, budget_s, trials))
        self.waits.append(wait_for_quiet_s)
        self.turns.append((wait_s, share))
        for listener in listeners:
            listener.study_began(study())
            listener.study_ended(study())
        return (self.end or ended)(study().spec)

    def plan_search(self, spec):
        from autotune.model.space import Dimension, SearchSpace

        self.specs.append(spec)
        space = SearchSpace(
            dimensions={"num_workers": Dimension(knob="num_workers", values=(0, 2, 4), own=0)},
        )
        return SimpleNamespace(
            spec=spec,
            facts=facts(),
            space=space,
            refusals={"tf32": "There is no GPU."},
            ways={"num_workers": "keyword"},
            request=spec.space,
            not_here=("precision=fp16",),
        )


def ended(spec, *, answer=None, code=0, unsent=0, **fields):
    """A search that ended well."""
    given = good_answer() if answer is None else answer
    known = replace(facts(), script=ScriptFacts(path=spec.script, sha256="ab" * 32))
    return SimpleNamespace(
        study=study(spec=spec, facts=known, **fields), answer=given, exit_code=code, unsent=unsent,
        links={"MLflow": "http://127.0.0.1:5000"}, study_dir=Path("/studies/01"),
    )  # fmt: skip

"""Result of a search as plain data: the same fields for `--json` and for `autotune.tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.answer.answer import Answer
    from autotune.driver.tune import SearchEnd
    from autotune.model.change import Change
    from autotune.model.config import Config
    from autotune.model.study import Study

RESULT_SCHEMA = "autotune.result/v1"


def result_data(end: SearchEnd, code: int) -> dict[str, Any]:
    """Return ``autotune.result/v1``: the fields of best.yaml, then links, unsent, exit.

    Args:
        end: End of the search.
        code: Exit code of the command.
    """
    from autotune.driver.profiles import kept_profiles, kept_reports

    fields = _best_fields(end)
    fields.pop("schema", None)
    return {
        "schema": RESULT_SCHEMA,
        **fields,
        "sentence": end.answer.sentence if end.answer else "",
        "caveats": list(end.answer.caveats) if end.answer else [],
        "unsettled": list(end.answer.unsettled) if end.answer else [],
        **explained(end.study, end.answer),
        "failures": dict(end.answer.failures) if end.answer else {},
        "refusals": dict(end.study.refusals),
        "links": dict(end.links),
        "unsent": end.unsent,
        "profiles": {n: str(p) for n, p in kept_profiles(end.study, end.study_dir).items()},
        "nsys_reports": {n: str(p) for n, p in kept_reports(end.study, end.study_dir).items()},
        "out": end.study.spec.out,
        "study_dir": str(end.study_dir),
        "exit": code,
    }


def changes_of(study: Study) -> Callable[[Config], Sequence[Change]]:
    """Return a function that returns the deliveries of a config in this study."""
    from autotune.driver.loop.planner import dead_ways, measured_changes
    from autotune.knobs.registry import knobs_for
    from autotune.space.choose_delivery import choose

    facts = study.facts
    if facts is None:
        return lambda _config: ()
    knobs, dead = knobs_for(study.spec.space), dead_ways(study)

    def changes(config: Config) -> Sequence[Change]:
        known = measured_changes(study, config)
        return choose(config, facts, knobs, dead=dead)[0] if known is None else known

    return changes


def _best_fields(end: SearchEnd) -> dict[str, Any]:
    if end.answer is None:
        return {"study": {"id": end.study.spec.study_id, "label": end.study.spec.label}}
    from autotune.export.best_config import build_best

    return build_best(end.study, end.answer, changes_of(end.study)).data()


def explained(study: Study, answer: Answer | None) -> dict[str, Any]:
    """Return bottleneck, energy, cost and all advice as plain data; without an answer advice only."""
    from autotune.answer.advice import advice_data, advice_of
    from autotune.report.view.bottleneck_text import why_data

    why = why_data(study, answer) if answer is not None else {}
    return {**why, "advice": [advice_data(hint) for hint in advice_of(study)]}


def advice_lines(study: Study, *, most: int = 3) -> list[str]:
    """Return the first hints for a screen, and the number of further ones."""
    from autotune.answer.advice import advice_of, advice_text

    hints = advice_of(study)
    lines = [advice_text(hint) for hint in hints[:most]]
    if len(hints) > most:
        lines[-1] += f"; {len(hints) - most} more: autotune report {study.spec.label}"
    if lines and _is_edited(study):
        lines.append(f"{study.spec.title} has changed since the search; these lines are the searched version")
    return lines


def _is_edited(study: Study) -> bool:
    """Return whether the script, or a module that it imports, was edited since the study began."""
    from autotune.driver.loop.script_watch import ScriptWatch, modules_of

    watch = ScriptWatch(study.spec.inspected, study.facts.script.sha256 if study.facts is not None else "")
    watch.follow(lambda: modules_of(study))
    return bool(watch())

"""Command that repeats a search, with every limit and option of the original.

A search space is journaled as the result of a file and four options, without these options. They are found by
trial: the options shown are those that produce the same space again from its name.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.config_files.presets import AUTO_SPACE, load_space
from autotune.errors import UsageError
from autotune.knobs.registry import knobs_for
from autotune.model.history_record import SAME_SCRIPT
from autotune.model.trial import StartPolicy
from autotune.report.view import summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.model.config import Value
    from autotune.model.study import SpaceRequest, Study

_OUT: Final = "best.yaml"


def search_command(study: Study) -> str:
    """Return the command of the search without options at their defaults.

    Empty if its space cannot be named here, as the file is elsewhere or has changed: a search of another
    space would not repeat this one.
    """
    spec = study.spec
    space = space_words(spec.space, spec.cwd)
    if space is None:
        return ""
    words = ["autotune", "search", "--budget", f"{spec.budget.seconds:.0f}s", *space, *_limits(study)]
    if spec.driver != "ray":
        words += ["--driver", spec.driver]
    if spec.ray_address:
        words += ["--address", spec.ray_address]
    if spec.accelerator_type:
        words += ["--accelerator-type", spec.accelerator_type]
    if spec.concurrency:
        words += ["--concurrency", str(spec.concurrency)]
    if spec.sampler != "staged":
        words += ["--sampler", spec.sampler]
    if spec.transfer != SAME_SCRIPT:
        words += ["--transfer", spec.transfer]
    if spec.start is not StartPolicy.AUTO:
        words += ["--start", spec.start.value]
    if spec.seed:
        words += ["--seed", str(spec.seed)]
    if spec.price_per_hour is not None:
        words += ["--price-per-hour", str(spec.price_per_hour)]
    out = os.path.relpath(spec.out, spec.cwd) if spec.out and spec.cwd else _OUT
    if out != _OUT:
        words += ["--out", spec.out if out.startswith("..") else out]
    # Joined with ``=``, as the value begins with dashes itself.
    words += [f"--output-arg={name}" for name in spec.output_args]
    if spec.objective != "throughput":
        words += ["--objective", spec.objective]
    words += ["--keep-loggers"] * spec.keep_loggers + ["--profile"] * spec.profile
    return f"{shlex.join(words)} -- {summary.user_command(study)}"


def pinned_command(study: Study, config: Mapping[str, Value]) -> str:
    """Return the same search with a pinned configuration, so that pairs decide.

    Empty as for `search_command`.

    Args:
        study: Study to search again.
        config: Configuration of its space; values that depend on other knobs are not pinned.
    """
    known = knobs_for(study.spec.space)
    pins = {knob: value for knob, value in config.items() if knob in known and not known[knob].derived}
    return search_command(replace(study, spec=replace(study.spec, space=_pinned(study.spec.space, pins))))


def _pinned(space: SpaceRequest, pins: Mapping[str, Value]) -> SpaceRequest:
    if space.candidates:
        return replace(space, candidates=tuple(_pinned(candidate, pins) for candidate in space.candidates))
    knobs = {knob: values for knob, values in space.knobs.items() if knob not in pins}
    return replace(space, knobs=knobs, fixed={**space.fixed, **pins})


def memory_text(size: int) -> str:
    """Format an amount of memory as an option's value, exact to the byte."""
    return f"{size >> 20}MiB" if size and size % (1 << 20) == 0 else f"{size}B"


def space_words(space: SpaceRequest, cwd: str) -> list[str] | None:
    """Return the options that produce this space; None if none do.

    Args:
        space: Journaled space.
        cwd: Working directory of the search.
    """
    is_auto = bool(space.reason or space.candidates)
    # Observation adds it again.
    space = replace(space, knobs={k: v for k, v in space.knobs.items() if k not in space.added}, added=())
    for name in (AUTO_SPACE,) if is_auto else (space.name, space.source):
        whole = _loaded(name, cwd, space)
        if whole is None:
            continue
        if _same(whole, space):
            return _named(name)
        words = list(_narrowings(space, whole))
        narrowed = _loaded(name, cwd, space, words)
        if narrowed is not None and _same(narrowed, space):
            return [*_named(name), *(w for option, text in words for w in (option, text))]
    return None


def _named(name: str) -> list[str]:
    return [] if name == AUTO_SPACE else ["--space", name]


def _same(found: SpaceRequest, space: SpaceRequest) -> bool:
    return found == replace(space, reason="")


def _loaded(
    name: str, cwd: str, space: SpaceRequest, words: list[tuple[str, str]] | None = None
) -> SpaceRequest | None:
    """Return the space of that name, narrowed by these options; for ``auto`` the selected candidate."""

    def given(option: str) -> tuple[str, ...]:
        return tuple(text for named, text in words or () if named == option)

    try:
        found = load_space(
            name,
            cwd=cwd,
            sets=given("--set"),
            fixes=given("--fix"),
            only=given("--knob"),
            allow=given("--allow"),
        )
    except (UsageError, OSError):
        return None
    if found.candidates and not space.candidates:
        return next((c for c in found.candidates if c.name == space.name), None)
    return found


def _narrowings(space: SpaceRequest, whole: SpaceRequest) -> Iterator[tuple[str, str]]:
    """Yield options and values that may have narrowed the space."""
    if space.candidates and whole.candidates:
        space, whole = space.candidates[0], whole.candidates[0]
    sets = [k for k, values in space.knobs.items() if values and values != whole.knobs.get(k)]
    left_out = set(whole.knobs) - set(space.knobs) - set(space.fixed)
    if left_out:
        named = [k for k in (*space.knobs, *space.fixed) if k not in {*sets, *space.allowed}]
        yield from (("--knob", knob) for knob in named or sets)
    for knob in sets:
        yield "--set", f"{knob}={','.join(_spelled(v) for v in space.knobs[knob])}"
    for knob, value in space.fixed.items():
        yield "--fix", f"{knob}={_spelled(value)}"
    for knob in space.allowed:
        yield "--allow", knob


def _spelled(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _limits(study: Study) -> list[str]:
    """Return bounds on permitted trials."""
    spec, words = study.spec, list[str]()
    bound = spec.max_memory_bytes
    own = spec.space.bound_bytes(study.facts.host) if study.facts is not None else spec.space.memory_bytes
    if bound is not None and bound != own:
        words += ["--max-memory", memory_text(bound)]
    if spec.effective_batch != "explore":
        words += ["--effective-batch", spec.effective_batch]
    if spec.run_steps:
        words += ["--run-steps", str(spec.run_steps)]
    if spec.budget.trials:
        words += ["--trials", str(spec.budget.trials)]
    return words

"""Search spaces by name or file: found, read with what they inherit, and narrowed by options.

A file selects and narrows knobs, and may declare knobs of the user's own; conditions and ties live
in the knobs. Four options narrow or widen further: ``--set NAME=VALUES``, ``--fix NAME=VALUE``,
``--knob NAME``, ``--allow NAME``. What a file may hold is in `autotune.config_files.space_file`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from autotune.answer.space_selection import CANDIDATES
from autotune.config_files.space_file import (
    AUTO,
    SCHEMA,
    Range,
    SpaceFile,
    Written,
    declared_in,
    is_locked,
    known_values,
    name_problems,
    read,
    undeclared,
    unknown_knob,
    values_of,
)
from autotune.config_files.yaml import scalar
from autotune.errors import InvalidSpace, UsageError, did_you_mean
from autotune.knobs.declared import same_way
from autotune.knobs.registry import builtin
from autotune.knobs.vocabulary import meaningless
from autotune.loss.delayed_harm_rules import is_ruled
from autotune.model.config import Value
from autotune.model.effect import Effect
from autotune.model.study import DeclaredSpec, SpaceRequest

__all__ = [
    "ALIASES",
    "AUTO",
    "AUTO_SPACE",
    "SCHEMA",
    "FoundSpace",
    "Range",
    "SpaceFile",
    "built_in",
    "find_spaces",
    "load_space",
    "locate",
    "problems",
    "read_space",
]

AUTO_SPACE: Final = "auto"
"""No file: the first run of the script decides among `CANDIDATES`."""

ALIASES: Final[Mapping[str, str]] = {"vision": "gpu_vision", "transformer": "gpu_transformer"}
"""Short names of presets; a file of that name comes first."""

_MAX_EXTENDS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class FoundSpace:
    """A search space file that exists."""

    name: str
    path: Path
    origin: str


@dataclass(slots=True)
class _Space:
    """A file with everything it inherits."""

    name: str = ""
    source: str = ""
    knobs: dict[str, tuple[Value, ...]] = field(default_factory=dict[str, tuple[Value, ...]])
    allowed_only: dict[str, tuple[Value, ...]] = field(default_factory=dict[str, tuple[Value, ...]])
    starts: tuple[Mapping[str, Value], ...] = ()
    declared: dict[str, DeclaredSpec] = field(default_factory=dict[str, DeclaredSpec])
    places: dict[str, str] = field(default_factory=dict[str, str])
    memory: tuple[int | None, float | None] = (None, None)
    leaves_out: bool = False
    """A knob of what it extends is left out by name."""
    problems: list[UsageError] = field(default_factory=list[UsageError])

    def known(self) -> list[str]:
        return [*builtin(), *self.declared]

    def is_locked(self, knob: str) -> bool:
        return is_locked(knob, self.declared)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Additions of the command line to a file."""

    sets: Mapping[str, tuple[Value, ...]]
    fixes: Mapping[str, Value]
    only: tuple[str, ...]
    allow: tuple[str, ...]


def load_space(
    name_or_path: str,
    *,
    cwd: str,
    sets: Sequence[str] = (),
    fixes: Sequence[str] = (),
    only: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> SpaceRequest:
    """Return the knobs and values that the user requests.

    Args:
        name_or_path: A preset's name, ``auto``, or a file (anything with a slash or ending in .yaml).
        cwd: Folder in which relative paths and ``./search_spaces`` are looked up.
        sets: ``num_workers=2,4``: narrow a knob, or add it.
        fixes: ``precision=bf16``: pin a knob.
        only: Names: vary these alone, and those of `sets`, `fixes` and `allow`.
        allow: Names of knobs that may take part although they change the training, or may win although a rule
            refuses them (`autotune.loss.delayed_harm_rules`); several with commas.

    Raises:
        InvalidSpace: No such file, or it is malformed; with the line.
        UnknownKnob: A name is not a knob's.
        UsageError: The options contradict themselves, or name what needs permission without it.
    """
    options = _Options(
        sets=_sets(sets),
        fixes=_fixes(fixes),
        only=tuple(dict.fromkeys(only)),
        allow=_names(allow),
    )
    if both := sorted(set(options.sets) & set(options.fixes)):
        raise UsageError(f"{both[0]} is both set and fixed", hint="Leave one of --set and --fix out.")
    if name_or_path != AUTO_SPACE:
        return _request(_sound(locate(name_or_path, cwd=cwd)), options)
    spaces = {name: _sound(locate(name, cwd=cwd)) for name in CANDIDATES}
    _check_known_to_all(spaces, options)
    candidates = [replace(_request(space, options), name=name) for name, space in spaces.items()]
    _check_agreement(candidates)
    return SpaceRequest(name=AUTO_SPACE, candidates=tuple(candidates))


def read_space(path: Path) -> SpaceFile:
    """Return one file, validated, without inherited parts.

    Raises:
        InvalidSpace: It cannot be read, or is malformed; with the line.
        UnknownKnob: It names a knob that does not exist.
    """
    written = read(path)
    if written.file is None:
        raise written.problems[0]
    space = _inherited(path, chain=())
    own = [problem for problem in space.problems if problem.message.startswith(f"{written.source}:")]
    if own:
        raise own[0]
    return written.file


def problems(name_or_path: str, *, cwd: str) -> list[UsageError]:
    """Everything that is wrong with a space and with what it extends, by file and line."""
    if name_or_path == AUTO_SPACE:
        return [problem for name in CANDIDATES for problem in problems(name, cwd=cwd)]
    try:
        space = _inherited(locate(name_or_path, cwd=cwd), chain=())
        if not space.problems:
            request = _request(space, _Options(sets={}, fixes={}, only=(), allow=()))
            if not request.knobs and not request.withheld:
                text = f"{space.source}: it has no knobs, so there is nothing to search"
                hint = "Name some under knobs, or begin from a preset: extends: default"
                return [InvalidSpace(text, hint=hint)]
    except UsageError as error:
        return [error]
    return space.problems


def find_spaces(*, cwd: str) -> tuple[FoundSpace, ...]:
    """Every space that a name reaches from here; a nearer one hides a farther one of its name."""
    found: dict[str, FoundSpace] = {}
    for folder, origin in _folders(cwd):
        for path in filter(Path.is_file, sorted(folder.glob("*.yaml"))):
            found.setdefault(path.stem, FoundSpace(path.stem, path, origin))
    return tuple(found.values())


def built_in(name: str) -> Path:
    """Return the file of a preset in autotune's installation, whatever files the user has.

    Raises:
        InvalidSpace: No preset has that name.
    """
    for folder in _shipped():
        path = folder / f"{name}.yaml"
        if _NAME.fullmatch(name) and path.is_file():
            return path
    raise InvalidSpace(f'autotune has no preset "{name}"')


def locate(name_or_path: str, *, cwd: str) -> Path:
    """Return the file of a name or a path.

    Raises:
        InvalidSpace: There is none.
    """
    if _is_path(name_or_path):
        path = Path(cwd, Path(name_or_path).expanduser())
        if not path.is_file():
            raise InvalidSpace(f"there is no file {name_or_path}", hint="Presets are named without .yaml.")
        return path
    for name in (name_or_path, ALIASES.get(name_or_path, "")):
        if _NAME.fullmatch(name):
            for folder, _ in _folders(cwd):
                path = folder / f"{name}.yaml"
                if path.is_file():
                    return path
    raise InvalidSpace(f'there is no search space "{name_or_path}"', hint=_near(name_or_path, cwd))


def _near(name: str, cwd: str) -> str:
    known = [space.name for space in find_spaces(cwd=cwd)]
    guess = did_you_mean(name, [AUTO_SPACE, *known, *ALIASES])
    return guess or f"Known are: {', '.join([AUTO_SPACE, *known])}."


def _folders(cwd: str) -> Iterator[tuple[Path, str]]:
    """Yield the folders in which names are looked up, nearest first."""
    # The XDG specification has relative paths ignored.
    xdg = os.environ.get("XDG_CONFIG_HOME", "")
    config = Path(xdg if xdg.startswith("/") else os.path.expanduser("~/.config"))  # noqa: PTH111 (no error without a home)
    yield Path(cwd, "search_spaces"), "here"
    yield config / "autotune" / "search_spaces", "yours"
    for folder in _shipped():
        yield folder, "built-in"


def _shipped() -> Iterator[Path]:
    package = Path(__file__).resolve().parents[1]
    yield package / "search_spaces"
    yield package.parent / "search_spaces"


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


# Inheriting ----------------------------------------------------------------------------------


def _sound(path: Path) -> _Space:
    space = _inherited(path, chain=())
    if space.problems:
        raise space.problems[0]
    return space


def _inherited(path: Path, *, chain: tuple[Path, ...]) -> _Space:
    """Return a file merged into those that it extends; problems are collected, parents' first."""
    resolved = path.resolve()
    if resolved in chain or len(chain) >= _MAX_EXTENDS:
        names = " -> ".join(p.name for p in (*chain, resolved))
        raise InvalidSpace(f"{path.name} extends itself or too many others: {names}")
    written = read(path)
    space = _Space()
    if written.parent:
        try:
            space = _inherited(_parent(written, path), chain=(*chain, resolved))
        except InvalidSpace as error:
            space.problems.append(error)
    space.problems += [*written.problems, *name_problems(written, space.declared)]
    space.source = written.source
    if written.file is not None:
        _lay_over(space, written, written.file, path)
    return space


def _parent(written: Written, path: Path) -> Path:
    """Return the file that this one extends, looked up from its folder; never itself by name."""
    name = written.parent
    if _is_path(name):
        return locate(name, cwd=str(path.parent))
    for each in (name, ALIASES.get(name, "")):
        for folder, _ in (*_folders(str(path.parent)), (path.parent, "beside")):
            found = folder / f"{each}.yaml"
            if _NAME.fullmatch(each) and found.is_file() and found.resolve() != path.resolve():
                return found
    message = f'{written.place("extends")}: extends "{name}", which does not exist'
    raise InvalidSpace(message, hint=_near(name, str(path.parent)))


def _lay_over(space: _Space, written: Written, file: SpaceFile, path: Path) -> None:
    space.name = file.name or path.stem
    fresh = declared_in(written)
    for index, name in enumerate(fresh):
        space.places[name] = written.place("declare", index, "name")
    space.declared |= fresh
    # User-declared knobs are of most interest: first, unless `knobs` gives their place.
    new = {name: () for name in fresh if name not in space.knobs and name not in file.knobs}
    space.knobs = {**new, **space.knobs}
    for knobs, entries in ((space.knobs, file.knobs), (space.allowed_only, file.allowed_only)):
        for knob, entry in entries.items():
            if entry is None:
                knobs.pop(knob, None)
                space.leaves_out = True
            else:
                knobs[knob] = values_of(entry)
    if file.start is not None:
        space.starts = tuple(dict(start) for start in file.start)
    if file.constraints is not None:
        space.memory = file.constraints.peak_memory.bound()


# Options -------------------------------------------------------------------------------------


def _request(space: _Space, options: _Options) -> SpaceRequest:
    _check_options(space, options)
    knobs = dict(space.knobs)
    for name, values in space.allowed_only.items():
        knobs.setdefault(name, values)
    locked = tuple(name for name in knobs if space.is_locked(name) and name not in options.allow)
    knobs = {name: values for name, values in knobs.items() if name not in locked}
    if options.only:
        knobs = {name: knobs.get(name, ()) for name in (*options.only, *options.allow)}
        locked = ()
    for name in options.allow:
        knobs.setdefault(name, ())
    knobs |= options.sets
    memory_bytes, memory_frac = space.memory
    request = SpaceRequest(
        name=space.name,
        knobs={name: values for name, values in knobs.items() if name not in options.fixes},
        starts=space.starts,
        fixed=options.fixes,
        source=space.source,
        declared=tuple(space.declared.values()),
        allowed=options.allow,
        withheld=locked,
        memory_bytes=memory_bytes,
        memory_frac=memory_frac,
        narrowed=bool(options.only) or space.leaves_out,
    )
    _check_rivals(request, space)
    return request


def _check_options(space: _Space, options: _Options) -> None:
    known = space.known()
    for option, names in (
        ("--set", options.sets),
        ("--fix", options.fixes),
        ("--knob", options.only),
        ("--allow", options.allow),
    ):
        for name in names:
            if name not in known:
                raise unknown_knob(name, option, known)
            if option != "--allow" and space.is_locked(name) and name not in options.allow:
                raise UsageError(f"{option} {name}: it changes the training", hint=f"Add --allow {name}.")
    for name in options.allow:
        _check_allowed(space, name)
    for name, values in options.sets.items():
        _check_values(space, "--set", name, values)
    for name, value in options.fixes.items():
        _check_values(space, "--fix", name, (value,))


def _check_values(space: _Space, option: str, name: str, values: Sequence[Value]) -> None:
    if name in space.declared:
        if lost := undeclared(space.declared[name], values):
            held = ", ".join(str(v) for v in space.declared[name].values)
            text = f"{option}: {name} is declared without the value {lost[0]}"
            raise UsageError(text, hint=f"Declared are: {held}.")
        return
    knob = builtin()[name]
    if (unknown := meaningless(knob, values)) is not None:
        raise UsageError(f"{option}: {name} has no value {unknown}", hint=known_values(knob, unknown))


def _check_allowed(space: _Space, name: str) -> None:
    known = builtin().get(name)
    if known is not None and known.permission:
        hint = f"{known.permission} sets its range."
        raise UsageError(f"--allow {name}: it has an option of its own", hint=hint)
    if not space.is_locked(name) and not is_ruled(name, space.declared.get(name)):
        effect = space.declared[name].effect if name in space.declared else builtin()[name].effect
        what = "leaves the training unchanged" if effect is Effect.EXACT else "changes the rounding alone"
        raise UsageError(
            f"--allow {name}: it {what} and needs no permission",
            hint=f"Leave it out; --knob {name} searches it alone.",
        )


def _check_rivals(request: SpaceRequest, space: _Space) -> None:
    """Two knobs that pull at one option or variable would undo each other."""
    varied = {*request.knobs, *request.fixed}
    varied |= {b for name in varied if name in builtin() for b in builtin()[name].requires}
    mine = [spec for spec in request.declared if spec.name in varied]
    for place, spec in enumerate(mine):
        where = space.places.get(spec.name, space.source)
        for name in varied & set(builtin()):
            if any(same_way(spec.spelling, other) for other in builtin()[name].spellings):
                raise InvalidSpace(
                    f"{where}: {spec.name} sets {spec.spelling.text}, and so does the built-in {name}",
                    hint=f"Use {name}, or drop it under knobs: {name}: ~",
                )
        for other in mine[:place]:
            if same_way(spec.spelling, other.spelling):
                raise InvalidSpace(f"{where}: {spec.name} and {other.name} both set {spec.spelling.text}")


def _check_known_to_all(spaces: Mapping[str, _Space], options: _Options) -> None:
    """Check that named requests do not depend on the candidate that the first run selects."""
    for name in (*options.sets, *options.fixes, *options.only, *options.allow):
        having = [candidate for candidate, space in spaces.items() if name in space.known()]
        if 0 < len(having) < len(spaces):
            where = " and ".join(having)
            raise UsageError(
                f"{name} is declared for {where} alone, and the first run may take another space",
                hint=f"Name the space: --space {having[0]}",
            )


def _check_agreement(candidates: Sequence[SpaceRequest]) -> None:
    """Check that a name declared by several candidates means the same in all of them."""
    seen: dict[str, tuple[DeclaredSpec, str]] = {}
    for request in candidates:
        for spec in request.declared:
            first, source = seen.setdefault(spec.name, (spec, request.source))
            if first != spec:
                raise InvalidSpace(
                    f"{request.source} and {source} declare {spec.name} differently",
                    hint="Name one of them with --space, or give both the same value.",
                )


def _names(texts: Sequence[str]) -> tuple[str, ...]:
    parts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def _sets(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, value_text = _pair(text, "--set", found)
        found[name] = tuple(_value(part, "--set", text) for part in value_text.split(","))
    return found


def _fixes(texts: Sequence[str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for text in texts:
        name, value_text = _pair(text, "--fix", found)
        if "," in value_text:
            raise UsageError(f'--fix "{text}" gives several values', hint=f'Write: --set "{text}"')
        found[name] = _value(value_text, "--fix", text)
    return found


def _pair(text: str, option: str, earlier: Mapping[str, object]) -> tuple[str, str]:
    name, equals, value_text = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UsageError(f'{option} "{text}" has no value', hint=f"Write: {option} num_workers=4")
    if name in earlier:
        raise UsageError(f"{option} names {name} twice", hint=f"Give its values in one {option}.")
    return name, value_text


def _value(text: str, option: str, whole: str) -> Value:
    value = scalar(text.strip())
    if value is None:
        raise UsageError(f'{option} "{whole}" has an empty value', hint=f"Write: {option} num_workers=4")
    return value

"""A best.yaml of possibly foreign origin: the parts that apply, verify and export accept."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autotune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.export.best_config import BestConfig, PickPart
    from autotune.inspection.command_line import Command
    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.model.study import Study

_HARMLESS = re.compile(r"-[bBdEIOPqRsSuv]+")
"""Options of the interpreter that name no file and no module."""
_COMMAND = ("script", "argv", "module", "options", "launcher", "python")
_CHECK_S = 120.0
"""Time limit of the run that checks an edited file, as that of `autotune inspect`."""
_RESUME = re.compile(r"autotune resume [A-Za-z0-9._-]{1,64}( --[a-z-]+ [A-Za-z0-9.]+)*")


class Fitting(NamedTuple):
    """The changes of an edited file that fit a script."""

    changes: Sequence[Change]
    notes: tuple[str, ...]
    """A sentence on each change that does not fit, or the reason why none could be checked."""
    own: Mapping[str, Value]
    """The script's own values, as observed in its first steps."""


class BestFile:
    """A best.yaml, and this account's record of the search that it names.

    The search's own journal makes a file known: its command, its interpreter and the knobs that it declared.
    Of any other file, only the values of built-in knobs are used, with a command that is typed
    (docs/decisions/0113).

    Args:
        name: Path of the file. A warning appears if the content does not match its digest.

    Raises:
        UsageError: The file cannot be read, or is not of this schema.
    """

    def __init__(self, name: str) -> None:
        from autotune.export.best_config import edited, read_best

        self.path = Path(name)
        self.best: BestConfig = read_best(name)
        self.is_edited = bool(edited(self.best))
        """The file differs from the one that its search wrote."""
        if self.is_edited and (reason := edited(self.best, self._kept())):
            print(f"warning: {name}: {reason}", file=sys.stderr)

    @functools.cached_property
    def search(self) -> Study | None:
        """The search that wrote the file, from this account's own home, or None."""
        from autotune.cli.open_study import recorded

        return recorded(self.best.study.id)

    def resume(self) -> str:
        """Return the command that continues the search, or "" if the file contains another text there."""
        written = self.best.resume or ""
        return written if _RESUME.fullmatch(written) else ""

    def changes(
        self, pick: PickPart, run: Command | None, *, allow: Sequence[str] = ()
    ) -> tuple[Change, ...]:
        """Return the changes of a pick that may be applied.

        Args:
            pick: Of the file.
            run: The script that is about to run; None if changes are only exported.
            allow: Names of knobs that are not declared here and are accepted as in the file.

        Raises:
            UsageError: No knob of this installation, or of the search, makes one of them.
        """
        from autotune.export.best_config import core_changes
        from autotune.inspection.host import host_facts
        from autotune.inspection.script import script_facts
        from autotune.knobs.registry import builtin, knobs_for
        from autotune.model.facts import Facts, ScriptFacts
        from autotune.space.accept_changes import accepted

        found = core_changes(pick)
        known = {change.knob for change in found} <= builtin().keys()
        knobs = builtin() if known or self.search is None else knobs_for(self.search.spec.space)
        script = (
            ScriptFacts(path="")
            if run is None
            else script_facts(run.inspected, run.args, cwd=str(Path.cwd()))
        )
        launcher = (self.best.study.launcher or "") if run is None else run.launcher
        facts = Facts(host=host_facts(), script=script, launcher=launcher)
        return accepted(found, facts, knobs, allow=allow, has_script=run is not None)

    def fitting(self, pick: PickPart, changes: Sequence[Change], run: Command) -> Fitting:
        """Run the script's first steps once, and leave out what a search of it would not try.

        Args:
            pick: Of the file.
            changes: Of the pick, as `changes` gives them.
            run: The script that is about to run.
        """
        from autotune.driver.inspect_run import look
        from autotune.knobs.registry import builtin, knobs_for
        from autotune.model.effect import Effect
        from autotune.space.fit_changes import fitting

        print("autotune: runs the script's first steps once, to check these changes", file=sys.stderr)
        found = look(run, limit_s=_CHECK_S)
        if found.facts.run is None:
            why = "the run has shown nothing" if found.problem is None else found.problem.message
            return Fitting(changes, (f"{_listed(changes)} cannot be checked: {why}",), {})
        knobs = builtin() if self.search is None else knobs_for(self.search.spec.space)
        kept, refused = fitting(changes, found.facts, knobs, effect=Effect(pick.effect.lower()))
        values = {change.knob: change.value for change in changes}
        notes = tuple(f"{r.knob}={values[r.knob]} is left out: {r.reason}" for r in refused)
        return Fitting(kept, notes, found.facts.run.values)

    def command(self, words: Sequence[str], python: str) -> Command:
        """Return the command to run: the words after ``--``, or the command of the file's search.

        Args:
            words: Words of the command line after ``--``.
            python: Value of ``--python``, or "".

        Raises:
            UsageError: No command is typed, this account has not searched the file's own command, and that
                command starts more than a script next to the file.
        """
        from autotune.inspection.command_line import read_command

        if words:
            return read_command(words, python=python)
        run = self._read(self.arguments(python), python)
        if not self._is_known:
            self._check_place(run)
        launcher = self.best.study.launcher or ""
        note = f"the command is that of {self.path.name}: {shlex.join(self._shown())}"
        return replace(run, launcher=launcher, notes=(*run.notes, note))

    def arguments(self, python: str = "") -> list[str]:
        """Return the arguments of the file's own command, with the secrets of a known search restored.

        Raises:
            UsageError: As for `command`.
        """
        from autotune.text.redact import is_incomplete, restore

        # Only a search of this account had the secrets of this account.
        args = [restore(arg) if self._is_known else arg for arg in self.best.study.argv]
        if any(is_incomplete(arg) for arg in args):
            raise UsageError(
                "the file leaves out a secret of the command line",
                hint="type the command after --: -- python train.py",
            )
        if not self._is_known:
            self._check_start(python)
            if not all(arg.isprintable() for arg in args):
                self._refuse("an argument with control characters")
        return args

    @functools.cached_property
    def _is_known(self) -> bool:
        """True if a search of this account has run exactly this command."""
        from autotune.export.best_config import study_part
        from autotune.text.redact import redact_data

        if self.search is None:
            return False
        ours = redact_data(study_part(self.search).model_dump())
        theirs = self.best.study.model_dump()
        return all(ours[name] == theirs[name] for name in _COMMAND)

    def _kept(self) -> BestConfig | None:
        """Return the search's own copy of its file, or None."""
        from autotune.export.best_config import read_best
        from autotune.store.paths import study_dir

        try:
            return read_best(study_dir(self.best.study.id) / "best.yaml") if self.search else None
        except UsageError:
            return None

    def _read(self, args: Sequence[str], python: str) -> Command:
        from autotune.inspection.command_line import read_command
        from autotune.text.redact import restore

        part = self.best.study
        written = restore(part.python or "")
        word = written if written and Path(written).is_file() else "python"
        options = part.options or []
        if part.module:
            return read_command([word, *options, "-m", part.module, *args], python=python)
        # The script's path is relative to where the search was started, usually the file's own folder.
        named = restore(part.script)
        beside = self.path.absolute().parent / named
        script = named if Path(named).is_file() or not beside.is_file() else str(beside)
        if not written and not options:
            return read_command(args, script=script, python=python)
        return read_command([word, *options, script, *args], python=python)

    def _check_start(self, python: str) -> None:
        """Refuse an interpreter, or options of it, that the user has not chosen."""
        from autotune.model.distributed_launch import ranks_of

        part = self.best.study
        named = "" if python else part.python or ""
        options = [option for option in part.options or [] if not _HARMLESS.fullmatch(option)]
        if named or options:
            self._refuse(named or f"the interpreter's option {options[0]}")
        if ranks_of(part.launcher or "") > (os.cpu_count() or 1):
            self._refuse(f"the launcher {part.launcher}")

    def _check_place(self, run: Command) -> None:
        """Refuse a script elsewhere than in the current folder and that of the file."""
        script = Path(run.script).resolve()
        places = {Path.cwd().resolve(), self.path.absolute().parent.resolve()}
        if not any(place != place.parent and script.is_relative_to(place) for place in places):
            self._refuse(f"the script {run.script}")

    def _refuse(self, what: str) -> None:
        raise UsageError(
            f"{self.path.name} names {what}, which no search of this account has started",
            hint=f"if it is right, type the command: -- {shlex.join(self._shown())}",
        )

    def _shown(self) -> list[str]:
        from autotune.model.distributed_launch import launch_words
        from autotune.text.redact import redact_args

        part = self.best.study
        script = ["-m", part.module] if part.module else [part.script]
        start = launch_words(part.launcher or "", part.python or "")
        return [*start, *(part.options or []), *script, *redact_args(part.argv)]


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(f"{change.knob}={change.value}" for change in changes)

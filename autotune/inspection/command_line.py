"""The user's command after ``--``: interpreter with options, script or module, arguments."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.errors import AutotuneError, BackendError, UsageError, did_you_mean
from autotune.inspection import launchers
from autotune.inspection.interpreter import Interpreter, interpreter, module_file
from autotune.inspection.script import script_facts
from autotune.inspection.shebang import wrapped_module, written_interpreter
from autotune.model.distributed_launch import nodes_of
from autotune.text.redact import redact, redact_args

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)*)?t?")
_BARE: Final = ("python", "python3")
_INTERPRETERS: Final = "name an interpreter, or the folder of its environment: --python PATH"
_FLAGS: Final = "bBdEIOPqRsSuv"
"""Options of the interpreter with the same meaning when it starts the trial runtime first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The user's training command.

    Args:
        python: Interpreter, absolute; symbolic links are not resolved, as they name virtual environments.
        script: Absolute path; for a module its file.
        args: The script's own arguments.
        options: The interpreter's own.
        module: Dotted name after ``-m``; empty for a script.
        launcher: Word of `autotune.model.distributed_launch` for a launcher before the script; its variables
            are set.
        source: The file to read options and hazards from, if not the script (for a
            console script the file of its function).
        notes: Sentences for the user: the interpreter used, and omitted parts.
    """

    python: str
    script: str
    args: tuple[str, ...]
    options: tuple[str, ...] = ()
    module: str = ""
    launcher: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def inspected(self) -> str:
        """The file that facts are read from."""
        return self.source or self.script

    @property
    def title(self) -> str:
        """``train.py``, ``package.train``."""
        return self.module or Path(self.script).name


def read_command(words: Sequence[str], *, script: str = "", python: str = "") -> Command:
    """Return the command that these words mean.

    The interpreter is that of `python`, else the one in the words or in the script's first line. For a plain
    ``python``, and for a script alone, it is the active environment's if that has PyTorch, and the running
    one otherwise.

    Args:
        words: Words after ``--``: the script's arguments if `script` is given, else
            ``[python [options]] script args``, ``python -m module args`` or a console script.
        script: From ``--script``; empty if it is in the words.
        python: From ``--python``; empty for none.

    Raises:
        UsageError: No script is named, it does not exist, the words start another program, or one of
            them, or the current folder, is not UTF-8, which a study requires.
        BackendError: The interpreter is too old, or does not answer.
    """
    for text in (*words, script, python, str(Path.cwd())):
        if not _is_text(text):
            raise UsageError(
                f"{redact(text)!a} is not UTF-8 text",
                hint="rename it, or give the script another path to it",
            )
    if script:
        _check_once(script, words)
        return _with_interpreter(python or None, _existing(script), words)
    if not words:
        raise UsageError(
            "no script is given",
            hint="autotune search --script train.py --budget 30m [-- the script's arguments]",
        )
    within = launchers.unwrapped(words, python)
    if within is not None:
        command = read_command(within.words, python=python or within.python)
        launcher = within.launcher or command.launcher
        return replace(command, launcher=launcher, notes=(*within.notes, *command.notes))
    if _PYTHON.fullmatch(Path(words[0]).name):
        return _after_python(words, python)
    if re.match(r"[A-Za-z_]\w*=", words[0]):
        name, (shown,) = words[0].partition("=")[0], redact_args(words[:1])
        raise UsageError(
            f"{shown!r} is not a script", hint=f"set {name} before autotune: {shown} autotune ..."
        )
    if words[0].startswith("-"):
        shown = redact_args(words[:2])
        raise UsageError(f"{shown[0]} is not a script", hint=f"-- python {' '.join(shown)} ...")
    return _program(words, python)


def _check_once(script: str, words: Sequence[str]) -> None:
    """Reject a command after ``--`` if its script was already named: all of it would be arguments.

    Raises:
        UsageError: It is a command.
    """
    named = Path(script).expanduser().absolute()
    at = next((n for n, word in enumerate(words) if Path(word).expanduser().absolute() == named), None)
    if at is None or (at and not _starts(words[0])):
        return
    shown, rest = " ".join(redact_args(words[: at + 1])), " ".join(redact_args(words[at + 1 :]))
    alone = f"--script {script}" + (f" -- {rest}" if rest else "")
    raise UsageError(
        f"the script is named twice: by --script {script}, and by {shown} after --",
        hint=f"either {alone}, or without --script: -- {' '.join(redact_args(words))}",
    )


def _starts(word: str) -> bool:
    """Return whether a command with this first word starts a script: an interpreter, or a launcher."""
    name = Path(word).name
    return _PYTHON.fullmatch(name) is not None or name in launchers.STARTERS


def _is_text(text: str) -> bool:
    """Return whether text is free of lone surrogates, from bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_one_machine(command: Command) -> None:
    """Refuse a launcher that names several machines, where there is no cluster to run it on.

    Raises:
        UsageError: It does.
    """
    if nodes_of(command.launcher) > 1:
        raise UsageError(
            f"{command.launcher} starts processes on several machines, and this runs on one",
            hint="search on a Ray cluster: autotune search --address auto -- torchrun --nnodes 2 ...; "
            "apply on all machines: torchrun --nnodes 2 ... -m autotune apply best.yaml -- python train.py",
        )


def verify(command: Command) -> Interpreter:
    """Check that trials can run under the command's interpreter.

    Raises:
        UsageError: It is not a working Python.
        BackendError: It is too old, or lacks PyTorch although the script imports it.
    """
    found = interpreter(command.python, command.options)
    if not found.has_torch and "torch" in script_facts(command.inspected).imports:
        raise BackendError(
            f"{command.title} imports torch, and {found.path} (Python {found.version}) has none",
            hint="name the interpreter that you train with: --python PATH",
        )
    return found


# What the words mean ------------------------------------------------------------------------


def names_interpreter(words: Sequence[str]) -> bool:
    """Return whether a command begins with its own interpreter; a plain ``python`` names none."""
    word = words[0] if words else ""
    return word not in _BARE and _PYTHON.fullmatch(Path(word).name) is not None


def _after_python(words: Sequence[str], python: str) -> Command:
    options, module, rest = _interpreter_options(words[1:])
    if module in launchers.MODULES:
        return read_command([launchers.MODULES[module], *rest], python=python or _named(words[0]))
    if not module and not rest:
        raise UsageError("no script follows the interpreter", hint="-- python train.py ...")
    if not module and rest[0] == "-":
        raise UsageError("a script from standard input cannot be run more than once", hint="name a file")
    given = python or (None if words[0] in _BARE else words[0])
    if not module:
        return _with_interpreter(given, _existing(rest[0]), rest[1:], options=options, word=words[0])
    return _with_interpreter(given, "", rest, options=options, word=words[0], module=module)


def _interpreter_options(words: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Return the interpreter's options, the module after ``-m`` or nothing, and the remaining words."""
    options: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        if word == "--check-hash-based-pycs":
            options += [word, *words[at : at + 1]]
            at += 1
            continue
        letters, letter, value = _cluster(word)
        if letter == "m":
            options += [f"-{letters}"] if letters else []
            module = value or "".join(words[at : at + 1])
            if not module:
                raise UsageError("no module follows -m", hint="-- python -m package.train ...")
            return options, module, list(words[at if value else at + 1 :])
        options.append(word)
        if letter and not value:
            options += words[at : at + 1]
            at += 1
    return options, "", list(words[at:])


def _cluster(word: str) -> tuple[str, str, str]:
    """Split ``-um`` into the letters before one with a value, that letter, and its value."""
    for at, letter in enumerate(word[1:], start=1):
        if letter in "mWX":
            return word[1:at], letter, word[at + 1 :]
        if letter not in _FLAGS:
            shown = word if word.startswith("--") else f"-{letter}"
            raise UsageError(
                f"the interpreter's option {shown} cannot be carried over",
                hint="name a script file or a module: -- python train.py ..., -- python -m package.train ...",
            )
    return word[1:], "", ""


def _program(words: Sequence[str], python: str) -> Command:
    """Return the command of an executable file, or of a Python script on the PATH."""
    path = Path(words[0]).expanduser().absolute()
    if not path.is_file() and os.sep not in words[0] and (found := shutil.which(words[0])):
        path = Path(found).absolute()
    if not path.is_file():
        _existing(words[0])
    named = written_interpreter(path)
    if named is None:
        raise UsageError(
            f"{words[0]} is not a Python script",
            hint="name the python command that it starts: -- python train.py ...",
        )
    # The first line of a non-executable file has no meaning.
    word, *options = named if named and os.access(path, os.X_OK) else [""]
    given = python or (word if word and word not in _BARE else None)
    command = _with_interpreter(given, str(path), words[1:], options=options, word=word)
    return replace(command, source=_console_source(command))


def _console_source(command: Command) -> str:
    """Return the file of a console script's function, empty for any other script."""
    module = wrapped_module(Path(command.script))
    if not module:
        return ""
    try:
        return module_file(command.python, module, options=command.options, cwd=str(Path.cwd()))
    except AutotuneError:
        return ""


def _existing(script: str) -> str:
    path = Path(script).expanduser().absolute()
    if path.is_file():
        return str(path)
    if path.is_dir():
        raise UsageError(f"{script} is a folder, not a script", hint=_candidates(path))
    guess = _near(path)
    hint = guess or f"the path is read as {path}"
    raise UsageError(f"there is no script {script}", hint=hint)


def _near(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"there is no folder {path.parent}"
    return did_you_mean(path.name, names)


def _candidates(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.glob("*.py"))[:5]
    return f"scripts in it: {', '.join(names)}" if names else "name the script file"


# Which interpreter --------------------------------------------------------------------------


def _with_interpreter(
    given: str | None,
    script: str,
    args: Sequence[str],
    *,
    options: Sequence[str] = (),
    word: str = "",
    module: str = "",
) -> Command:
    """Return the command with its interpreter: the given one, or that of a plain ``python``."""
    title = module or Path(script).name
    if given:
        python = _named(given)
        notes = _note_of_another(python, title, tuple(options))
    else:
        python, notes = _default_interpreter(word, script or str(Path.cwd() / "module"), title)
    if module:
        script = module_file(python, module, options=options, cwd=str(Path.cwd()))
    return Command(
        python=python, script=script, args=tuple(args), options=tuple(options), module=module, notes=notes
    )


def _named(name: str) -> str:
    if os.sep in name or Path(name).is_dir():
        path = Path(name).expanduser().absolute()
        # Without the last part: a link there defines an environment.
        path = path.parent.resolve() / path.name if ".." in path.parts else path
        # A folder of an environment means the interpreter in it.
        inside = path / "bin" / "python"
        path = inside if path.is_dir() and inside.is_file() else path
        if not path.is_file():
            raise UsageError(f"there is no interpreter {name}", hint=_INTERPRETERS)
        if not os.access(path, os.X_OK):
            raise UsageError(f"{name} may not be executed", hint=_INTERPRETERS)
        return str(path)
    found = shutil.which(name)
    if found is None and name in _BARE:
        return sys.executable
    if found is None:
        raise UsageError(f"there is no interpreter {name} on the PATH", hint=_INTERPRETERS)
    return str(Path(found).absolute())


def _note_of_another(python: str, title: str, options: tuple[str, ...]) -> tuple[str, ...]:
    if python == sys.executable:
        return ()
    found = interpreter(python, options)
    return () if found.is_ours else (f"{title} is run by {found.description}",)


def _default_interpreter(word: str, script: str, title: str) -> tuple[str, tuple[str, ...]]:
    """Return the interpreter of a plain ``python`` (or of none), and notes about it."""
    passed_over: list[str] = []
    for path in dict.fromkeys(_candidate_interpreters(word)):
        try:
            found = interpreter(path)
        except BackendError as error:
            passed_over.append(error.message)
            continue
        except AutotuneError:
            continue
        if found.is_ours:
            return path, _note_of_unused_environment(script, title)
        if found.has_torch:
            return path, (f"{title} is run by {found.description}",)
        passed_over.append(f"{path} has no torch")
    if not passed_over:
        return sys.executable, _note_of_unused_environment(script, title)
    running, others = interpreter(sys.executable), "; ".join(passed_over)
    note = f"{title} is run by {running.description}: {others}; name another one with --python"
    return sys.executable, (note,)


def _candidate_interpreters(word: str) -> Iterator[str]:
    for folder in _active_environments():
        path = folder / "bin" / "python"
        if os.access(path, os.X_OK):
            yield str(path)
    if word and (found := shutil.which(word)):
        yield str(Path(found).absolute())


def _active_environments() -> Iterator[Path]:
    """Yield environments activated in the user's shell; conda's base is active by default."""
    if virtual := os.environ.get("VIRTUAL_ENV"):
        yield Path(virtual)
    elif (conda := os.environ.get("CONDA_PREFIX")) and os.environ.get("CONDA_DEFAULT_ENV") != "base":
        yield Path(conda)


def _note_of_unused_environment(script: str, title: str) -> tuple[str, ...]:
    """Return a note if the running interpreter is used although an environment exists beside the script."""
    prefix = os.path.realpath(sys.prefix)
    for folder in dict.fromkeys((Path(script).parent, Path.cwd())):
        for name in (".venv", "venv"):
            beside = folder / name
            python = beside / "bin" / "python"
            if (beside / "pyvenv.cfg").is_file() and python.exists() and os.path.realpath(beside) != prefix:
                shown = os.path.relpath(python)
                shown = str(python) if shown.startswith("..") else shown
                chosen = f"{title} is run by {sys.executable}"
                return (f"{chosen}; to use the environment beside it: --python {shown}",)
    return ()

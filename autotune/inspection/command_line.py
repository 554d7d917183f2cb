"""What the user wrote after ``--``: an interpreter and its options, a script or module, its arguments."""

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
"""Options of the interpreter that mean the same when it starts our part first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A training run as the user starts it.

    Args:
        python: Interpreter, absolute; symbolic links are kept, they name virtual environments.
        script: Absolute path; of a module its file.
        args: The script's own arguments.
        options: The interpreter's own.
        module: Dotted name after ``-m``; empty for a script.
        launcher: Of `autotune.model.distributed_launch`, where one stood before the script; its variables
        are set. source: The file to read options and hazards from, where it is not the script (behind a
            console script it is the file of what that calls).
        notes: Sentences for the user: which interpreter is used, and what was left out.
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
    """The run that these words mean.

    Which interpreter: the one of `python`; else the one that the words or the script's first line
    name; else, for a plain ``python`` and for a script alone, the active environment's where that has
    PyTorch, and the running one where it has not.

    Args:
        words: What followed ``--``: the script's arguments where `script` is given, else
            ``[python [options]] script args``, ``python -m module args`` or a console script.
        script: Of ``--script``; empty where the words hold it.
        python: Of ``--python``; empty for none.

    Raises:
        UsageError: No script is named, it does not exist, the words start something else, or one of
            them, or the current folder, is no UTF-8 text: a study keeps them as text.
        BackendError: The interpreter is too old, or does not answer.
    """
    for text in (*words, script, python, str(Path.cwd())):
        if not _is_text(text):
            raise UsageError(
                f"{redact(text)!a} is no UTF-8 text",
                hint="rename it, or give the script another path to it",
            )
    if script:
        _check_once(script, words)
        return _by(python or None, _existing(script), words)
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
        raise UsageError(f"{shown!r} is no script", hint=f"set {name} before autotune: {shown} autotune ...")
    if words[0].startswith("-"):
        shown = redact_args(words[:2])
        raise UsageError(f"{shown[0]} is no script", hint=f"-- python {' '.join(shown)} ...")
    return _program(words, python)


def _check_once(script: str, words: Sequence[str]) -> None:
    """Refuse a command behind ``--`` where its script was named already: all of it would be arguments.

    Raises:
        UsageError: It is one.
    """
    named = Path(script).expanduser().absolute()
    at = next((n for n, word in enumerate(words) if Path(word).expanduser().absolute() == named), None)
    if at is None or (at and not _starts(words[0])):
        return
    shown, rest = " ".join(redact_args(words[: at + 1])), " ".join(redact_args(words[at + 1 :]))
    alone = f"--script {script}" + (f" -- {rest}" if rest else "")
    raise UsageError(
        f"the script is named twice: by --script {script}, and by {shown} behind --",
        hint=f"either {alone}, or without --script: -- {' '.join(redact_args(words))}",
    )


def _starts(word: str) -> bool:
    """Whether a command that begins so starts a script: an interpreter, or a launcher."""
    name = Path(word).name
    return _PYTHON.fullmatch(name) is not None or name in launchers.STARTERS


def _is_text(text: str) -> bool:
    """Bytes that are no UTF-8 come to Python as lone surrogates, which nothing can write down."""
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
    """Ask the command's interpreter whether trials can run under it.

    Raises:
        UsageError: It is no Python that works.
        BackendError: It is too old, or has no PyTorch where the script asks for it.
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
    """Whether a command begins with an interpreter of its own; a plain ``python`` names none."""
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
        return _by(given, _existing(rest[0]), rest[1:], options=options, word=words[0])
    return _by(given, "", rest, options=options, word=words[0], module=module)


def _interpreter_options(words: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Options of the interpreter, the module after ``-m`` or nothing, and what follows."""
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
    """``-um`` as the letters before one that takes a value, that letter, and a value in the same word."""
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
    """A file that is run itself, or a command of the PATH that is a Python script."""
    path = Path(words[0]).expanduser().absolute()
    if not path.is_file() and os.sep not in words[0] and (found := shutil.which(words[0])):
        path = Path(found).absolute()
    if not path.is_file():
        _existing(words[0])
    named = written_interpreter(path)
    if named is None:
        raise UsageError(
            f"{words[0]} is no Python script",
            hint="name the python command that it starts: -- python train.py ...",
        )
    # A file that could not be started by itself says nothing by its first line.
    word, *options = named if named and os.access(path, os.X_OK) else [""]
    given = python or (word if word and word not in _BARE else None)
    command = _by(given, str(path), words[1:], options=options, word=word)
    return replace(command, source=_behind(command))


def _behind(command: Command) -> str:
    """The file of what a console script calls, empty for any other script."""
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
    hint = guess or f"it was looked for as {path}"
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


def _by(
    given: str | None,
    script: str,
    args: Sequence[str],
    *,
    options: Sequence[str] = (),
    word: str = "",
    module: str = "",
) -> Command:
    """The command with its interpreter: the one given, or the one that a plain ``python`` means."""
    title = module or Path(script).name
    if given:
        python = _named(given)
        notes = _note_of_another(python, title, tuple(options))
    else:
        python, notes = _meant(word, script or str(Path.cwd() / "module"), title)
    if module:
        script = module_file(python, module, options=options, cwd=str(Path.cwd()))
    return Command(
        python=python, script=script, args=tuple(args), options=tuple(options), module=module, notes=notes
    )


def _named(name: str) -> str:
    if os.sep in name or Path(name).is_dir():
        path = Path(name).expanduser().absolute()
        # Not the last part: a link there is what makes an environment of it.
        path = path.parent.resolve() / path.name if ".." in path.parts else path
        # An environment is a name for the interpreter in it.
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
    return () if found.is_ours else (f"{title} is run by {found.told}",)


def _meant(word: str, script: str, title: str) -> tuple[str, tuple[str, ...]]:
    """What a plain ``python`` (or none at all) means here, and what to say about it."""
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
            return path, _note_of_beside(script, title)
        if found.has_torch:
            return path, (f"{title} is run by {found.told}",)
        passed_over.append(f"{path} has no torch")
    if not passed_over:
        return sys.executable, _note_of_beside(script, title)
    ours, others = interpreter(sys.executable), "; ".join(passed_over)
    note = f"{title} is run by {ours.told}: {others}; name another one with --python"
    return sys.executable, (note,)


def _candidate_interpreters(word: str) -> Iterator[str]:
    for folder in _active_environments():
        path = folder / "bin" / "python"
        if os.access(path, os.X_OK):
            yield str(path)
    if word and (found := shutil.which(word)):
        yield str(Path(found).absolute())


def _active_environments() -> Iterator[Path]:
    """Environments that the user's shell has activated; conda's base is active without being chosen."""
    if virtual := os.environ.get("VIRTUAL_ENV"):
        yield Path(virtual)
    elif (conda := os.environ.get("CONDA_PREFIX")) and os.environ.get("CONDA_DEFAULT_ENV") != "base":
        yield Path(conda)


def _note_of_beside(script: str, title: str) -> tuple[str, ...]:
    """Where our interpreter is taken although an environment lies beside the script."""
    ours = os.path.realpath(sys.prefix)
    for folder in dict.fromkeys((Path(script).parent, Path.cwd())):
        for name in (".venv", "venv"):
            beside = folder / name
            python = beside / "bin" / "python"
            if (beside / "pyvenv.cfg").is_file() and python.exists() and os.path.realpath(beside) != ours:
                shown = os.path.relpath(python)
                shown = str(python) if shown.startswith("..") else shown
                chosen = f"{title} is run by {sys.executable}"
                return (f"{chosen}; to use the environment beside it: --python {shown}",)
    return ()

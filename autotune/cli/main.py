"""The table of verbs, and the last catch: whatever happens ends in a documented exit code."""

from __future__ import annotations

import atexit
import functools
import io
import logging
import os
import re
import select
import shlex
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core
import typer.main

from autotune.cli.commands.apply import apply
from autotune.cli.commands.clean import clean
from autotune.cli.commands.compare import compare
from autotune.cli.commands.doctor import doctor
from autotune.cli.commands.export import export
from autotune.cli.commands.inspect import inspect
from autotune.cli.commands.list import list_studies
from autotune.cli.commands.logs import logs
from autotune.cli.commands.mcp import mcp
from autotune.cli.commands.report import report
from autotune.cli.commands.resume import resume
from autotune.cli.commands.scale import scale
from autotune.cli.commands.schema import schema
from autotune.cli.commands.search import search
from autotune.cli.commands.serve import admin, serve
from autotune.cli.commands.show import show
from autotune.cli.commands.spaces import spaces
from autotune.cli.commands.submit import cancel, estimate, fetch, status, submit
from autotune.cli.commands.sync import sync
from autotune.cli.commands.ui import ui
from autotune.cli.commands.verify import verify
from autotune.cli.grouped import Grouped
from autotune.cli.script_options import TAKE_SCRIPT
from autotune.cli.settings import defaults_for, with_typed_interpreter
from autotune.driver.cleanup.dead_drivers import clear_up_all
from autotune.driver.spec import version
from autotune.errors import (
    EXIT_INTERRUPTED,
    AutotuneError,
    BackendError,
    UsageError,
    add_note,
    did_you_mean,
    notes_of,
)
from autotune.report.terminal.async_writer import visible_streams
from autotune.shortage import first_line, shortage
from autotune.text.printable import visible
from autotune.text.redact import learned, redact, redact_args

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERNAL_ERROR = AutotuneError.exit_code
COMPLETION = {"--install-completion", "--show-completion"}


class Interrupted(AutotuneError):
    """Ctrl-C."""

    exit_code = EXIT_INTERRUPTED


_SECTIONS: Final = {
    "Find a configuration and use it": ("inspect", "search", "resume", "apply", "verify", "export", "scale"),
    "Read results": ("list", "show", "logs", "report", "ui", "compare"),
    "Set up": ("doctor", "spaces", "schema", "sync", "clean", "help", "version"),
    "A team's service": (*("serve", "submit", "estimate", "status", "cancel", "fetch", "admin", "mcp"),),
}
"""Commands by purpose, in the order of the help."""


class Verbs(typer.core.TyperGroup):
    """The verbs; typer would make a plain exit code of Ctrl-C, as if the verb had ended with it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by purpose, each with its whole first sentence."""
        commands = {name: c for name, c in self.commands.items() if not c.hidden}
        listed = {name for names in _SECTIONS.values() for name in names}
        sections = {**_SECTIONS, "More": tuple(name for name in commands if name not in listed)}
        for title, names in sections.items():
            rows = [(name, _first_sentence(commands[name])) for name in names if name in commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=12)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error


def _first_sentence(command: Any) -> str:
    paragraph = " ".join((command.help or "").strip().partition("\n\n")[0].split())
    return re.split(r"(?<=\.) |;", paragraph)[0].rstrip(".")


app = typer.Typer(
    name="autotune",
    cls=Verbs,
    help="Find the configuration with which a training script trains fastest, without hurting the training.",
    epilog="Begin with: autotune search train.py",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"autotune {version()}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", "-v", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Find the configuration with which a training script trains fastest, without hurting it."""
    clear_up_all()
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command("search", cls=Grouped)(search)
app.command("apply")(apply)
app.command("verify")(verify)
app.command("scale")(scale)
app.command("export")(export)
app.command("resume")(resume)
app.command("list")(list_studies)
app.command("show")(show)
app.command("logs")(logs)
app.command("report")(report)
app.command("compare")(compare)
app.command("inspect")(inspect)
app.command("doctor")(doctor)
app.command("sync")(sync)
app.command("ui")(ui)
app.command("clean")(clean)
app.command("schema")(schema)
app.add_typer(spaces, name="spaces")
app.command("serve", cls=Grouped)(serve)
app.command("submit", cls=Grouped)(submit)
app.command("estimate")(estimate)
app.command("status")(status)
app.command("cancel")(cancel)
app.command("fetch")(fetch)
app.command("mcp")(mcp)
app.add_typer(admin, name="admin")


@app.command("help")
def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Of which command.")
    ] = None,
) -> int:
    """Print the help of a command, or of all."""
    words = words or []
    return _called([*words, "--help"]) or 0 if words else _printed(context)


def _printed(context: typer.Context) -> int:
    print(context.parent.get_help() if context.parent is not None else context.get_help())
    return 0


@app.command("version")
def show_version() -> int:
    """Print the version."""
    print(f"autotune {version()}")
    return 0


def run(argv: list[str]) -> int:
    """Run a command line and return its exit code; errors become exit codes."""
    with learned(argv), visible_streams():
        return _run(argv)


@functools.cache
def _command() -> Any:
    """Return all commands with their options; this takes longer than most commands."""
    return typer.main.get_command(app)


def _run(argv: list[str]) -> int:
    try:
        code = _called(argv)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 (1 would mean "nothing found")
        if _is_gone(error):
            # The output has no reader any more (`autotune list | head`); the flush at exit would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        try:
            return _report(error, argv)
        except Exception as second:  # noqa: BLE001 (without memory even the full message may fail)
            return _in_short(error, second)
    return code if isinstance(code, int) else 0


def _called(argv: list[str]) -> Any:
    """Return the result of a command; commands that serve a shell end the process instead."""
    try:
        return _command()(
            args=with_typed_interpreter(argv),
            prog_name="autotune",
            standalone_mode=False,
            default_map=defaults_for(argv),
        )
    except SystemExit as error:
        if os.environ.get("_AUTOTUNE_COMPLETE"):
            # No command was run. Code 1 means for fish that there are no completions and files may be named.
            return error.code
        if not error.code and COMPLETION & set(_typed(argv)):
            return 0
        raise


def _typed(argv: list[str]) -> list[str]:
    """Return the arguments without the words of the script."""
    return argv[: argv.index("--")] if "--" in argv else argv


def main() -> None:
    """Run the command `autotune`."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's character set lacks is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.getLogger("autotune").addHandler(_Warnings(logging.WARNING))
    codes: list[int] = []
    # Exit functions run in the reverse order: this one runs after those of all that a verb imports.
    atexit.register(_leave, codes)
    codes.append(run(sys.argv[1:]))
    sys.exit(codes[0])


def _leave(codes: Sequence[int]) -> None:
    """End this process before Python frees what was imported; threads and other exit functions have ended.

    After a search Ray, MLflow and pandas hold some 400,000 objects. The shell would wait until they are freed
    one by one (decision 104).

    Args:
        codes: The exit code; empty where the verb was ended by force.
    """
    if not codes:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(codes[0])


class _Warnings(logging.Handler):
    """Log handler for users: a line per record. Without a handler Python prints tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                error = record.exc_info[1]
                text += f": {first_line(error)}"
                if os.environ.get("AUTOTUNE_DEBUG"):
                    text += "\n" + "".join(traceback.format_exception(error))
            from autotune.report.terminal.async_writer import AsyncWriter
            from autotune.report.terminal.live_view import say_above

            line = f"{record.levelname.lower()}: {redact(text, free=True)}"
            if not say_above(line):
                AsyncWriter.of(sys.stderr).put(f"{line}\n")
        except Exception:  # noqa: BLE001 (the stream may be closed; nothing is lost)
            return


def _is_gone(error: BaseException) -> bool:
    """Return whether the output has no reader any more, which click turns into an exit with code 1."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if not isinstance(cause, BrokenPipeError):
        return False
    poll = select.poll()
    try:
        # Another pipe may be broken, such as one to a process of a trial.
        for stream in (sys.stdout, sys.stderr):
            poll.register(stream.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return False


def _report(error: BaseException, argv: list[str]) -> int:
    """Print an error as text, and as JSON if an option requests it; return its exit code."""
    from autotune.cli.outcome import print_error, root_cause, say_error

    ours = root_cause(_as_ours(error))
    if isinstance(ours, Interrupted):
        print(ours.message, file=sys.stderr)
    elif ours.message:
        say_error(ours)
    typed = _typed(argv)
    if {"--json", "--jsonl"} & set(typed):
        print_error(ours, line="--jsonl" in typed)
    return ours.exit_code


def _in_short(error: BaseException, second: Exception) -> int:
    """Report an error of which the full message could not be made, in one line; its exit code."""
    lacks = shortage(error) or shortage(second)
    text = f"internal error: {type(error).__name__}" if lacks is None else lacks.message
    print(f"error: {text}", file=sys.stderr)
    return INTERNAL_ERROR if lacks is None else lacks.exit_code


class InternalError(AutotuneError):
    """Any error without a specific class."""


def _as_ours(error: BaseException) -> AutotuneError:
    if isinstance(error, AutotuneError) and error.exit_code != INTERNAL_ERROR:
        return error
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return Interrupted("interrupted")
    # Both of typer's homes of click (its own copy, or the package) have this shape; the class has not.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        return _usage(error)
    return _of_the_machine(error) or _uncaught(error)


def _usage(error: Any) -> UsageError:
    message = _plain(str(error.format_message()))
    context = getattr(error, "ctx", None)
    verb = "autotune" if context is None else context.command_path
    if moved := _script_option(error):
        return moved
    if re.match(r"No such command '[^']*\.py'", message):
        return UsageError(message, hint=shlex.join(redact_args(["autotune", "search", *sys.argv[1:]])))
    message, _, choices = message.partition(" Choose from:")
    # The parser lists them below each other.
    listed = ", ".join(choices.replace(",", " ").split())
    hint = f"one of: {listed}" if listed else f"{verb} --help lists the options"
    return UsageError(message, hint=_meant(message) or hint)


def _script_option(error: Any) -> UsageError | None:
    """Return the error for an option of the script before ``--``, with the corrected command; else None."""
    option, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    if not option.startswith("--") or context is None or context.info_name not in TAKE_SCRIPT:
        return None
    from autotune.cli.script_options import corrected

    found = corrected(sys.argv[1:], option, context.command)
    return (
        None
        if found is None
        else UsageError(f"{found.script} has {option}: put it after --", hint=found.command)
    )


_PARSERS_WORDS = (
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "expected a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "expected a number"),
    ("Input should be greater than or equal to ", "must be at least "),
    ("Input should be less than or equal to ", "must be at most "),
)
"""Texts of the parser's own validator, with their replacements."""


def _plain(message: str) -> str:
    for theirs, ours in _PARSERS_WORDS:
        message = message.replace(theirs, ours)
    return message


def _meant(message: str) -> str:
    """Return a suggestion for a word that is none of a fixed set, which the parser does not make."""
    quoted = re.findall(r"'([^']*)'", message.partition(" is not one of ")[2])
    typed = re.findall(r"'([^']*)'", message.partition(" is not one of ")[0])
    return did_you_mean(typed[-1], quoted) if typed and quoted else ""


def _of_the_machine(error: BaseException) -> AutotuneError | None:
    """Return an error of the environment for one of Python's, or None for a bug in autotune."""
    if isinstance(error, FileNotFoundError) and _is_nowhere():
        return BackendError("the current folder does not exist any more", hint="change to another one: cd ~")
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return BackendError(
            "no home folder is known for this user", hint="set HOME, or AUTOTUNE_HOME for our own files"
        )
    return shortage(error, places=_written_to())


def _written_to() -> list[Path]:
    """Return the folders that most files of autotune are written to."""
    from autotune.store.paths import home

    places: list[Path] = []
    for place in (home, Path.cwd, tempfile.gettempdir):
        with suppress(OSError, AutotuneError):
            places.append(Path(place()))
    return places


def _is_nowhere() -> bool:
    try:
        Path.cwd()  # fails where the folder is gone
    except OSError:
        return True
    return False


def _uncaught(error: BaseException) -> InternalError:
    text = redact("".join(traceback.format_exception(error)), free=True)
    internal = InternalError(
        f"internal error: {type(error).__name__}: {redact(str(error), free=True)}",
        hint="please report this with the output of `autotune doctor`" + _kept(text),
    )
    for note in notes_of(error):
        add_note(internal, note)
    internal.is_reported = isinstance(error, AutotuneError) and error.is_reported
    if os.environ.get("AUTOTUNE_DEBUG"):
        print(text, file=sys.stderr)
    return internal


def _kept(text: str) -> str:
    """Write a traceback into the driver's log; return a text with its place, or "" on failure."""
    try:
        from autotune.store.paths import make_home

        path = make_home() / "errors.log"
        # Private, like the studies that it may quote.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
            os.fchmod(descriptor, 0o600)
            stream.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {version()}\n{visible(text)}\n")
    except Exception:  # noqa: BLE001 (reporting an error must not fail)
        return ""
    return f" and the end of {path}"

"""The table of verbs, and the last catch: whatever happens ends in a documented exit code."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from typing import Annotated, Any

import typer

from autotune.cli.apply import apply
from autotune.cli.clean import clean
from autotune.cli.doctor import doctor
from autotune.cli.inspect import inspect
from autotune.cli.list import list_studies
from autotune.cli.resume import resume
from autotune.cli.schema import schema
from autotune.cli.search import search
from autotune.cli.settings import defaults_for
from autotune.cli.show import show
from autotune.cli.spaces import spaces
from autotune.cli.sync import sync
from autotune.cli.ui import ui
from autotune.driver.spec import version
from autotune.errors import EXIT_INTERRUPTED, AutotuneError

INTERNAL_ERROR = AutotuneError.exit_code

app = typer.Typer(
    name="autotune",
    help="Find the configuration with which a training script trains fastest, without hurting the training.",
    epilog="Begin with: autotune search --script train.py --budget 30m",
    no_args_is_help=True,
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
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Find the configuration with which a training script trains fastest, without hurting it."""


app.command("search")(search)
app.command("apply")(apply)
app.command("resume")(resume)
app.command("list")(list_studies)
app.command("show")(show)
app.command("inspect")(inspect)
app.command("doctor")(doctor)
app.command("sync")(sync)
app.command("ui")(ui)
app.command("clean")(clean)
app.command("schema")(schema)
app.add_typer(spaces, name="spaces")


def run(argv: list[str]) -> int:
    """Run a command line and return its exit code; raises nothing but what kills the process."""
    try:
        code: Any = app(
            args=argv, prog_name="autotune", standalone_mode=False, default_map=defaults_for(argv)
        )
    except AutotuneError as error:
        return _told(error)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`autotune list | head`); the flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as error:
        return _uncaught(error)
    except Exception as error:  # noqa: BLE001 (the last catch: 1 would mean "nothing found")
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _usage(error)
        return _uncaught(error)
    return code if isinstance(code, int) else 0


def main() -> None:
    """The command `autotune`."""
    sys.exit(run(sys.argv[1:]))


def _told(error: AutotuneError) -> int:
    if error.exit_code == INTERNAL_ERROR:
        return _uncaught(error)
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return error.exit_code


def _usage(error: Any) -> int:
    # Both of typer's homes of click (its own copy, or the package) have this shape; the class has not.
    message = str(error.format_message())
    if not message:
        print(error.ctx.get_help(), file=sys.stderr)
        return 2
    print(f"error: {message}", file=sys.stderr)
    context = getattr(error, "ctx", None)
    if context is not None:
        print(f"hint: {context.command_path} --help shows what there is", file=sys.stderr)
    return 2


def _uncaught(error: BaseException) -> int:
    text = "".join(traceback.format_exception(error))
    where = _kept(text)
    print(f"error: internal error: {type(error).__name__}: {error}", file=sys.stderr)
    print("hint: please report this with the output of `autotune doctor`" + where, file=sys.stderr)
    if os.environ.get("AUTOTUNE_DEBUG"):
        print(text, file=sys.stderr)
    return INTERNAL_ERROR


def _kept(text: str) -> str:
    """Put a traceback into the driver's log and say where; silence where nothing can be written."""
    logging.getLogger("autotune").error("uncaught: %s", text)
    try:
        from autotune.core.redact import redact
        from autotune.store.paths import home

        folder = home()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "errors.log"
        with path.open("a", encoding="utf-8") as stream:
            stream.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {version()}\n{redact(text)}\n")
    except Exception:  # noqa: BLE001 (telling of an error must not fail)
        return ""
    return f" and the end of {path}"

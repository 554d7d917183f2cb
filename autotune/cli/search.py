"""`autotune search`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from autotune.cli.options import ExitZero, JsonAtEnd, JsonLines, Python, Quiet, Share, Wait, WaitForQuiet


def search(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGS", help="After --: the script's arguments, or a whole command."),
    ] = None,
    *,
    script: Annotated[str, typer.Option(metavar="PATH", help="The training script, unmodified.")] = "",
    budget: Annotated[
        str,
        typer.Option(
            metavar="2h", envvar="AUTOTUNE_BUDGET", help="Wall time for everything, confirmation included."
        ),
    ],
    space: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            envvar="AUTOTUNE_SPACE",
            help="Search space: a preset, a file, or auto: what the first run shows decides.",
        ),
    ] = "auto",
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KNOB=A,B", envvar="AUTOTUNE_SET", help="Search one knob over these values."
        ),
    ] = None,
    fixes: Annotated[
        list[str] | None,
        typer.Option("--fix", metavar="KNOB=VALUE", envvar="AUTOTUNE_FIX", help="Pin one knob."),
    ] = None,
    knobs: Annotated[
        list[str] | None,
        typer.Option("--knob", metavar="NAME", envvar="AUTOTUNE_KNOB", help="Search the named knobs only."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB[,KNOB]",
            envvar="AUTOTUNE_ALLOW",
            help="Knobs that change training, for `fastest`, or that may do harm later than a search sees.",
        ),
    ] = None,
    max_memory: Annotated[
        str,
        typer.Option(metavar="6GiB|80%", envvar="AUTOTUNE_MAX_MEMORY", help="Upper bound on peak memory."),
    ] = "",
    effective_batch: Annotated[
        str,
        typer.Option(
            metavar="explore|keep|LO..HI",
            envvar="AUTOTUNE_EFFECTIVE_BATCH",
            help="Effective batches that may be tried.",
        ),
    ] = "explore",
    run_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            envvar="AUTOTUNE_RUN_STEPS",
            help="Optimizer steps of the real run; compile time is charged to it.",
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            metavar="PRICE",
            envvar="AUTOTUNE_PRICE_PER_HOUR",
            help="Of the machine; the answer says what a million samples cost.",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            metavar="throughput|energy|cost",
            envvar="AUTOTUNE_OBJECTIVE",
            help="Search the fastest, or the least energy per sample of all that is faster; cost, at one "
            "price the fastest.",
        ),
    ] = "throughput",
    driver: Annotated[
        str, typer.Option(metavar="ray|inline", envvar="AUTOTUNE_DRIVER", help="Who runs the trials.")
    ] = "ray",
    address: Annotated[
        str, typer.Option(metavar="ADDR", envvar="AUTOTUNE_ADDRESS", help="An existing Ray cluster.")
    ] = "",
    concurrency: Annotated[
        int,
        typer.Option(
            metavar="N", envvar="AUTOTUNE_CONCURRENCY", help="Trials at once; 0 lets the driver decide."
        ),
    ] = 0,
    sampler: Annotated[
        str,
        typer.Option(
            metavar="staged|tpe|gp|nsga2|random|brute|coordinate",
            envvar="AUTOTUNE_SAMPLER",
            help="Who proposes configurations.",
        ),
    ] = "staged",
    transfer: Annotated[
        str,
        typer.Option(
            metavar="same-script|all|off",
            envvar="AUTOTUNE_TRANSFER",
            help="Earlier studies that say where to begin; every figure is measured anew.",
        ),
    ] = "same-script",
    start: Annotated[
        str,
        typer.Option(
            metavar="auto|fork|cold",
            envvar="AUTOTUNE_START",
            help="How screening trials start: forked from a process that has imported PyTorch where that is "
            "safe (fork says where it is not), or each anew.",
        ),
    ] = "auto",
    live: Annotated[
        str,
        typer.Option(
            metavar="on|off",
            envvar="AUTOTUNE_LIVE",
            help="Let one process measure several configurations by switching between steps.",
        ),
    ] = "off",
    wait_for_quiet: WaitForQuiet = "",
    wait: Wait = "",
    share: Share = False,
    trials: Annotated[
        int | None, typer.Option(metavar="N", envvar="AUTOTUNE_TRIALS", help="At most this many trials.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", envvar="AUTOTUNE_SEED", help="Seed of the search.")] = 0,
    tracking_uri: Annotated[
        str, typer.Option(metavar="URI", envvar="AUTOTUNE_TRACKING_URI", help="MLflow store.")
    ] = "",
    experiment: Annotated[
        str, typer.Option(metavar="NAME", envvar="AUTOTUNE_EXPERIMENT", help="MLflow experiment.")
    ] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE", envvar="AUTOTUNE_OUT", help="Where the result goes.")
    ] = "best.yaml",
    label: Annotated[str, typer.Option(metavar="NAME", help="Name of the study, for people.")] = "",
    python: Python = "",
    output_args: Annotated[
        list[str] | None,
        typer.Option(
            "--output-arg",
            metavar="NAME",
            envvar="AUTOTUNE_OUTPUT_ARG",
            help="The script's option for its output folder; a trial gets one of its own.",
        ),
    ] = None,
    keep_loggers: Annotated[
        bool,
        typer.Option(
            "--keep-loggers",
            envvar="AUTOTUNE_KEEP_LOGGERS",
            help="Leave the script's own trackers on during trials.",
        ),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            envvar="AUTOTUNE_PROFILE",
            help="Keep a profiler trace of the script and of the winner.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and run nothing.")] = False,
    json: JsonAtEnd = False,
    jsonl: JsonLines = False,
    quiet: Quiet = False,
    exit_zero: ExitZero = False,
) -> int:
    """Search the fastest configuration of a training script.

    Options may also be set by the variables named below, and by [tool.autotune] in the pyproject.toml
    here or above (budget = "30m"); the command line is stronger than a variable, a variable than the file.

    Exit codes: 0 something is faster, confirmed; 1 nothing is faster; 2 usage, or a budget that ended before
    the first run did; 3 the script itself fails; 4 nothing fits; 5 store; 6 machine or backend;
    8 inconclusive; 70 internal error; 75 stopped by a signal; 130 stopped by Ctrl-C.
    """
    from autotune.cli.ended import guarded, head_start_s, last_words, say_plan, searched
    from autotune.cli.settings import Sources
    from autotune.driver.spec import SearchOptions, build_spec, objective_notes
    from autotune.errors import UsageError, add_note
    from autotune.inspection.command import read_command

    with guarded(as_json=json, as_lines=jsonl):
        sources = Sources(context)
        narrowed = sources.narrowed(
            {"set": sets or (), "fix": fixes or (), "knob": knobs or (), "allow": allow or ()}
        )
        options = SearchOptions(
            budget=budget,
            space=space,
            sets=narrowed["set"],
            fixes=narrowed["fix"],
            knobs=narrowed["knob"],
            allow=narrowed["allow"],
            max_memory=max_memory,
            effective_batch=effective_batch,
            driver=driver,
            address=address,
            tracking_uri=tracking_uri,
            experiment=experiment,
            trials=trials,
            seed=seed,
            out=out,
            run_steps=run_steps,
            price_per_hour=price_per_hour,
            objective=objective,
            profile=profile,
            keep_loggers=keep_loggers,
            sampler=sampler,
            transfer=transfer,
            start=start,
            live=live,
            wait_for_quiet=wait_for_quiet,
            wait=wait,
            share=share,
            concurrency=concurrency,
            label=label,
            output_args=tuple(output_args or ()),
        )
        run = read_command(command or [], script=script, python=python)
        try:
            spec = build_spec(run, options)
        except UsageError as error:
            # What is wrong may not have been typed.
            for note in sources.notes(narrowed):
                add_note(error, note)
            raise
        notes = [*run.notes, *sources.notes(narrowed), *objective_notes(spec)]
        from autotune.driver import tune

        if dry_run:
            return say_plan(tune.plan_search(spec), as_json=json or jsonl, notes=notes)

        from autotune.report.jsonl import Lines
        from autotune.report.live import Progress

        # Lines for a program on the same terminal would be drawn over.
        drawn = False if jsonl and sys.stdout.isatty() else None
        progress = Progress(sys.stderr, quiet=quiet, live=drawn)
        listeners = [progress, Lines(sys.stdout)] if jsonl else [progress]
        for note in () if quiet else notes:
            print(note, file=sys.stderr)
        try:
            end = tune.run_search(
                spec,
                listeners=listeners,
                head_start_s=head_start_s(),
                last_words=last_words(
                    close=progress.close, as_json=json, exit_zero=exit_zero, as_lines=jsonl
                ),
            )
        finally:
            progress.close()
        return searched(end, as_json=json, exit_zero=exit_zero, as_lines=jsonl)

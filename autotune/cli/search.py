"""`autotune search`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from autotune.cli.command import read_command
from autotune.cli.spec import SearchOptions, build_spec


def search(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGS", help="After --: the script's arguments, or a whole command."),
    ] = None,
    *,
    script: Annotated[str, typer.Option(metavar="PATH", help="The training script, unmodified.")] = "",
    budget: Annotated[
        str, typer.Option(metavar="2h", help="Wall time for everything, confirmation included.")
    ],
    space: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Search space: a preset or a file.")
    ] = "default",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KNOB=A,B", help="Search one knob over these values.")
    ] = None,
    fixes: Annotated[
        list[str] | None, typer.Option("--fix", metavar="KNOB=VALUE", help="Pin one knob.")
    ] = None,
    knobs: Annotated[
        list[str] | None, typer.Option("--knob", metavar="NAME", help="Search the named knobs only.")
    ] = None,
    max_memory: Annotated[str, typer.Option(metavar="6GiB|80%", help="Upper bound on peak memory.")] = "",
    effective_batch: Annotated[
        str, typer.Option(metavar="explore|keep|LO..HI", help="Effective batches that may be tried.")
    ] = "explore",
    run_steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="Optimizer steps of the real run; compile time is charged to it."),
    ] = None,
    driver: Annotated[str, typer.Option(metavar="ray|inline", help="Who runs the trials.")] = "ray",
    address: Annotated[str, typer.Option(metavar="ADDR", help="An existing Ray cluster.")] = "",
    concurrency: Annotated[
        int, typer.Option(metavar="N", help="Trials at once; 0 lets the driver decide.")
    ] = 0,
    sampler: Annotated[
        str, typer.Option(metavar="staged|tpe|nsga2|random", help="Who proposes configurations.")
    ] = "staged",
    trials: Annotated[int | None, typer.Option(metavar="N", help="At most this many trials.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the search.")] = 0,
    tracking_uri: Annotated[str, typer.Option(metavar="URI", help="MLflow store.")] = "",
    experiment: Annotated[str, typer.Option(metavar="NAME", help="MLflow experiment.")] = "",
    out: Annotated[str, typer.Option(metavar="FILE", help="Where the result goes.")] = "best.yaml",
    label: Annotated[str, typer.Option(metavar="NAME", help="Name of the study, for people.")] = "",
    python: Annotated[
        str, typer.Option(metavar="PATH", help="Interpreter of the script's environment.")
    ] = "",
    keep_loggers: Annotated[
        bool, typer.Option("--keep-loggers", help="Leave the script's own trackers on during trials.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and run nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="End with 0 where nothing beats the script.")
    ] = False,
) -> int:
    """Search the fastest configuration of a training script.

    Exit codes: 0 something is faster, confirmed; 1 nothing is; 2 usage; 3 the script itself fails;
    4 nothing fits; 5 store; 6 machine or backend; 70 internal error; 75 stopped by a signal;
    130 stopped by Ctrl-C.
    """
    from autotune.cli.ended import guarded, head_start_s, say_plan, searched

    options = SearchOptions(
        budget=budget,
        space=space,
        sets=tuple(sets or ()),
        fixes=tuple(fixes or ()),
        knobs=tuple(knobs or ()),
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
        keep_loggers=keep_loggers,
        sampler=sampler,
        concurrency=concurrency,
        label=label,
    )
    with guarded(as_json=json):
        spec = build_spec(read_command(command or [], script=script, python=python), options)
        from autotune.driver import tune

        if dry_run:
            return say_plan(tune.plan_search(spec), as_json=json)

        from autotune.report.text import Progress

        progress = Progress(sys.stderr, quiet=quiet)
        try:
            end = tune.run_search(spec, listeners=[progress], head_start_s=head_start_s())
        finally:
            progress.close()
        return searched(end, as_json=json, exit_zero=exit_zero)

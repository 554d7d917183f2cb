"""`autotune search`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import ExitZero, JsonAtEnd, JsonLines, Python, Quiet, Share, Wait, WaitForQuiet

if TYPE_CHECKING:
    from autotune.report.listener import Listener

DEFAULT_BUDGET = "10m"
"""Wall time where none is given: about 30 short runs of a script that starts within seconds."""

_search_space_option = partial(typer.Option, rich_help_panel="Search space")
_measuring_option = partial(typer.Option, rich_help_panel="Measuring")
_output_option = partial(typer.Option, rich_help_panel="Output")
_cluster_option = partial(typer.Option, rich_help_panel="Cluster")
_mlflow_option = partial(typer.Option, rich_help_panel="MLflow")
_expert_option = partial(typer.Option, rich_help_panel="Expert")


def search(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [-- ARGS]",
            help="The training script, unmodified; its own arguments after --. Or, after --, the command "
            "that starts the training: python -m package.train --lr 1e-3.",
        ),
    ] = None,
    *,
    script: Annotated[
        str, typer.Option(metavar="PATH", help="The training script; the same as naming it first.")
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            metavar="2h",
            envvar="AUTOTUNE_BUDGET",
            help="Wall time of the whole search, confirmation included.",
        ),
    ] = DEFAULT_BUDGET,
    max_memory: Annotated[
        str,
        typer.Option(metavar="6GiB|80%", envvar="AUTOTUNE_MAX_MEMORY", help="Upper bound on peak memory."),
    ] = "",
    python: Python = "",
    wait_for_quiet: WaitForQuiet = "",
    wait: Wait = "",
    share: Share = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and run nothing.")] = False,
    space: Annotated[
        str,
        _search_space_option(
            metavar="NAME|FILE",
            envvar="AUTOTUNE_SPACE",
            help="Preset or file; auto: chosen by the first run.",
        ),
    ] = "auto",
    knobs: Annotated[
        list[str] | None,
        _search_space_option(
            "--knob", metavar="NAME", envvar="AUTOTUNE_KNOB", help="Search the named knobs only."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        _search_space_option(
            "--set", metavar="KNOB=A,B", envvar="AUTOTUNE_SET", help="Search one knob over these values."
        ),
    ] = None,
    fixes: Annotated[
        list[str] | None,
        _search_space_option("--fix", metavar="KNOB=VALUE", envvar="AUTOTUNE_FIX", help="Pin one knob."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        _search_space_option(
            metavar="KNOB[,KNOB]",
            envvar="AUTOTUNE_ALLOW",
            help="Permit knobs that change the training, or may do harm later than a search sees.",
        ),
    ] = None,
    effective_batch: Annotated[
        str,
        _search_space_option(
            metavar="explore|keep|LO..HI",
            envvar="AUTOTUNE_EFFECTIVE_BATCH",
            help="Effective batches that may be tried.",
        ),
    ] = "explore",
    run_steps: Annotated[
        int | None,
        _measuring_option(
            metavar="N",
            envvar="AUTOTUNE_RUN_STEPS",
            help="Optimizer steps of the planned run; compile time is charged to it.",
        ),
    ] = None,
    objective: Annotated[
        str,
        _measuring_option(
            metavar="throughput|energy|cost",
            envvar="AUTOTUNE_OBJECTIVE",
            help="What to optimize: samples per second, or energy or cost per sample among what is faster.",
        ),
    ] = "throughput",
    price_per_hour: Annotated[
        float | None,
        _measuring_option(
            metavar="PRICE",
            envvar="AUTOTUNE_PRICE_PER_HOUR",
            help="Price of the machine per hour; adds the cost per million samples to the answer.",
        ),
    ] = None,
    output_args: Annotated[
        list[str] | None,
        _measuring_option(
            "--output-arg",
            metavar="NAME",
            envvar="AUTOTUNE_OUTPUT_ARG",
            help="The script's option for its output folder; each trial gets its own.",
        ),
    ] = None,
    keep_loggers: Annotated[
        bool,
        _measuring_option(
            "--keep-loggers",
            envvar="AUTOTUNE_KEEP_LOGGERS",
            help="Keep the script's experiment trackers on during trials.",
        ),
    ] = False,
    profile: Annotated[
        bool,
        _measuring_option(
            "--profile",
            envvar="AUTOTUNE_PROFILE",
            help="Store a profiler trace of the script and of the winner.",
        ),
    ] = False,
    out: Annotated[
        str,
        _output_option(metavar="FILE", envvar="AUTOTUNE_OUT", help="File for the result."),
    ] = "best.yaml",
    label: Annotated[str, _output_option(metavar="NAME", help="Name of the study.")] = "",
    json: JsonAtEnd = False,
    jsonl: JsonLines = False,
    quiet: Quiet = False,
    exit_zero: ExitZero = False,
    driver: Annotated[
        str,
        _cluster_option(metavar="ray|inline", envvar="AUTOTUNE_DRIVER", help="What runs the trials."),
    ] = "ray",
    address: Annotated[
        str,
        _cluster_option(metavar="ADDR", envvar="AUTOTUNE_ADDRESS", help="An existing Ray cluster."),
    ] = "",
    accelerator_type: Annotated[
        str,
        _cluster_option(
            metavar="TYPE",
            envvar="AUTOTUNE_ACCELERATOR_TYPE",
            help="Use nodes of the cluster with these accelerators only, by Ray's name: A100, H100.",
        ),
    ] = "",
    concurrency: Annotated[
        int,
        _cluster_option(
            metavar="N", envvar="AUTOTUNE_CONCURRENCY", help="Trials at a time; 0: chosen by the driver."
        ),
    ] = 0,
    tracking_uri: Annotated[
        str,
        _mlflow_option(metavar="URI", envvar="AUTOTUNE_TRACKING_URI", help="MLflow store."),
    ] = "",
    experiment: Annotated[
        str,
        _mlflow_option(metavar="NAME", envvar="AUTOTUNE_EXPERIMENT", help="MLflow experiment."),
    ] = "",
    tensorboard: Annotated[
        str,
        _output_option(metavar="DIR", envvar="AUTOTUNE_TENSORBOARD", help="Also log trials for TensorBoard."),
    ] = "",
    wandb: Annotated[
        str,
        _output_option(
            metavar="PROJECT", envvar="AUTOTUNE_WANDB", help="Also log trials to Weights & Biases."
        ),
    ] = "",
    mlflow_tags: Annotated[
        list[str] | None,
        _mlflow_option(
            "--mlflow-tag", metavar="K=V", envvar="AUTOTUNE_MLFLOW_TAG", help="Tag of the study's run."
        ),
    ] = None,
    mlflow_parent_run: Annotated[
        str,
        _mlflow_option(
            metavar="ID",
            envvar="AUTOTUNE_MLFLOW_PARENT_RUN",
            help="Run below which the study's run is nested.",
        ),
    ] = "",
    sampler: Annotated[
        str,
        _expert_option(
            metavar="staged|tpe|nsga2|random|brute|coordinate",
            envvar="AUTOTUNE_SAMPLER",
            help="What proposes configurations.",
        ),
    ] = "staged",
    transfer: Annotated[
        str,
        _expert_option(
            metavar="same-script|off",
            envvar="AUTOTUNE_TRANSFER",
            help="Earlier studies to start from; every figure is measured again.",
        ),
    ] = "same-script",
    start: Annotated[
        str,
        _expert_option(
            metavar="auto|fork|cold",
            envvar="AUTOTUNE_START",
            help="How screening trials start: forked from a process that has imported PyTorch where that is "
            "safe, or each in a new interpreter.",
        ),
    ] = "auto",
    trials: Annotated[
        int | None,
        _expert_option(metavar="N", envvar="AUTOTUNE_TRIALS", help="Trials at most."),
    ] = None,
    seed: Annotated[
        int,
        _expert_option(metavar="N", envvar="AUTOTUNE_SEED", help="Seed of the search."),
    ] = 0,
) -> int:
    r"""Search the fastest configuration of a training script.

    \b
    autotune search train.py
    autotune search train.py --budget 2h -- --epochs 3 --lr 1e-3
    autotune search --budget 2h -- torchrun --nproc-per-node 2 train.py
    autotune search train.py --knob precision --knob num_workers --fix compile_mode=off

    The result is best.yaml; `autotune apply best.yaml` trains with it. Each option can also be set by a
    variable (--max-memory by AUTOTUNE_MAX_MEMORY) and in [tool.autotune] of pyproject.toml. The command
    line overrides a variable; a variable overrides the file.

    Exit codes: 0 faster, confirmed; 1 nothing is faster; 2 usage, or the budget ended before the first run;
    3 the script fails; 4 does not fit into memory; 5 store; 6 machine or backend; 8 inconclusive;
    70 internal error; 75 stopped by a signal; 130 stopped by Ctrl-C.
    """
    from autotune.cli.outcome import guarded, head_start_s, last_words, say_plan, searched
    from autotune.cli.settings import Sources
    from autotune.driver.spec import SearchOptions, build_spec, objective_notes
    from autotune.errors import UsageError, add_note
    from autotune.inspection.command_line import read_command

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
            wait_for_quiet=wait_for_quiet,
            wait=wait,
            share=share,
            accelerator_type=accelerator_type,
            concurrency=concurrency,
            label=label,
            output_args=tuple(output_args or ()),
            mlflow_tags=tuple(mlflow_tags or ()),
            mlflow_parent_run=mlflow_parent_run,
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
        if sources.is_default("budget"):
            notes.append(f"budget: {DEFAULT_BUDGET}, the default; --budget changes it")
        trackers = _trackers(tensorboard, wandb)
        from autotune.driver import tune

        if dry_run:
            return say_plan(tune.plan_search(spec), as_json=json or jsonl, notes=notes)

        from autotune.report.terminal.event_stream import EventLines
        from autotune.report.terminal.live_view import Progress

        # Lines for a program on the same terminal would be drawn over.
        drawn = False if jsonl and sys.stdout.isatty() else None
        progress = Progress(sys.stderr, quiet=quiet, live=drawn)
        listeners = [progress, EventLines(sys.stdout)] if jsonl else [progress]
        listeners += trackers
        # The interpreter is named in any case: a file may choose it, and ask for quiet as well.
        started = run.notes if run.python != sys.executable else ()
        for note in started if quiet else notes:
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


def _trackers(tensorboard: str, wandb: str) -> list[Listener]:
    """Return a listener for each tracker that was named.

    Raises:
        UsageError: Its package is not installed.
    """
    found: list[Listener] = []
    if tensorboard:
        from autotune.integrations.tensorboard import TensorBoard

        found.append(TensorBoard(tensorboard))
    if wandb:
        from autotune.integrations.wandb import WeightsAndBiases

        found.append(WeightsAndBiases(wandb))
    return found

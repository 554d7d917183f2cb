"""Verbs that talk to a service: submit, status, cancel, fetch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli.options import Json
from autotune.errors import EXIT_YES, UsageError

Server = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="AUTOTUNE_SERVER",
        help="The service. Default: the local one; AUTOTUNE_TOKEN: its token.",
    ),
]
SearchId = Annotated[str, typer.Argument(metavar="ID", help="Of the search.")]


def submit(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [-- ARGS]", help="The training script, or after -- the command that trains."
        ),
    ] = None,
    *,
    budget: Annotated[str, typer.Option(metavar="2h", help="Wall time of the search.")] = "1h",
    gpus: Annotated[int, typer.Option(metavar="N", min=0, help="Whole GPUs.")] = 0,
    priority: Annotated[int, typer.Option(min=0, max=100, help="Higher starts earlier.")] = 50,
    preemptible: Annotated[
        bool, typer.Option("--preemptible", help="May be stopped for others and resumed.")
    ] = False,
    max_cost: Annotated[
        float | None, typer.Option(metavar="COST", help="Refuse a search that may cost more.")
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Name on the page.")] = "",
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME[=VALUE]", help="Option of `autotune search`: -o knob=precision."
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Send files that git ignores or that may hold secrets, too."),
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Leave files out.")] = None,
    path: Annotated[
        str, typer.Option(metavar="DIR", help="Run code on the service's storage; send nothing.")
    ] = "",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="Container image to run in.")] = "",
    webhook: Annotated[str, typer.Option(metavar="URL", help="Called on start and end.")] = "",
    key: Annotated[str, typer.Option(metavar="KEY", help="Sending a key twice queues one search.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and write best.yaml.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be sent; send nothing.")
    ] = False,
    server: Server = "",
    json: Json = False,
) -> int:
    r"""Submit a search to a service; prints its id.

    \b
    autotune submit train.py --budget 2h
    autotune submit --budget 2h --gpus 1 --wait -- python train.py --lr 3e-4

    Sends the files of this folder that git would keep; files that look like secrets are not sent.
    """
    from autotune.cli.outcome import print_json
    from autotune.cli.remote import client as client_of
    from autotune.cli.remote import followed
    from autotune.report.view.summary import bytes_text
    from autotune.service.packing import packing_list

    if not command:
        raise UsageError("no script is given", hint="autotune submit train.py --budget 2h")
    given = _options(options or [])
    packed = None
    if not path:
        packed = packing_list(Path.cwd(), include=include or (), exclude=exclude or ())
        note = f"{len(packed.files)} files, {bytes_text(packed.bytes)}"
        note += (
            f", commit {packed.commit[:12]}{' with changes' if packed.is_dirty else ''}"
            if packed.commit
            else ""
        )
        if packed.refused:
            note += f"; not sent, as they may hold secrets: {', '.join(packed.refused[:5])}"
        print(("would send " if dry_run else "sends ") + note, file=sys.stderr)
        if dry_run:
            for name in packed.files:
                print(name)
            return EXIT_YES
    more: dict[str, Any] = {"gpus": gpus, "priority": priority, "preemptible": preemptible, "title": title}
    more |= {"path": path} if path else {}
    more |= {"webhook": webhook} if webhook else {}
    more |= {"image": image} if image else {}
    more |= {"max_cost": max_cost} if max_cost is not None else {}
    client = client_of(server)
    if not json:
        print(estimate_text(client.estimate(budget=budget, gpus=gpus)), file=sys.stderr)
    handle = client.submit(command, budget=budget, options=given, packed=packed, idempotency_key=key, **more)
    if not wait:
        found = handle.status()
        if json:
            print_json({**found, "exit": EXIT_YES})
        else:
            print(handle.id)
            print(
                f"{found['state']}: {found['reason']}; follow it: autotune logs -f {handle.id}",
                file=sys.stderr,
            )
        return EXIT_YES
    print(handle.id, file=sys.stderr)
    for line in followed(handle):
        print(line, file=sys.stderr)
    return _ended(handle, json=json)


def _ended(handle: Any, *, json: bool) -> int:
    """Print the end of a search, write its best.yaml, and return the exit code of the search."""
    from autotune.cli.outcome import print_json

    found = handle.status()
    if found["exit_code"] in (0, 1, 8):
        _write(handle, Path("best.yaml"))
        print("best.yaml is written; apply it: autotune apply best.yaml", file=sys.stderr)
    if json:
        print_json({**found, "exit": found["exit_code"] or 0})
    else:
        print(answer_text(found) or f"{found['state']}: {found['reason']}")
    return found["exit_code"] if found["exit_code"] is not None else 6


def _options(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            found[name] = True
        else:
            found.setdefault(name, [])
            if found[name] is True:
                raise UsageError(f"-o {name} is given with and without a value")
            found[name].append(value)
    return found


def status(
    search: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Of one search; else the newest ones.")
    ] = None,
    *,
    count: Annotated[int, typer.Option("-n", metavar="N", help="At most this many.")] = 20,
    server: Server = "",
    json: Json = False,
) -> int:
    """Show searches on a service, or one of them."""
    from autotune.cli.outcome import print_json
    from autotune.cli.remote import client as client_of

    client = client_of(server)
    if search is None:
        return print_searches(client.searches(limit=count), json=json)
    row = client.search(search).status()
    if json:
        print_json({**row, "exit": EXIT_YES})
        return EXIT_YES
    print(f"{row['title']}: {row['state']}: {row['reason']}")
    for name in ("headline", "config", "trials"):
        if (row["answer"] or {}).get(name) is not None:
            print(f"  {name:<10}{row['answer'][name]}")
    print(f"  {'time':<10}{row['used_s']:.0f} s used of {row['budget_s']:.0f} s")
    return EXIT_YES


def print_searches(rows: list[dict[str, Any]], *, json: bool) -> int:
    """Print a line per search."""
    from autotune.cli.outcome import print_json

    if json:
        print_json({"searches": rows, "exit": EXIT_YES})
    for row in () if json else rows:
        text = answer_text(row) or row["reason"]
        print(f"{row['id']}  {row['state']:<10}  {row['title'][:40]:<40}  {text}")
    return EXIT_YES


def answer_text(row: dict[str, Any]) -> str:
    """Return the current answer of a search, or "" if there is none or its reason is more specific."""
    if row["state"] in ("queued", "failed"):
        return ""
    return (row["answer"] or {}).get("headline", "")


def estimate(
    *,
    budget: Annotated[str, typer.Option(metavar="2h", help="Wall time of the search.")] = "1h",
    gpus: Annotated[int, typer.Option(metavar="N", min=0, help="Whole GPUs.")] = 0,
    server: Server = "",
    json: Json = False,
) -> int:
    """Estimate the gain, the wait and the price of a search on a service; nothing is run."""
    from autotune.cli.outcome import print_json
    from autotune.cli.remote import client

    found = client(server).estimate(budget=budget, gpus=gpus)
    if json:
        print_json({**found, "exit": EXIT_YES})
    else:
        print(estimate_text(found))
    return EXIT_YES


def estimate_text(found: dict[str, Any]) -> str:
    """Return an estimate in words."""
    count = found["searches"]
    if found["speedup"] is None:
        gain = f"gain: unknown; searches of the project that have ended: {count}"
    else:
        low, middle, high = found["speedup"]
        gain = f"gain: {middle:.2f}x, half of {count} searches between {low:.2f}x and {high:.2f}x"
    cost = "" if found["cost"] is None else f"; price: at most {found['cost']:.2f}"
    return f"estimate: {gain}{cost}; {found['ahead']} searches ahead in the queue"


def cancel(search: SearchId, *, server: Server = "") -> int:
    """Cancel a search on a service; the best so far is kept."""
    from autotune.cli.remote import client

    row = client(server).search(search).cancel()
    print(f"{row['state']}: {row['reason']}")
    return EXIT_YES


def fetch(
    search: SearchId,
    *,
    out: Annotated[str, typer.Option(metavar="FILE", help="File to write.")] = "best.yaml",
    server: Server = "",
) -> int:
    """Write the best.yaml of a search on a service."""
    from autotune.cli.remote import client

    path = Path(out)
    _write(client(server).search(search), path)
    print(f"{path}; apply it: autotune apply {path}")
    return EXIT_YES


def _write(handle: Any, path: Path) -> None:
    from autotune.export.files import write_whole

    write_whole(path.absolute(), handle.best, keep=path.exists())

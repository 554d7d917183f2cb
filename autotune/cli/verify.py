"""`autotune verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.apply import command_of

if TYPE_CHECKING:
    from autotune.driver.verification import Verified

EXIT_SLOWER = 7
"""Slower beyond doubt, or its loss is worse: the config does harm here."""

_CODES = {"faster": 0, "no_difference": 1, "failed": 1, "slower": EXIT_SLOWER, "worse": EXIT_SLOWER}


def verify(
    file: Annotated[str, typer.Argument(metavar="best.yaml", help="The file that a search wrote.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- CMD", help="After --: python train.py ...; else the file's own command."),
    ] = None,
    *,
    pick: Annotated[
        str, typer.Option(metavar="safe|best|fastest", help="Which pick; else the file's own.")
    ] = "",
    budget: Annotated[str, typer.Option(metavar="10m", help="Wall time for everything.")] = "10m",
    pairs: Annotated[int, typer.Option(metavar="N", help="At most this many pairs.")] = 10,
    at_least: Annotated[
        float, typer.Option(metavar="1.5", help="The speed-up that the lower bound has to clear.")
    ] = 1.0,
    python: Annotated[
        str, typer.Option(metavar="PATH", help="Interpreter of the script's environment.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> int:
    """Measure a configuration against the script again, here and now, in fresh interleaved pairs.

    Exit codes: 0 it is faster; 1 no difference was shown; 7 it is slower, or its loss is worse. The others as
    for search.
    """
    import time

    from autotune.cli.ended import guarded
    from autotune.driver.spec import budget_s
    from autotune.errors import UsageError
    from autotune.store.paths import new_label

    with guarded(as_json=json):
        from autotune.export.best_config import read_best

        best = read_best(file)
        name, chosen = best.chosen(pick)
        if pairs < 3:
            raise UsageError(f"--pairs {pairs} cannot show anything", hint="at least 3")
        run = command_of(best, command or [], python, Path(file))
        from autotune.driver.verification import verify as measure
        from autotune.report.text import Progress

        progress = Progress(sys.stderr, quiet=quiet)
        try:
            found = measure(
                chosen,
                run,
                label="verify-" + new_label(run.script, time.time()),
                budget_s=budget_s(budget),
                pairs=pairs,
                at_least=at_least,
                listeners=[progress],
            )
        finally:
            progress.close()
        if json:
            import json as encoder

            print(encoder.dumps(as_dict(found, name, at_least), indent=2))
        else:
            sys.stdout.write(screen(found, name, at_least))
        return _CODES[found.verdict]


def as_dict(found: Verified, pick: str, at_least: float) -> dict[str, Any]:
    """The answer as an object, schema ``autotune.verify/v1``."""
    speedup = found.comparison.speedup if found.comparison is not None else None
    loss = found.comparison.loss if found.comparison is not None else None
    return {
        "schema": "autotune.verify/v1",
        "pick": pick,
        "verdict": found.verdict,
        "at_least": at_least,
        "speedup": None if speedup is None else _ratio(speedup),
        "identical": None if found.identical is None else _ratio(found.identical),
        "loss": None if loss is None else {"verdict": loss.verdict, "reason": loss.reason},
        "study": found.study.spec.label,
        "exit": _CODES[found.verdict],
    }


def screen(found: Verified, pick: str, at_least: float) -> str:
    """The answer in words."""
    from autotune.report.summary import control_text, plural, ratio_text

    compared = found.comparison
    wanted = f" than {at_least:.2f} times your script" if at_least > 1.0 else " than your script"
    sentence = {
        "faster": "faster" + (f", by {at_least:.2f} times at least" if at_least > 1.0 else ""),
        "no_difference": f"not shown to be faster{wanted}",
        "slower": "slower than your script",
        "worse": "faster or not, its loss is worse",
        "failed": "it does not run here",
    }[found.verdict]
    rows = [(pick, sentence)]
    if compared is not None:
        rows.append(("ratio", f"{ratio_text(compared.speedup)}   {plural(compared.speedup.n, 'pair')}"))
        rows.append(("loss", compared.loss.reason))
    failed = [t.failure for t in found.study.told() if t.failure is not None]
    rows += [("failed", f"{failure.kind.label}: {failure.message}") for failure in failed[:1]]
    if found.identical is not None:
        rows.append(("control", f"your script against itself: {control_text(found.identical)}"))
    rows.append(("look", f"autotune show {found.study.spec.label}"))
    return "".join(f"{key:<8}{text}\n" for key, text in rows)


def _ratio(estimate: Any) -> dict[str, Any]:
    import math

    low, high = (x if math.isfinite(x) else None for x in (estimate.low, estimate.high))
    return {
        "value": estimate.value,
        "low": low,
        "high": high,
        "n": estimate.n,
        "confidence": estimate.confidence,
    }

"""Command of a search's job: ``autotune search``, or ``autotune resume`` if its journal exists."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import UsageError
from autotune.store.paths import JOURNAL_FILE, newest_study_dirs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_RANKS: Final = re.compile(r"--(?:nproc[-_]per[-_]node|num_processes)[= ](\d+)")
ALLOWED: Final = (
    "space", "set", "fix", "knob", "allow", "max-memory", "effective-batch", "run-steps", "objective",
    "price-per-hour", "sampler", "trials", "seed", "output-arg", "keep-loggers", "start", "wait-for-quiet",
    "mlflow-tag", "experiment", "accelerator-type",
)  # fmt: skip
"""Options of ``autotune search`` that a client may set. The service sets those for places and clusters."""


def checked_options(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return options as lists of texts; True represents a switch.

    Raises:
        UsageError: An option is not one that a client may set.
    """
    found: dict[str, list[str]] = {}
    for name, value in options.items():
        if name not in ALLOWED:
            raise UsageError(
                f"a submitted search cannot set --{name}", hint=f"it can set: {', '.join(ALLOWED)}"
            )
        if value is True:
            found[name] = []
        else:
            values = value if isinstance(value, list) else [value]
            found[name] = [str(one) for one in values]  # pyright: ignore[reportUnknownVariableType]
    return found


def command_of(
    row: Any, home: Path, best: Path, options: Mapping[str, str], python: str = sys.executable
) -> list[str]:
    """Return the words of the job.

    Args:
        row: Row of the search.
        home: AUTOTUNE_HOME of the search.
        best: Path for its best.yaml.
        options: Options that the service sets.
        python: Interpreter with autotune where the job runs.

    Raises:
        UsageError: The request holds an option that clients may not set.
    """
    start = [python, "-m", "autotune"]
    left_s = max(20.0, row.budget_s - row.used_s)
    begun = next((path for path in newest_study_dirs(home) if (path / JOURNAL_FILE).is_file()), None)
    if begun is not None:
        # The path of the folder, as names are resolved below the home of this process.
        return [*start, "resume", str(begun), "--budget", f"{left_s:.0f}s", "--quiet"]
    words = [
        *start,
        "search",
        "--budget",
        f"{left_s:.0f}s",
        "--label",
        row.id.lower(),
        "--out",
        str(best),
        "--quiet",
    ]
    for name, value in options.items():
        words += [f"--{name}", value]
    if row.gpus:
        # A trial uses the devices of its processes, and all trials together those of the search.
        ranks = int(match[1]) if (match := _RANKS.search(" ".join(row.request["command"]))) else 1
        words += ["--concurrency", str(max(1, row.gpus // ranks))]
    for name, values in checked_options(row.request.get("options", {})).items():
        words += [f"--{name}"] if not values else [word for value in values for word in (f"--{name}", value)]
    return [*words, "--", *[str(word) for word in row.request["command"]]]

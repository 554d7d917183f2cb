"""Run of the user's script with a config applied: no guard, no measurement, no redirected files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from autotune.launch.ports import with_port
from autotune.launch.workspace import runtime_library
from autotune.launch.workspace.workspace import without_secrets, write_private
from autotune.model import wire
from autotune.protocol.plan import PLAN_VARIABLE, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.model.config import Value
    from autotune.model.trial import Launch

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_plain(
    launch: Launch, plan_dir: Path, *, own: Mapping[str, Value] | None = None, strict: bool = False
) -> int:
    """Run the user's script with a config, unguarded and unmeasured; return its exit code.

    Standard streams are inherited and signals are passed on.

    Args:
        launch: With ``measure=False``.
        plan_dir: Folder for the plan; created if missing.
        own: The script's own values of knobs, from the search.
        strict: End the training instead of a warning if it contradicts the search.

    Returns:
        The script's exit code; 128 + n where signal n ended it.
    """
    plan_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    plan = Plan(
        nonce=f"apply-{os.getpid()}",
        script=launch.script,
        module=launch.module,
        argv=launch.argv,
        events_path=str(plan_dir / "events.jsonl"),
        trial_dir=str(plan_dir),
        changes=launch.changes,
        seed=launch.seed,
        measure=False,
        sites=tuple(dict.fromkeys(c.site for c in launch.changes if c.site)),
        status_path=str(plan_dir / "status.json"),
        ranks=launch.ranks,
        source=launch.source,
        strict=strict,
        own=own or {},
    )
    plan_path = plan_dir / "plan.json"
    plan, hidden = without_secrets(plan, launch.env)
    write_private(plan_path, wire.dumps(plan))
    folder = runtime_library.make(plan_dir / "lib")
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # Some parents ignore SIGCHLD; the kernel then drops the child's exit code, and a failure would read
        # 0.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = subprocess.Popen(
        [*runtime_library.trial_command(launch.python, folder, launch.options)],
        cwd=launch.cwd,
        env={
            **runtime_library.environment(with_port(launch.env), folder),
            **hidden,
            PLAN_VARIABLE: str(plan_path),
        },
    )

    def forward(number: int, _frame: object) -> None:
        # The terminal has already sent Ctrl-C to the whole foreground group.
        if number != signal.SIGINT or not sys.stdin or not sys.stdin.isatty():
            process.send_signal(number)

    kept = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        code = process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code

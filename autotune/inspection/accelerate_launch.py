"""Resolution of ``accelerate launch``, by accelerate itself, with its options and its YAML file.

Its own launcher runs in its own interpreter, with the functions that start processes replaced. So
accelerate's rules are not duplicated here.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import UsageError
from autotune.model.distributed_launch import is_launcher_variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANSWER: Final = "autotune-launch:"
_WAIT_S: Final = 120.0
"""Importing torch and accelerate takes some 10 s from a cold disk."""
_CODE: Final = """
import json, os, sys
from accelerate.commands import launch
import torch.distributed.run as run

def report(count, nodes, env, args):
    changed = {k: v for k, v in env.items() if os_before.get(k) != v}
    answer = dict(count=int(count), nodes=str(nodes), env=changed, script=args.training_script,
                  args=args.training_script_args, module=bool(args.module), no_python=bool(args.no_python))
    print("ANSWER" + json.dumps(answer), flush=True)
    os._exit(0)

def by_run(given):
    report(given.nproc_per_node, getattr(given, "nnodes", 1), dict(os.environ), args)

def by_itself(args):
    command, env = launch.prepare_simple_launcher_cmd_env(args)
    if os.path.basename(command[0]).startswith("mpi"):
        refuse(args)
    report(1, 1, env, args)

def refuse(args):
    raise ValueError("it starts processes in a way of its own")

deepspeed = launch.deepspeed_launcher
os_before = dict(os.environ)
args = launch.launch_command_parser().parse_args(sys.argv[1:])
run.run, launch.simple_launcher = by_run, by_itself
launch.tpu_launcher = launch.tpu_pod_launcher = launch.sagemaker_launcher = refuse
launch.deepspeed_launcher = lambda args: (refuse if (args.num_machines or 1) > 1 else deepspeed)(args)
launch.launch_command(args)
refuse(args)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Processes that accelerate would start.

    Args:
        count: Number of processes.
        words: The script or ``-m MODULE``, and its arguments.
        variables: Variables set for each process, without ranks and the address.
    """

    count: int
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


def resolve(python: str, words: Sequence[str]) -> Launched:
    """Return the processes that ``accelerate launch`` with these words would start.

    Args:
        python: Interpreter with accelerate.
        words: Words after ``accelerate launch``.

    Raises:
        UsageError: It fails, or starts something other than a group of processes on this machine.
    """
    code = _CODE.replace("ANSWER", _ANSWER)
    try:
        done = subprocess.run(
            [python, "-c", code, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_WAIT_S,
            check=False,
            # A free port is chosen right before each trial.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _refused(str(error)) from error
    line = next((line for line in done.stdout.splitlines() if line.startswith(_ANSWER)), "")
    if not line:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise _refused(lines[-1] if lines else f"exit code {done.returncode}")
    answer: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
    if answer["nodes"] not in ("1", "1:1"):
        raise _refused("it starts processes on several machines, see docs/scaling.md")
    if answer["no_python"]:
        raise _refused("--no_python starts a program that is not a Python script")
    script = ["-m", answer["script"]] if answer["module"] else [answer["script"]]
    variables = {k: v for k, v in answer["env"].items() if is_launcher_variable(k)}
    return Launched(count=answer["count"], words=(*script, *answer["args"]), variables=variables)


def _refused(why: str) -> UsageError:
    return UsageError(
        f"accelerate launch cannot be carried over: {why}",
        hint="a script with an Accelerator runs under torchrun, too: "
        "-- torchrun --nproc-per-node 2 train.py ...",
    )

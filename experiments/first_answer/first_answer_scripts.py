"""The ten scripts of `scripts.yaml`: environment, data, command and working directory of each.

Environments and data of PyPI packages come from `third_party_envs`. Every process starts in a fresh copy of
the script's data, always at the same path, because a few commands contain that path.
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "third_party")]

import third_party_envs as envs  # noqa: E402 (needs the path set above)

WORKLOADS = HERE.parent / "workloads"


@dataclass(frozen=True, kw_only=True)
class Script:
    """One entry of ``scripts.yaml``.

    Args:
        name: Of the workload, or of the candidate in ``third_party/candidates.yaml``.
        source: ``workload`` or ``pypi``.
        subset: Whether the arms for half of the scripts include it.
        longer_args: Option -> value that makes a PyPI entry point train for longer.
        longer_files: File of its data -> {text: replacement}, for the same purpose.
    """

    name: str
    source: str
    subset: bool = False
    longer_args: dict = None
    longer_files: dict = None


def load():
    """Return the scripts in the order of the file."""
    entries = yaml.safe_load((HERE / "scripts.yaml").read_text(encoding="utf-8"))
    return [Script(name=name, **entry) for name, entry in entries.items()]


def known():
    """Return {script: [configuration, ...]}, the hand-picked configurations of ``known.yaml``."""
    return yaml.safe_load((HERE / "known.yaml").read_text(encoding="utf-8"))


def select(scripts, only):
    """Return the scripts named in `only` (comma-separated), or all of them if it is empty."""
    names = only.split(",") if only else [script.name for script in scripts]
    unknown = set(names) - {script.name for script in scripts}
    if unknown:
        raise SystemExit(f"unknown script: {', '.join(sorted(unknown))}; scripts.yaml lists them")
    return [script for script in scripts if script.name in names]


class Bench:
    """Where a script's environment, data and processes are, below the work folder."""

    def __init__(self, script, work):
        self.script = script
        self.rooms = envs.Rooms(work)
        self.place = self.rooms.place(script.name)
        self.data = self.rooms.work / script.name / "data"
        self.candidate = None
        if script.source == "pypi":
            (found,) = (one for one in envs.load() if one.name == script.name)
            self.candidate = replace(found, args=longer(found.args, script.longer_args or {}))

    @property
    def python(self):
        return str(self.rooms.python(self.script.name)) if self.candidate else sys.executable

    @property
    def command(self):
        """The plain command, as a user types it."""
        if self.candidate:
            return envs.words(self.candidate, self.rooms)
        return [sys.executable, str(WORKLOADS / f"{self.script.name}.py")]

    @property
    def variables(self):
        """The environment of its processes; autotune's own settings and Python's paths are left out."""
        if self.candidate:
            # The virtual environment is not active: `autotune` must find its own interpreter's programs.
            return {**self.rooms.variables(self.candidate), "PATH": os.environ.get("PATH", os.defpath)}
        return {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE_", "PYTHON"))}

    def setup(self):
        """Install the package and make its data; return the reason where that fails, else an empty text."""
        if self.candidate:
            installed = envs.install(self.candidate, self.rooms)
            if not installed["ok"]:
                return installed["reason"]
            reason = envs.lay_out(self.candidate, self.rooms)
            if reason:
                return reason
            for name, edits in (self.script.longer_files or {}).items():
                edit(self.place / name, edits)
        else:
            self.place.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(self.place, self.data)
        return ""

    @property
    def is_set_up(self):
        return self.data.is_dir()

    def fresh(self):
        """Make the working directory anew from the data."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.data, self.place, dirs_exist_ok=True)


def longer(args, changes):
    """Return the arguments with the value after each option of `changes` replaced.

    Raises:
        ValueError: An option is not among the arguments.
    """
    args = list(args)
    for option, value in changes.items():
        args[args.index(option) + 1] = str(value)
    return tuple(args)


def edit(path, edits):
    """Replace texts in a file, each of which must be there exactly once."""
    text = path.read_text(encoding="utf-8")
    for old, new in edits.items():
        if text.count(old) != 1:
            raise SystemExit(f"{path.name} has {old!r} {text.count(old)} times; scripts.yaml expects it once")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def label(config):
    """Return the name of a configuration: its knobs as sorted JSON, ``script`` for the baseline."""
    return json.dumps(dict(sorted(config.items()))) if config else "script"

"""The list of candidates, and a virtual environment for each, with the PyTorch of `constraints.txt`.

PyTorch is installed once, into a base environment; every other one holds hard links to its files, so that a
dozen environments cost the disk and the network one PyTorch. Pip is the base's: ``pip --python PATH``.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
GIVEN = HERE / "given"
BASE = ("numpy", "setuptools<81", "wheel")
"""Setuptools up to the last that has pkg_resources, which older packages import."""
INSTALL_S = 900
LISTS = ("requires", "args", "options", "also")
LEFT_TO_BASE = ("pip", "pip-*")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One entry of ``candidates.yaml``.

    Args:
        requires: What pip installs, the package itself first, pinned.
        entry: ``{"module": name}``, ``{"console": name}``, or ``{"file": path}`` below site-packages.
        args: Of the entry point; ``{place}`` stands for the working directory.
        kind: What is special about it.
        options: Of pip, for `requires` alone.
        also: What pip installs besides, without options.
        data: A folder of given/ that comes before its own.
        variables: Environment of the entry point.
        expects: What will not work, stated beforehand; empty where everything should.
    """

    name: str
    requires: tuple[str, ...]
    entry: dict[str, str]
    args: tuple[str, ...] = ()
    kind: str = ""
    options: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    data: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    expects: str = ""

    @property
    def package(self):
        return self.requires[0].partition("==")[0]

    @property
    def version(self):
        return self.requires[0].partition("==")[2]

    @property
    def entry_text(self):
        ((how, what),) = self.entry.items()
        return {"module": f"python -m {what}", "console": what, "file": f"python {what}"}[how]


def load():
    """Every candidate, smallest first, as they are listed."""
    data = yaml.safe_load((HERE / "candidates.yaml").read_text(encoding="utf-8"))
    return [_candidate(name, entry) for name, entry in data.items()]


def _candidate(name, entry):
    lists = {key: tuple(map(str, entry[key])) for key in LISTS if key in entry}
    return Candidate(name=name, **{**entry, **lists})


class Rooms:
    """Where everything lies: environments, working directories, homes and studies of the candidates."""

    def __init__(self, work):
        self.work = Path(work).expanduser().absolute()

    def env(self, name):
        return self.work / name / "env"

    def python(self, name):
        return self.env(name) / "bin" / "python"

    def place(self, name):
        return self.work / name / "place"

    def home(self, name):
        return self.work / name / "home"

    def study(self, name):
        return self.work / name / "study"

    @property
    def base(self):
        return self.work / "base"

    def variables(self, candidate):
        """The environment of a candidate's processes: nothing of ours, a home of their own, no hub."""
        dropped = ("AUTOTUNE_", "PIP_", "PYTHON", "VIRTUAL_ENV", "STOPWATCH_", "MLFLOW_", "WANDB_", "RAY_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {
            **kept,
            "PATH": f"{self.env(candidate.name) / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "HOME": str(self.home(candidate.name)),
            "MPLBACKEND": "Agg",
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
            **candidate.variables,
        }


def install(candidate, rooms):
    """Make its environment unless it is there; what is in it, or why there is none.

    Returns:
        ``{"ok": bool, "reason": str, "versions": {...}}``.
    """
    done = rooms.env(candidate.name) / "installed.json"
    wanted = json.dumps([candidate.requires, candidate.options, candidate.also])
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return {"ok": True, "reason": "", "versions": _versions(candidate, rooms)}
    make_base(rooms)
    env = rooms.env(candidate.name)
    shutil.rmtree(env, ignore_errors=True)
    _run([str(rooms.base / "bin" / "python"), "-m", "venv", "--without-pip", str(env)])
    _link(_site(rooms.base), _site(env))
    failed = _pip(rooms, env, [*candidate.options, *candidate.requires])
    if not failed and candidate.also:
        failed = _pip(rooms, env, list(candidate.also))
    if failed:
        return {"ok": False, "reason": failed, "versions": {}}
    done.write_text(wanted, encoding="utf-8")
    return {"ok": True, "reason": "", "versions": _versions(candidate, rooms)}


def make_base(rooms):
    """The environment that PyTorch is linked from; made once.

    Raises:
        RuntimeError: PyTorch could not be installed.
    """
    done = rooms.base / "installed.json"
    if done.exists():
        return
    shutil.rmtree(rooms.base, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(rooms.base)])
    failed = _pip(rooms, rooms.base, ["torch", *BASE])
    if failed:
        raise RuntimeError(f"no base environment: {failed}")
    done.write_text("{}", encoding="utf-8")


def _pip(rooms, env, words):
    """Install; the last words of an error, or nothing."""
    pip = [str(rooms.base / "bin" / "python"), "-m", "pip", "--python", str(env / "bin" / "python")]
    command = [*pip, "install", "--quiet", "--prefer-binary", *words]
    # In the environment, so that it binds what packages are built with as well.
    env = {**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        ended = subprocess.run(
            command, env=env, capture_output=True, text=True, errors="replace", timeout=INSTALL_S
        )
    except subprocess.TimeoutExpired:
        return f"pip was not done after {INSTALL_S} s"
    if ended.returncode == 0:
        return ""
    message = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    errors = [line for line in message if line.startswith("ERROR")]
    return (errors or message or [f"pip ended with {ended.returncode}"])[-1]


def _site(env):
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return env / "lib" / version / "site-packages"


def _link(source, target):
    shutil.copytree(
        source,
        target,
        copy_function=os.link,
        dirs_exist_ok=True,
        symlinks=True,
        ignore=shutil.ignore_patterns(*LEFT_TO_BASE),
    )


def _run(command):
    subprocess.run(command, check=True, capture_output=True, text=True)


def _versions(candidate, rooms):
    """Of the interpreter, of what was requested by name, and of the frameworks that matter here."""
    names = [candidate.package, "torch", "numpy", "lightning", "pytorch-lightning", "transformers"]
    names += ["accelerate", "torch-geometric", "e3nn"]
    look = (
        "import json, sys; from importlib import metadata as m\n"
        "found = {'python': sys.version.split()[0]}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [str(rooms.python(candidate.name)), "-c", look, *names], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def words(candidate, rooms):
    """The command of the entry point, as a user would type it."""
    ((how, what),) = candidate.entry.items()
    python = str(rooms.python(candidate.name))
    begin = {
        "module": [python, "-m", what],
        "console": [str(rooms.env(candidate.name) / "bin" / what)],
        "file": [python, str(_site(rooms.env(candidate.name)) / what)],
    }[how]
    place = str(rooms.place(candidate.name))
    return [*begin, *(word.replace("{place}", place) for word in candidate.args)]


def lay_out(candidate, rooms):
    """A fresh working directory with small data in it; why not, or nothing."""
    place, home = rooms.place(candidate.name), rooms.home(candidate.name)
    for folder in (place, home):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name in filter(None, (candidate.data, candidate.name)):
        why = _make(candidate, rooms, GIVEN / name)
        if why:
            return why
    return ""


def _make(candidate, rooms, given):
    """Copy what is given and let its `make.py`, if there is one, write the rest."""
    if not given.is_dir():
        return ""
    place = rooms.place(candidate.name)
    shutil.copytree(given, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    maker = place / "make.py"
    if not maker.exists():
        return ""
    ended = subprocess.run(
        [str(rooms.python(candidate.name)), "make.py"],
        cwd=place,
        env=rooms.variables(candidate),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
    )
    maker.unlink()
    if ended.returncode == 0:
        return ""
    return (ended.stderr.strip().splitlines() or [f"exit {ended.returncode}"])[-1]

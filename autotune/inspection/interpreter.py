"""Facts about an interpreter, from a run of it: version, environment, packages; location of a module.

The run imports no code of the user: packages are located, not loaded.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BackendError, UsageError
from autotune.model.supported import OLDEST_PYTHON, python_refusal, torch_refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANSWER_S: Final = 60.0
"""A Python on a slow network disk may need long to start; a slower one hangs."""

_MARK: Final = "AUTOTUNE-FOUND "
# Must parse on Python 2.7, to report the version. The working directory is removed from the path first, as it
# may contain a json.py of the user.
_LOOK: Final = f"""
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import json
found = {{"version": list(sys.version_info[:3]), "prefix": sys.prefix, "versions": {{}}, "torch": False}}
if sys.version_info >= {OLDEST_PYTHON}:
    from importlib import metadata, util
    torch = util.find_spec("torch")
    found["torch"] = torch is not None
    for name in sys.argv[1:]:
        try:
            found["versions"][name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    if torch is not None and torch.origin and "torch" not in found["versions"]:
        # Built from source and put on the path, it has a file that says its version and no metadata.
        import os, re
        try:
            with open(os.path.join(os.path.dirname(torch.origin), "version.py")) as file:
                found_version = re.search("^__version__ = .(\\\\S+).$", file.read(), re.MULTILINE)
            found["versions"].update({{"torch": found_version.group(1)}} if found_version else {{}})
        except OSError:
            pass
print({_MARK!r} + json.dumps(found))
"""
# Parent packages are located without importing them, which only the script does.
_LOCATE: Final = f"""
import sys
here = sys.path[:1] == [""]
if here:
    del sys.path[0]
import json, os
if here:
    sys.path.insert(0, os.getcwd())
def find(name, path):
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
def locate(name):
    path, spec = None, None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = find(".".join(parts[:count]), path)
        if spec is None:
            return "", ".".join(parts[:count])
        path = spec.submodule_search_locations
        if path is None and count < len(parts):
            return "", ".".join(parts[: count + 1])
    if path is not None:
        return locate(name + ".__main__")
    return spec.origin or "", name
print({_MARK!r} + json.dumps(locate(sys.argv[1])))
"""
PACKAGES: Final = (
    "torch",
    "torchvision",
    "triton",
    "numpy",
    "accelerate",
    "lightning",
    "transformers",
    "timm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One Python interpreter.

    Args:
        path: Absolute path as given; symbolic links are not resolved, as they name virtual environments.
        version: ``3.12.1``.
        prefix: Root of its environment.
        has_torch: It finds a module called torch.
        versions: Versions of relevant packages, if installed.
    """

    path: str
    version: str
    prefix: str
    has_torch: bool
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_ours(self) -> bool:
        """Whether its environment is that of this process."""
        return os.path.realpath(self.prefix) == os.path.realpath(sys.prefix)

    @property
    def description(self) -> str:
        """Text ``/venv/bin/python (Python 3.12.1, torch 2.6.0)``."""
        torch = self.versions.get("torch", "of unknown version") if self.has_torch else ""
        return f"{self.path} (Python {self.version}, {f'torch {torch}' if torch else 'no torch'})"


@functools.cache
def interpreter(python: str, options: tuple[str, ...] = ()) -> Interpreter:
    """Run an interpreter to read its facts; once per process.

    Args:
        python: Absolute path.
        options: Its options, which affect its packages.

    Raises:
        UsageError: It cannot be run, or is not Python.
        BackendError: It or its PyTorch is too old, it is newer than supported, or it does not answer.
    """
    found = _answer([python, *options, "-c", _LOOK, *PACKAGES], python)
    reason = python_refusal(tuple(found["version"])) or torch_refusal(found["versions"].get("torch", ""))
    if reason:
        raise BackendError(
            f"a trial under {python} cannot be run: it {reason}",
            hint="name another interpreter: --python PATH",
        )
    version = ".".join(str(part) for part in found["version"])
    return Interpreter(
        path=python,
        version=version,
        prefix=found["prefix"],
        has_torch=found["torch"],
        versions=found["versions"],
    )


def module_file(python: str, module: str, *, options: Sequence[str] = (), cwd: str) -> str:
    """Return the file that ``python -m module`` would run from this folder; for a package its ``__main__``.

    Raises:
        UsageError: There is none.
    """
    path, name = _answer([python, *options, "-c", _LOCATE, module], python, cwd=cwd)
    if path and path.endswith(".py") and Path(path).is_file():
        return str(path)
    if path:
        raise UsageError(f"the module {module} has no source file: it is {path}")
    if name == f"{module}.__main__":
        raise UsageError(
            f"{module} is a package without a __main__.py", hint=f"name a module in it: -m {module}.train"
        )
    raise UsageError(
        f"{python} finds no module {name} from {cwd}",
        hint="start it where `python -m` works, or name the environment's interpreter: --python PATH",
    )


def _answer(command: list[str], python: str, *, cwd: str = "/") -> Any:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{python} did not answer within {ANSWER_S:.0f} s") from error
    except OSError as error:
        raise UsageError(f"{python} cannot be run: {error.strerror or error}") from error
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    raise UsageError(f"{python} is not a working Python: {last}", hint="name another one: --python PATH")

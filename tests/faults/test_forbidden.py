"""Our code runs no text and reads nothing that could run by being read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "autotune"
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "torch.load", "numpy.load"),
    *("asyncio.create_subprocess_shell", "code.interact", "runpy.run_path", "runpy.run_module"),
}
ALLOWED = {
    "trial/__main__.py": {"exec"},  # the user's own script, in the user's own process
    "trial/loop/replaced_constants.py": {"compile"},  # the user's own modules, with constants replaced
    "trial/hooks/data/pickle_check.py": {
        "pickle"
    },  # writes, to find out what a loader's workers could be sent; reads none
}


def names(node: ast.AST) -> str:
    """``a.b.c``, empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def found(root: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is forbidden."""
    for node in ast.walk(root):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            imported = []
        yield from (
            (node.lineno, name) for name in imported if name.split(".")[0] in MODULES or name in CALLS
        )
        if isinstance(node, ast.Call):
            name = names(node.func)
            if name in CALLS or (name.split(".")[-1] in ("loads", "load") and name.split(".")[0] in MODULES):
                yield node.lineno, name
            for keyword in node.keywords:
                fixed = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg == "shell" and not fixed:
                    yield node.lineno, "shell"


def in_package() -> dict[str, set[str]]:
    """File -> what it holds of it."""
    seen: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for _, name in found(ast.parse(path.read_text(encoding="utf-8"))):
            seen.setdefault(path.relative_to(PACKAGE).as_posix(), set()).add(name)
    return seen


@pytest.mark.thorough
def test_our_code_runs_no_text_and_unpickles_nothing() -> None:
    assert in_package() == ALLOWED


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "eval(text)",
        "exec(text)",
        "exec(compile(text, 'x', 'exec'))",
        "__import__(name)",
        "import os\nos.system('x')",
        "subprocess.run(line, shell=True)",
        "subprocess.run(line, shell=flag)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "from yaml import unsafe_load as f\nfrom yaml import unsafe_load",
        "import marshal",
    ],
)
def test_each_of_them_would_be_found(code: str) -> None:
    assert list(found(ast.parse(code)))

"""What linters do not see: single importers, the light root, a test per knob, forbidden calls."""

import ast
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.knobs.registry import builtin

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "autotune"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SINGLE_IMPORTERS = {
    "ray": "driver/backends/ray_tune.py",
    "optuna": "search/samplers/optuna_sampler.py",
    "mlflow": "report/mlflow/connection.py",
    "pynvml": "devices/nvidia.py",
}
FORBIDDEN_CALLS = {
    "eval": "runs text as code",
    "yaml.load": "use config_files/yaml.py",
    "yaml.unsafe_load": "use config_files/yaml.py",
    "yaml.full_load": "use config_files/yaml.py",
    "pickle.load": "runs what the file says",
    "pickle.loads": "runs what the bytes say",
    "marshal.loads": "runs what the bytes say",
    "os.system": "goes through a shell",
    "os.popen": "goes through a shell",
}


@functools.cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(root):
    """Full dotted names of everything a syntax tree imports, also inside functions."""
    for node in ast.walk(root):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif (
            isinstance(node, ast.Call)
            and dotted(node.func) in {"importlib.import_module", "import_module", "__import__"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)


def dotted(node):
    """`a.b.c` of a name or attribute, empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def forbidden(root):
    """Every forbidden call in a syntax tree: (line, what)."""
    for node in ast.walk(root):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in FORBIDDEN_CALLS:
            yield node.lineno, f"{name}: {FORBIDDEN_CALLS[name]}"
        for keyword in node.keywords:
            if keyword.arg == "shell" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                yield node.lineno, "shell=True: takes text from a file for a command"


KNOB_TABLES = {
    "model/config.py": "order of display, below the knobs in the layers",
    "model/knob_families.py": "families, some named like their first knob",
    "launch/fake.py": "scripts of the simulation",
    "space/build_space.py": "the two that bind each other's values",
    "export/formats/diff.py": "arguments of DataLoader",
    "export/formats/lightning.py": "arguments of DataLoader",
    "export/formats/parallel.py": "arguments of DistributedDataParallel",
    "export/formats/content.py": "the two that make one step together",
    "trial/hooks/data/loader_overrides.py": "arguments of DataLoader",
    "trial/hooks/distributed/data_parallel.py": "what this hook implements",
    "trial/hooks/distributed/settings.py": "what this hook implements",
}
"""Module-level tables of two and more knob names outside `knobs/`, and why they are there."""


def tables_of_knobs(root, names):
    """Lines of module-level assignments that hold two knob names or more."""
    for node in root.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            held = {n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)}
            if len(held & names) > 1:
                yield node.lineno


@pytest.mark.thorough
def test_what_is_known_of_a_knob_is_in_its_own_module():
    names = set(builtin())
    files = {
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if path.relative_to(PACKAGE).parts[0] not in ("knobs", "testing")
        and any(tables_of_knobs(tree(path), names))
    }
    assert files == set(KNOB_TABLES)


@pytest.mark.parametrize(("library", "importer"), SINGLE_IMPORTERS.items())
def test_a_backend_has_exactly_one_importer(library, importer):
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if any(name.split(".")[0] == library for name in imported_modules(tree(path)))
    }
    assert found == {importer}


def test_torch_is_imported_in_the_training_process_only():
    found = {
        path.relative_to(PACKAGE).parts[0]
        for path in SOURCES
        if any(name.split(".")[0] == "torch" for name in imported_modules(tree(path)))
    }
    assert found <= {"trial"}


def test_nobody_inside_the_package_imports_its_root():
    offenders = []
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            plain = isinstance(node, ast.Import) and any(a.name == "autotune" for a in node.names)
            member = (
                isinstance(node, ast.ImportFrom)
                and (node.module == "autotune" or node.level > 0)
                and any(not is_submodule(a.name) for a in node.names)
            )
            if plain or member:
                offenders.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert offenders == []


def is_submodule(name):
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def test_no_module_makes_a_forbidden_call():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}" for path in SOURCES for line, what in forbidden(tree(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code", ["eval('1')", "yaml.load(text)", "pickle.loads(b'')", "os.system('x')", "run(x, shell=True)"]
)
def test_the_search_for_forbidden_calls_finds_them(code):
    assert list(forbidden(ast.parse(code)))


def test_importing_the_package_in_a_function_is_found_too():
    root = ast.parse("def f():\n    import ray.tune\n    importlib.import_module('optuna')\n")
    assert set(imported_modules(root)) == {"ray.tune", "optuna"}


def knob_files():
    """Modules of knobs/ that define a knob: a class with a name of its own."""
    for path in (PACKAGE / "knobs").rglob("*.py"):
        classes = [node for node in tree(path).body if isinstance(node, ast.ClassDef)]
        named = [
            item
            for node in classes
            for item in node.body
            if isinstance(item, (ast.Assign, ast.AnnAssign))
            and "name"
            in {dotted(t) for t in (item.targets if isinstance(item, ast.Assign) else [item.target])}
            and isinstance(item.value, ast.Constant)
        ]
        if named:
            yield path.stem, [item.value.value for item in named]


def test_a_knob_is_one_file_of_its_own_name():
    found = dict(knob_files())
    assert found
    assert {stem: names for stem, names in found.items() if names != [stem]} == {}


def test_every_knob_has_a_test():
    tested = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "knobs").rglob("test_*.py")}
    assert {stem for stem, _ in knob_files()} - tested == set()


def modules_after(code, *arguments):
    """Names of the modules that are loaded after this code ran in a fresh interpreter."""
    script = f"import sys, json\n{code}\nprint('MODULES', json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("MODULES "))
    return set(json.loads(line.removeprefix("MODULES ")))


def test_importing_the_root_loads_the_standard_library_only():
    before = {name.split(".")[0] for name in modules_after("pass")}
    loaded = {name.split(".")[0] for name in modules_after("import autotune")} - before
    assert loaded - set(sys.stdlib_module_names) == {"autotune"}


def test_the_wiring_can_be_loaded_without_torch():
    loaded = {name.split(".")[0] for name in modules_after("import autotune.driver.tune")}
    assert loaded & {"torch", "ray", "mlflow", "pynvml"} == set()


def test_no_package_folder_is_without_an_init():
    missing = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(PACKAGE.rglob("*"))
        if path.is_dir() and any(path.glob("*.py")) and not (path / "__init__.py").exists()
    ]
    assert missing == []

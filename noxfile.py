"""The checks by name: lint, types, arch, tests, docs, e2e. `make NAME` is the same.

`support`, `lowest` and `newest` run the default tests under every interpreter of `PYTHONS` that is on the
PATH, `pytorch` those of the training process with real ones; docs/support.md tells what came of them.
"""

import nox
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PROJECT = nox.project.load_toml("pyproject.toml")["project"]
OLDEST_TORCH = "==2.6.0"

# The default tests start no PyTorch, and on Linux its wheels bring several GB of CUDA along: what only looks
# whether it is installed finds this.
STAND_IN = """
import pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_path("purelib"), "torch")
folder.mkdir(exist_ok=True)
(folder / "__init__.py").write_text("raise ImportError('a stand-in, only looked up')\\n")
(folder / "version.py").write_text("__version__ = '9.9.9+made'\\n")
"""

nox.options.sessions = ["lint", "types", "arch", "tests"]
nox.options.reuse_existing_virtualenvs = True


def install(session: nox.Session) -> None:
    session.install("-c", "constraints.txt", "-e", ".[dev]")


def needed(*, lowest: bool) -> list[str]:
    """What the package and its tests need but PyTorch, each at its lowest version where that is asked for."""
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]
    found = [Requirement(line) for line in lines]
    for need in found:
        if lowest:
            (floor,) = (part.version for part in need.specifier if part.operator == ">=")
            need.specifier = SpecifierSet(f"=={floor}")
    return [str(need) for need in found if need.name != "torch"]


def default_tests(session: nox.Session, *options: str, lowest: bool = False) -> None:
    session.install(*options, *needed(lowest=lowest))
    session.install("--no-deps", "-e", ".")
    session.run("python", "-c", STAND_IN)
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, rules and format."""
    session.install("ruff>=0.8")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Pyright, strict, on the package."""
    install(session)
    session.run("pyright", "--pythonpath", f"{session.bin}/python")


@nox.session
def arch(session: nox.Session) -> None:
    """Who may import whom."""
    install(session)
    session.run("lint-imports")


@nox.session
def tests(session: nox.Session) -> None:
    """The default run: no torch, Ray or MLflow started."""
    install(session)
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS, venv_backend="uv|virtualenv")
def support(session: nox.Session) -> None:
    """The default tests under each Python, with the versions of constraints.txt."""
    default_tests(session, "-c", "constraints.txt")


@nox.session(python=PYTHONS, venv_backend="uv|virtualenv")
def lowest(session: nox.Session) -> None:
    """The same with the lowest version of everything that pyproject.toml names."""
    default_tests(session, lowest=True)


@nox.session(python=PYTHONS, venv_backend="uv|virtualenv")
def newest(session: nox.Session) -> None:
    """The same with the newest versions that there are."""
    default_tests(session, "--upgrade")


@nox.session(python=(PYTHONS[0], PYTHONS[-1]), venv_backend="uv|virtualenv")
@nox.parametrize("torch", ["oldest", "newest"])
def pytorch(session: nox.Session, torch: str) -> None:
    """Tests of the training process with the oldest PyTorch and packages, and with the newest."""
    session.install(*needed(lowest=torch == "oldest"), f"torch{OLDEST_TORCH if torch == 'oldest' else ''}")
    session.install("--no-deps", "-e", ".")
    session.run("pytest", "-m", "not gpu and not slow", *(session.posargs or ["tests/trial"]))


@nox.session
def reference(session: nox.Session) -> None:
    """Write the generated pages: knobs, commands, and the index of decisions."""
    install(session)
    session.run("python", "-m", "autotune.testing.reference", "docs/knobs.md")
    session.run("python", "docs/tools/cli_reference.py", "docs/reference/cli.md")
    session.run("python", "docs/tools/decision_index.py", "docs/decisions/README.md")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into site/; a broken link fails."""
    session.install("-c", "constraints.txt", *PROJECT["optional-dependencies"]["docs"])
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session
def e2e(session: nox.Session) -> None:
    """Everything that runs without a GPU."""
    install(session)
    session.run("pytest", "-m", "not gpu", *session.posargs)

"""The checks by name: lint, types, arch, tests, e2e. `make NAME` is the same."""

import nox

nox.options.sessions = ["lint", "types", "arch", "tests"]
nox.options.reuse_existing_virtualenvs = True


def install(session: nox.Session) -> None:
    session.install("-c", "constraints.txt", "-e", ".[dev]")


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


@nox.session
def reference(session: nox.Session) -> None:
    """Write docs/knobs.md anew from the knobs."""
    install(session)
    session.run("python", "-m", "autotune.testing.reference", "docs/knobs.md")


@nox.session
def e2e(session: nox.Session) -> None:
    """Everything that runs without a GPU."""
    install(session)
    session.run("pytest", "-m", "not gpu", *session.posargs)

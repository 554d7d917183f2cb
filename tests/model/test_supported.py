"""Elsewhere than on Linux with a Python we know: one sentence and exit code 6, before all else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import autotune.__main__ as entry
from autotune.driver.exit_status import why_nothing
from autotune.errors import BackendError
from autotune.model import supported
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Stage

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

ELSEWHERE = [
    ("darwin", (3, 12, 1), "autotune runs on Linux only, and this is macOS"),
    ("win32", (3, 12, 1), "autotune runs on Linux only, and this is Windows"),
    ("freebsd14", (3, 12, 1), "autotune runs on Linux only, and this is freebsd14"),
    ("linux", (3, 9, 18), "autotune needs Python 3.10 to 3.13, and this is 3.9.18"),
    ("linux", (3, 14, 0), "autotune needs Python 3.10 to 3.13, and this is 3.14.0"),
    ("linux", (4, 0, 0), "autotune needs Python 3.10 to 3.13, and this is 4.0.0"),
]


@pytest.mark.parametrize(("platform", "version", "sentence"), ELSEWHERE)
def test_the_command_ends_with_6_and_one_sentence_elsewhere(
    platform: str,
    version: tuple[int, int, int],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = SimpleNamespace(platform=platform, version_info=(*version, "final", 0), stderr=sys.stderr)
    monkeypatch.setattr(entry, "sys", seen)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == BackendError.exit_code == 6
    assert tuple(capsys.readouterr()) == ("", f"error: {sentence}\n")


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_linux_with_each_python_from_3_10_to_3_13_does(minor: int) -> None:
    assert supported.refusal("linux", (3, minor, 0, "final", 0)) == ""


LOOK = """
import sys
sys.platform = "win32"
from autotune.__main__ import main
try:
    main()
finally:
    ours = {name for name in sys.modules if name.startswith("autotune.")}
    print(sorted(ours), sorted({"typer", "click", "rich", "fcntl"} & set(sys.modules)))
"""


def test_nothing_that_another_system_lacks_is_loaded_before_the_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (6, "error: autotune runs on Linux only, and this is Windows\n")
    ours = ["autotune.__main__", "autotune.errors", "autotune.model", "autotune.model.supported"]
    assert done.stdout == f"{ours} []\n"


@pytest.mark.parametrize("version", [(3, 7), (3, 8), (3, 9)])
def test_what_is_read_before_the_sentence_can_be_read_by_older_pythons(version: tuple[int, int]) -> None:
    """Their grammar, and no annotation that they would have to make sense of."""
    read = ["__init__", "__main__", "errors", "model/__init__", "model/supported"]
    for name in read:
        source = (ROOT / "autotune" / f"{name}.py").read_text(encoding="utf-8")
        tree = ast.parse(source, feature_version=version)
        typed = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AnnAssign))]
        postponed = "from __future__ import annotations" in source
        plain = all(ast.unparse(_annotation(node)) in ("None", "object", "bool", "str") for node in typed)
        assert postponed or plain, name


def _annotation(node: ast.FunctionDef | ast.AnnAssign) -> ast.expr:
    found = node.returns if isinstance(node, ast.FunctionDef) else node.annotation
    return found or ast.Constant(value=None)


def test_the_python_interface_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import autotune

    monkeypatch.setattr(autotune, "sys", SimpleNamespace(platform="win32", version_info=sys.version_info))
    with pytest.raises(BackendError, match="this is Windows"):
        _ = autotune.tune
    assert callable(autotune.step)


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("1.13.1", True),
        ("2.5.1+cu124", True),
        ("2.6.0", False),
        ("2.6.0a0+gitabc", False),
        ("2.13.0+cpu", False),
        ("3.0.0", False),
        ("", False),
        ("of our own make", False),
    ],
)
def test_pytorch_is_refused_by_its_version_alone(version: str, refused: bool) -> None:
    assert bool(supported.torch_refusal(version)) is refused


def test_a_first_run_that_its_pytorch_ended_is_the_machines_fault_and_not_the_scripts() -> None:
    from study_fakes import reported, spec

    sentence = "autotune needs PyTorch 2.6 or newer, and this is 2.5.1"
    evidence = {"error": supported.UNSUPPORTED, "traceback": sentence}
    failure = Failure(kind=FailureKind.CRASH_EXIT, message="x", evidence=evidence)
    error = why_nothing(Study(spec=spec(), trials=(reported(0, Config(), failure, Stage.BASELINE),)))
    assert (type(error), error.message) == (BackendError, sentence)
    assert "--python" in error.hint


def test_what_is_refused_is_what_the_package_says_of_itself() -> None:
    oldest, (major, newest) = supported.OLDEST_PYTHON, supported.NEWEST_PYTHON
    python = f">={'.'.join(map(str, oldest))},<{major}.{newest + 1}"
    assert f'requires-python = "{python}"' in PROJECT
    assert f'"torch>={".".join(map(str, supported.OLDEST_TORCH))}",' in PROJECT
    named = {int(n) for n in re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', PROJECT)}
    assert named == set(range(oldest[1], newest + 1))


def test_the_sessions_that_check_the_claims_run_under_what_is_claimed() -> None:
    sessions = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (pythons,) = re.findall(r"^PYTHONS = \((.*)\)$", sessions, re.MULTILINE)
    (major, oldest), (_, newest) = supported.OLDEST_PYTHON, supported.NEWEST_PYTHON
    assert re.findall(r'"([^"]+)"', pythons) == [f"{major}.{minor}" for minor in range(oldest, newest + 1)]
    assert f'\nOLDEST_TORCH = "=={".".join(map(str, supported.OLDEST_TORCH))}.0"\n' in sessions

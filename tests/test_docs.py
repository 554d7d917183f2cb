"""The commands, files and links of the documents: commands parse and run, files validate, links resolve.

What searches is left to `tests/e2e/test_docs.py`.
"""

import ast
import hashlib
import importlib.util
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from documents import DOCUMENTS, ROOT, SITE, blocks, commands, inline_commands, links, slugs

import autotune.driver
from autotune.cli.commands import doctor
from autotune.cli.main import _command, run

IDS = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
WRITTEN = [(path, line, words) for path in DOCUMENTS for line, words in commands(path)]
IN_TEXT = [(path, line, words) for path in DOCUMENTS for line, words in inline_commands(path)]
CHEAP = {
    ("--version",),
    ("doctor", "--json"),
    ("list", "-n", "5"),
    ("clean", "--dry-run"),
}


def named(row):
    path, line, words = row
    return f"{path.relative_to(ROOT)}:{line}:{words[0] if words else ''}"


def parsed(words, *, whole=True):
    """Hand the words to the real parser; raises what it raises.

    Args:
        whole: Complain about what is missing, too.
    """
    group = _command()
    name, *rest = words
    if name.startswith("-"):
        known = {"--help", *(option for parameter in group.params for option in parameter.opts)}
        assert name in known, f"autotune has no option {name}"
        return
    while True:
        assert name in group.commands, f"there is no verb {name}"
        verb = group.commands[name]
        if not getattr(verb, "commands", None) or not rest:
            break
        group, (name, *rest) = verb, rest
    try:
        # Below the command that it belongs to: a verb keeps the names of its help option from the first time.
        above = _command().make_context("autotune", ["list"], resilient_parsing=True)
        verb.make_context(name, list(rest), parent=above)
    except Exception as error:
        kind = type(error).__name__  # of one of two copies of click
        if kind not in ("Exit", "NoArgsIsHelpError") and (whole or kind != "MissingParameter"):
            raise


@pytest.mark.parametrize("row", WRITTEN, ids=named)
def test_a_command_of_a_block_is_one_that_there_is(row):
    parsed(row[2])


@pytest.mark.parametrize("row", IN_TEXT, ids=named)
def test_a_command_in_a_sentence_has_verbs_and_options_that_there_are(row):
    parsed(row[2], whole=False)


def test_there_are_commands_to_check_in_every_guide():
    found = {path.name for path, _, _ in WRITTEN}
    assert {"README.md", "starting.md", "tutorial.md", "platform.md", "report.md"} <= found
    assert len(WRITTEN) > 30
    assert len(IN_TEXT) > 30


@pytest.mark.parametrize(
    "words", [["search", "--budegt", "1h"], ["serch"], ["clean", "--all"], ["spaces", "lst"]]
)
def test_a_command_that_there_is_not_is_found(words):
    with pytest.raises(BaseException, match=r".+"):
        parsed(words)


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_a_file_that_a_command_names_is_in_the_repository(path):
    for block in blocks(path):
        if block.language not in ("", "sh"):
            continue
        for line in block.text.splitlines():
            if re.match(r"(\S*autotune|python3?|pip|\.venv)\b", line):
                for name in re.findall(r"\b(?:experiments|search_spaces|docs)/[\w./-]+\w", line):
                    assert (ROOT / name).exists(), f"{path.name}: {name}"


@pytest.mark.parametrize("path", [*DOCUMENTS, *SITE], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_a_heading_that_exist(path):
    for target, anchor in links(path):
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in slugs(there), f"{path.name}: {target}#{anchor}"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n"
        "p.add_argument('--batch-size', '-b', type=int)\n"
    )
    return tmp_path


@pytest.mark.parametrize("words", sorted(CHEAP))
def test_a_cheap_command_of_the_documents_runs(home, words, capsys):
    assert any(tuple(written) == words for _, _, written in WRITTEN), words
    assert run(list(words)) in (0, 6)  # 6: PyTorch is not installed where the default tests run
    assert capsys.readouterr().out


SPACE = "schema: autotune.space/v1"
YAML = [(path, b) for path in DOCUMENTS for b in blocks(path) if b.language == "yaml"]
SPACES = [row for row in YAML if SPACE in row[1].text]
PIPELINES = [row for row in YAML if SPACE not in row[1].text]
TOML = [(path, b) for path in DOCUMENTS for b in blocks(path) if b.language == "toml"]
PYTHON = [(path, b) for path in DOCUMENTS for b in blocks(path) if b.language == "python"]
JSON = [(path, b) for path in DOCUMENTS for b in blocks(path) if b.language == "json"]
SEARCHES = [row for row in PYTHON if "autotune.tune(" in row[1].text]


def at(row):
    return f"{row[0].relative_to(ROOT)}:{row[1].line}"


@pytest.mark.parametrize("row", SPACES, ids=at)
def test_a_space_file_of_a_page_is_valid(home, row, capsys):
    (home / "mine.yaml").write_text(row[1].text)
    assert run(["spaces", "validate", "./mine.yaml"]) == 0, capsys.readouterr().err


def pipeline_commands(text):
    """The shell lines of a GitHub Actions workflow, a GitLab pipeline, or the hooks of pre-commit."""
    pipeline = yaml.safe_load(text)
    if "repos" in pipeline:
        return [shlex.split(hook["entry"]) for repo in pipeline["repos"] for hook in repo["hooks"]]
    jobs = (
        pipeline["jobs"].values() if "jobs" in pipeline else [j for j in pipeline.values() if "script" in j]
    )
    lines = [step["run"] for job in jobs for step in job.get("steps", ()) if "run" in step]
    lines += [line for job in jobs for line in job.get("script", ())]
    return [shlex.split(line) for text in lines for line in text.splitlines()]


@pytest.mark.parametrize("row", PIPELINES, ids=at)
def test_a_pipeline_of_a_page_calls_commands_that_exist(row):
    found = [words[1:] for words in pipeline_commands(row[1].text) if words[0] == "autotune"]
    assert found, "a YAML block is a space file or a pipeline with commands of autotune"
    for words in found:
        parsed(words[: words.index(">")] if ">" in words else words)


def test_both_kinds_of_pipeline_are_documented():
    assert {"jobs" in yaml.safe_load(block.text) for _, block in PIPELINES} == {True, False}


@pytest.mark.parametrize("row", TOML, ids=at)
def test_a_toml_block_holds_settings_that_there_are(home, row):
    from autotune.config_files.settings import project_settings

    (home / "pyproject.toml").write_text(row[1].text)
    assert project_settings(home).values


@pytest.mark.parametrize("row", JSON, ids=at)
def test_a_json_block_is_json(row):
    assert json.loads(row[1].text)


@pytest.mark.parametrize("row", PYTHON, ids=at)
def test_a_python_block_is_python_and_imports_what_there_is(row):
    tree = ast.parse(row[1].text)
    named = [n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names]
    named += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert named
    for name in named:
        assert importlib.util.find_spec(name.split(".")[0]), name


@pytest.mark.parametrize("row", SEARCHES, ids=at)
def test_a_python_block_runs_over_a_search_that_runs_nothing(home, row, monkeypatch, capsys):
    from cli_fakes import FakeTune

    fake = FakeTune()
    monkeypatch.setitem(sys.modules, "autotune.driver.tune", fake)
    monkeypatch.setattr(autotune.driver, "tune", fake, raising=False)
    exec(compile(row[1].text, at(row), "exec"), {})
    assert len(fake.specs) == 1


def test_every_block_says_what_it_is_or_holds_commands_or_their_output():
    languages = {block.language for path in DOCUMENTS for block in blocks(path)}
    # text: usage and output, nothing to type
    assert languages <= {"", "text", "yaml", "toml", "python", "json"}


def test_the_exit_codes_of_the_documents_are_those_of_the_program():
    from autotune import errors
    from autotune.driver.exit_status import StoppedBySignal, StoppedEarly

    page = (ROOT / "docs" / "exit_codes.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.AutotuneError)]
    raised = {k.exit_code for k in (*kinds, StoppedEarly, StoppedBySignal)}
    from autotune.cli.commands.verify import EXIT_SLOWER

    assert listed == raised | {errors.EXIT_YES, errors.EXIT_NO, errors.EXIT_INCONCLUSIVE, EXIT_SLOWER}


def test_paths_of_documents_are_no_paths_of_one_machine():
    for path in DOCUMENTS:
        assert not re.search(r"(?<![\w.~-])/(root|tmp|work)/", path.read_text(encoding="utf-8")), path


# -- every command of a block, over a driver that runs nothing -------------------------------------

STUDIES = {
    "photos_denoise-1127-1831": "01KAK2M7Q4ZC0V9X3T5R8W6Y1A",
    "train-1121-1002": "01KAK2M7Q4ZC0V9X3T5R8W6Y1B",
    "train-1122-0900": "01KAK2M7Q4ZC0V9X3T5R8W6Y1C",
}
"""Labels of the documents' studies, oldest first."""
ELSEWHERE = ("my-console-script", "uv")
"""Programs that a test of the command line would have to install: `tests/inspection` tries them."""
DONE = {"doctor": (0, 6), "export": (0, 1), "inspect": (0, 3)}
"""3: the script trains nothing; 6: no PyTorch in the default tests; 1: no change has words in a format."""
OF_A_SERVICE = {"serve", "submit", "status", "cancel", "fetch", "admin"}
HERE = [
    row
    for row in WRITTEN
    if row[2][0] not in {"verify", "scale", *OF_A_SERVICE} and not {*ELSEWHERE} & {*row[2]}
]
"""All but what measures, which `tests/e2e` tries, and what needs a service, which `tests/service` tries."""


def searched(script):
    """A best.yaml and a small.yaml beside the current folder's script, of a search of it."""
    from study_fakes import changes_of, facts, good_answer, spec, study

    from autotune.export.best_config import write_best
    from autotune.model.facts import ScriptFacts

    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    known = replace(facts(), script=ScriptFacts(path=str(script), sha256=sha256))
    done = study(spec=spec(script=str(script), cwd=str(Path.cwd()), args=()), facts=known)
    for name in ("best.yaml", "small.yaml"):
        write_best(Path(name).absolute(), done, good_answer(), changes_of)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A home with the studies of the documents."""
    import journaled

    folder = tmp_path_factory.mktemp("kept")
    (folder / "train.py").write_text("print('trained')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(folder / "home"))
        for label, study_id in STUDIES.items():
            journaled.journaled(folder / "train.py", label=label, study_id=study_id)
    return folder / "home"


@pytest.fixture
def laid(home, kept, monkeypatch):
    """A folder in which the documents' commands find what they name."""
    from cli_fakes import FakeTune

    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(kept, home / "home")
    shutil.copytree(ROOT / "experiments" / "workloads", home / "experiments" / "workloads")
    train = home / "train.py"
    train.write_text(f"#!{sys.executable}\n{train.read_text()}")
    train.chmod(0o755)
    (home / "package").mkdir()
    (home / "package" / "__init__.py").touch()
    shutil.copy(train, home / "package" / "train.py")
    fake = FakeTune()
    monkeypatch.setitem(sys.modules, "autotune.driver.tune", fake)
    monkeypatch.setattr(autotune.driver, "tune", fake, raising=False)
    pages = dict.fromkeys(("answer", "table", "charts", "searches"), "/#/x")
    monkeypatch.setattr(
        "autotune.driver.sinks.sync.study_paths", lambda path, **more: ("http://tracker", pages)
    )
    monkeypatch.setattr("autotune.driver.sinks.sync.sync_study", lambda *given, **more: 0)
    monkeypatch.setattr("autotune.inspection.command_line.verify", lambda run: None)
    monkeypatch.setattr("autotune.launch.direct_run.run_plain", lambda launch, folder, **_: 0)
    answers = doctor.Finding(name="mlflow store", state="ok", text="it answers")
    monkeypatch.setattr(doctor, "_server", lambda uri, shown: answers)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    return home


@pytest.mark.parametrize("row", HERE, ids=named)
def test_a_command_of_a_block_ends_as_it_should(laid, row, capsys):
    path, _, words = row
    words = ["python" if word.endswith("/bin/python") else word for word in words]
    words = words[: words.index(">")] if ">" in words else words  # the shell's part
    if block := next((block for owner, block in SPACES if owner == path), None):
        (laid / "mine.yaml").write_text(block.text)
    named_script = next((word for word in words if word.endswith(".py")), "train.py")
    searched(laid / named_script)
    code = run(words)
    reported = capsys.readouterr()
    assert code in DONE.get(words[0], (0,)), reported.err
    assert reported.out + reported.err


def test_every_test_that_the_threat_model_names_is_there():
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    files = {match[1] for match in re.finditer(r"`(tests/[\w/]+\.py)", text)}
    names = {match[1] for match in re.finditer(r"`(?:tests/[\w/]+\.py::)?(test_\w+)`", text)}
    assert len(files) > 5
    assert len(names) > 10
    assert [name for name in files if not (ROOT / name).is_file()] == []
    written = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in names if f"def {name}(" not in written] == []

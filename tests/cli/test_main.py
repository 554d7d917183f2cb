"""Exit codes, help, start-up: what other programs rely on."""

import json
import subprocess
import sys
import time

import golden
import pytest
from cli_fakes import ended
from study_fakes import no_answer

from autotune import errors

SEARCH = ("search", "--script", "train.py", "--budget", "10m", "--driver", "inline")


def raising(error):
    def end(spec):
        raise error

    return end


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (0, ended),
        (1, lambda spec: ended(spec, answer=no_answer(), code=1)),
        (2, raising(errors.InvalidSpace("the space is empty"))),
        (3, raising(errors.ScriptError("train.py fails by itself"))),
        (4, raising(errors.NothingFeasible("nothing fits"))),
        (5, raising(errors.StudyLocked("another driver writes"))),
        (6, raising(errors.RayUnavailable("no Ray"))),
        (70, raising(errors.AutotuneError("impossible"))),
        (70, raising(ValueError("a bug"))),
        (70, raising(SystemExit(1))),
        (75, lambda spec: ended(spec, code=75)),
        (130, lambda spec: ended(spec, code=130)),
        (130, raising(KeyboardInterrupt())),
    ],
)
def test_every_exit_code_is_the_documented_one(cli, script, tune, code, end):
    tune.end = end
    assert cli(*SEARCH)[0] == code


def test_exit_zero_turns_no_into_zero_and_leaves_the_rest(cli, script, tune):
    tune.end = lambda spec: ended(spec, answer=no_answer(), code=1)
    assert cli(*SEARCH, "--exit-zero")[0] == 0
    tune.end = lambda spec: ended(spec, code=130)
    assert cli(*SEARCH, "--exit-zero")[0] == 130
    tune.end = raising(errors.ScriptError("fails"))
    assert cli(*SEARCH, "--exit-zero")[0] == 3


def test_an_error_shows_message_and_hint_on_stderr_only(cli, script, tune):
    tune.end = raising(errors.NothingFeasible("nothing fits into 1 GiB", hint="raise --max-memory"))
    _code, out, err = cli(*SEARCH, "--quiet")
    assert (out, err) == ("", "error: nothing fits into 1 GiB\nhint: raise --max-memory\n")


def test_an_uncaught_exception_asks_for_a_report_and_keeps_the_traceback(
    cli, script, tune, tmp_path, monkeypatch
):
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MY_TOKEN", "canary-secret-1")
    tune.end = raising(ZeroDivisionError("canary-secret-1"))
    code, _out, err = cli(*SEARCH, "--quiet")
    assert code == 70
    assert "Traceback" not in err
    assert "autotune doctor" in err
    log = (tmp_path / "home" / "errors.log").read_text()
    assert "ZeroDivisionError" in log
    assert "canary-secret-1" not in log


def test_debug_shows_the_traceback(cli, script, tune, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_DEBUG", "1")
    tune.end = raising(ZeroDivisionError("x"))
    assert "Traceback" in cli(*SEARCH)[2]


def test_an_unwritable_home_does_not_change_the_code_of_a_bug(cli, script, tune, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    tune.end = raising(ValueError("x"))
    monkeypatch.setattr("autotune.store.paths.home", lambda: tmp_path / "file" / "home")
    assert cli(*SEARCH)[0] == 70


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["search", "--script", "train.py", "--budgt", "1h"], "--budget"),
        (["search", "--script", "train.py"], "--budget"),
        (["serach"], "search"),
        (["search", "--script", "train.py", "--budget", "1h", "--trials", "many"], "--trials"),
        (["apply"], "best.yaml"),
    ],
)
def test_wrong_command_lines_end_with_2_and_name_the_word(cli, script, tune, argv, said):
    code, out, err = cli(*argv)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert tune.specs == []


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m autotune inspect --knobs | head -1", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


@pytest.mark.parametrize(
    "verb", [[], ["search"], ["apply"], ["resume"], ["list"], ["show"], ["doctor"], ["sync"], ["inspect"]]
)
def test_every_verb_has_help(cli, verb):
    code, out, err = cli(*verb, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("Usage: autotune")


@pytest.mark.parametrize("verb", ["", "search", "apply"])
def test_help_is_as_it_was(cli, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "100")
    golden.check(f"help{'_' if verb else ''}{verb}.txt", cli(*([verb] if verb else []), "--help")[1])


HEAVY = ["torch", "ray", "optuna", "mlflow", "pynvml", "pandas", "scipy", "plotly", "numpy", "yaml"]
PROBE = f"""
import sys
from autotune.cli.main import run
code = run(sys.argv[1:])
print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["search", "--help"]])
def test_help_and_version_load_nothing_heavy(argv):
    done = subprocess.run([sys.executable, "-c", PROBE, *argv], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "argv", [["search", "--script", "no.py", "--budget", "1h"], ["inspect", "--knobs"], ["list"]]
)
def test_errors_and_looking_load_no_backend(argv):
    done = subprocess.run([sys.executable, "-c", PROBE, *argv], capture_output=True, text=True)
    loaded = set(json.loads(done.stderr.strip().splitlines()[-1].replace("'", '"')))
    assert not loaded & {"torch", "ray", "optuna", "mlflow", "pynvml", "pandas"}


def test_help_answers_at_once():
    def seconds():
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "autotune", "--help"], capture_output=True, check=True)
        return time.monotonic() - began

    # The list of modules above is the assertion; this is the alarm, wide enough for a busy machine.
    assert min(seconds() for _ in range(3)) < 1.5


def test_version_is_the_installed_one(cli):
    from importlib.metadata import version

    assert cli("--version")[1] == f"autotune {version('autotune-training')}\n"


def test_errors_read_as_they_did(cli, script, tune):
    told = []
    for argv in (
        ["--script", "trian.py", "--budget", "10m"],
        ["--script", "train.py", "--budget", "90"],
        ["--script", "train.py", "--budget", "10s"],
        ["--script", "train.py", "--budget", "10m", "--space", "quik"],
        ["--script", "train.py", "--budget", "10m", "--fix", "precison=bf16"],
        ["--script", "train.py", "--budget", "10m", "--effective-batch", "9..3"],
        ["--script", "train.py", "--buget", "10m"],
        ["--budget", "10m", "--", "accelerate", "launch", "train.py"],
    ):
        told += [f"$ autotune search {' '.join(argv)}\n", cli("search", *argv)[2]]
    golden.check("errors.txt", "".join(told))

"""Exit codes, help, start-up: what other programs rely on."""

import errno
import json
import os
import shlex
import stat
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


def test_a_verb_that_ends_the_process_has_failed_whatever_its_code(cli, script, tune):
    tune.end = raising(SystemExit(0))
    assert cli(*SEARCH)[0] == 70
    assert cli(*SEARCH, "--", "--show-completion")[0] == 70, "the script's own word"


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
    assert stat.S_IMODE((tmp_path / "home" / "errors.log").stat().st_mode) == 0o600
    log = (tmp_path / "home" / "errors.log").read_text()
    assert "ZeroDivisionError" in log
    assert "canary-secret-1" not in log


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("cause", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_what_the_machine_lacks_is_no_mistake_of_the_user_and_no_bug(cli, script, tune, more, cause):
    wrong = errors.UsageError("train.py cannot be read: Too many open files")
    wrong.__cause__ = cause
    for error in (cause, wrong):
        tune.end = raising(error)
        code, out, err = cli(*SEARCH, "--quiet", *more)
        assert code == 6
        assert ("too many files are open" in err) is isinstance(cause, OSError)
        assert "internal error" not in err
        assert "hint: " in err
        if more:
            assert (json.loads(out)["exit"], json.loads(out)["error"]["kind"]) == (6, "BackendError")


@pytest.mark.parametrize(
    ("first", "second", "code", "text"),
    [
        (MemoryError(), AttributeError("x"), 6, "error: there is not enough memory"),
        (KeyError("canary"), MemoryError(), 6, "error: there is not enough memory"),
        (KeyError("canary"), AttributeError("canary"), 70, "error: internal error: KeyError\n"),
    ],
)
def test_an_error_of_which_the_message_cannot_be_made_is_still_one_line(
    cli, script, tune, monkeypatch, first, second, code, text
):
    tune.end = raising(first)
    monkeypatch.setattr("autotune.cli.outcome.say_error", lambda _: raising(second)(None))
    got, _out, err = cli(*SEARCH, "--quiet")
    assert got == code
    assert err.startswith(text)
    assert err.count("\n") == 1
    assert "canary" not in err


def test_debug_shows_the_traceback(cli, script, tune, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_DEBUG", "1")
    tune.end = raising(ZeroDivisionError("x"))
    assert "Traceback" in cli(*SEARCH)[2]


def test_a_pipe_of_ours_that_breaks_is_no_reader_that_went_away(cli, script, tune):
    tune.end = raising(BrokenPipeError(errno.EPIPE, "a worker is gone"))
    code, _out, err = cli(*SEARCH)
    assert code == 70
    assert "internal error" in err


@pytest.mark.parametrize("argv", [["inspect", "--knobs"], ["list", "--json"], ["schema", "space"]])
def test_output_that_nobody_reads_is_no_error(argv):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *argv], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


BREAKS = """
import sys
from autotune.cli import main
from autotune.cli.commands import search
from autotune.inspection import command_line as command
def broken(*args, **more):
    raise ZeroDivisionError("canary-secret-1")
command.read_command = broken
sys.argv = ["autotune", "search", "--script", "x.py", "--budget", "1h", *sys.argv[1:]]
main.main()
"""


@pytest.mark.parametrize("more", [[], ["--json"], ["--jsonl"]])
def test_an_internal_error_prints_no_traceback_and_no_secret(more, tmp_path):
    given = {**os.environ, "MY_TOKEN": "canary-secret-1", "AUTOTUNE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BREAKS, *more], capture_output=True, text=True, env=given, cwd=tmp_path
    )
    assert done.returncode == 70
    assert "Traceback" not in done.stderr
    assert "internal error: ZeroDivisionError" in done.stderr
    assert "canary" not in done.stdout + done.stderr + (tmp_path / "errors.log").read_text()
    if more:
        (line,) = [json.loads(done.stdout)]
        assert (line["exit"], line["error"]["kind"]) == (70, "InternalError")


LEAVES = """
import atexit, threading
from autotune.cli import main
class Held:
    def __del__(self):
        print("freed")
held = Held()
def last():
    threading.main_thread().join()
    print("thread")
def answered(argv):
    atexit.register(print, "exit function")
    threading.Thread(target=last).start()
    print("answer")
    return 8
main.run = answered
main.main()
"""


def test_threads_and_exit_functions_end_and_nothing_is_freed_one_by_one():
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (8, "")
    assert done.stdout.splitlines() == ["answer", "thread", "exit function"]


LOGS = """
import logging, sys
from autotune.cli import main
def noisy(argv):
    try:
        raise OSError("the disk, canary-secret-1")
    except OSError:
        logging.getLogger("autotune.driver.tune").exception("a listener failed; the search continues")
    logging.getLogger("autotune.driver.sinks.sync").warning("MLflow is away")
    return 0
main.run = noisy
main.main()
"""


def test_what_is_logged_on_the_way_is_a_line_without_traceback_or_secret():
    given = {**os.environ, "MY_TOKEN": "canary-secret-1"}
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, env=given)
    assert done.stderr.splitlines() == [
        "error: a listener failed; the search continues: OSError: the disk, <redacted:MY_TOKEN>",
        "warning: MLflow is away",
    ]
    given["AUTOTUNE_DEBUG"] = "1"
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, env=given)
    assert "Traceback" in done.stderr
    assert "canary" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "end", "code", "kind"),
    [
        (["search", "--budgt", "1h", "--json"], ended, 2, "UsageError"),
        (["search", "--script", "train.py", "--budget", "x", "--jsonl"], ended, 2, "InvalidBudget"),
        ([*SEARCH, "--json"], raising(KeyboardInterrupt()), 130, "Interrupted"),
        ([*SEARCH, "--json"], raising(errors.AutotuneError("impossible")), 70, "AutotuneError"),
        ([*SEARCH, "--json"], raising(errors.ScriptError("it fails")), 3, "ScriptError"),
        (["spaces", "show", "qiuck", "--json"], ended, 2, "InvalidSpace"),
        (["spaces", "list", "--jsn", "--json"], ended, 2, "UsageError"),
        (["clean", "--json"], ended, 2, "UsageError"),
    ],
)
def test_json_is_requested_and_an_error_is_one_object_whatever_it_is(
    cli, script, tune, argv, end, code, kind
):
    tune.end = end
    got, out, _err = cli(*argv)
    reported = json.loads(out)
    assert (got, reported["exit"], reported["error"]["kind"]) == (code, code, kind)
    assert reported["schema"] == "autotune.result/v1"


def test_the_words_of_the_script_do_not_ask_for_json(cli, script, tune):
    tune.end = raising(errors.ScriptError("it fails"))
    assert cli(*SEARCH, "--", "--json")[1] == ""


def test_an_error_that_has_saved_something_says_so(cli, script, tune):
    def end(spec):
        error = RuntimeError("a bug")
        errors.add_note(error, "the best so far is in best.yaml")
        raise error

    tune.end = end
    _code, out, err = cli(*SEARCH, "--json")
    assert "note: the best so far is in best.yaml\n" in err
    assert json.loads(out)["error"]["notes"] == ["the best so far is in best.yaml"]


def test_an_unwritable_home_does_not_change_the_code_of_a_bug(cli, script, tune, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    tune.end = raising(ValueError("x"))
    monkeypatch.setattr("autotune.store.paths.home", lambda: tmp_path / "file" / "home")
    assert cli(*SEARCH)[0] == 70


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["search", "--script", "train.py", "--budgt", "1h"], "--budget"),
        (["search"], "no script is given"),
        (["serach"], "search"),
        (["search", "--script", "train.py", "--budget", "1h", "--trials", "many"], "--trials"),
        (["apply"], "best.yaml"),
    ],
)
def test_wrong_command_lines_end_with_2_and_name_the_word(cli, script, tune, argv, message):
    code, out, err = cli(*argv)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert tune.specs == []


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m autotune inspect --knobs | head -1",
        shell=True,
        capture_output=True,
        text=True,
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


HEAVY = [
    *("torch", "ray", "optuna", "mlflow", "pynvml"),
    *("pandas", "scipy", "plotly", "numpy", "sklearn", "yaml"),
]
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
    reported = []
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
        reported += [f"$ autotune search {' '.join(argv)}\n", cli("search", *argv)[2]]
    golden.check("errors.txt", "".join(reported))

"""What follows `--` is understood as Python would, and the interpreter is the one the user means."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import environment, pretend_torch, program

from autotune.errors import BackendError, UsageError
from autotune.inspection.command_line import check_one_machine, read_command, verify
from autotune.inspection.interpreter import interpreter
from autotune.model.distributed_launch import (
    launch_variables,
    launch_words,
    nodes_of,
    rank_words,
    ranks_of,
    with_ranks,
)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a script and a package, in a shell with nothing activated and nothing on the path."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "HF_HOME", "UV_PROJECT_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise RuntimeError('looked up, not run')\n")
    (tmp_path / "package" / "train.py").write_text("")
    return tmp_path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of another environment, which has (what looks like) PyTorch."""
    python = environment(tmp_path_factory.mktemp("other") / "env")
    pretend_torch(python.parents[1])
    return python


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of an environment with nothing in it."""
    return environment(tmp_path_factory.mktemp("bare") / "env")


# Words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "options", "args"),
    [
        (["python", "train.py", "--lr", "1e-3"], (), ("--lr", "1e-3")),
        (["python3", "-u", "train.py"], ("-u",), ()),
        (["python", "-OO", "-B", "train.py", "-u"], ("-OO", "-B"), ("-u",)),
        (["python", "-X", "dev", "-Wignore", "train.py"], ("-X", "dev", "-Wignore"), ()),
        (["python", "-uW", "error", "train.py"], ("-uW", "error"), ()),
        (["python", "-Xfrozen_modules=off", "train.py", "--", "x"], ("-Xfrozen_modules=off",), ("--", "x")),
        (
            ["python", "--check-hash-based-pycs", "never", "train.py"],
            ("--check-hash-based-pycs", "never"),
            (),
        ),
        (["train.py", "--python", "-m"], (), ("--python", "-m")),
    ],
)
def test_options_of_the_interpreter_are_kept_apart_from_those_of_the_script(
    project: Path, words: list[str], options: tuple[str, ...], args: tuple[str, ...]
) -> None:
    command = read_command(words)
    assert (command.script, command.options, command.args) == (str(project / "train.py"), options, args)
    assert (command.module, command.title, command.python) == ("", "train.py", sys.executable)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["python", "-m", "package.train", "--x"], ()),
        (["python", "-mpackage.train", "--x"], ()),
        (["python", "-um", "package.train", "--x"], ("-u",)),
        (["python", "-O", "-X", "dev", "-m", "package.train", "--x"], ("-O", "-X", "dev")),
    ],
)
def test_a_module_is_found_as_python_finds_it_and_nothing_is_imported(
    project: Path, words: list[str], options: tuple[str, ...]
) -> None:
    command = read_command(words)
    assert (command.module, command.options, command.args) == ("package.train", options, ("--x",))
    assert command.script == command.inspected == str(project / "package" / "train.py")
    assert command.title == "package.train"


def test_a_package_is_run_by_its_main_module(project: Path) -> None:
    (project / "package" / "__main__.py").write_text("")
    assert read_command(["python", "-m", "package"]).script == str(project / "package" / "__main__.py")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([], "no script is given", "--script"),
        (["python"], "no script follows", "train.py"),
        (["python", "-u"], "no script follows", "train.py"),
        (["python", "-"], "standard input", "name a file"),
        (["python", "-c", "print(1)"], "-c cannot be carried over", "script file or a module"),
        (["python", "-ui", "train.py"], "-i cannot be carried over", "script file"),
        (["python", "--version"], "--version cannot be carried over", ""),
        (["python", "-m"], "no module follows", "package.train"),
        (["python", "-m", "package"], "package without a __main__", "-m package.train"),
        (["python", "-m", "pakage.train"], "finds no module pakage from", "--python"),
        (["python", "-m", "package.trian"], "finds no module package.trian", ""),
        (["python", "-m", "sys"], "no source file", ""),
        (["-m", "package.train"], "-m is not a script", "python -m package.train"),
        (["trian.py"], "no script trian.py", 'Did you mean "train.py"?'),
        (["./package"], "is a folder", "train.py"),
        (["A=1", "python", "train.py"], "'A=1' is not a script", "set A before autotune"),
        (["python2.6", "train.py"], "no interpreter python2.6 on the PATH", ""),
        (["./python9", "train.py"], "no interpreter ./python9", ""),
    ],
)
def test_what_cannot_be_started_again_and_again_is_refused_with_a_remedy(
    words: list[str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        read_command(words)
    assert message in raised.value.message
    assert hint in raised.value.hint


# Scripts that name their interpreter ---------------------------------------------------------


def test_a_script_is_run_by_the_interpreter_of_its_first_line(project: Path, other: Path) -> None:
    program(project / "run.py", f"#!{other} -u\n")
    command = read_command(["./run.py", "--lr", "1"])
    assert (command.python, command.options, command.args) == (str(other), ("-u",), ("--lr", "1"))
    assert read_command(["./run.py"], python=sys.executable).python == sys.executable


def test_a_first_line_counts_only_where_the_file_can_be_started_by_itself(project: Path, other: Path) -> None:
    (project / "plain.py").write_text(f"#!{other}\n")
    assert read_command(["plain.py"]).python == sys.executable
    assert read_command([], script="plain.py").python == sys.executable


def test_env_in_a_first_line_means_what_python_means(project: Path, other: Path) -> None:
    program(project / "run.py", "#!/usr/bin/env -S python3 -B\n")
    assert read_command(["./run.py"]).python == sys.executable
    (project / "bin" / "python3").symlink_to(other)
    assert read_command(["./run.py"]).options == ("-B",)


@pytest.mark.parametrize("text", ["#!/bin/sh\npython train.py\n", "\x7fELF\0\0"])
def test_a_program_that_is_no_python_is_refused(project: Path, text: str) -> None:
    program(project / "run", text)
    with pytest.raises(UsageError, match="not a Python script") as raised:
        read_command(["./run"])
    assert "-- python train.py" in raised.value.hint


CONSOLE = """#!{python}
import sys
from package.train import main
if __name__ == "__main__":
    sys.exit(main())
"""


def test_behind_a_console_script_the_module_that_it_calls_is_read(
    project: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(project / "bin" / "package-train", CONSOLE.format(python=other))
    monkeypatch.setenv("PYTHONPATH", str(project))
    command = read_command(["package-train", "--lr", "1"])
    assert (command.script, command.python, command.args) == (str(path), str(other), ("--lr", "1"))
    assert command.inspected == str(project / "package" / "train.py")


def test_an_installers_long_first_line_is_understood(project: Path, other: Path) -> None:
    path = project / "bin" / "package-train"
    program(path, CONSOLE.format(python="/bin/sh\n'''exec' " + f'"{other}"' + ' "$0" "$@"\n' + "' '''"))
    assert read_command(["package-train"]).python == str(other)


# Which interpreter ---------------------------------------------------------------------------


def test_the_named_interpreter_counts_before_everything_and_is_reported(other: Path, bare: Path) -> None:
    command = read_command([str(bare), "train.py"], python=str(other))
    assert command.python == str(other)
    (note,) = command.notes
    assert note.startswith(f"train.py is run by {other} (Python 3.")
    assert "torch 9.9.9+made" in note
    assert read_command([str(bare), "train.py"]).python == str(bare)


def test_an_environment_may_be_named_by_its_folder(other: Path) -> None:
    assert read_command([], script="train.py", python=str(other.parents[1])).python == str(other)


def test_our_own_interpreter_needs_no_word(project: Path) -> None:
    assert read_command([], script="train.py").notes == ()
    (project / "bin" / "python").symlink_to(sys.executable)
    assert read_command(["python", "train.py"], python=sys.executable).notes == ()


@pytest.mark.parametrize("words", [["python", "train.py"], ["train.py"]])
def test_an_active_environment_with_torch_is_what_python_means(
    words: list[str], other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(other.parents[1]))
    command = read_command(words)
    assert command.python == str(other)
    assert str(other) in command.notes[0]
    assert read_command([], script="train.py").python == str(other)


def test_one_without_torch_is_passed_over_and_reported(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(bare.parents[1]))
    command = read_command([], script="train.py")
    assert command.python == sys.executable
    assert f"{bare} has no torch" in command.notes[0]


def test_an_active_environment_that_does_not_do_is_passed_over_and_reported(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(project / "env" / "bin" / "python", says("[3, 12, 1]", "2.5.1"))
    monkeypatch.setenv("VIRTUAL_ENV", str(project / "env"))
    command = read_command([], script="train.py")
    assert command.python == sys.executable
    assert "it needs PyTorch 2.6 or newer, and this is 2.5.1; name another one" in command.notes[0]


def test_condas_base_is_not_taken_for_a_choice(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", str(other.parents[1]))
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
    assert read_command([], script="train.py").python == sys.executable
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "work")
    assert read_command([], script="train.py").python == str(other)


def test_an_environment_beside_the_script_is_named_but_not_taken(project: Path) -> None:
    environment(project / ".venv")
    command = read_command([], script="train.py")
    assert command.python == sys.executable
    assert command.notes[0].endswith("--python .venv/bin/python")


def test_dots_are_taken_out_of_an_interpreters_path_and_its_own_link_is_not(project: Path) -> None:
    environment(project / "env")
    (project / "sub").mkdir()
    command = read_command([], script="train.py", python="sub/../env/bin/python")
    assert command.python == str(project / "env" / "bin" / "python")
    assert interpreter(command.python).prefix == str(project / "env")


# Whether trials can run under it -------------------------------------------------------------


def says(version: str, torch: str) -> str:
    """The text of an interpreter that answers so."""
    answer = f'{{"version": {version}, "prefix": "/", "versions": {{"torch": "{torch}"}}, "torch": true}}'
    return f"#!/bin/sh\necho 'AUTOTUNE-FOUND {answer}'\n"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("#!/bin/sh\nexit 3\n", UsageError, "not a working Python: it ended with code 3"),
        ("#!/bin/sh\necho no such library >&2\nexit 1\n", UsageError, "no such library"),
        ("#!/no/such/loader\n", UsageError, "cannot be run"),
        (says("[3, 8, 1]", "2.9.1"), BackendError, r"needs Python 3\.10 to 3\.13, and this is 3\.8\.1"),
        (says("[3, 14, 0]", "2.9.1"), BackendError, r"needs Python 3\.10 to 3\.13, and this is 3\.14\.0"),
        (says("[3, 12, 1]", "2.5.1+cu124"), BackendError, r"PyTorch 2\.6 or newer, and this is 2\.5\.1"),
    ],
)
def test_an_interpreter_that_does_not_do_is_named_with_the_reason(
    project: Path, text: str, kind: Any, message: str
) -> None:
    path = program(project / "python", text)
    with pytest.raises(kind, match=message) as raised:
        verify(read_command([], script="train.py", python=str(path)))
    assert str(path) in raised.value.message


def test_a_file_without_the_right_to_run_it_is_no_interpreter(project: Path) -> None:
    (project / "python").write_text("")
    with pytest.raises(UsageError, match="may not be executed"):
        read_command([], script="train.py", python="./python")


def test_torch_is_requested_only_where_the_script_imports_it(project: Path, bare: Path) -> None:
    with pytest.raises(BackendError, match=r"train.py imports torch, and .* has none"):
        verify(read_command([], script="train.py", python=str(bare)))
    (project / "train.py").write_text("import math\n")
    assert not verify(read_command([], script="train.py", python=str(bare))).has_torch


# Launchers -----------------------------------------------------------------------------------


def test_uv_stands_for_the_interpreter_of_its_project(project: Path) -> None:
    (project / "pyproject.toml").write_text("")
    python = environment(project / ".venv")
    for words in (["python", "-u", "train.py"], ["--frozen", "train.py"], ["--", "python", "train.py"]):
        command = read_command(["uv", "run", *words])
        assert (command.python, command.script) == (str(python), str(project / "train.py"))
    assert read_command(["uv", "run", "-m", "package.train"]).module == "package.train"
    path = program(project / ".venv" / "bin" / "mytrain", f"#!{python}\n")
    assert read_command(["uv", "run", "mytrain"]).script == str(path)
    assert read_command(["uv", "run", "train.py"], python=sys.executable).python == sys.executable


def test_poetry_is_queried_for_its_interpreter(project: Path, other: Path) -> None:
    program(
        project / "bin" / "poetry",
        f'#!/bin/sh\n[ "$1 $2 $3" = "env info --executable" ] && echo {other}\n',
    )
    command = read_command(["poetry", "run", "python", "train.py", "--lr", "1"])
    assert (command.python, command.args) == (str(other), ("--lr", "1"))
    program(project / "bin" / "poetry", "#!/bin/sh\nexit 1\n")
    with pytest.raises(UsageError, match="no environment here yet"):
        read_command(["poetry", "run", "python", "train.py"])


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py", "--lr", "1"],
        ["torchrun", "--standalone", "--nproc_per_node=1", "--master-port", "1", "train.py", "--lr", "1"],
        ["python", "-m", "torch.distributed.run", "--nproc-per-node", "1", "train.py", "--lr", "1"],
        ["accelerate", "launch", "--num_processes", "1", "train.py", "--lr", "1"],
    ],
)
def test_a_launcher_of_one_process_is_taken_for_its_script_and_reported(
    project: Path, words: list[str]
) -> None:
    command = read_command(words)
    assert (command.script, command.args) == (str(project / "train.py"), ("--lr", "1"))
    assert "one process" in command.notes[0]
    assert command.launcher == ("accelerate" if "accelerate" in words else "torchrun")


@pytest.mark.parametrize(("text", "count"), [("2", 2), ("cpu", os.cpu_count()), ("auto", os.cpu_count())])
def test_torchrun_starts_so_many_processes_unchanged_reported(project: Path, text: str, count: int) -> None:
    command = read_command(["torchrun", "--nproc-per-node", text, "train.py", "--lr", "1"])
    assert (command.script, command.args) == (str(project / "train.py"), ("--lr", "1"))
    assert ranks_of(command.launcher) == count
    assert f"WORLD_SIZE={count}" in command.notes[0]


def test_torchruns_options_may_be_variables(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    assert ranks_of(read_command(["torchrun", "train.py"]).launcher) == 3
    assert ranks_of(read_command(["torchrun", "--nproc-per-node", "2", "train.py"]).launcher) == 2
    monkeypatch.setenv("PET_NNODES", "2")
    assert nodes_of(read_command(["torchrun", "train.py"]).launcher) == 2
    assert ranks_of(read_command(["torchrun", "--nnodes", "1", "train.py"]).launcher) == 3
    monkeypatch.setenv("PET_NO_PYTHON", "1")
    with pytest.raises(UsageError, match="PET_NO_PYTHON=1 cannot be carried over"):
        read_command(["torchrun", "--nnodes", "1", "train.py"])


def test_several_machines_are_for_a_search_on_a_cluster(project: Path) -> None:
    words = ["torchrun", "--nnodes", "2", "--nproc-per-node", "3", "--rdzv-endpoint", "h:29500", "train.py"]
    command = read_command(words, python=sys.executable)
    assert (command.launcher, nodes_of(command.launcher), ranks_of(command.launcher)) == (
        "torchrun --nnodes 2 --nproc-per-node 3", 2, 3
    )  # fmt: skip
    assert "3 processes on each of 2 machines" in command.notes[0]
    assert launch_variables(command.launcher, {})["WORLD_SIZE"] == "6"
    with pytest.raises(UsageError, match="starts processes on several machines, and this runs on one"):
        check_one_machine(command)
    check_one_machine(read_command(["torchrun", "--nproc-per-node", "3", "train.py"], python=sys.executable))


def test_what_torchrun_does_beside_starting_is_left_out_and_reported(project: Path) -> None:
    words = ["--max-restarts", "3", "-t", "3", "--monitor-interval", "1", "train.py"]
    command = read_command(["torchrun", "--nproc-per-node=2", *words])
    assert command.notes[0].endswith("left out: --max-restarts 3, -t 3")


def test_the_older_launcher_reports_its_processes_their_numbers_by_an_option(project: Path) -> None:
    words = ["python", "-m", "torch.distributed.launch"]
    one = read_command([*words, "train.py", "--lr", "1"])
    assert (one.args, one.launcher) == (("--local-rank=0", "--lr", "1"), "torchrun")
    two = read_command([*words, "--nproc_per_node=2", "--use_env", "train.py", "--lr", "1"])
    assert (two.args, ranks_of(two.launcher), rank_words(two.launcher)) == (("--lr", "1"), 2, ())
    two = read_command([*words, "--nproc_per_node=2", "train.py", "--lr", "1"])
    assert (two.args, ranks_of(two.launcher)) == (("--lr", "1"), 2)
    assert rank_words(two.launcher) == ("--local-rank=0",)


def test_deepspeed_on_one_machine_starts_so_many_processes(project: Path) -> None:
    words = ["deepspeed", "--num_gpus", "2", "--master_port=1", "train.py", "--lr", "1"]
    command = read_command(words)
    assert (command.script, command.args) == (str(project / "train.py"), ("--lr", "1"))
    assert (ranks_of(command.launcher), rank_words(command.launcher)) == (2, ("--local_rank=0",))
    assert launch_words(command.launcher) == ("deepspeed", "--num_gpus", "2")
    command = read_command(["deepspeed", "--num_gpus=2", "--no_local_rank", "--module", "package.train"])
    assert (command.module, rank_words(command.launcher)) == ("package.train", ())


FAKE_ACCELERATE = """
import argparse, os, subprocess, sys
def launch_command_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_processes", type=int, default=1)
    parser.add_argument("--config_file")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--no_python", action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser
def prepare_simple_launcher_cmd_env(args):
    return ["python", args.training_script], dict(os.environ)
def simple_launcher(args):
    raise SystemExit("started")
deepspeed_launcher = simple_launcher
def launch_command(args):
    text = open(args.config_file).read() if args.config_file else ""
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if "bf16" in text else "no"
    os.environ["LD_PRELOAD_NOT_OURS"] = "1"
    subprocess.Popen([sys.executable, "-c", ""]).wait()  # as it asks for devices
    if "simple" in text:
        return simple_launcher(args)
    import torch.distributed.run as run
    args.nproc_per_node = args.num_processes
    run.run(args)
"""


@pytest.fixture
def with_accelerate(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with accelerate's two functions, which are called by the real code."""
    for name, text in (
        ("accelerate/commands/launch", FAKE_ACCELERATE),
        ("accelerate/commands/__init__", ""),
        ("accelerate/__init__", ""),
        ("torch/distributed/run", "def run(args): raise SystemExit(9)"),
        ("torch/distributed/__init__", ""),
        ("torch/__init__", ""),
    ):
        path = project / "packages" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(project / "packages"))


@pytest.mark.usefixtures("with_accelerate")
def test_accelerate_says_itself_what_it_would_start_by_its_options_and_its_file(project: Path) -> None:
    (project / "accelerate.yaml").write_text("mixed_precision: bf16")
    words = ["accelerate", "launch", "--num_processes", "2", "--config_file", "accelerate.yaml"]
    command = read_command([*words, "train.py", "--lr", "1"], python=sys.executable)
    assert (command.script, command.args) == (str(project / "train.py"), ("--lr", "1"))
    assert ranks_of(command.launcher) == 2
    variables = launch_variables(command.launcher, {})
    assert variables["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert (variables["WORLD_SIZE"], variables["OMP_NUM_THREADS"]) == ("2", "1")
    assert "LD_PRELOAD_NOT_OURS" not in variables
    shown = ("accelerate", "launch", "--num_processes", "2", "--config_file", "accelerate.yaml")
    assert launch_words(command.launcher) == shown


@pytest.mark.usefixtures("with_accelerate")
def test_accelerate_with_a_file_for_one_process_keeps_what_the_file_sets(project: Path) -> None:
    (project / "one.yaml").write_text("simple bf16")
    words = ["accelerate", "launch", "--config_file=one.yaml", "-m", "package.train", "x"]
    command = read_command(words, python=sys.executable)
    assert (command.module, command.args, ranks_of(command.launcher)) == ("package.train", ("x",), 1)
    assert launch_variables(command.launcher, {})["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "RANK" not in launch_variables(command.launcher, {})


def test_a_file_of_others_sets_no_other_variable_by_a_launcher() -> None:
    launcher = (
        "accelerate --num_processes 2 -- LD_PRELOAD=/tmp/x.so PATH=/tmp ACCELERATE_MIXED_PRECISION=fp16"
    )
    variables = launch_variables(launcher, {})
    assert variables["ACCELERATE_MIXED_PRECISION"] == "fp16"
    assert not {"LD_PRELOAD", "PATH"} & variables.keys()


@pytest.mark.parametrize(
    ("launcher", "text"),
    [
        ("", "torchrun --nproc-per-node 4"),
        ("torchrun", "torchrun --nproc-per-node 4"),
        ("torchrun --nproc-per-node 8", "torchrun --nproc-per-node 4"),
        ("deepspeed --num_gpus 8 --no_local_rank", "deepspeed --num_gpus 4 --no_local_rank"),
        (
            "accelerate --num_processes 8 --x 1 -- ACCELERATE_USE_FSDP=true",
            "accelerate --num_processes 4 --x 1 -- ACCELERATE_USE_FSDP=true",
        ),
    ],
)
def test_a_launcher_for_another_number_of_processes_keeps_the_rest(launcher: str, text: str) -> None:
    assert with_ranks(launcher, 4) == text
    assert ranks_of(text) == 4


def test_a_module_behind_a_launcher_stays_one(project: Path) -> None:
    command = read_command(["torchrun", "-m", "package.train", "x"])
    assert (command.module, command.launcher) == ("package.train", "torchrun")


def test_a_launcher_in_an_environment_is_one(project: Path) -> None:
    (project / "pyproject.toml").write_text("")
    python = environment(project / ".venv")
    program(python.parent / "torchrun", f"#!{python}\n")
    command = read_command(["uv", "run", "torchrun", "train.py"])
    assert (command.launcher, command.python) == ("torchrun", str(python))
    assert read_command(["uv", "run", "train.py"]).launcher == ""


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["torchrun", "--nnodes", "1:4", "train.py"], "not a fixed number of machines", "--nnodes 2"),
        (["torchrun", "--nnodes", "0", "train.py"], "not a fixed number of machines", "--nnodes 2"),
        (["torchrun", "--nnodes=2", "--node-rank=1", "train.py"], "of another machine", "leave --node-rank"),
        (["torchrun", "--nproc-per-node", "gpu", "train.py"], "finds no device", "--nproc-per-node 2"),
        (["torchrun", "--nproc-per-node", "0", "train.py"], "not a number of processes", ""),
        (["torchrun", "--nproc-per-node", "two", "train.py"], "'two' is not a number", ""),
        (["torchrun", "--what", "train.py"], "--what cannot be carried over", "leave torchrun out"),
        (["torchrun"], "no script follows torchrun", ""),
        (["accelerate", "launch"], "no script follows", "accelerate launch train.py"),
        (["accelerate", "test"], "not a training script", "accelerate launch"),
        (["deepspeed", "train.py"], "finds no device", "--num_gpus 2"),
        (["deepspeed", "--hostfile", "x", "train.py"], "--hostfile cannot be carried over", "--num_gpus 2"),
        (["mpirun", "-n", "2", "python", "train.py"], "starts processes itself", "torchrun"),
        (["uv", "sync"], "not a training script", "uv run"),
        (["uv", "run", "--with", "x", "train.py"], "not known here", "--python"),
        (["uv", "run", "train.py"], "no interpreter", "uv sync"),
        (["conda", "run", "-n", "x", "python", "train.py"], "chooses an environment", "--python"),
        (["nohup", "python", "train.py"], "nohup is not a script", "before autotune: nohup"),
        (["bash", "run.sh"], "not a training script", "-- python train.py"),
    ],
)
def test_a_launcher_that_one_process_cannot_stand_for_is_refused(
    words: list[str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        read_command(words)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_where_accelerate_is_missing_it_is_named_with_another_launcher(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process as well: a file of accelerate's own may set something."""
    program(project / "huggingface" / "accelerate" / "default_config.yaml", "mixed_precision: bf16\n")
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    for words in (["--num_processes", "1"], ["--num_processes", "2"]):
        with pytest.raises(UsageError, match=r"cannot be carried over: .*accelerate") as found:
            read_command(["accelerate", "launch", *words, "train.py"], python=bare_python(project))
        assert "torchrun" in found.value.hint


def bare_python(project: Path) -> str:
    """An interpreter without any package."""
    path = project / "bare-python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_script_with_requirements_of_its_own_has_no_environment_that_stays(project: Path) -> None:
    (project / "train.py").write_text("# /// script\n# dependencies = ['torch']\n# ///\n")
    with pytest.raises(UsageError, match="its own requirements"):
        read_command(["uv", "run", "train.py"])


@pytest.mark.parametrize(
    ("words", "named", "alone"),
    [
        (["python", "train.py", "--lr", "1"], "by python train.py", "--script train.py -- --lr 1"),
        (["python", "-u", "./train.py"], "by python -u ./train.py", "--script train.py, or"),
        (["train.py"], "by train.py", "--script train.py, or"),
        (["torchrun", "train.py"], "by torchrun train.py", "--script train.py, or"),
    ],
)
def test_a_script_that_is_named_twice_is_reported_before_anything_runs(
    words: Any, named: str, alone: str
) -> None:
    with pytest.raises(UsageError, match=r"the script is named twice: by --script train\.py, and ") as caught:
        read_command(words, script="train.py")
    assert named in caught.value.message
    assert caught.value.hint.startswith(f"either {alone}")
    assert f"without --script: -- {' '.join(words)}" in caught.value.hint


def test_arguments_that_only_look_like_a_command_are_the_scripts(project: Path) -> None:
    (project / "other.py").write_text("")
    for words in (["python", "other.py"], ["--resume", "train.py"], ["data", "train.py"]):
        assert read_command(words, script="train.py").args == tuple(words)


def test_no_secret_is_repeated_where_a_script_is_named_twice() -> None:
    with pytest.raises(UsageError) as caught:
        read_command(["python", "train.py", "--api-key", "canary-secret-1"], script="train.py")
    assert "canary-secret-1" not in caught.value.message + caught.value.hint

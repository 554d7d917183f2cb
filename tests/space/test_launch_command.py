"""Command line and environment of a training process."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.model.change import Change, Env, Flag, Keyword
from autotune.model.distributed_launch import FREE_PORT, launch_words, ranks_of, several
from autotune.space.launch_command import build_launch, with_flags
from autotune.space.training_environment import user_environment

BATCH = Change(knob="batch_size", value=64, spelling=Flag(("--batch-size", "-b")), delivered="64")
AMP = Change(knob="amp", value=True, spelling=Flag(("--amp",)))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), ("--batch-size=64",)),
        (("--batch-size", "32"), ("--batch-size=64",)),
        (("--batch-size=32", "--lr", "1"), ("--batch-size=64", "--lr", "1")),
        (("-b", "32", "x"), ("--batch-size=64", "x")),
        (("-b32",), ("--batch-size=64",)),
        (("--batch-size", "32", "-b", "16"), ("--batch-size=64",)),
        (
            ("--lr", "1", "--", "--batch-size", "32"),
            ("--lr", "1", "--batch-size=64", "--", "--batch-size", "32"),
        ),
        (("--batch-size-eval", "32"), ("--batch-size-eval", "32", "--batch-size=64")),
        (("-bs", "32"), ("-bs", "32", "--batch-size=64")),
        # An option whose value may be left out does not take the next option for it.
        (("--batch-size", "--lr", "0.5"), ("--batch-size=64", "--lr", "0.5")),
        (("--batch-size", "-v"), ("--batch-size=64", "-v")),
        (("--batch-size", "-1", "-b", "-1.5e3", "-b", "-", "x"), ("--batch-size=64", "x")),
    ],
)
def test_an_option_is_given_once(args, expected) -> None:
    assert with_flags(args, [BATCH]) == expected


@pytest.mark.parametrize(
    ("args", "value", "expected"),
    [
        ((), "8", ("-k", "8")),
        (("-k4", "x"), "8", ("-k", "8", "x")),
        (("--bucket=4", "-v"), "-0.5", ("-k", "-0.5", "-v")),
        (("-k", "4"), "-rf", ("-k=-rf",)),
    ],
)
def test_an_option_of_one_letter_is_reported_in_two_words(args, value, expected) -> None:
    change = Change(knob="k", value=value, spelling=Flag(("-k", "--bucket")), delivered=value)
    assert with_flags(args, [change]) == expected


def test_click_reads_an_option_of_one_letter() -> None:
    click = pytest.importorskip("click")
    main = click.command()(click.option("-k", "count", type=int)(lambda count: count))
    change = Change(knob="k", value=8, spelling=Flag(("-k",)), delivered="8")
    assert main(list(with_flags((), [change])), standalone_mode=False) == 8


def test_a_switch_keeps_the_word_after_it() -> None:
    assert with_flags(("--amp", "data"), [AMP]) == ("--amp", "data")
    assert with_flags(("data",), [AMP]) == ("data", "--amp")


def test_a_pair_replaces_its_counterpart() -> None:
    off = Change(knob="x", value=False, spelling=Flag(("--no-amp", "--amp")))
    assert with_flags(("--amp", "data"), [off]) == ("--no-amp", "data")


def test_the_launch_carries_everything() -> None:
    threads = Change(knob="threads", value=2, spelling=Env("OMP_NUM_THREADS"), delivered="2")
    workers = Change(
        knob="num_workers", value=4, spelling=Keyword("torch.utils.data.DataLoader", "num_workers")
    )
    launch = build_launch(
        script="train.py",
        args=("--lr", "1"),
        python="/py",
        cwd="/home/me",
        env={"A": "1", "OMP_NUM_THREADS": "8"},
        changes=(BATCH, threads, workers),
        seed=3,
        cache_key="k",
    )
    assert launch.command == ("/py", "train.py", "--lr", "1", "--batch-size=64")
    assert launch.script == "/home/me/train.py"
    assert launch.argv == ("--lr", "1", "--batch-size=64")
    assert launch.env == {"A": "1", "OMP_NUM_THREADS": "2"}
    assert (launch.changes, launch.seed, launch.cache_key) == ((BATCH, threads, workers), 3, "k")


@pytest.mark.parametrize(
    "hostile", ["a b", 'it\'s "x"', "a\nb", "--out=/etc", "-rf", "$(touch x)", "; rm x", "=", "é"]
)
def test_a_hostile_value_arrives_as_one_argument(hostile) -> None:
    change = Change(knob="mode", value=hostile, spelling=Flag(("--mode",)), delivered=hostile)
    argv = with_flags(("--mode", "old", "pos itional"), [change])
    assert argv == (f"--mode={hostile}", "pos itional")
    script = (
        "import argparse as a; p = a.ArgumentParser(); p.add_argument('--mode'); p.add_argument('rest'); "
        "n = p.parse_args(); print(ascii([n.mode, n.rest]), end='')"
    )
    if hostile in ("a\nb", "-rf"):
        seen = subprocess.run(
            [sys.executable, "-c", script, *argv], capture_output=True, text=True, check=True
        ).stdout
        assert seen == ascii([hostile, "pos itional"])


@given(st.lists(st.text(max_size=6), max_size=6), st.text(min_size=1, max_size=6))
def test_other_arguments_stay_in_their_order(args, value) -> None:
    change = Change(knob="k", value=value, spelling=Flag(("--zzz-option",)), delivered=value)
    argv = with_flags(args, [change])
    assert argv.count(f"--zzz-option={value}") == 1
    rest = list(argv)
    rest.remove(f"--zzz-option={value}")
    assert rest == args


def launched(launcher, env, changes=()):
    return build_launch(
        script="train.py", args=(), python="/py", cwd="/", env=env, changes=changes, launcher=launcher
    ).env


def test_what_torchrun_sets_for_one_process_is_set_without_it() -> None:
    env = launched("torchrun", {"A": "1", "RANK": "3"})
    assert {name: env[name] for name in ("A", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "A": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"
    }  # fmt: skip
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", FREE_PORT)
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False", "no agent of torchrun's keeps a store"
    assert "OMP_NUM_THREADS" not in env
    assert launched("", {"A": "1"}) == {"A": "1"}


def test_what_torchrun_sets_for_several_processes_is_set_for_the_first_of_them() -> None:
    env = launched(several(2), {"RANK": "3"})
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("0", "2", "2")
    assert env["OMP_NUM_THREADS"] == "1", "torchrun's own rule where there are several"
    assert launched(several(2), {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"
    assert (ranks_of(several(2)), ranks_of(several(1)), ranks_of(""), ranks_of("accelerate")) == (2, 1, 1, 1)
    assert launch_words(several(2)) == ("torchrun", "--nproc-per-node", "2")
    assert launch_words(several(2), "/py")[:3] == ("/py", "-m", "torch.distributed.run")


def test_accelerate_gives_its_process_one_thread_unless_the_user_or_a_knob_says_otherwise() -> None:
    threads = Change(knob="threads", value=2, spelling=Env("OMP_NUM_THREADS"), delivered="2")
    assert launched("accelerate", {})["OMP_NUM_THREADS"] == "1"
    assert launched("accelerate", {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"
    assert launched("accelerate", {}, [threads])["OMP_NUM_THREADS"] == "2"
    assert launched("accelerate", {})["ACCELERATE_MIXED_PRECISION"] == "no"
    assert "RANK" not in launched("accelerate", {})


def test_a_trial_is_quiet_and_keeps_what_the_user_set() -> None:
    env = user_environment(
        {"PATH": "/bin", "WANDB_MODE": "online", "AUTOTUNE_PLAN": "/x"}, keep_loggers=False, trial=True
    )
    assert env["WANDB_MODE"] == "online"
    assert env["COMET_MODE"] == "DISABLED"
    assert env["PATH"] == "/bin"
    assert env["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert "AUTOTUNE_PLAN" not in env
    assert not any(name.startswith("OMP") for name in env)


def test_loggers_stay_on_when_requested_and_telemetry_does_not() -> None:
    env = user_environment({}, keep_loggers=True, trial=True)
    assert "WANDB_MODE" not in env
    assert env["DO_NOT_TRACK"] == "true"


def test_the_real_run_gets_the_users_environment_unchanged() -> None:
    assert user_environment({"A": "1"}, keep_loggers=False, trial=False) == {"A": "1"}


def test_a_variable_that_holds_several_settings_keeps_the_users_own() -> None:
    changes = [
        Change(knob="malloc", value="jemalloc", spelling=Env("LD_PRELOAD"), delivered="/lib/j.so"),
        Change(
            knob="allocator",
            value="expandable_segments",
            spelling=Env("PYTORCH_ALLOC_CONF"),
            delivered="expandable_segments:True",
        ),
        Change(knob="extra", value=1, spelling=Env("LD_PRELOAD"), delivered="/lib/x.so"),
    ]
    launch = build_launch(
        script="train.py",
        args=(),
        python="/py",
        cwd="/home/me",
        env={"LD_PRELOAD": "/lib/mine.so", "PYTORCH_ALLOC_CONF": "max_split_size_mb:128"},
        changes=changes,
    )
    assert launch.env["LD_PRELOAD"] == "/lib/x.so:/lib/j.so:/lib/mine.so"
    assert launch.env["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:128,expandable_segments:True"

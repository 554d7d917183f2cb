"""A pick in other programs' words: nothing is lost, nothing is added, quoting is exact."""

import ast
import json
import os
import shlex
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from picks import VALUES, argument, env, every_way, flag, loader, patch, switch, tuned

from autotune.export.formats.accelerate import accelerate_config
from autotune.export.formats.command import command_line, environment_file
from autotune.export.formats.content import Exported, Left, whole
from autotune.export.formats.deepspeed import deepspeed_config
from autotune.export.formats.diff import script_diff
from autotune.export.formats.huggingface import training_arguments
from autotune.export.formats.lightning import lightning_keywords
from autotune.export.formats.source import ScriptSource
from autotune.knobs.frameworks import ACCELERATOR, ARGUMENTS, DEEPSPEED, LIGHTNING, TRAINER
from autotune.knobs.registry import builtin
from autotune.model.change import Change, Keyword, Patch

SCRIPT = ScriptSource("train.py", b"print('trained')\n")


def nothing(name):
    return f"{name} is not there"


FORMATS = {
    "argv": lambda t: command_line(t, ["python", "train.py"], ["--lr", "1e-3"], {}),
    "env": lambda t: environment_file(t, {}, export=False),
    "hf": lambda t: training_arguments(t, keywords=False),
    "lightning": lambda t: lightning_keywords(t, keywords=True),
    "accelerate": accelerate_config,
    "deepspeed": deepspeed_config,
    "diff": lambda t: script_diff(t, SCRIPT, nothing, []),
}


def test_the_picks_of_these_tests_hold_every_knob_that_has_a_way():
    assert set(VALUES) == {name for name, knob in builtin().items() if knob.spellings}


@pytest.mark.parametrize("form", FORMATS)
def test_every_change_is_either_reported_or_left_out_with_a_reason(form):
    for one in every_way():
        message = FORMATS[form](tuned(one))
        assert [*message.included, *(left.knob for left in message.left)] == [one.knob]
        for left in message.left:
            assert len(left.reason) > 20
            assert left.text in message.commented(["head"]) or not message.comment
        json.dumps(message.data)


@pytest.mark.parametrize("form", FORMATS)
def test_your_script_unchanged_leaves_nothing_out(form):
    message = FORMATS[form](tuned())
    assert (message.included, message.left) == ((), ())


def test_comments_stand_above_the_text_and_cannot_be_left_early():
    left = Left(knob="own", value="a\nrm -rf x", reason="because\u2028of it")
    message = Exported(text="A=1\n", data={}, left=(left,), notes=("careful",))
    assert message.commented(["head"], ["tail"]) == (
        "# head\n# left out: own=a rm -rf x: because\\u2028of it\n# tail\n# note: careful\nA=1\n"
    )


def test_a_batch_is_never_reported_without_the_parts_that_keep_it():
    pair = (flag("batch_size", 8, "--batch-size"), patch("accumulation", 4))
    threads = env("threads", 2, "OMP_NUM_THREADS")
    for form, export in FORMATS.items():
        message = whole(export, tuned(*pair, threads))
        assert len({"batch_size", "accumulation"} & set(message.included)) in (0, 2), form
        named = {*message.included, *(left.knob for left in message.left)}
        assert named == {"batch_size", "accumulation", "threads"}
    line = whole(FORMATS["argv"], tuned(*pair, threads))
    assert line.text == "OMP_NUM_THREADS=2 python train.py --lr 1e-3\n"
    assert "without accumulation=4" in line.left[0].reason
    both = (flag("batch_size", 8, "--batch-size"), flag("accumulation", 4, "--accum"))
    assert whole(FORMATS["argv"], tuned(*both)).included == ("batch_size", "accumulation")


# The command line and the environment --------------------------------------------------------


def test_options_go_into_the_command_and_variables_before_it():
    pick = tuned(
        flag("batch_size", 64, "--batch-size", "-b"),
        switch("compile_mode", "default", "--compile"),
        env("threads", 2, "OMP_NUM_THREADS"),
        patch("channels_last", True),
    )
    message = command_line(pick, ["python", "my train.py"], ["-b", "8", "--name", "a b"], {})
    assert message.text == ("OMP_NUM_THREADS=2 python 'my train.py' --batch-size=64 --name 'a b' --compile\n")
    assert message.data == {
        "argv": ["python", "my train.py", "--batch-size=64", "--name", "a b", "--compile"],
        "env": {"OMP_NUM_THREADS": "2"},
    }
    assert [left.knob for left in message.left] == ["channels_last"]


def test_what_a_variable_holds_already_is_kept_and_reported():
    pick = tuned(env("malloc", "jemalloc", "LD_PRELOAD", "/lib/libjemalloc.so"))
    message = environment_file(pick, {"LD_PRELOAD": "/lib/mine.so"}, export=False)
    assert message.data["env"] == {"LD_PRELOAD": "/lib/libjemalloc.so:/lib/mine.so"}
    assert message.notes == ("LD_PRELOAD is joined with its value in this shell",)


def read_by_shell(text, tmp_path):
    """The variables that a shell has after reading a file of them."""
    path = tmp_path / "tuned.env"
    path.write_bytes(text.encode())
    done = subprocess.run(
        ["/bin/sh", "-c", "set -a; . ./tuned.env; exec env -0"],
        capture_output=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
    )
    rows = done.stdout.decode().split("\0")
    return dict(row.split("=", 1) for row in rows if row)


NASTY = [
    "plain",
    "",
    "a b",
    "$HOME",
    "`id`",
    'say "x"',
    "it's",
    "back\\slash",
    "#no",
    "two\nlines",
    "ü",
    "!x",
]


@pytest.mark.parametrize("value", NASTY)
def test_a_shell_reads_an_exported_variable_unchanged(value, tmp_path):
    message = environment_file(tuned(env("own", "v", "MINE", value or " ")), {}, export=True)
    assert read_by_shell(message.commented(["head"]), tmp_path)["MINE"] == (value or " ")


@pytest.mark.parametrize("value", NASTY)
def test_a_dotenv_line_is_read_alike_by_shells_and_dotenv_readers_or_left_out(value, tmp_path):
    message = environment_file(tuned(env("own", "v", "MINE", value or " ")), {}, export=False)
    if set("'\\\n") & set(value):
        assert message.text == ""
        assert "--form export" in message.left[0].reason
    else:
        assert read_by_shell(message.text, tmp_path)["MINE"] == (value or " ")
        dotenv = pytest.importorskip("dotenv", reason="it reads such files, and is no part of this project")
        (tmp_path / "x.env").write_text(message.text, encoding="utf-8")
        assert dotenv.dotenv_values(tmp_path / "x.env")["MINE"] == (value or " ")


@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
@settings(max_examples=200, deadline=None)
def test_whatever_a_variable_holds_its_line_is_one_word_of_a_shell(value):
    message = environment_file(tuned(env("own", "v", "MINE", value)), {}, export=True)
    assert shlex.split(message.text, comments=True) == ["export", f"MINE={value}"]


# Frameworks ----------------------------------------------------------------------------------


def test_fields_of_training_arguments_are_those_that_the_search_set():
    pick = tuned(
        argument("batch_size", 16, ARGUMENTS, "per_device_train_batch_size"),
        argument("precision", "bf16", ARGUMENTS, "bf16"),
        argument("num_workers", 0, ARGUMENTS, "dataloader_num_workers"),
        argument("fused_optimizer", True, ARGUMENTS, "optim"),
        argument("compile_mode", "default", ARGUMENTS, "torch_compile"),
        patch("activation_checkpointing", "full"),
    )
    message = training_arguments(pick, keywords=False)
    assert json.loads(message.text) == {
        "per_device_train_batch_size": 16,
        "bf16": True,
        "fp16": False,
        "dataloader_num_workers": 0,
        "dataloader_prefetch_factor": None,
        "dataloader_persistent_workers": False,
        "optim": "adamw_torch_fused",
        "torch_compile": True,
        "torch_compile_mode": "default",
        "gradient_checkpointing": True,
    }
    assert message.comment == ""
    assert any("activation_checkpointing (a patch in the process)" in note for note in message.notes)


def test_keywords_are_python_that_means_the_same_as_the_json():
    pick = tuned(loader("num_workers", 4), patch("precision", "fp16"), patch("tf32", "high"))
    scope = {}
    exec(training_arguments(pick, keywords=True).commented(["head"]), scope)
    assert scope["training_arguments"] == json.loads(training_arguments(pick, keywords=False).text)
    assert scope["training_arguments"] == {
        "dataloader_num_workers": 4,
        "bf16": False,
        "fp16": True,
        "tf32": True,
    }


def test_a_trainer_that_has_to_divide_the_loss_is_named():
    message = training_arguments(
        tuned(argument("accumulation", 4, TRAINER, "gradient_accumulation_steps")), keywords=True
    )
    assert message.data["training_arguments"] == {"gradient_accumulation_steps": 4}
    assert any("loss_is_scaled_for_ga = False" in note for note in message.notes)
    assert not any("measured by another delivery" in note for note in message.notes)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (patch("fused_optimizer", True), "optimizer as well as its kernel"),
        (patch("tf32", "highest"), "convolutions"),
        (patch("activation_checkpointing", "selective"), "all blocks or none"),
        (patch("attention_backend", "flash"), "attn_implementation"),
        (env("threads", 2, "OMP_NUM_THREADS"), "OMP_NUM_THREADS=2 (--as env)"),
        (flag("own", 3, "--own"), "--own=3 (--as argv)"),
    ],
)
def test_what_training_arguments_cannot_say_is_left_out_for_its_own_reason(one, message):
    found = training_arguments(tuned(one), keywords=False)
    assert found.data["training_arguments"] == {}
    assert message in found.left[0].reason


def test_a_declared_argument_of_a_framework_is_reported_by_its_own_name():
    one = argument("own", 7, ARGUMENTS, "logging_steps")
    assert training_arguments(tuned(one), keywords=False).data["training_arguments"] == {"logging_steps": 7}
    one = argument("own", 7, LIGHTNING, "log_every_n_steps")
    assert lightning_keywords(tuned(one), keywords=True).data["trainer"] == {"log_every_n_steps": 7}


def test_lightning_has_keywords_for_the_trainer_and_for_the_loader():
    pick = tuned(
        argument("precision", "bf16", LIGHTNING, "precision"),
        argument("accumulation", 2, LIGHTNING, "accumulate_grad_batches"),
        patch("cudnn_benchmark", True),
        loader("batch_size", 64),
        loader("num_workers", 0),
        loader("multiprocessing_context", "spawn", knob="mp_context"),
        patch("channels_last", True),
    )
    message = lightning_keywords(pick, keywords=True)
    scope = {}
    exec(message.commented(["head"]), scope)
    assert scope["trainer"] == {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "benchmark": True}
    assert scope["loader"] == {
        "batch_size": 64,
        "num_workers": 0,
        "multiprocessing_context": "spawn",
        "prefetch_factor": None,
        "persistent_workers": False,
    }
    assert [left.knob for left in message.left] == ["channels_last"]
    assert json.loads(lightning_keywords(pick, keywords=False).text) == message.data


def test_accelerates_file_is_whole_and_holds_no_key_that_is_an_error_there():
    pick = tuned(
        argument("precision", "fp32", ACCELERATOR, "mixed_precision"),
        patch("compile_mode", "max-autotune"),
        patch("compile_shapes", "dynamic"),
        argument("accumulation", 4, ACCELERATOR, "gradient_accumulation_steps"),
    )
    message = accelerate_config(pick)
    config = yaml.safe_load(message.commented(["head"]))
    assert config == message.data
    assert config["mixed_precision"] == "no"
    assert config["distributed_type"] == "NO"
    assert config["use_cpu"] is True
    assert config["dynamo_config"] == {
        "dynamo_backend": "INDUCTOR",
        "dynamo_mode": "max-autotune",
        "dynamo_use_dynamic": True,
    }
    assert "gradient_accumulation_steps" not in config
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4" in message.left[0].reason


def test_accelerates_file_keeps_a_number_format_that_the_script_has_itself():
    assert accelerate_config(tuned(precision="bf16", on_device=True)).data["mixed_precision"] == "bf16"
    assert accelerate_config(tuned(on_device=True)).data["use_cpu"] is False


def test_a_gpu_of_the_machine_does_not_say_that_the_script_used_it():
    there, none = accelerate_config(tuned(on_device=True)), accelerate_config(tuned())
    assert there.data["use_cpu"] is False
    assert any("use_cpu: true" in note for note in there.notes)
    assert none.data["use_cpu"] is True
    assert not any("use_cpu" in note for note in none.notes)


@pytest.mark.parametrize("value", ["off", "max-autotune-no-cudagraphs"])
def test_a_compile_that_accelerates_file_cannot_ask_for_is_left_out(value):
    message = accelerate_config(tuned(patch("compile_mode", value), patch("compile_shapes", "dynamic")))
    assert [left.knob for left in message.left] == ["compile_mode", "compile_shapes"]
    assert "dynamo_config" not in message.data


def test_deepspeeds_file_has_a_micro_batch_even_where_it_is_the_scripts_own():
    message = deepspeed_config(tuned(patch("precision", "bf16"), batch_size=32, accumulation=2))
    assert json.loads(message.text) == {
        "train_micro_batch_size_per_gpu": 32,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
    }
    assert message.included == ("precision",)
    assert any("torch_autocast" in note for note in message.notes)


def test_deepspeeds_file_says_what_was_measured_under_deepspeed_as_it_was():
    rows = {"precision": "bf16", "accumulation": 2}
    names = {"precision": "torch_autocast", "accumulation": "gradient_accumulation_steps"}
    changes = [Change(knob=k, value=v, spelling=Keyword(DEEPSPEED, names[k])) for k, v in rows.items()]
    message = deepspeed_config(tuned(*changes, batch_size=32))
    assert json.loads(message.text) == {
        "train_micro_batch_size_per_gpu": 32,
        "gradient_accumulation_steps": 2,
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    }
    assert not any("measured" in note for note in message.notes)
    off = deepspeed_config(tuned(Change(knob="precision", value="fp32", spelling=changes[0].spelling)))
    assert off.data["torch_autocast"] == {"enabled": False}
    source = ScriptSource("train.py", b"engine, *_ = deepspeed.initialize(model=net, config=CONFIG)\n")
    diff = script_diff(tuned(*changes), source, nothing, [])
    assert [left.knob for left in diff.left] == ["precision", "accumulation"]
    assert all("entry of DeepSpeed's configuration" in left.reason for left in diff.left)


def test_deepspeeds_file_without_a_known_batch_says_so():
    assert any("needs one" in note for note in deepspeed_config(tuned()).notes)


def test_whose_accumulation_divides_the_loss_is_reported_where_it_was_another_one():
    ours = patch("accumulation", 4)
    assert "correct for a mean" in str(training_arguments(tuned(ours), keywords=True).notes)
    assert "correct for a mean" in str(lightning_keywords(tuned(ours), keywords=True).notes)
    theirs = argument("accumulation", 4, LIGHTNING, "accumulate_grad_batches")
    assert lightning_keywords(tuned(theirs), keywords=True).notes == ()


def test_the_text_of_every_python_form_is_python():
    pick = tuned(*(c for c in every_way() if isinstance(c.spelling, Patch)), loader("num_workers", 2))
    for message in (training_arguments(pick, keywords=True), lightning_keywords(pick, keywords=True)):
        ast.parse(message.commented(["head"], ["tail"]))

"""The diff of a script: literals by the syntax tree, all else kept, `patch` takes it both ways."""

import ast
import shutil
import subprocess
from pathlib import Path

import pytest
from picks import argument, change, env, flag, loader, patch, switch, tuned

from autotune.errors import UsageError
from autotune.export.formats.diff import _argument, script_diff
from autotune.export.formats.source import Edit, ScriptSource
from autotune.knobs.frameworks import ACCELERATOR, ARGUMENTS, LIGHTNING, TRAINER
from autotune.model.change import Constant, Keyword

needs_patch = pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")


def nothing(name):
    return f"{name} is not there"


def diffed(text, *changes, args=(), read=nothing, name="train.py", trust_lines=True):
    script = ScriptSource(name, text if isinstance(text, bytes) else text.encode())

    def found(file):
        return script if file == "train.py" else read(file)

    return script_diff(tuned(*changes), script, found, args, trust_lines=trust_lines)


def edited(text, *changes, **more):
    """The script after the edits, by the lines of the diff; nothing may be left out."""
    message = diffed(text, *changes, **more)
    assert message.left == ()
    return applied(text, message.text)


def applied(text, diff):
    """What a diff makes of a text, by the rules of its format; no program needed."""
    lines, out, at = text.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            start = int(line.split()[1].split(",")[0].removeprefix("-")) - 1
            out += lines[at:start]
            at = start
        elif line.startswith("+"):
            out.append(line[1:])
        elif line.startswith(("-", " ")):
            assert lines[at].rstrip("\n") == line[1:].rstrip("\n")
            at += 1
            if line.startswith(" "):
                out.append(line[1:])
    return "".join([*out, *lines[at:]])


def reason(text, one, **more):
    message = diffed(text, one, **more)
    assert message.included == ()
    assert message.text == ""
    return message.left[0].reason


LOADER = """import torch
from torch.utils.data import DataLoader
train = DataLoader(data, batch_size=32, shuffle=True)  # the training set
test = DataLoader(held_out, batch_size=32)
"""


def test_a_literal_in_the_training_loaders_call_is_the_only_thing_that_changes():
    message = diffed(LOADER, loader("batch_size", 64))
    assert message.text == (
        "--- train.py\n"
        "+++ train.py\n"
        "@@ -1,4 +1,4 @@\n"
        " import torch\n"
        " from torch.utils.data import DataLoader\n"
        "-train = DataLoader(data, batch_size=32, shuffle=True)  # the training set\n"
        "+train = DataLoader(data, batch_size=64, shuffle=True)  # the training set\n"
        " test = DataLoader(held_out, batch_size=32)\n"
    )
    assert message.data == {
        "files": ["train.py"],
        "edits": [{"file": "train.py", "line": 3, "knob": "batch_size", "from": "32", "to": "64"}],
    }


def test_a_keyword_that_is_not_there_is_added_in_the_style_of_the_call():
    pick = (loader("num_workers", 4), loader("persistent_workers", True))
    assert "shuffle=True, num_workers=4, persistent_workers=True)  # the training" in edited(LOADER, *pick)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "DataLoader(\n    data,\n    batch_size=8,\n)",
            "DataLoader(\n    data,\n    batch_size=8,\n    A,\n    B,\n)",
        ),
        (
            "DataLoader(\n    data,\n    batch_size=8\n)",
            "DataLoader(\n    data,\n    batch_size=8,\n    A,\n    B\n)",
        ),
        (
            "DataLoader(\n    data,\n    batch_size=8,  # small, )\n)",
            "DataLoader(\n    data,\n    batch_size=8,  # small, )\n    A,\n    B,\n)",
        ),
        (
            "DataLoader(\n    data,\n    batch_size=8  # small, )\n)",
            "DataLoader(\n    data,\n    batch_size=8,  # small, )\n    A,\n    B\n)",
        ),
        ("DataLoader(\n    data,\n    batch_size=8,)", "DataLoader(\n    data,\n    batch_size=8, A, B,)"),
        ("DataLoader(data, batch_size=(8))", "DataLoader(data, batch_size=(8), A, B)"),
        ("DataLoader(data, 8, )", "DataLoader(data, 8, A, B, )"),
        ("DataLoader(data,\n           batch_size=8)", "DataLoader(data,\n           batch_size=8, A, B)"),
        (
            "DataLoader(data,\n           batch_size=8,  # ü\n          )",
            "DataLoader(data,\n           batch_size=8,  # ü\n           A,\n           B,\n          )",
        ),
    ],
)  # fmt: skip
def test_added_keywords_keep_comments_commas_and_lines(before, after):
    pick = (loader("num_workers", 4, site="train.py:1"), loader("in_order", False, site="train.py:1"))
    expected = after.replace("A", "num_workers=4").replace("B", "in_order=False")
    text = f"train = {before}\n"
    assert edited(text, *pick) == f"train = {expected}\n"


def test_an_argument_without_its_name_is_found_by_its_place():
    text = 'café = "ü"; train = DataLoader(data, 32, True)\n'
    assert edited(text, loader("batch_size", 64, site="train.py:1")) == text.replace("32", "64")


def test_a_name_that_is_given_once_and_read_once_is_followed_to_its_literal():
    text = "BATCH = 32\ntrain = DataLoader(data, batch_size=BATCH)\n"
    assert edited(text, loader("batch_size", 64, site="train.py:2")) == text.replace("32", "64")


@pytest.mark.parametrize(
    "text",
    [
        "BATCH = 32\ntrain = DataLoader(data, batch_size=BATCH)\nprint(BATCH)\n",
        "BATCH = 32\ntrain = DataLoader(data, batch_size=BATCH)\nBATCH = 1\n",
        "for BATCH in (1, 2):\n    train = DataLoader(data, batch_size=BATCH)\n",
        "BATCH = 32\ntrain = DataLoader(data, batch_size=BATCH)\nexec(open('config.py').read())\n",
        "from config import BATCH\ntrain = DataLoader(data, batch_size=BATCH)\n",
        "BATCH = 32 * 2\ntrain = DataLoader(data, batch_size=BATCH)\n",
        "x = 1\ntrain = DataLoader(data, batch_size=args.batch_size)\n",
        "x = 1\ntrain = DataLoader(data, batch_size=2 * 16)\n",
    ],
)
def test_a_value_that_is_no_literal_is_left_alone_and_shown(text):
    found = reason(text, loader("batch_size", 64, site="train.py:2"))
    assert found.startswith("batch_size is not a literal on line 2 of train.py, but ")


@pytest.mark.parametrize(
    ("text", "one", "message"),
    [
        (LOADER, loader("batch_size", 64, site="train.py:3<train.py:9"), "train.py:3 builds other loaders"),
        (LOADER, loader("batch_size", 64, site="train.py:1"), "line 1 of train.py does not call DataLoader"),
        (LOADER, loader("batch_size", 64, site="data.py:3"), "data.py is not there"),
        (LOADER, loader("batch_size", 64, site=""), "is called 2 times (lines 3, 4) in train.py"),
        ("a, b = DataLoader(x), DataLoader(y)\n", loader("num_workers", 2, site="train.py:1"), "2 times"),
        ("t = DataLoader(x, **more)\n", loader("num_workers", 2, site="train.py:1"), "* or ** on line 1"),
        ("t = DataLoader(*more)\n", loader("batch_size", 2, site="train.py:1"), "* or ** on line 1"),
        ("t = DataLoader(x for x in y)\n", loader("num_workers", 2, site="train.py:1"), "on line 1"),
        ("t = DataLoader(x, batch_sampler=b)\n", loader("batch_size", 2, site="train.py:1"), "sampler"),
        ("t = 1\n", patch("precision", "bf16"), "inside the running process"),
        ("t = 1\n", env("threads", 2, "OMP_NUM_THREADS"), "OMP_NUM_THREADS=2 (--as env)"),
        ("t = 1\n", argument("accumulation", 2, TRAINER, "gradient_accumulation_steps"), "--as hf"),
        ("t = 1\n", argument("precision", "bf16", LIGHTNING, "precision"), "does not call Trainer"),
        ("Accelerator(1, 2, 3)\n", argument("precision", "bf16", ACCELERATOR, "x"), "without names"),
        ("m = torch.compile(a)\nn = torch.compile(b)\n", patch("compile_mode", "default"), "lines 1, 2"),
        ("m = torch.compile(a, options={})\n", patch("compile_mode", "default"), "`options`"),
        ("m = torch.compile(a)\n", patch("compile_mode", "off"), "inside the running process"),
    ],
)  # fmt: skip
def test_what_is_ambiguous_is_left_out_and_says_why(text, one, message):
    assert message in reason(text, one)


@pytest.mark.parametrize(
    "text",
    [
        "def made(x):\n    return DataLoader(x, batch_size=32)\na, b = made(1), made(2)\n",
        "both = [DataLoader(x, batch_size=32) for x in sets]\n",
        "for x in sets:\n    both.append(DataLoader(x, batch_size=32))\n",
    ],
)
def test_without_a_noted_line_one_call_that_may_build_several_loaders_is_left_alone(text):
    assert "may build several loaders" in reason(text, loader("batch_size", 64, site=""))
    assert "may build several" in reason(
        text, loader("batch_size", 64, site="train.py:99"), trust_lines=False
    )


def test_without_a_noted_line_the_only_call_is_meant():
    text = "def main():\n    return DataLoader(x, batch_size=32)\nmain()\n"
    assert "batch_size=64" in edited(text, loader("batch_size", 64, site=""))
    assert "batch_size=64" in edited(text, loader("batch_size", 64, site="train.py:99"), trust_lines=False)


def test_a_loader_under_another_name_and_in_another_file_is_found():
    text = "from torch.utils.data import DataLoader as DL\ndef loaders():\n    return DL(x, 32), 1\n"
    read = {"lib/data.py": ScriptSource("lib/data.py", text.encode())}
    message = diffed(
        "import lib.data\n", loader("batch_size", 64, site="lib/data.py:3"), read=read.__getitem__
    )
    assert message.text.startswith("--- lib/data.py\n+++ lib/data.py\n")
    assert "+    return DL(x, 64), 1\n" in message.text
    assert message.notes[0].startswith("lib/data.py was located by its recorded line")


def test_a_loader_without_workers_loses_what_only_workers_have():
    text = "t = DataLoader(x, num_workers=4, prefetch_factor=8, persistent_workers=True, timeout=30)\n"
    assert edited(text, loader("num_workers", 0, site="train.py:1")) == (
        "t = DataLoader(x, num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)\n"
    )


def test_two_knobs_that_want_one_place_are_not_both_reported():
    own = change("own", 5, Keyword("torch.utils.data.DataLoader", "batch_size"), site="train.py:3")
    message = diffed(LOADER, loader("batch_size", 64), own)
    assert message.included == ("batch_size",)
    assert "changes the same place" in message.left[0].reason


# Options -------------------------------------------------------------------------------------


ARGPARSE = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--batch-size", "-b", type=int, default=32, help="32 by default")
p.add_argument('--dtype', choices=['float32', 'bfloat16'], default='float32')
p.add_argument("--workers", type=int)
p.add_argument("--compile", action="store_true")
p.add_argument("--no-pin", action="store_false", dest="pin")
p.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
p.add_argument("--tf32", type=bool, default=False)
"""


@pytest.mark.parametrize(
    ("one", "old", "new"),
    [
        (flag("batch_size", 64, "--batch-size", "-b"), "default=32,", "default=64,"),
        (flag("precision", "bf16", "--dtype", delivered="bfloat16"), "'float32')", '"bfloat16")'),
        (flag("num_workers", 4, "--workers"), '--workers", type=int)', '--workers", type=int, default=4)'),
        (switch("compile_mode", "default", "--compile"), 'store_true")', 'store_true", default=True)'),
        (switch("pin_memory", False, "--no-pin"), 'dest="pin")', 'dest="pin", default=False)'),
        (switch("precision", "fp32", "--no-amp", "--amp"), "Action, default=True", "Action, default=False"),
        (flag("tf32", "high", "--tf32", delivered="True"), "bool, default=False", "bool, default=True"),
    ],
)  # fmt: skip
def test_an_options_default_is_set_in_its_own_kind(one, old, new):
    assert edited(ARGPARSE, one) == ARGPARSE.replace(old, new)


def test_a_changed_default_is_what_the_script_then_has():
    pick = (flag("batch_size", 64, "--batch-size", "-b"), switch("compile_mode", "default", "--compile"))
    scope = {}
    exec(edited(ARGPARSE, *pick), scope)
    parsed = scope["p"].parse_args([])
    assert (parsed.batch_size, parsed.compile, parsed.dtype) == (64, True, "float32")


CLICK = """import click
@click.command()
@click.option("--batch-size", default=32, show_default=True)
@click.option("--amp/--plain", default=False)
def main(batch_size, amp): ...
"""


@pytest.mark.parametrize(
    ("one", "old", "new"),
    [
        (flag("batch_size", 64, "--batch-size"), "default=32", "default=64"),
        (switch("precision", "bf16", "--amp", "--plain"), "default=False", "default=True"),
    ],
)
def test_an_option_of_click_too(one, old, new):
    assert edited(CLICK, one) == CLICK.replace(old, new)


CONFIGURED = """batch_size = 12 # micro-batch
compile = False
exec(open('configurator.py').read())
"""


def test_a_constant_that_a_configurator_overrides_is_the_default_of_its_option():
    one = flag("batch_size", 64, "--batch_size")
    assert edited(CONFIGURED, one) == CONFIGURED.replace("12", "64")
    assert "configuration file" in reason(CONFIGURED, one, args=["config/train.py"])


@pytest.mark.parametrize(
    "args", [["--batch-size", "8"], ["--batch-size=8"], ["-b", "8"], ["-b8"], ["--batch", "8"]]
)
def test_an_option_on_the_command_line_beats_its_default(args):
    found = reason(ARGPARSE, flag("batch_size", 64, "--batch-size", "-b"), args=args)
    assert found.startswith("the command line sets --batch-size")
    assert "--as argv" in found


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('p.add_argument("--batch-size", default=1)\n', "declared 2 times (lines 3, 10)"),
        ("p.set_defaults(batch_size=3)\n", "set_defaults"),
    ],
)
def test_a_default_that_may_not_count_is_left_alone(more, message):
    assert message in reason(ARGPARSE + more, flag("batch_size", 64, "--batch-size", "-b"))


def test_a_default_that_is_no_literal_or_not_to_be_seen_is_left_alone():
    one = flag("batch_size", 64, "--batch-size")
    assert "not a literal" in reason('p.add_argument("--batch-size", default=SIZE * 2)\n', one)
    assert "* or **" in reason('p.add_argument("--batch-size", **more)\n', one)
    assert "was not found" in reason("import config\n", one)


# Frameworks ----------------------------------------------------------------------------------


def test_the_one_call_of_a_framework_gets_the_arguments():
    text = 'args = TrainingArguments("out", bf16=False, fp16=True, optim="adamw_torch")\n'
    pick = (
        argument("precision", "bf16", ARGUMENTS, "bf16"),
        argument("fused_optimizer", True, ARGUMENTS, "optim"),
        argument("num_workers", 0, ARGUMENTS, "dataloader_num_workers"),
    )
    assert edited(text, *pick) == (
        'args = TrainingArguments("out", bf16=True, fp16=False, optim="adamw_torch_fused", '
        "dataloader_num_workers=0, dataloader_persistent_workers=False)\n"
    )


def test_trainer_and_accelerator_too():
    assert edited("t = L.Trainer()\n", argument("precision", "bf16", LIGHTNING, "precision")) == (
        't = L.Trainer(precision="bf16-mixed")\n'
    )
    text = "a = Accelerator(mixed_precision='no')\n"
    assert edited(text, argument("precision", "bf16", ACCELERATOR, "mixed_precision")) == (
        'a = Accelerator(mixed_precision="bf16")\n'
    )


def test_the_scripts_own_compile_gets_the_mode():
    one = patch("compile_mode", "max-autotune")
    assert edited("m = torch.compile(m)\n", one) == 'm = torch.compile(m, mode="max-autotune")\n'
    assert (
        edited("m = torch.compile(m, mode='default')\n", one) == 'm = torch.compile(m, mode="max-autotune")\n'
    )


def test_the_default_of_a_value_that_the_script_asks_for_is_set():
    text = 'depth = autotune.sdk.value("depth", 2)\n'
    one = change("depth", 4, Keyword("autotune.sdk.value", "depth"))
    assert edited(text, one) == text.replace("2", "4")


# Scripts as they are written ------------------------------------------------------------------


ROOT = Path(__file__).parents[2]
WRITTEN = sorted(
    path
    for folder in ("tests/scripts", "experiments/workloads")
    for path in (ROOT / folder).rglob("*.py")
    if b"DataLoader(" in path.read_bytes()
)


def without(call):
    """A call whose arguments that these tests set are taken out."""
    kept = [k for k in call.keywords if k.arg not in ("batch_size", "num_workers")]
    call.keywords = kept
    call.args = call.args[:1]


@pytest.mark.thorough
def test_in_scripts_of_every_kind_only_the_arguments_of_the_one_call_change():
    assert len(WRITTEN) > 20
    edits = 0
    for path in WRITTEN:
        data = path.read_bytes()
        for number, call in enumerate(ScriptSource("train.py", data).calls("DataLoader")):
            site = f"train.py:{call.lineno}"
            message = diffed(data, loader("batch_size", 7, site=site), loader("num_workers", 3, site=site))
            if not message.included:
                continue
            old, new = (
                ScriptSource("x", data),
                ScriptSource("x", applied(data.decode(), message.text).encode()),
            )
            before, after = old.calls("DataLoader")[number], new.calls("DataLoader")[number]
            set_now = {name: _argument(after, name) for name in message.included}
            if any(isinstance(node, ast.Name) for node in set_now.values()):
                continue  # the literal is where the name gets its value
            values = {name: ast.literal_eval(node) for name, node in set_now.items()}
            assert values == {k: v for k, v in {"batch_size": 7, "num_workers": 3}.items() if k in values}
            without(before), without(after)
            assert ast.dump(old.tree) == ast.dump(new.tree), path
            edits += 1
    assert edits > 20


# The diff itself -----------------------------------------------------------------------------


SCRIPTS = {
    "plain": LOADER.encode(),
    "no end of line": LOADER.rstrip("\n").encode(),
    "windows": LOADER.replace("\n", "\r\n").encode(),
    "byte order mark": b"\xef\xbb\xbf" + LOADER.encode(),
    "form feed and separators": LOADER.replace("import torch\n", "import torch  # \x0c \u2028 ü\n").encode(),
    "long": LOADER.encode() + b"y = 2\n" * 40,
}


@needs_patch
@pytest.mark.parametrize("name", ["train.py", "my train.py", "sub/train.py"])
@pytest.mark.parametrize("kind", SCRIPTS)
def test_patch_applies_it_and_takes_it_back(kind, name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(SCRIPTS[kind])
    pick = (loader("batch_size", 64), loader("num_workers", 4))
    message = diffed(SCRIPTS[kind], *pick, name=name)
    assert message.left == ()
    (tmp_path / "tuned.diff").write_bytes(message.commented(["head"], ["tail"]).encode())

    def run(*options):
        done = subprocess.run(
            ["patch", "-p0", *options, "-i", "tuned.diff"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list(tmp_path.rglob("*.rej"))

    run()
    after = path.read_bytes()
    assert b"DataLoader(data, batch_size=64, shuffle=True, num_workers=4)" in after
    assert b"DataLoader(held_out, batch_size=32)" in after
    ast.parse(after)
    run("-R")
    assert path.read_bytes() == SCRIPTS[kind]


def test_edits_that_would_be_no_python_are_never_made():
    source = ScriptSource("train.py", b"x = 1\n")
    with pytest.raises(SyntaxError):
        source.edited([Edit(4, 5, "((")])


def test_an_edit_that_went_wrong_is_an_error_and_no_diff(monkeypatch):
    monkeypatch.setattr(ScriptSource, "with_arguments", lambda self, call, words: [Edit(0, 0, "((")])
    with pytest.raises(UsageError, match="no valid Python"):
        diffed(LOADER, loader("num_workers", 4))


@pytest.mark.parametrize("data", [b"x = '\xff'\n", b"def\n"])
def test_what_is_no_python_in_utf_8_is_no_source(data):
    with pytest.raises((SyntaxError, ValueError)):
        ScriptSource("train.py", data)


# A constant ---------------------------------------------------------------------------------


def written(name, value, *, was, knob="batch_size", file="train.py"):
    return change(knob, value, Constant((name,), file=file, line=1, was=was))


@pytest.mark.parametrize(
    ("text", "name", "after"),
    [
        ("BATCH = 16  # samples\n", "BATCH", "BATCH = 64  # samples\n"),
        ("cfg = {'a': 1,\n  'bs': 4 * 4}\n", "cfg.bs", "cfg = {'a': 1,\n  'bs': 64}\n"),
        ("class C:\n    bs: int = 16\n", "C.bs", "class C:\n    bs: int = 64\n"),
        ("def f(n, bs=16): pass\n", "f(bs)", "def f(n, bs=64): pass\n"),
    ],
)
def test_a_constant_is_changed_where_it_is_written(text, name, after):
    assert edited(text, written(name, 64, was=16)) == after


def test_a_constant_of_a_module_is_changed_there():
    def read(file):
        return ScriptSource(file, b"BATCH = 16\n") if file == "config.py" else nothing(file)

    message = diffed("import config\n", written("BATCH", 64, was=16, file="config.py"), read=read)
    assert message.data["files"] == ["config.py"]
    assert "-BATCH = 16\n+BATCH = 64\n" in message.text


@pytest.mark.parametrize(
    "held", ["cfg = dict(bs=2 * 8)", "class C:\n    bs: int = 16", "bs = 4 * 4\nexec(open('c.py').read())"]
)
def test_an_option_that_the_script_makes_itself_is_changed_where_its_default_is(held):
    text = f"import sys\n{held}\nfor arg in sys.argv[1:]:\n    pass\n"
    after = held.replace("2 * 8", "64").replace("4 * 4", "64").replace("16", "64")
    assert edited(text, flag("batch_size", 64, "--bs")) == text.replace(held, after)


def test_a_constant_that_is_another_by_now_is_left_out():
    assert "does not set BATCH=16" in reason("BATCH = 24\n", written("BATCH", 64, was=16))

"""What a script's source says."""

import pytest

from autotune.errors import UsageError
from autotune.inspection.script import script_facts


def facts_of(tmp_path, source: str):
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    return script_facts(str(path))


ARGPARSE = """
import argparse, os.path
from torch.optim import SGD
p = argparse.ArgumentParser()
p.add_argument("data")
p.add_argument("-b", "--batch-size", type=int, default=32, help="x")
p.add_argument("--lr", type=float, default=-1e-3)
p.add_argument("--amp", action="store_true")
p.add_argument("--no-pin", action="store_false", dest="pin")
p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
p.add_argument("--level", type=int, choices=(1, 2))
p.add_argument("--flag", type=bool, default=True)
p.add_argument("--positive", type=positive, default=4)
p.add_argument("--many", nargs="+", type=int)
p.add_argument("--maybe", nargs="?", type=int)
p.add_argument("--verbose", action="count")
p.add_argument("--bare", default=8)
p.add_argument("--computed", type=int, default=os.cpu_count())
p.add_argument("--twice", type=int)
p.add_argument("--twice", action="store_true")
p.add_argument("--rest", **rest)
"""


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("--batch-size", "int", 32),
        ("-b", "int", 32),
        ("--lr", "float", -1e-3),
        ("--amp", "switch", None),
        ("--no-pin", "off_switch", None),
        ("--compile", "pair", False),
        ("--no-compile", "pair", False),
        ("--dtype", "str", "float32"),
        ("--flag", "opaque", True),
        ("--positive", "int", 4),
        ("--many", "opaque", None),
        ("--maybe", "int", None),
        ("--verbose", "opaque", None),
        ("--bare", "str", 8),
        ("--computed", "int", None),
        ("--twice", "opaque", None),
        ("--rest", "opaque", None),
    ],
)
def test_argparse_options_are_read_with_their_kind(tmp_path, name, kind, default) -> None:
    flag = facts_of(tmp_path, ARGPARSE).flag(name)
    assert flag is not None
    assert (flag.kind, flag.default) == (kind, default)


def test_choices_and_destinations_are_read(tmp_path) -> None:
    facts = facts_of(tmp_path, ARGPARSE)
    assert facts.flag("--dtype").choices == ("float32", "bfloat16")
    assert facts.flag("--level").choices == ("1", "2")
    assert facts.flag("--no-pin").dest == "pin"
    assert facts.flag("-b").dest == "batch_size"
    assert facts.imports == ("argparse", "os", "torch")
    assert len(facts.sha256) == 64


def test_click_options_are_read(tmp_path) -> None:
    facts = facts_of(
        tmp_path,
        """
import click
@click.command()
@click.option("--batch-size", "-b", default=32)
@click.option("--amp/--no-amp", default=False)
@click.option("--fast", is_flag=True)
@click.option("--slow", is_flag=True, default=True)
@click.option("--mode", type=click.Choice(["a", "b"]))
@click.option("--workers", type=click.IntRange(0, 8))
@click.option("--pin", type=bool)
@click.option("--many", multiple=True, type=int)
def main(**kw): ...
""",
    )
    kinds = {flag.names: flag.kind for flag in facts.flags}
    assert kinds == {
        ("--batch-size", "-b"): "int",
        ("--amp", "--no-amp"): "pair",
        ("--fast",): "switch",
        ("--slow",): "opaque",
        ("--mode",): "str",
        ("--workers",): "int",
        ("--pin",): "bool",
        ("--many",): "opaque",
    }


def test_options_of_absl_are_read(tmp_path) -> None:
    source = """
from absl import app, flags
flags.DEFINE_integer("batch_size", 32, "Samples.")
flags.DEFINE_float("lr", default=0.1, help="x")
flags.DEFINE_bool("amp", False, "x")
flags.DEFINE_enum("dtype", "fp32", ["fp32", "bf16"], "x")
flags.DEFINE_list("many", [], "x")
flags.DEFINE_integer(NAME, 1, "x")
"""
    found = {flag.names: (flag.kind, flag.default, flag.choices) for flag in facts_of(tmp_path, source).flags}
    assert found == {
        ("--batch_size",): ("int", 32, ()),
        ("--lr",): ("float", 0.1, ()),
        ("--amp", "--noamp"): ("pair", False, ()),
        ("--dtype",): ("str", "fp32", ("fp32", "bf16")),
    }


SIGNATURE = """
def main(data, batch_size: int = 32, amp=False, *, lr=0.1, path=None, key="x"): ...
class Args:
    batch_size: int = 32
    amp: bool = False
    name: str
    size = 3
def other(depth=2): ...
"""


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("fire.Fire(main)", [("--batch_size",), ("--amp",), ("--lr",), ("--key",)]),
        ("typer.run(main)", [("--batch-size",), ("--amp", "--no-amp"), ("--lr",), ("--key",)]),
        ("args = tyro.cli(Args)", [("--batch-size",), ("--amp", "--no-amp")]),
        ("subprocess.run(main)", []),
        ("fire.Fire()", []),
        ("fire.Fire(imported)", []),
    ],
)
def test_options_that_are_made_from_signatures_are_read(tmp_path, call, names) -> None:
    facts = facts_of(tmp_path, f"{SIGNATURE}if __name__ == '__main__':\n    {call}\n")
    assert [flag.names for flag in facts.flags] == names
    for flag in facts.flags[:2]:
        assert flag.default == {"batch_size": 32, "amp": False}[flag.dest]
        assert flag.kind == {"batch_size": "int", "amp": "bool" if "fire" in call else "pair"}[flag.dest]


def test_options_of_commands_of_a_typer_app_are_read(tmp_path) -> None:
    source = """
import typer
from typing import Annotated
app = typer.Typer()
@app.command()
def train(
    data: str,
    batch: int = typer.Option(64, "--batch-size", "-b", help="x"),
    workers: Annotated[int, typer.Option("--jobs")] = 2,
    rows: int = typer.Argument(5),
    seed: int = 1,
): ...
def helper(depth=2): ...
@other.command()
def evaluate(width=3): ...
app()
"""
    assert [flag.names for flag in facts_of(tmp_path, source).flags] == [("--batch-size", "-b"), ("--seed",)]


def test_switches_of_a_typer_app_have_the_names_that_they_are_given(tmp_path) -> None:
    source = """
import typer
app = typer.Typer()
@app.command()
def train(
    half: bool = typer.Option(True, "--amp/--fp32"),
    fuse: bool = typer.Option(False, "--fuse"),
    cache: bool = typer.Option(False),
): ...
app()
"""
    assert [(flag.names, flag.kind) for flag in facts_of(tmp_path, source).flags] == [
        (("--amp", "--fp32"), "pair"),
        (("--fuse",), "switch"),
        (("--cache", "--no-cache"), "pair"),
    ]


def test_globals_that_a_configurator_overrides_are_options(tmp_path) -> None:
    facts = facts_of(
        tmp_path,
        "batch_size = 12\ncompile = True\nlr = 6e-4\ndtype = 'float32' if 1 else 'x'\n_x = 1\n"
        "exec(open('configurator.py').read())\n",
    )
    assert {f.names[0]: f.kind for f in facts.flags} == {
        "--batch_size": "int",
        "--compile": "bool",
        "--lr": "float",
    }
    assert "exec_config" in facts.hazards


def test_constants_are_no_options_without_a_configurator(tmp_path) -> None:
    assert facts_of(tmp_path, "batch_size = 12\n").flags == ()


@pytest.mark.parametrize(
    ("source", "hazard"),
    [
        ("with torch.autocast('cpu'): pass", "own_autocast"),
        ("from torch.cuda.amp import autocast\nwith autocast(): pass", "own_autocast"),
        ("s = torch.amp.GradScaler()", "own_scaler"),
        ("model = torch.compile(model)", "own_compile"),
        ("@torch.compile\ndef f(): ...", "own_compile"),
        ("o = torch.optim.LBFGS(p)", "lbfgs"),
        ("x = torch.zeros(1, dtype=torch.float64)", "float64"),
        ("model.double()", "float64"),
        ("h = {k: v.bfloat16() for k, v in s.items()}", "own_bf16"),
        ("dtype = 'bfloat16'", "own_bf16"),
        ("l = nn.BCELoss()", "bce_on_sigmoid"),
        ("l = F.binary_cross_entropy(a, b)", "bce_on_sigmoid"),
        ("try: x\nexcept: pass", "bare_except"),
        ("try: x\nexcept BaseException: pass", "bare_except"),
        ("import os\npid = os.fork()", "forks"),
        ("from os import fork\nif fork() == 0: pass", "forks"),
        ("h = model.init_hidden(4)", "hidden_state"),
        ("p = HfArgumentParser(A)", "hf_arguments"),
        ("for i in range(max_iters):\n    loss.backward()", "step_counted_loop"),
        ("for i in tqdm(range(n)):\n    loss.backward()", "step_counted_loop"),
        ("while step < n:\n    loss.backward()", "step_counted_loop"),
        ("for x in loader:\n    loss.backward()\n    if step >= max_steps: break", "step_counted_loop"),
    ],
)
def test_hazards_are_seen(tmp_path, source, hazard) -> None:
    assert hazard in facts_of(tmp_path, source).hazards


@pytest.mark.parametrize(
    "source",
    [
        "re.compile('x')",
        "l = nn.BCEWithLogitsLoss()",
        "try: x\nexcept ValueError: pass",
        "for epoch in range(3):\n    for x in loader:\n        loss.backward()",
        "for x in loader:\n    loss.backward()\n    if args.dry_run: break",
        "for x in loader:\n    loss.backward()\n    if i % 10 == 0: print(i)",
    ],
)
def test_harmless_code_is_no_hazard(tmp_path, source) -> None:
    assert facts_of(tmp_path, source).hazards == ()


# Options of the script's own modules -------------------------------------------------------


def project(tmp_path, files: dict[str, str]):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return script_facts(str(tmp_path / "train.py"))


def test_options_of_an_imported_parser_are_the_scripts(tmp_path) -> None:
    facts = project(
        tmp_path,
        {
            "train.py": "from options import parser\nargs = parser.parse_args()\nprint(args.batch_size)\n",
            "options.py": "import argparse, torch\nparser = argparse.ArgumentParser()\n"
            "parser.add_argument('-b', '--batch-size', type=int, default=16, dest='batch')\n",
        },
    )
    flag = facts.flag("--batch-size")
    assert (flag.names, flag.dest, flag.kind, flag.default) == (("-b", "--batch-size"), "batch", "int", 16)
    assert "torch" in facts.imports


def test_options_in_classes_of_a_package_are_found_through_relative_imports(tmp_path) -> None:
    facts = project(
        tmp_path,
        {
            "train.py": "from options.train_options import TrainOptions\nopt = TrainOptions().parse()\n",
            "options/__init__.py": "",
            "options/train_options.py": "from .base_options import BaseOptions\n"
            "class TrainOptions(BaseOptions):\n    def initialize(self, parser):\n"
            "        parser.add_argument('--lr', type=float, default=0.0002)\n",
            "options/base_options.py": "class BaseOptions:\n    def initialize(self, parser):\n"
            "        parser.add_argument('--batch_size', type=int, default=1)\n",
        },
    )
    assert [(flag.names[0], flag.default) for flag in facts.flags] == [("--lr", 0.0002), ("--batch_size", 1)]


def test_a_module_of_a_package_finds_its_neighbours_by_their_whole_name(tmp_path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("parser.add_argument('--not-ours', type=int)\n")
    package = tmp_path / "digits"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "options.py").write_text("parser.add_argument('--batch-size', type=int)\n")
    (package / "train.py").write_text("import torch\nfrom digits.options import parser\n")
    assert [flag.names for flag in script_facts(str(package / "train.py")).flags] == [("--batch-size",)]


OTHER = """
import argparse
def helper(): return rows()
def rows():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int)
def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int)
    return p.parse_args()
def main():
    args = arguments()
    helper()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from other import helper\n", ["--rows"]),
        ("from other import arguments\n", ["--batch-size"]),
        ("import other\nother.main()\n", ["--rows", "--batch-size"]),
        ("from other import *\n", ["--rows", "--batch-size"]),
    ],
)
def test_what_a_module_parses_as_a_script_of_its_own_is_no_option_here(tmp_path, source, names) -> None:
    facts = project(tmp_path, {"train.py": source, "other.py": OTHER})
    assert [flag.names[0] for flag in facts.flags] == names


def test_of_one_option_in_two_files_the_scripts_own_counts_and_two_modules_must_agree(tmp_path) -> None:
    add = "parser.add_argument('--{}', type={}, default={})\n"
    facts = project(
        tmp_path,
        {
            "train.py": "import a, b\n" + add.format("steps", "int", 5),
            "a.py": add.format("steps", "str", "'x'") + add.format("lr", "float", 0.1),
            "b.py": add.format("lr", "str", "'x'") + add.format("epochs", "int", 2),
        },
    )
    kinds = {flag.names[0]: (flag.kind, flag.default) for flag in facts.flags}
    assert kinds == {"--steps": ("int", 5), "--lr": ("opaque", None), "--epochs": ("int", 2)}


def test_an_autocast_in_a_module_belongs_to_the_option_and_other_hazards_stay_with_their_file(
    tmp_path,
) -> None:
    facts = project(
        tmp_path,
        {
            "train.py": "from options import parser\nimport engine\n",
            "options.py": "parser.add_argument('--amp', action='store_true')\n",
            "engine.py": "def step(args):\n"
            "    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=args.amp): pass\n"
            "    loss = F.binary_cross_entropy(a, b)\n    model.init_hidden(4)\n"
            "    for i in range(max_iters):\n        loss.backward()\n",
        },
    )
    assert facts.flag("--amp").autocast == "bf16"
    assert facts.hazards == ("own_autocast", "own_bf16")


@pytest.mark.parametrize("source", ["def (", "x = '\x00'", "(" * 3000])
def test_a_file_that_is_no_python_yields_no_options(tmp_path, source) -> None:
    facts = facts_of(tmp_path, source)
    assert facts.flags == ()
    assert facts.sha256


def test_a_missing_script_is_a_usage_error(tmp_path) -> None:
    with pytest.raises(UsageError, match="cannot read the script"):
        script_facts(str(tmp_path / "none.py"))


@pytest.mark.parametrize(
    "source",
    [
        "def main():\n    train()\nif __name__ == '__main__':\n    main()\n",
        "if '__main__' == __name__:\n    for i in range(3):\n        pass\n",
        "import warnings, torch\nwarnings.filterwarnings('ignore')\ntorch.manual_seed(0)\n",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\n",
        '"""Doc."""\ntry:\n    import apex\nexcept ImportError:\n    apex = None\n',
        "RATES = [i / 10 for i in range(3)]\n",
        "class Net:\n    pass\nif torch.cuda.is_available():\n    device = torch.device('cuda')\n",
    ],
)
def test_a_script_that_only_defines_things_can_be_imported_by_workers(tmp_path, source) -> None:
    assert not facts_of(tmp_path, source).import_runs


@pytest.mark.parametrize(
    "source",
    [
        "def main():\n    pass\nmain()\n",
        "def main():\n    pass\nresult = main()\n",
        "for epoch in range(3):\n    pass\n",
        "model = Net().to(device)\n",
        "log = open('log.txt', 'w')\n",
        "print('starting')\n",
        "if torch.cuda.is_available():\n    torch.multiprocessing.set_start_method('spawn')\n",
        "if __name__ == '__main__':\n    pass\nelse:\n    main()\n",
        "with open('x') as f:\n    pass\n",
        "try:\n    train()\nexcept Exception:\n    pass\n",
    ],
)
def test_a_script_that_works_at_its_import_cannot(tmp_path, source) -> None:
    assert facts_of(tmp_path, source).import_runs


OPTIONS = """
import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("--amp", action="store_true")
p.add_argument("--other", action="store_true")
p.add_argument("--dtype", default="float32")
args = p.parse_args()
"""


@pytest.mark.parametrize(
    ("use", "form"),
    [
        ('torch.autocast("cpu", torch.bfloat16, enabled=args.amp)', "bf16"),
        ('torch.autocast("cpu", enabled=args.amp)', "bf16"),
        ('torch.autocast(device_type="cuda", enabled=args.amp)', "fp16"),
        ('torch.autocast("cuda", dtype=torch.bfloat16) if args.amp else None', "bf16"),
        ("torch.cuda.amp.autocast(args.amp)", "fp16"),
        ("torch.cuda.amp.autocast(enabled=args.amp, dtype=torch.bfloat16)", "bf16"),
        ('if args.amp:\n    with torch.autocast("cuda", torch.half): pass', "fp16"),
        ('options = vars(args)\ntorch.autocast("cpu", enabled=options["amp"])', "bf16"),
        ("torch.autocast(device.type, enabled=args.amp)", ""),
        ("torch.autocast(device.type, dtype=wanted, enabled=args.amp)", ""),
        ('torch.autocast("cpu", torch.bfloat16)', ""),
        ('torch.autocast("cpu", torch.bfloat16, enabled=not args.amp)', ""),
        ('torch.autocast("cpu", torch.bfloat16, enabled=args.dtype)', ""),
    ],
)
def test_an_option_that_decides_about_autocast_is_known_by_its_format(tmp_path, use, form) -> None:
    facts = facts_of(tmp_path, OPTIONS + use + "\n")
    assert facts.flag("--amp").autocast == form
    assert facts.flag("--other").autocast == facts.flag("--dtype").autocast == ""


def test_two_formats_behind_one_option_are_none(tmp_path) -> None:
    use = 'torch.autocast("cpu", enabled=args.amp)\ntorch.autocast("cuda", enabled=args.amp)\n'
    assert facts_of(tmp_path, OPTIONS + use).flag("--amp").autocast == ""

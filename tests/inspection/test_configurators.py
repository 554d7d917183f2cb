"""Options that scripts take by code of their own, with the values in force."""

import pytest

from autotune.inspection.script import script_facts

OVERRIDES = "import sys\nfor arg in sys.argv[1:]:\n    exec(open(arg).read())\n"


def flags(folder, source, args=()):
    (folder / "train.py").write_text(source, encoding="utf-8")
    found = script_facts(str(folder / "train.py"), args, cwd=str(folder))
    return {flag.names[0]: flag for flag in found.flags}


def test_globals_above_the_configurator_are_options_and_those_below_are_none(tmp_path):
    source = (
        "batch_size = 5 * 8\nlr, seed = 1e-3, 7\ncompile = True\niters = batch_size * 10\n_own = 3\n"
        "device = 'cuda' if gpu() else 'cpu'\n"
        "exec(open('configurator.py').read())\n"
        "hidden = 64\n"
    )
    found = flags(tmp_path, source)
    assert {name: flag.default for name, flag in found.items()} == {
        "--batch_size": 40,
        "--lr": 1e-3,
        "--seed": 7,
        "--compile": True,
        "--iters": 400,
    }
    assert (found["--batch_size"].kind, found["--compile"].kind) == ("int", "bool")


def test_a_file_of_settings_on_the_command_line_is_in_force(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "small.py").write_text("batch_size = 2 * 6\nunknown = 1\n", encoding="utf-8")
    source = "batch_size = 40\nsteps = 9\nexec(open('configurator.py').read())\n"
    found = flags(tmp_path, source, ["config/small.py", "--steps=5"])
    assert {name: flag.default for name, flag in found.items()} == {"--batch_size": 12, "--steps": 9}


def test_a_file_that_takes_nothing_from_the_command_line_makes_no_options(tmp_path):
    (tmp_path / "settings.py").write_text("batch_size = 12\n", encoding="utf-8")
    assert not flags(tmp_path, "batch_size = 40\nexec(open('settings.py').read())\n")
    (tmp_path / "settings.py").write_text(OVERRIDES, encoding="utf-8")
    assert set(flags(tmp_path, "batch_size = 40\nexec(open('settings.py').read())\n")) == {"--batch_size"}


@pytest.mark.parametrize(
    ("held", "sets"),
    [
        ("c = dict(batch_size=32, lr=0.1)", "c[key] = value"),
        ("c = {'batch_size': 4 * 8, 'lr': 0.1}", "c[key] = value"),
        ("class C:\n    batch_size: int = 32\n    lr: float = 0.1\nc = C()", "setattr(c, key, value)"),
        ("batch_size = 32\nlr = 0.1", "globals()[key] = value"),
    ],
)
def test_what_a_loop_over_the_command_line_sets_are_options(tmp_path, held, sets):
    loop = (
        "for arg in sys.argv[1:]:\n    key, value = arg.removeprefix('--').split('=')\n"
        f"    {sets}\nother = 3\n"
    )
    found = flags(tmp_path, f"import sys\n{held}\n{loop}")
    assert {name: flag.default for name, flag in found.items()} == {"--batch_size": 32, "--lr": 0.1}


def test_words_without_dashes_are_options_without_them(tmp_path):
    source = (
        "import sys\ncfg = dict(batch_size=32)\n"
        "for arg in sys.argv[1:]:\n    key, value = arg.split('=')\n    cfg[key] = int(value)\n"
    )
    assert set(flags(tmp_path, source)) == {"batch_size"}


@pytest.mark.parametrize(
    ("held", "over", "name"),
    [
        ("@dataclass\nclass A:\n    batch_size: int = 32", "f in fields(A)", "f'--{f.name}'"),
        ("D = dict(batch_size=32)", "k, v in D.items()", "'--' + k"),
        ("D = {'batch_size': 32}", "k, v in D.items()", "f'--{k}'"),
    ],
)
def test_options_declared_in_a_loop_have_the_defaults_of_what_it_goes_over(tmp_path, held, over, name):
    source = f"{held}\nfor {over}:\n    parser.add_argument({name}, default=None)\nparser.parse_args()\n"
    found = flags(tmp_path, source)
    assert found["--batch_size"].default == 32
    assert found["--batch_size"].kind == "int"


@pytest.mark.parametrize("given", ["[]", "['--lr', '1']", "'--lr 1'.split()", "args=[]"])
def test_a_parser_that_never_sees_the_command_line_has_no_options(tmp_path, given):
    source = f"parser.add_argument('--batch-size', type=int, default=4)\nargs = parser.parse_args({given})\n"
    assert not flags(tmp_path, source)


@pytest.mark.parametrize("given", ["", "argv", "sys.argv[1:]"])
def test_a_parser_that_sees_it_has_them(tmp_path, given):
    source = f"parser.add_argument('--batch-size', type=int, default=4)\nargs = parser.parse_args({given})\n"
    assert set(flags(tmp_path, source)) == {"--batch-size"}

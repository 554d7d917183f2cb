"""To which sub-command an option belongs, and which ones a command line can take."""

import pytest

from autotune.inspection.script import script_facts


def taken(tmp_path, source: str | dict[str, str], line: str) -> list[str]:
    """The first spellings of the options that a command line can take."""
    files = {"train.py": source} if isinstance(source, str) else source
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return [flag.names[0] for flag in script_facts(str(tmp_path / "train.py"), line.split()).flags]


REASSIGNED = """
import argparse
def arguments():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command")
    p = commands.add_parser("train", aliases=["fit"])
    p.add_argument("data")
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--fast", action="store_true")
    p = commands.add_parser("predict")
    group = p.add_argument_group("loading")
    group.add_argument("--workers", type=int, default=4)
    alias = p
    alias.add_argument("--batch", type=int)
    return parser.parse_args()
arguments()
"""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("train x", ["--batch-size", "--fast"]),
        ("fit x --batch-size 4", ["--batch-size", "--fast"]),
        ("predict", ["--workers", "--batch"]),
        ("train --data predict", ["--batch-size", "--fast"]),
        ("--fast train predict.txt", ["--batch-size", "--fast"]),
        ("--verbose train", ["--batch-size", "--fast"]),
        ("", []),
    ],
)
def test_a_command_line_takes_the_options_of_its_own_sub_command(tmp_path, line, names) -> None:
    assert taken(tmp_path, REASSIGNED, line) == names


def test_without_a_command_line_all_options_are_there(tmp_path) -> None:
    (tmp_path / "train.py").write_text(REASSIGNED)
    flags = script_facts(str(tmp_path / "train.py")).flags
    assert [flag.names[0] for flag in flags] == ["--batch-size", "--fast", "--workers", "--batch"]


SAME_SPELLING = """
import argparse
parser = argparse.ArgumentParser()
sub = parser.add_subparsers()
train = sub.add_parser("train")
show = sub.add_parser("show")
train.add_argument("--batch", type=int, default=8)
show.add_argument("--batch", action="store_true")
"""


@pytest.mark.parametrize(
    ("args", "kind", "default"),
    [(["train"], "int", 8), (["show"], "switch", None), (None, "opaque", None)],
)
def test_one_spelling_in_two_sub_commands_means_what_it_means_in_the_one_that_is_named(
    tmp_path, args, kind, default
) -> None:
    (tmp_path / "train.py").write_text(SAME_SPELLING)
    (flag,) = script_facts(str(tmp_path / "train.py"), args).flags
    assert (flag.kind, flag.default) == (kind, default)


HELPERS = """
import argparse
def loading(p, *, more=None):
    p.add_argument("--workers", type=int)
def training(parser):
    ag = parser
    ag.add_argument("--batch-size", type=int)
    loading(parser)
def showing(commands):
    p = commands.add_parser("show")
    p.add_argument("--rows", type=int)
    loading(p=p)
def exporting(parser):
    parser.add_argument("--format")
def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    training(commands.add_parser("train"))
    showing(commands)
    exporting({sent})
main()
"""


@pytest.mark.parametrize(
    ("line", "sent", "names"),
    [
        ("train", "commands.add_parser('export')", ["--workers", "--batch-size"]),
        ("show", "commands.add_parser('export')", ["--workers", "--rows"]),
        ("export", "commands.add_parser('export')", ["--format"]),
        ("train", "made()", ["--workers", "--batch-size", "--format"]),
        ("export", "commands.add_parser(name)", ["--format"]),
        ("train", "commands.add_parser(name)", ["--workers", "--batch-size", "--format"]),
    ],
)
def test_a_function_that_is_handed_parsers_declares_options_of_all_of_them(
    tmp_path, line, sent, names
) -> None:
    assert taken(tmp_path, HELPERS.format(sent=sent), line) == names


def test_a_function_that_is_also_called_in_ways_not_seen_declares_options_of_any_command(tmp_path) -> None:
    source = REASSIGNED + "def more(p):\n    p.add_argument('--more', type=int)\nrun(more)\n"
    assert taken(tmp_path, source, "train") == ["--batch-size", "--fast", "--more"]


PACKAGE = {
    "train.py": "import argparse\nimport other\n"
    "def main():\n    p = argparse.ArgumentParser()\n    sub = p.add_subparsers(dest='command')\n"
    "    t = sub.add_parser('train')\n    t.add_argument('--epochs', type=int)\n"
    "    other.register(sub)\nmain()\n",
    "other.py": "import argparse\n"
    "def register(sub):\n    ag = sub.add_parser('inference', aliases=['inf'])\n    add_args(ag)\n"
    "def add_args(parser):\n    ag = parser\n"
    "    ag.add_argument('--nworkers', type=int, default=0)\n    ag.add_argument('--batch', type=int)\n"
    "def main(args=None):\n    ag = argparse.ArgumentParser()\n    add_args(ag)\n    ag.parse_args()\n",
}
"""As sevenn does it; its sub-commands are programs of their own besides."""


@pytest.mark.parametrize(
    ("line", "names"),
    [("train input.yaml -s", ["--epochs"]), ("inf model", ["--nworkers", "--batch"])],
)
def test_options_of_another_command_in_a_module_beside_the_script_are_not_taken(
    tmp_path, line, names
) -> None:
    assert taken(tmp_path, PACKAGE, line) == names


@pytest.mark.parametrize(
    ("body", "line", "names"),
    [
        # Of the program itself, before the command: it may be changed where it stands alone.
        ("parser.add_argument('--lr')\nsub.add_parser('train')", "train", []),
        ("parser.add_argument('--lr')\nsub.add_parser('train')", "--lr 1 train", ["--lr"]),
        ("parser.add_argument('--lr')\nsub.add_parser('train')", "--lr=1 train", ["--lr"]),
        ("parser.add_argument('--lr')\nsub.add_parser('train')", "", ["--lr"]),
        # Whether a command is named there is not known.
        ("parser.add_argument('--lr')\nfor n in names:\n    sub.add_parser(n)", "train", ["--lr"]),
        ("for n in names:\n    p = sub.add_parser(n)\n    p.add_argument('--lr')", "train", ["--lr"]),
        # Several at once.
        (
            (
                "a = sub.add_parser('train')\nb = sub.add_parser('show')\n"
                "for p in (a, b):\n    p.add_argument('--lr')\nsub.add_parser('x').add_argument('--x')"
            ),
            "show",
            ["--lr"],
        ),
        (
            (
                "common = argparse.ArgumentParser(add_help=False)\ncommon.add_argument('--lr')\n"
                "a = sub.add_parser('train', parents=[common])\nb = sub.add_parser('show')\n"
            ),
            "train",
            ["--lr"],
        ),
        (
            (
                "common = argparse.ArgumentParser(add_help=False)\ncommon.add_argument('--lr')\n"
                "a = sub.add_parser('train', parents=[common])\nb = sub.add_parser('show')\n"
            ),
            "show",
            [],
        ),
        (
            (
                "if new:\n    p = sub.add_parser('train')\nelse:\n    p = sub.add_parser('fit')\n"
                "p.add_argument('--lr')"
            ),
            "train",
            ["--lr"],
        ),
        # One in another.
        (
            (
                "m = sub.add_parser('model').add_subparsers()\nd = sub.add_parser('data').add_subparsers()\n"
                "m.add_parser('train').add_argument('--lr')\nd.add_parser('train').add_argument('--rows')"
            ),
            "model train",
            ["--lr"],
        ),
        (
            (
                "p = sub.add_parser('show')\n[p.add_argument('--lr') for p in (sub.add_parser('train'),)]\n"
                "(lambda p: [p.add_argument('--a')])(x)\np.add_argument('--b')"
            ),
            "train",
            ["--lr", "--a"],
        ),
        (
            (
                "p = sub.add_parser('show')\nfor n in (1, 2):\n    p.add_argument('--lr')\n"
                "    p = sub.add_parser('train')"
            ),
            "train",
            ["--lr"],
        ),
        # A name that holds something else by then, and one that is set in a way that is not followed.
        ("p = sub.add_parser('show')\np = other()\np.add_argument('--lr')", "train", ["--lr"]),
        ("p, q = sub.add_parser('show'), 1\np.add_argument('--lr')", "train", ["--lr"]),
        (
            (
                "with sub.add_parser('show') as p:\n    p.add_argument('--lr')\n"
                "while p:\n    p.add_argument('--a')\ntry:\n    p.add_argument('--b')\n"
                "except E:\n    p = 1\nmatch p:\n    case 1:\n        p.add_argument('--c')"
            ),
            "train",
            ["--lr", "--a", "--b", "--c"],
        ),
        ("(p := sub.add_parser('show')).add_argument('--lr')", "train", []),
        ("p = sub.add_parser('show') if x else sub.add_parser('y')\np.add_argument('--lr')", "train", []),
        ("p: object = sub.add_parser('show')\ndef f():\n    p.add_argument('--lr')\nf()", "train", []),
        ("def f():\n    return sub.add_parser('show')\nf().add_argument('--lr')", "train", []),
        ("p = sub.add_parser('show', aliases=names)\np.add_argument('--lr')", "train", ["--lr"]),
        ("class A:\n    def f(self, parser):\n        parser.add_argument('--lr')", "train", ["--lr"]),
        ("def f(*p):\n    p[0].add_argument('--lr')\nf(*x)", "train", ["--lr"]),
    ],
)
def test_parsers_are_followed_as_far_as_the_source_is_plain(tmp_path, body, line, names) -> None:
    head = "import argparse\nparser = argparse.ArgumentParser()\nsub = parser.add_subparsers()\n"
    assert taken(tmp_path, head + body + "\n", line) == names


CLICK = """
import click
@click.group()
@click.option("--seed", type=int)
def cli(seed): ...
@cli.command()
@click.option("--batch-size", type=int)
def train_model(batch_size): ...
@cli.command("show")
@click.option("--workers", type=int)
def other(workers): ...
@click.command()
@click.option("--rows", type=int)
def table(rows): ...
cli.add_command(table)
@cli.group()
def data(): ...
@data.command(name="build")
@click.option("--shards", type=int)
def make(shards): ...
@cli.command(NAME)
@click.option("--any", type=int)
def computed(any): ...
@click.command()
@click.option("--alone", type=int)
def alone(alone): ...
"""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("train-model", ["--batch-size", "--any", "--alone"]),
        ("--seed 1 show", ["--seed", "--workers", "--any", "--alone"]),
        ("table", ["--rows", "--any", "--alone"]),
        ("data build", ["--shards", "--any", "--alone"]),
    ],
)
def test_commands_of_a_click_group(tmp_path, line, names) -> None:
    assert taken(tmp_path, CLICK, line) == names


def test_a_click_command_of_a_group_in_another_module(tmp_path) -> None:
    files = {
        "train.py": "import other\nfrom other import cli\nimport click\n"
        "@cli.command()\n@click.option('--lr')\ndef train(lr): ...\n",
        "other.py": "import click\n@click.group()\ndef cli(): ...\n"
        "@cli.command()\n@click.option('--rows')\ndef show(rows): ...\n",
    }
    assert taken(tmp_path, files, "train") == ["--lr"]


TYPER = """
import typer
app = typer.Typer()
@app.command()
def train(batch_size: int = 32): ...
"""


@pytest.mark.parametrize(
    ("more", "line", "names"),
    [
        ("", "", ["--batch-size"]),
        ("@app.command()\ndef show_all(rows: int = 3): ...\n", "train", ["--batch-size"]),
        ("@app.command()\ndef show_all(rows: int = 3): ...\n", "show-all", ["--rows"]),
        ("@app.command('list')\ndef show_all(rows: int = 3): ...\n", "list", ["--rows"]),
        ("@app.callback()\ndef all(seed: int = 3): ...\n", "train", ["--batch-size"]),
        ("@app.callback()\ndef all(seed: int = 3): ...\n", "--seed 4 train", ["--batch-size", "--seed"]),
        (
            (
                "more = typer.Typer()\napp.add_typer(more, name='data')\n"
                "@more.command()\ndef train(rows: int = 3): ...\n"
            ),
            "data train",
            ["--rows"],
        ),
    ],
)
def test_commands_of_a_typer_app(tmp_path, more, line, names) -> None:
    assert taken(tmp_path, TYPER + more, line) == names

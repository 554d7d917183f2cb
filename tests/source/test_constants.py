"""Which values a file gives to names, and what is left of it when one is replaced."""

import ast

import pytest

from autotune.source.constants import constant_value, key_of, named_values, rank_of, rewritten


def named(source, **rest):
    return {n.name: n.value for n in named_values(ast.parse(source), **rest)}


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [
        ("batch_size = 16", "batch_size", 16),
        ("batch_size: int = 16", "batch_size", 16),
        ("B, T = 8, 1024", "B", 8),
        ("CONFIG = {'train': {'batch_size': 32}}", "CONFIG.train.batch_size", 32),
        ("cfg = dict(batch_size=4 * 8)", "cfg.batch_size", 32),
        ("cfg.trainer = CfgNode(batch_size=12)", "cfg.trainer.batch_size", 12),
        ("args['batch_size'] = 6", "args.batch_size", 6),
        ("cfg = OmegaConf.create({'batch_size': 5})", "cfg.batch_size", 5),
        ("class Settings:\n    batch_size: int = 40", "Settings.batch_size", 40),
        ("class Settings:\n    batch_size: int = field(default=41)", "Settings.batch_size", 41),
        ("class T:\n    def __init__(self):\n        self.batch_size = 9", "self.batch_size", 9),
        ("def train():\n    batch_size = 7", "train.batch_size", 7),
        ("def train(epochs, batch_size=24):\n    pass", "train(batch_size)", 24),
        ("def train(*, batch_size=25):\n    pass", "train(batch_size)", 25),
        ("def f():\n    global batch_size\n    batch_size = 3", "batch_size", 3),
        ("train(model, batch_size=64)", "train(batch_size=)", 64),
        ("parser.add_argument('-b', '--batch-size', type=int, default=28)", "--batch-size", 28),
        ("@click.option('--batch-size', default=29)\ndef main(batch_size):\n    pass", "--batch-size", 29),
        ("parser.set_defaults(batch_size=30)", "set_defaults(batch_size=)", 30),
        ("if fast:\n    batch_size = 64", "batch_size", 64),
        ("try:\n    pass\nexcept OSError:\n    batch_size = 65", "batch_size", 65),
    ],
)
def test_a_value_is_found_under_the_name_that_a_reader_would_give_it(source, name, value):
    assert named(source)[name] == value
    assert key_of(name) in ("batchsize", "b")


@pytest.mark.parametrize(
    "source",
    [
        "loader = DataLoader(data, batch_size=32)",
        "loader = torch.utils.data.DataLoader(data, batch_size=32)",
        "batch_size = args.batch_size",
        "batch_size = 64 if cuda else small()",
        "f'{batch_size}'",
    ],
)
def test_a_keyword_of_a_loader_and_what_is_not_written_out_are_no_constants(source):
    assert not named(source)


def test_a_name_with_several_values_says_how_many():
    source = "batch_size = 16\nfor epoch in range(9):\n    batch_size = 32\nbatch_size //= 2\n"
    assert [n.times for n in named_values(ast.parse(source))] == [3, 3]


def test_a_main_guard_counts_in_the_script_alone():
    source = "if __name__ == '__main__':\n    batch_size = 16\n"
    assert named(source) == {"batch_size": 16}
    assert not named(source, is_script=False)


def test_names_of_their_own_go_before_arguments():
    names = ["train(batch_size)", "train(batch_size=)", "CONFIG.batch_size"]
    assert sorted(names, key=rank_of) == ["CONFIG.batch_size", "train(batch_size=)", "train(batch_size)"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5 * 8", 40),
        ("2 ** 10", 1024),
        ("-3", -3),
        ("1e-3 / 2", 5e-4),
        ("n // 4", 25),
        ("2 ** 10 ** 10", None),
        ("9 ** 9 ** 9", None),
        ("1 // 0", None),
        ("1e999", None),
        ("'a' * 3", None),
        ("True + 1", None),
        ("m + 1", None),
    ],
)
def test_arithmetic_of_literals_is_worked_out_within_bounds(text, value):
    assert constant_value(ast.parse(text, mode="eval").body, {"n": 100}) == value


def test_a_replaced_value_stands_where_the_old_one_did():
    source = (
        'import sys\ncfg = {"lr": 1e-3,\n       "batch_size": 2 * 8, "seed": 1}\n'
        "line = sys._getframe().f_lineno\n"
    )
    tree = ast.parse(source)
    assert rewritten(tree, {"cfg.batch_size": (16, 128)}) == []
    names: dict = {}
    exec(compile(tree, "x.py", "exec"), names)
    assert names["cfg"] == {"lr": 1e-3, "batch_size": 128, "seed": 1}
    assert names["line"] == 4


@pytest.mark.parametrize(
    "source", ["batch_size = 16", "batch_size = 8\nbatch_size = 8", "train(batch_size=8)", "size = 8"]
)
def test_a_file_that_does_not_say_the_value_exactly_once_is_left_unchanged(source):
    tree = ast.parse(source)
    assert rewritten(tree, {"batch_size": (8, 4)}) == ["batch_size"]
    assert ast.unparse(tree) == source

"""Options as the script's parser returns them."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.trial.runtime.imports import AfterImport
from autotune.trial.runtime.parsed_options import ParsedOptions
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def options() -> Iterator[ParsedOptions]:
    undo = Undo()
    state: Any = SimpleNamespace(here=lambda: True, faults=SimpleNamespace(note=pytest.fail))
    found = ParsedOptions(state, undo)
    found.watch(AfterImport())
    yield found
    undo.undo_all()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--batch-size", type=int, default=4 * 8)
    made.add_argument("--lr", type=float, default=0.1)
    made.add_argument("--amp", action="store_true")
    made.add_argument("--name", default="run")
    made.add_argument("--auth-token", type=int, default=123456)
    return made


def test_values_are_those_of_the_last_parse_and_neither_text_nor_secrets(options: ParsedOptions) -> None:
    seen: list[int] = []
    options.on_parsed = lambda: seen.append(options.size(["--batch-size"]))
    made = parser()
    made.parse_known_args(["--lr", "0.2"])
    made.set_defaults(batch_size=20)
    made.parse_args(["--amp"])
    assert options.values == {"batch_size": 20, "lr": 0.1, "amp": True}
    assert seen == [32, 20]


def test_a_size_is_the_first_positive_integer_of_several_names(options: ParsedOptions) -> None:
    parser().parse_args([])
    assert options.size(["--bs", "--batch-size"]) == 32
    assert options.size(["--bs", "--amp", "--lr"]) == 0


def test_options_of_a_subcommand_are_included(options: ParsedOptions) -> None:
    made = argparse.ArgumentParser()
    made.add_argument("--seed", type=int, default=1)
    made.add_subparsers().add_parser("train").add_argument("--bs", type=int, default=8)
    made.parse_args(["train", "--bs", "16"])
    assert options.values == {"seed": 1, "bs": 16}


SCRIPT = """
import argparse, json
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--config")
parser.add_argument("--batch-size", type=int, default=32)
known, _ = parser.parse_known_args()
parser.set_defaults(**json.load(open(known.config)))
args = parser.parse_args()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    loss = model(torch.randn(args.batch_size, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.torch
def test_a_batch_size_of_a_configuration_file_is_found_in_the_models_input(run: Any, tmp_path: Path) -> None:
    config = tmp_path / "small.json"
    config.write_text(json.dumps({"batch_size": 20}))
    facts = run(SCRIPT, argv=["--config", str(config)], batch=32).facts
    assert facts.options == {"batch_size": 20}
    assert (facts.option_batch, facts.samples_source, facts.inputs.batch_size) == (20, "option", 20)

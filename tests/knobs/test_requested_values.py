"""Knobs that a script asks for itself, and what a script without PyTorch leaves to be searched."""

from dataclasses import replace
from typing import ClassVar

import pytest

from autotune.config_files.space_file import DeclareEntry
from autotune.errors import InvalidSpace
from autotune.knobs.declared import SDK_VALUE, declared_knob
from autotune.knobs.registry import builtin, knobs_for
from autotune.model.change import Keyword
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import RunFacts, ScriptFacts
from autotune.model.study import DeclaredSpec, SpaceRequest
from autotune.space.build_space import build_space
from autotune.testing.knobs import KnobContract, facts

RUN = RunFacts(samples_source="reported", versions={"python": "3.11.9"}, values={"batch": 64, "jit": False})
BATCH = DeclaredSpec(
    name="batch", effect=Effect.EXACT, values=(32, 64, 128), spelling=Keyword(SDK_VALUE, "batch")
)


def seen(run=RUN):
    return facts(script=ScriptFacts(path="/home/me/train.py"), run=run)


def request(*names, **more):
    return SpaceRequest(
        name="t", knobs=dict.fromkeys(("batch", *names), ()), declared=(BATCH,), source="mine.yaml", **more
    )


class TestAskedFor(KnobContract):
    knob = declared_knob(BATCH)
    facts: ClassVar = [seen(), seen(None), seen(replace(RUN, values={"batch": 48}))]
    test_what_it_patches_is_read_back_and_can_be_undone = None  # the script asks for it


def test_its_own_value_is_what_the_first_run_was_handed() -> None:
    knob = declared_knob(BATCH)
    assert knob.own(seen()) == 64
    assert knob.own(seen(None)) is None
    assert knob.domain(seen(replace(RUN, values={"batch": 48}))) == (32, 48, 64, 128)
    switch = replace(BATCH, values=("off", "on"))
    assert declared_knob(switch).own(seen(replace(RUN, values={"batch": False}))) == "off"


def test_no_trial_is_spent_on_it() -> None:
    space, _ = build_space(request(), seen(), knobs_for(request()))
    assert space.dimensions["batch"].own == 64
    assert space.complete({"batch": 64}) == Config()


def test_what_the_first_run_did_not_ask_for_is_refused_with_a_sentence() -> None:
    knob = declared_knob(BATCH)
    other = replace(RUN, values={"batches": 64})
    assert knob.refuse(seen(other)) == (
        'The script did not call autotune.value("batch", ...) in its first run, so nothing would change. '
        'Did you mean "batches"?'
    )
    assert knob.refuse(seen()) is None
    assert knob.refuse(seen(None)) is None
    assert knob.refuse(facts()) is None, "facts that no process reported"


@pytest.mark.parametrize("name", sorted(builtin()))
def test_without_pytorch_its_knobs_are_left_alone_and_say_so(name) -> None:
    space, refusals = build_space(request(name), seen(), knobs_for(request()))
    assert list(space.dimensions) == ["batch"]
    assert refusals[name].startswith("The script does not use PyTorch, whose setting this is")


def test_with_pytorch_they_say_what_they_reported() -> None:
    with_torch = replace(RUN, versions={"python": "3.11.9", "torch": "2.13.0"})
    _, refusals = build_space(request("num_workers"), seen(with_torch), knobs_for(request()))
    assert refusals["num_workers"].startswith("No training DataLoader was seen")


def test_what_is_withheld_says_it_too_and_a_pin_is_an_error() -> None:
    _, refusals = build_space(request(withheld=("pure_bf16",)), seen(), knobs_for(request()))
    assert "does not use PyTorch" in refusals["pure_bf16"]
    with pytest.raises(InvalidSpace, match="precision cannot be pinned: The script does not use PyTorch"):
        build_space(request(fixed={"precision": "bf16"}), seen(), knobs_for(request()))


@pytest.mark.parametrize("call", ["autotune.value", "autotune.sdk.value"])
def test_a_space_file_names_the_call_as_the_script_does(call) -> None:
    entry = DeclareEntry(name="batch", effect="EXACT", values=[32, 64, 128], keyword=f"{call}:batch")
    assert entry.spec() == BATCH

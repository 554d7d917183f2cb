"""Learning-rate advice: by the optimizer's class, reported and never applied."""

from __future__ import annotations

from dataclasses import replace

import pytest
from study_fakes import BASE, facts, measured, study

from autotune.loss.learning_rate import learning_rate_advice
from autotune.model.config import Config
from autotune.model.facts import OptimizerFacts
from autotune.model.study import Study

WILD = Config({"effective_batch": 128})


def seen(optimizer: OptimizerFacts | None, batch: float = 128.0) -> Study:
    known = facts()
    assert known.run is not None
    larger = measured(1, WILD, 150.0)
    assert larger.measurement is not None
    larger = replace(larger, outcome=replace(larger.measurement, effective_batch=batch))
    run = replace(known.run, optimizer=optimizer)
    return study(facts=replace(known, run=run), trials=(measured(0, BASE, 100.0), larger))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SGD", "Usual with SGD is in proportion, 4 times your rate, reached slowly at the start"),
        ("AdamW", "Usual with AdamW is the square root of that, 2 times your rate"),
        ("FusedAdam", "the square root of that, 2 times your rate"),
        ("RMSprop", "the square root of that, 2 times your rate"),
    ],
)
def test_the_rate_goes_with_the_batch_as_is_usual_with_the_optimizer(name: str, words: str) -> None:
    message = learning_rate_advice(seen(OptimizerFacts(name=name)), WILD)
    assert message.startswith("Learning rate: the effective batch is 4 times your script's")
    assert words in message
    assert "arXiv" in message
    assert message.endswith("nothing sets it.")


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerFacts(name="LBFGS"),
        OptimizerFacts(name="SignSGD"),
        OptimizerFacts(name="Adam", count=2),
        None,
    ],
)
def test_what_no_rule_is_about_gets_no_factor(optimizer: OptimizerFacts | None) -> None:
    message = learning_rate_advice(seen(optimizer), WILD)
    assert "is not known for" in message
    assert "times your rate" not in message


def test_a_smaller_batch_takes_a_smaller_rate_and_no_slow_start() -> None:
    message = learning_rate_advice(seen(OptimizerFacts(name="SGD"), batch=16.0), WILD)
    assert "0.5 times your script's" in message
    assert "in proportion, 0.5 times your rate (" in message


def test_the_scripts_own_batch_needs_no_advice() -> None:
    known = OptimizerFacts(name="SGD")
    assert learning_rate_advice(seen(known, batch=31.8), WILD) == ""
    assert learning_rate_advice(seen(known, batch=0.0), WILD) == ""
    assert learning_rate_advice(seen(known), Config({"threads": 4})) == ""


def test_a_script_that_moves_its_rate_with_its_batch_is_advised_nothing() -> None:
    known = seen(OptimizerFacts(name="SGD"))
    rates = {BASE: 0.1, WILD: 0.4}
    ran = [
        replace(t, outcome=replace(t.measurement, extra={"learning_rate": rates[t.config]}))
        for t in known.trials
        if t.measurement is not None
    ]
    message = learning_rate_advice(replace(known, trials=tuple(ran)), WILD)
    assert message.endswith("your script itself made its rate 4 times as high with it.")
    same = [replace(t, outcome=replace(t.outcome, extra={"learning_rate": 0.1})) for t in ran]
    assert "ran with your rate" in learning_rate_advice(replace(known, trials=tuple(same)), WILD)

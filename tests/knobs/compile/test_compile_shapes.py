"""`compile_shapes`: the contract, the facts that refuse it, and what is its own."""

from knob_facts import model, run

from autotune.knobs.compile.compile_shapes import CompileShapes
from autotune.model.config import Config
from autotune.testing.knobs import KnobContract, facts

KNOB = CompileShapes()
VARYING = facts(run=run(input_shapes_vary=True))


class TestCompileShapes(KnobContract):
    knob = KNOB


def test_sizes_that_do_not_vary_refuse_it_in_words() -> None:
    reason = KNOB.refuse(facts())
    assert reason is not None
    assert "do not vary" in reason
    assert KNOB.refuse(VARYING) is None
    assert KNOB.refuse(facts(run=None)) is None


def test_without_compile_it_drops_out() -> None:
    assert KNOB.settle(Config({"compile_shapes": "static"}), VARYING) == Config()
    both = Config({"compile_shapes": "static", "compile_mode": "default"})
    assert KNOB.settle(both, VARYING) == both
    assert KNOB.idle(VARYING, ("compile_shapes",)) is not None
    assert KNOB.idle(VARYING, ("compile_shapes", "compile_mode")) is None


def test_torchs_own_words_are_understood() -> None:
    assert KNOB.resolve(True, VARYING) == "dynamic"
    assert KNOB.resolve(False, VARYING) == "static"


def test_dropout_in_compiled_code_may_be_dealt_anew() -> None:
    assert KNOB.changes_rng_streams(facts(run=model(dropout=True)))
    assert not KNOB.changes_rng_streams(facts())

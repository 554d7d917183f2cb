"""`ddp_shard_optimizer`: the contract, and the facts that refuse it."""

import pytest
from knob_facts import ddp, fsdp

from autotune.inspection.script import script_facts
from autotune.knobs.distributed.ddp_shard_optimizer import SAVES_OPTIMIZER, DdpShardOptimizer
from autotune.model.facts import OptimizerFacts, ScriptFacts
from autotune.testing.knobs import CPU_RUN, KnobContract, facts

KNOB = DdpShardOptimizer()
SAVING = ScriptFacts(path="train.py", hazards=(SAVES_OPTIMIZER,))


class TestDdpShardOptimizer(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=CPU_RUN), "A single process"),
        (facts(run=fsdp()), "No DistributedDataParallel"),
        (facts(run=ddp(count=2)), "2 models are wrapped"),
        (facts(run=ddp(run={"owners": ("accelerate",)})), "accelerate saves"),
        (facts(run=ddp(), script=SAVING), "may save the optimizer's state"),
        (facts(run=ddp(run={"optimizer": OptimizerFacts(name="LBFGS")})), "parameters are independent"),
        (
            facts(run=ddp(run={"optimizer": OptimizerFacts(name="SGD", can_fuse=True, closure=True)})),
            "by a closure",
        ),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("torch.save(optimizer.state_dict(), 'o.pt')", True),
        ("states = [held.state_dict() for held in everything]", True),
        ("get_optimizer_state_dict(model, optimizers)", True),
        ("torch.save(model.module.state_dict(), 'm.pt')", False),
        ("torch.save(self.net.state_dict(), 'm.pt')", False),
    ],
)
def test_a_script_that_may_save_an_optimizer_is_known_by_its_source(tmp_path, line, is_found) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import torch\n{line}\n")
    assert (SAVES_OPTIMIZER in script_facts(path).hazards) is is_found

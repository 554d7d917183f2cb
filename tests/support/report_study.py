"""Whole studies with screening, failures, pairs and an ablation, as a search leaves them; nothing is run."""

from __future__ import annotations

import random
from dataclasses import replace

from search_world import GIB, World, tell, usual_space

from autotune.model.config import Config
from autotune.model.facts import Facts, HostFacts, ScriptFacts
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.trial import Failure, Fidelity, Proposal, Stage

WINNER = Config({"num_workers": 4, "precision": "bf16", "channels_last": True, "batch_size": 64})
SAFE = Config({"num_workers": 4})
SPEED = {
    ("precision", "bf16"): 1.5,
    ("channels_last", True): 1.2,
    ("threads", 1): 0.8,
    ("batch_size", 64): 1.1,
}
TAIL = "step 12\nTraceback (most recent call last):\nRuntimeError: it broke"
_FIDELITY = Fidelity(
    min_window_s=1, max_window_s=3, min_steps=5, target_width=0.04, setup_s=20, deadline_s=60
)


def spec(**changes) -> StudySpec:
    plain = StudySpec(
        study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1B",
        label="train-1121-1002",
        script="/project/train.py",
        args=("--lr", "1e-3"),
        cwd="/project",
        python="python",
        space=SpaceRequest(name="default"),
        budget=Budget(seconds=1800.0),
        out="/project/best.yaml",
        version="0.1.0",
        driver="inline",
    )
    return replace(plain, **changes)


def made(
    screen: int = 24,
    *,
    cycles: int = 5,
    ablations: int = 3,
    salt: int = 0,
    speed=None,
    losses: bool = True,
    limit_bytes: float = 4.5 * GIB,
    **changes,
) -> Study:
    """Two baselines, screening, cycles of script, winner and safe pick, and cycles of an ablation."""
    world = World(
        space=usual_space(),
        speed=SPEED if speed is None else speed,
        noise=0.01,
        input_s=0.006,
        limit_bytes=limit_bytes,
        broken=frozenset({("compile", "default")}),
        losses=losses,
    )
    facts = world.facts()
    host = HostFacts(
        cpus=4,
        physical_cores=4,
        memory_bytes=64 * GIB,
        cpu_model="CPU X",
        python="3.11.7",
        platform="Linux",
        versions={"torch": "2.13.0"},
    )
    run = replace(facts.run, values={"num_workers": 0, "precision": "fp32", "channels_last": False})
    full = Facts(host=host, script=ScriptFacts(path="/project/train.py", sha256="ab" * 32), run=run)
    given = {
        "space": world.space,
        "facts": full,
        "created": 1_795_000_000.0,
        "stopped": "finished",
        **changes,
    }
    study = Study(spec=given.pop("spec", spec()), **given)
    compiled: set[Config] = set()

    def go(study: Study, stage: Stage, config: Config, *, seed: int = 0, group: int = 0) -> Study:
        proposal = Proposal(
            stage=stage, config=config, fidelity=_FIDELITY, reason="made by hand", seed=seed, group=group
        )
        outcome, seconds = world.run(proposal, len(study.trials), compiled, salt)
        if isinstance(outcome, Failure):
            outcome = replace(outcome, evidence={"log_tail": TAIL, "exit": 1})
        return tell(study, proposal, outcome, seconds + 0.5)

    for seed in (0, 1):
        study = go(study, Stage.BASELINE, Config(), seed=seed)
    draw = random.Random(salt)
    pool = [c for c in world.space.enumerate() if c and len(c) <= 5]
    for config in [SAFE, WINNER, *draw.sample(pool, min(screen, len(pool)))]:
        study = go(study, Stage.REFINE, config)
    for cycle in range(1, cycles + 1):
        for config in (Config(), WINNER, SAFE):
            study = go(study, Stage.CONFIRM, config, seed=cycle, group=cycle)
    variants = [WINNER, *(WINNER.without(knob) for knob in WINNER)]
    for cycle in range(1, ablations + 1):
        for config in variants:
            study = go(study, Stage.ABLATE, config, seed=cycle, group=cycle)
    return study

"""Small tables in the form of recorded grids, made from a world of `autotune.launch.fake`."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from autotune.launch.fake import COMPUTE_BOUND, GIB, World
from autotune.model.config import Config
from autotune.model.facts import Facts, HostFacts, ScriptFacts
from autotune.model.measurement import Memory
from autotune.model.study import SpaceRequest
from autotune.model.trial import Fidelity
from autotune.testing.table import Blocks, ProtocolPart, Table, TableHeader, TableRow, WorkloadPart

FLAGS = ("avx512_bf16", "amx_bf16")
SEEDS = (0, 1, 2)
BLOCKS = 20
WINDOW_S = 4.0
KNOBS = {"precision": ("fp32", "bf16"), "channels_last": (False, True), "num_workers": (0, 2)}
CONFIGS = tuple(
    Config({k: v for k, v in zip(KNOBS, values, strict=True) if v not in ("fp32", False, 0)})
    for values in [(p, c, w) for p in ("fp32", "bf16") for c in (False, True) for w in (0, 2)]
)
FIDELITY = Fidelity(
    min_window_s=WINDOW_S, max_window_s=WINDOW_S, min_steps=1, target_width=0.0, setup_s=300, deadline_s=400
)


def row(config: Config, repeat: int, order: int, *, world: World = COMPUTE_BOUND, **more: Any) -> TableRow:
    """One run of a world; `more` replaces what came of it."""
    draw = random.Random(f"{config.digest}/{repeat}/{order}")
    step_s = world.step_s(config) * math.exp(draw.gauss(0.0, 0.01))
    steps = max(1, round(WINDOW_S / BLOCKS / step_s))
    elapsed = tuple(steps * step_s * math.exp(draw.gauss(0.0, 0.02)) for _ in range(BLOCKS))
    compile_s = world.compiles_s(config) * (1.0 if repeat == 0 else 0.1)
    samples = tuple(range(320, 320 + steps * BLOCKS * world.batch, 320))
    made = TableRow(
        config=config,
        digest=config.digest,
        repeat=repeat,
        order=order,
        seed=SEEDS[repeat],
        effective_batch=float(world.batch),
        start_up_s=world.startup_s,
        compile_s=compile_s,
        compile_cache="none" if not compile_s else "warm" if repeat else "cold",
        compile_key=config.digest,
        warmup_s=0.5,
        warmup_steps=5,
        window_s=math.fsum(elapsed),
        teardown_s=0.5,
        charged_s=world.startup_s + compile_s + 1.0 + math.fsum(elapsed),
        ended="limit",
        blocks=Blocks(
            num_steps=(steps,) * BLOCKS,
            num_samples=(steps * world.batch,) * BLOCKS,
            elapsed_s=elapsed,
            aside_s=(0.0,) * BLOCKS,
            wait_s=(0.0,) * BLOCKS,
            run_delay_s=(None,) * BLOCKS,
            flags=("",) * BLOCKS,
        ),
        memory=Memory(pss=world.memory_bytes(config), limit=16 * GIB),
        loss_samples=samples,
        loss_values=tuple(0.5 + 2 * math.exp(-n / 20000) + 0.001 * SEEDS[repeat] for n in samples),
        loss_t_s=tuple(compile_s + n / 1000 for n in samples),
    )
    return replace(made, **more)


def failed(config: Config, repeat: int, order: int, kind: str, seconds: float = 3.0) -> TableRow:
    """One run that failed."""
    return TableRow(
        config=config,
        digest=config.digest,
        repeat=repeat,
        order=order,
        seed=SEEDS[repeat],
        kind=kind,
        message=f"{kind} as recorded",
        charged_s=seconds,
    )


def table(*rows: TableRow, configs: tuple[Config, ...] = CONFIGS, world: World = COMPUTE_BOUND) -> Table:
    """A table of these rows; of every config in three repeats where none are given."""
    host = HostFacts(cpus=8, physical_cores=4, memory_bytes=2**35, cpu_flags=FLAGS)
    script = ScriptFacts(path="train.py")
    facts = Facts(host=host, script=script, run=world.facts(), effective_batch_rule="keep")
    header = TableHeader(
        table="test/cpu",
        grid_sha256="",
        recorded="",
        device="",
        workload=WorkloadPart(name="test", script_sha256="", effective_batch=world.batch),
        request=SpaceRequest(name="grid-test", knobs=KNOBS),
        facts=facts,
        space=(),
        configs=configs,
        protocol=ProtocolPart(fidelity=FIDELITY, seeds=SEEDS, repeats=3),
    )
    made = [
        row(config, repeat, order, world=world) for repeat in range(3) for order, config in enumerate(configs)
    ]
    return Table(header=header, rows=rows or tuple(made))

"""Tables that nobody recorded: worlds with a known structure, in the form of recorded grids.

They serve to build and to test the replay, and to see what a search does with a structure that is known. They
prove nothing about real training: whoever wrote the search wrote them. Every one is called `synthetic/...`,
and results on them are kept apart from those on recorded tables.
"""

import hashlib
import math
import random
from dataclasses import dataclass, field

from autotune.knobs.registry import builtin
from autotune.launch.fake import World
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import Facts, HostFacts, ScriptFacts
from autotune.model.measurement import Memory, Reading
from autotune.model.study import SpaceRequest
from autotune.model.trial import Fidelity
from autotune.space.build_space import build_space
from autotune.testing.table import Blocks, KnobPart, ProtocolPart, Table, TableHeader, TableRow, WorkloadPart

GIB = 2**30
BLOCKS = 24
WINDOW_S = 4.0
SEEDS = (0, 1, 2)
SENTINEL_EVERY = 8
MOST_CONFIGS = 400
KNOBS = {
    "precision": ("fp32", "bf16"),
    "num_workers": (0, 1, 2, 4, 8),
    "compile_mode": ("off", "default", "max-autotune"),
    "channels_last": (False, True),
    "threads": (2, 4, 8),
    "fused_optimizer": (False, True),
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A family of worlds; ranges are drawn from, log-uniformly, world by world.

    `gains`: factor on the seconds of computing, by (knob, value), below 1 is faster. `pairs`: a further
    factor where both values meet. `fails`: what ends how: pairs of values (one
    may be None) and a kind of failure.
    """

    compute_s: tuple
    load_s: tuple
    fixed_s: tuple
    gains: dict
    pairs: dict = field(default_factory=dict)
    fails: dict = field(default_factory=dict)
    process_noise: float = 0.012
    block_noise: float = 0.03
    startup_s: tuple = (2.0, 5.0)
    compile_s: tuple = (15.0, 40.0)
    about: str = ""


KINDS = {
    "input": Kind(
        about="loading is the bottleneck until there are workers; then arithmetic",
        compute_s=(0.0003, 0.0008),
        load_s=(0.002, 0.004),
        fixed_s=(0.002, 0.006),
        gains={
            ("precision", "bf16"): (0.4, 0.7),
            ("compile_mode", "default"): (0.8, 0.97),
            ("compile_mode", "max-autotune"): (0.75, 0.97),
            ("channels_last", True): (0.85, 1.02),
        },
        pairs={("num_workers", 8, "threads", 8): (1.1, 1.4)},
    ),
    "compute": Kind(
        about="arithmetic is the bottleneck; number format, memory layout and compiling help each other",
        compute_s=(0.002, 0.006),
        load_s=(0.00005, 0.0002),
        fixed_s=(0.005, 0.02),
        gains={
            ("precision", "bf16"): (0.45, 0.75),
            ("compile_mode", "default"): (0.7, 0.95),
            ("compile_mode", "max-autotune"): (0.65, 0.95),
            ("channels_last", True): (0.95, 1.15),
            ("threads", 2): (1.2, 1.7),
            ("threads", 4): (0.95, 1.2),
        },
        pairs={
            ("precision", "bf16", "channels_last", True): (0.7, 0.9),
            ("precision", "bf16", "compile_mode", "default"): (0.85, 1.1),
        },
    ),
    "wrong-prior": Kind(
        about="what usually helps hurts, half of the compiles crash, many workers hang",
        compute_s=(0.001, 0.003),
        load_s=(0.0005, 0.0015),
        fixed_s=(0.002, 0.01),
        gains={
            ("precision", "bf16"): (1.1, 2.2),
            ("compile_mode", "default"): (1.0, 1.15),
            ("channels_last", True): (0.8, 1.2),
            ("threads", 2): (0.7, 1.1),
            ("fused_optimizer", True): (0.9, 1.0),
        },
        fails={
            ("compile_mode", "max-autotune", None, None): "crash_exit",
            ("num_workers", 8, None, None): "timeout_progress",
        },
    ),
    "interactions": Kind(
        about="each change alone costs a little, the right three together gain much",
        compute_s=(0.002, 0.004),
        load_s=(0.0002, 0.0005),
        fixed_s=(0.005, 0.01),
        gains={
            ("precision", "bf16"): (1.05, 1.2),
            ("channels_last", True): (1.03, 1.1),
            ("compile_mode", "default"): (1.0, 1.1),
            ("compile_mode", "max-autotune"): (1.0, 1.1),
        },
        pairs={
            ("precision", "bf16", "channels_last", True): (0.45, 0.6),
            ("channels_last", True, "compile_mode", "default"): (0.75, 0.9),
            ("precision", "bf16", "threads", 2): (0.7, 0.95),
        },
        fails={("precision", "bf16", "compile_mode", "max-autotune"): "oom_host"},
    ),
    "flat": Kind(
        about="nothing gains more than the noise",
        compute_s=(0.001, 0.002),
        load_s=(0.00001, 0.00002),
        fixed_s=(0.001, 0.002),
        gains={("precision", "bf16"): (1.0, 1.05), ("channels_last", True): (0.99, 1.03)},
        process_noise=0.03,
        block_noise=0.05,
    ),
}


def names(count):
    """`count` worlds of each kind."""
    return [f"{kind}-{number}" for number in range(count) for kind in KINDS]


def table(name):
    """The table of one world; the same name gives the same table."""
    kind_name, _, _ = name.rpartition("-")
    world = _World(KINDS[kind_name], name)
    space, refusals = build_space(_REQUEST, world.facts(), builtin())
    configs = list(space.enumerate())
    training_preserving = [c for c in configs if space.effect(c) is not Effect.TRAINING and c]
    draw = random.Random(f"{name}/configs")
    chosen = [
        Config(),
        *sorted(
            draw.sample(training_preserving, min(len(training_preserving), MOST_CONFIGS)),
            key=lambda c: c.canonical(),
        ),
    ]
    header = TableHeader(
        table=f"synthetic/{name}",
        grid_sha256=hashlib.sha256(name.encode()).hexdigest(),
        recorded="",
        device="synthetic",
        workload=WorkloadPart(name=f"synthetic-{kind_name}", script_sha256="", effective_batch=world.batch),
        request=_REQUEST,
        facts=world.facts(),
        space=tuple(
            KnobPart(
                knob=d.knob,
                values=d.values,
                own=d.own,
                effect=d.effect.name,
                ordinal=d.ordinal,
                derived=d.derived,
                changes_rng_streams=d.changes_rng_streams,
            )
            for d in space.dimensions.values()
        ),
        refusals=refusals,
        configs=tuple(chosen),
        protocol=ProtocolPart(
            fidelity=_FIDELITY, seeds=SEEDS, repeats=len(SEEDS), sentinel_every=SENTINEL_EVERY
        ),
    )
    return Table(header=header, rows=tuple(world.rows(chosen)))


_REQUEST = SpaceRequest(name="synthetic", knobs=KNOBS, source="synthetic.py")
_FIDELITY = Fidelity(
    min_window_s=WINDOW_S,
    max_window_s=WINDOW_S,
    min_steps=1,
    target_width=0.0,
    setup_s=300.0,
    deadline_s=400.0,
)


class _World:
    def __init__(self, kind, name):
        draw = random.Random(f"{name}/constants")

        def between(ends):
            return math.exp(draw.uniform(math.log(ends[0]), math.log(ends[1])))

        self.kind, self.name, self.batch, self.cpus = kind, name, 32, 8
        self.compute_s, self.load_s = between(kind.compute_s), between(kind.load_s)
        self.fixed_s, self.startup_s = between(kind.fixed_s), between(kind.startup_s)
        self.compile_s = {"default": between(kind.compile_s)}
        self.compile_s["max-autotune"] = 2.5 * self.compile_s["default"]
        self.gains = {key: between(ends) for key, ends in kind.gains.items()}
        self.pairs = {key: between(ends) for key, ends in kind.pairs.items()}

    def facts(self):
        plain = World(name=self.name, batch=self.batch, cpus=self.cpus, load_s=self.load_s)
        host = HostFacts(
            cpus=self.cpus,
            physical_cores=self.cpus,
            memory_bytes=32 * GIB,
            cpu_flags=("amx_bf16", "avx512_bf16"),
            cxx="g++",
        )
        script = ScriptFacts(path=f"{self.name}.py")
        return Facts(host=host, script=script, run=plain.facts(), effective_batch_rule="keep")

    def value(self, config, knob):
        own = {"num_workers": 0, "threads": self.cpus, "precision": "fp32"}
        return config.get(knob, own.get(knob, "off" if knob == "compile_mode" else False))

    def step_s(self, config):
        """(seconds of a step, of it waiting for data), without noise."""
        factor = math.prod(f for (knob, value), f in self.gains.items() if self.value(config, knob) == value)
        factor *= math.prod(
            f
            for (a, x, b, y), f in self.pairs.items()
            if self.value(config, a) == x and self.value(config, b) == y
        )
        compiled = self.value(config, "compile_mode") != "off"
        fixed_s = self.fixed_s * (0.5 if compiled else 1.0)
        fixed_s *= 0.97 if self.value(config, "fused_optimizer") else 1.0
        compute_s = fixed_s + self.batch * self.compute_s * factor
        load_s = self.batch * self.load_s
        workers = self.value(config, "num_workers")
        if not workers:
            return compute_s + load_s, load_s
        rate_s = load_s / (min(workers, self.cpus) * (1 - 0.03 * workers))
        step_s = max(compute_s, rate_s) + 0.02 * min(compute_s, rate_s)
        return step_s, max(0.0, step_s - compute_s)

    def failure(self, config):
        for (a, x, b, y), kind in self.kind.fails.items():
            if self.value(config, a) == x and (b is None or self.value(config, b) == y):
                return kind
        return ""

    def rows(self, configs):
        for repeat, seed in enumerate(SEEDS):
            line = list(configs)
            random.Random(f"{self.name}/order/{repeat}").shuffle(line)
            order, drift = 0, random.Random(f"{self.name}/drift/{repeat}").gauss(0.0, 0.01)
            for position, config in enumerate(line):
                if position % SENTINEL_EVERY == 0:
                    yield self.row(Config(), repeat, seed, order, drift, sentinel=True)
                    order += 1
                yield self.row(config, repeat, seed, order, drift)
                order += 1

    def row(self, config, repeat, seed, order, drift, sentinel=False):
        draw = random.Random(f"{self.name}/{repeat}/{order}")
        mode = self.value(config, "compile_mode")
        compile_s = 0.0 if mode == "off" else self.compile_s[mode] * (1.0 if repeat == 0 else 0.15)
        compile_s *= math.exp(draw.gauss(0.0, 0.05))
        startup_s = self.startup_s * math.exp(draw.gauss(0.0, 0.05)) + 0.3 * self.value(config, "num_workers")
        common = {
            "config": config,
            "digest": config.digest,
            "repeat": repeat,
            "order": order,
            "sentinel": sentinel,
            "seed": seed,
            "deadline_s": _FIDELITY.deadline_s,
        }
        kind = self.failure(config)
        if kind:
            seconds = 300.0 if kind.startswith("timeout") else startup_s + 0.5 * compile_s + 1.0
            return TableRow(**common, kind=kind, message=f"{kind} by design", charged_s=round(seconds, 3))
        step_s, wait_s = self.step_s(config)
        factor = math.exp(drift + draw.gauss(0.0, self.kind.process_noise))
        steps = max(1, round(WINDOW_S / BLOCKS / step_s))
        elapsed, wave = [], 0.0
        for _ in range(BLOCKS):
            wave = 0.5 * wave + draw.gauss(0.0, self.kind.block_noise / math.sqrt(steps))
            elapsed.append(steps * step_s * factor * math.exp(wave))
        warm_up, window_s = 8, math.fsum(elapsed)
        warmup_s = warm_up * step_s * factor
        last = warm_up + steps * BLOCKS
        # Powers of two: traces of different lengths share their points, as they share their batches.
        every = 2 ** max(0, math.floor(math.log2(last / 40)))
        points = [*range(every, last, every), last]
        return TableRow(
            **common,
            readings=tuple(Reading(knob=k, wanted=v, found=v, status="applied") for k, v in config.items()),
            effective_batch=float(self.batch),
            start_up_s=round(startup_s, 4),
            compile_s=round(compile_s, 4),
            compile_cache="none" if mode == "off" else "warm" if repeat else "cold",
            compile_key=config.digest,
            warmup_s=round(warmup_s, 4),
            warmup_steps=warm_up,
            window_s=window_s,
            teardown_s=0.5,
            charged_s=startup_s + compile_s + warmup_s + window_s + 0.5,
            ended="limit",
            steady="steady",
            blocks=Blocks(
                num_steps=(steps,) * BLOCKS,
                num_samples=(steps * self.batch,) * BLOCKS,
                elapsed_s=tuple(elapsed),
                aside_s=(0.0,) * BLOCKS,
                wait_s=tuple(e * wait_s / step_s for e in elapsed),
                run_delay_s=(None,) * BLOCKS,
                flags=("",) * BLOCKS,
            ),
            memory=Memory(pss=int(GIB * (0.8 + 0.1 * self.value(config, "num_workers"))), limit=28 * GIB),
            loss_samples=tuple(p * self.batch for p in points),
            loss_values=tuple(self._loss(seed, p * self.batch, draw) for p in points),
            loss_t_s=tuple(compile_s + p * step_s * factor for p in points),
        )

    def _loss(self, seed, samples, draw):
        """Seeds differ by a shift that grows, batches by what all configs of a seed share."""
        shift = random.Random(f"{self.name}/loss/{seed}").gauss(0.0, 0.02) * (1 - math.exp(-samples / 10000))
        batch = random.Random(f"{self.name}/loss/{seed}/{samples}").gauss(0.0, 0.003)
        return 0.4 + 2.0 * math.exp(-samples / 20000) + shift + batch + draw.gauss(0.0, 1e-4)

"""A grid file made plain: which configurations, in which order, and what is still to be run. Pure.

A grid is a union of parts, each the product of its knobs' values, so that the knobs that quarrel are crossed
in full and the rest is sampled thinly. Standard library and autotune's own values only.
"""

import hashlib
import itertools
import json
import math
import random
import re
from dataclasses import dataclass, replace

from autotune.errors import UsageError
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.study import SpaceRequest
from autotune.model.trial import FailureKind, Family, Fidelity
from autotune.testing.table import Growth

SCHEMA = "autotune.grid/v1"
_AS_IT_IS = {"precision": "fp32"}
"""What every workload has by itself, of knobs that a machine may refuse."""

REMEASURED = 2
"""A run with a neighbour on the machine is repeated so often at most."""

BETWEEN = 4
"""Runs of the fastest between two of the unchanged script, in a repeat that has no others."""

LEAST = 100
"""Spare parts are taken, one after another, until so many configurations are valid."""

SETUP_S = 300.0
"""Start and compile together; the slowest cold compile on two cores was seen at 137 s."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One workload's grid.

    `parts` are mappings from knob to values, `spare` those that are taken where a machine refuses so much
    of the others that fewer than `LEAST` configurations are left; `seeds` one per repeat; `window_s` what
    every process measures; `sentinel_every` so many runs apart stands the unchanged script. `memory_mib` is
    what a run may use, as in a container; 0 for what is free.
    """

    workload: str
    parts: tuple
    seeds: tuple
    window_s: float
    sentinel_every: int
    spare: tuple = ()
    args: tuple = ()
    memory_mib: int = 0
    sha256: str = ""

    @property
    def knobs(self):
        """Knob -> all its values, in the order in which the parts name them."""
        found = {}
        for part in (*self.parts, *self.spare):
            for knob, values in part.items():
                found.setdefault(knob, {}).update(dict.fromkeys(_typed(v) for v in values))
        return {knob: tuple(value for _, value in values) for knob, values in found.items()}

    def wanted(self):
        """Every point of every part that is not spare, duplicates included."""
        for part in self.parts:
            yield from points(part)

    def request(self):
        """The grid in the form of a request for a search space."""
        return SpaceRequest(
            name=f"grid-{self.workload}",
            knobs=self.knobs,
            source="grid.json",
            memory_bytes=self.memory_mib << 20 or None,
        )

    def fidelity(self):
        """Every process measures alike, whatever its interval."""
        return Fidelity(
            min_window_s=self.window_s,
            max_window_s=self.window_s,
            min_steps=1,
            target_width=0.0,
            setup_s=SETUP_S,
            deadline_s=SETUP_S + 60.0 + 4 * self.window_s,
        )


def points(part):
    """The full product of one part."""
    for values in itertools.product(*part.values()):
        yield dict(zip(part, values, strict=True))


def _typed(value):
    """1 and True stay apart as keys."""
    return type(value).__name__, value


def read_grid(path):
    """The grid of a file; a UsageError says what is wrong with it."""
    data = path.read_bytes()
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise UsageError(f"{path.name} is no JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise UsageError(f"{path.name} is no grid file", hint=f'it should say "schema": "{SCHEMA}"')
    unknown = set(raw) - {
        "schema",
        "about",
        "workload",
        "args",
        "seeds",
        "window_s",
        "sentinel_every",
        "memory_mib",
        "parts",
    }
    if unknown:
        raise UsageError(f"{path.name}: unknown key {min(unknown)}")
    parts, spare = (
        tuple(
            {knob: tuple(values) for knob, values in part["knobs"].items()}
            for part in raw.get("parts", ())
            if bool(part.get("spare", False)) is wanted
        )
        for wanted in (False, True)
    )
    if not parts or not raw.get("seeds"):
        raise UsageError(f"{path.name} holds no parts or no seeds: there is nothing to record")
    return Grid(
        workload=raw["workload"],
        args=tuple(raw.get("args", ())),
        parts=parts,
        spare=spare,
        seeds=tuple(raw["seeds"]),
        window_s=float(raw["window_s"]),
        sentinel_every=int(raw.get("sentinel_every", 8)),
        memory_mib=int(raw.get("memory_mib", 0)),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def valid_configs(grid, space):
    """(configs, left out): what can be had and what `best` may use, the unchanged script first.

    Left out is keyed by the wanted point as text, with the reason. Points that come out as one
    configuration count once and are no loss.
    """
    found = {Config(): None}
    left_out = {}
    for wanted in _until_enough(grid, found):
        named = {k: v for k, v in wanted.items() if k in space.dimensions}
        missing = [k for k in wanted if k not in space.dimensions]
        # What is refused, and is the script's own value anyway, costs nothing.
        unusual = [k for k in missing if wanted[k] not in (False, "off", _AS_IT_IS.get(k))]
        config = space.complete(named)
        text = " ".join(f"{k}={v}" for k, v in wanted.items())
        if unusual:
            left_out[text] = f"{unusual[0]} is not varied here"
        elif isinstance(config, str):
            left_out[text] = config
        elif space.effect(config) is Effect.TRAINING:
            left_out[text] = "it changes the training"
        else:
            found[config] = None
    return tuple(found), left_out


def _until_enough(grid, found):
    """Every wanted point; then those of spare parts, part by part, as long as too few are in `found`."""
    yield from grid.wanted()
    for part in grid.spare:
        if len(found) >= LEAST:
            return
        yield from points(part)


# What is run when ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """One place in the plan: (repeat, order) names it."""

    repeat: int
    order: int
    config: Config
    seed: int
    sentinel: bool = False

    @property
    def key(self):
        return self.repeat, self.order


def slots(configs, seeds, every, name, growths=()):
    """The whole plan: each repeat in a random order, the unchanged script between, first and last.

    What joined later stands at the end of the repeats that had begun without it, in an order of its own and
    with the unchanged script around it; in all others it is mixed with the rest.
    """
    plan = []
    for repeat, seed in enumerate(seeds):
        late = [growth.first for growth in growths if growth.repeat > repeat]
        line = []
        for first, after in zip((0, *late), (*late, len(configs)), strict=True):
            key = f"{name}/{repeat}/{first}" if first else f"{name}/{repeat}"
            line += _line(configs[first:after], every, key)
        plan += [Slot(repeat, order, config, seed, sentinel) for order, (config, sentinel) in enumerate(line)]
    return plan


def _line(configs, every, key):
    """(config, whether it is the unchanged script, run beside the others), in an order that the key names."""
    shuffled = list(configs)
    random.Random(key).shuffle(shuffled)
    line = []
    for start in range(0, len(shuffled), every):
        line.append((Config(), True))
        line += [(config, False) for config in shuffled[start : start + every]]
    return [*line, (Config(), True)]


def planned(header, grid):
    """Every run of a table, in order."""
    return slots(header.configs, grid.seeds, grid.sentinel_every, header.table, header.growths)


def grown(old, new, begun):
    """A table's header with what another grid file adds to it, or why that cannot be.

    Rows that are there keep their places: nothing may be gone, and everything is measured as before.
    `new` is the header that a new table of that file would have, `begun` how many repeats have rows.
    """
    lost = [config for config in old.configs if config not in new.configs]
    if lost:
        return f"{len(lost)} recorded configurations are not in it, the first of them {lost[0].text()}"
    then, now = old.protocol, new.protocol
    if (then.fidelity, then.sentinel_every) != (now.fidelity, now.sentinel_every):
        return "it measures in another way"
    if now.seeds[: len(then.seeds)] != then.seeds:
        return "its repeats have other seeds"
    if old.request.memory_bytes != new.request.memory_bytes:
        return "it allows another amount of memory"
    added = tuple(config for config in new.configs if config not in old.configs)
    more = (Growth(first=len(old.configs), repeat=begun),) if added else ()
    return replace(
        old,
        grid_sha256=new.grid_sha256,
        request=new.request,
        space=new.space,
        refusals=new.refusals,
        left_out=new.left_out,
        configs=(*old.configs, *added),
        growths=(*old.growths, *more),
        protocol=replace(then, seeds=now.seeds, repeats=now.repeats),
        commit=new.commit,
        dirty=new.dirty,
    )


def focused(plan, table, fastest):
    """The plan with the unchanged script and so many of the fastest alone in every repeat but the first.

    Fastest by all repeats before, so that what was lucky once is run again, and what takes its place
    then as well. Nothing is planned behind a repeat that is not done.
    """
    settled, chosen, kept = table.settled(), set(), []
    for repeat in sorted({slot.repeat for slot in plan}):
        members = [slot for slot in plan if slot.repeat == repeat]
        if repeat:
            chosen = set(_fastest(table, repeat, fastest))
            members = _thinned(members, chosen)
        kept += members
        if any(slot.key not in settled for slot in members):
            break
    return kept


def _thinned(members, chosen):
    """Runs of the chosen in their order, and of the unchanged script before every few, and last."""
    kept, since = [], 0
    for slot in members:
        if slot.config in chosen:
            kept.append(slot)
            since += 1
        elif slot.config.is_baseline and (not kept or since >= BETWEEN or slot is members[-1]):
            kept.append(slot)
            since = 0
    return kept


def _fastest(table, before, count):
    """Configurations by the mean of what they gained in the repeats before, compile included."""
    gains, base = {}, {}
    rows = [row for _, row in sorted(table.settled().items()) if row.repeat < before]
    for row in rows:
        rate = lasting_rate(row, table.header)
        if rate is not None:
            by_config = base if row.config.is_baseline else gains.setdefault(row.config, {})
            by_config.setdefault(row.repeat, []).append(math.log(rate))
    own = {repeat: math.fsum(logs) / len(logs) for repeat, logs in base.items()}
    middle = math.fsum(own.values()) / len(own) if own else 0.0
    means = {}
    for config, each in gains.items():
        logs = [log - own.get(repeat, middle) for repeat, found in each.items() for log in found]
        means[config] = math.fsum(logs) / len(logs)
    return sorted(means, key=lambda config: (-means[config], config.canonical()))[:count]


def lasting_rate(row, header):
    """Its rate over the run that is planned, a compile charged to it; None of what measured nothing."""
    found = row.throughput(header.workload.unit) if row.is_ok else None
    if found is None or not found.value > 0.0:
        return None
    steps = header.workload.planned_steps
    if not steps or not row.compile_s:
        return found.value
    amount = steps * (row.effective_batch or 1.0) if header.workload.unit == "samples/s" else steps
    return amount / (amount / found.value + row.compile_s)


def is_lost(row):
    """The run says nothing about its configuration."""
    return not row.is_ok and FailureKind.named(row.kind).family is Family.LOST


def next_slot(plan, table, remeasured=REMEASURED):
    """(slot, attempt) of the next run, None when all is done.

    A repeat is finished first, then its disturbed and lost runs come again, then the next repeat begins.
    """
    attempts = {}
    for row in table.rows:
        attempts[row.repeat, row.order] = attempts.get((row.repeat, row.order), 0) + 1
    settled = table.settled()
    for repeat in sorted({slot.repeat for slot in plan}):
        members = [slot for slot in plan if slot.repeat == repeat]
        for slot in members:
            if slot.key not in settled:
                return slot, 1
        for slot in members:
            row = settled[slot.key]
            again = row.is_disturbed or is_lost(row) or _another_way(row)
            if again and attempts[slot.key] <= remeasured:
                return slot, attempts[slot.key] + 1
    return None


def _another_way(row):
    """The script's own option did not act; the next attempt goes another way."""
    return row.kind == "config_rejected" and row.evidence.get("how") == "flag"


def expected_s(slot, rows):
    """Seconds that a run will likely take: by runs of this configuration, else of its like."""
    own = [row.charged_s for row in rows if row.config == slot.config]
    if own:
        return max(own)
    alike = [row.charged_s for row in rows if compiles(row.config) is compiles(slot.config)]
    return sum(alike) / len(alike) if alike else (60.0 if compiles(slot.config) else 15.0)


def compiles(config):
    """Whether it asks for a compile."""
    return any("compile" in knob and value not in ("off", False) for knob, value in config.items())


# What may be written -----------------------------------------------------------------------


_ADDRESS = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")
_PATH = re.compile(r"(?<![\w.])~?(?:/[^\s/'\":;,()<>\[\]]+)+/?")


def scrubbed(data, host=""):
    """JSON-ready data without addresses, folders and the machine's name: files keep their last name."""
    if isinstance(data, str):
        text = _ADDRESS.sub("<address>", data)
        text = _PATH.sub(lambda m: m.group(0).rstrip("/").rsplit("/", 1)[-1], text)
        return re.sub(rf"\b{re.escape(host)}\b", "<host>", text) if len(host) > 2 else text
    if isinstance(data, dict):
        return {key: scrubbed(value, host) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [scrubbed(value, host) for value in data]
    return data


def slug(text):
    """A file's name from a device's: lower case, words with dashes."""
    plain = re.sub(r"\((?:R|TM|C)\)|@\s*[\d.]+\s*[MG]Hz|\bCPU\b", " ", text, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "unknown"


def duration_s(text):
    """90s, 20m, 2h in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not found:
        raise UsageError(f'--limit "{text}" is no duration', hint="say 90s, 20m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]

"""A grid file made plain: which configurations, in which order, and what is still to be run. Pure.

A grid is a union of parts, each the product of its knobs' values, so that the knobs that quarrel are crossed
in full and the rest is sampled thinly. Standard library and autotune's own values only.
"""

import hashlib
import itertools
import json
import random
import re
from dataclasses import dataclass

from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.study import SpaceRequest
from autotune.core.trial import FailureKind, Family, Fidelity
from autotune.errors import UsageError

SCHEMA = "autotune.grid/v1"
REMEASURED = 2
"""A run with a neighbour on the machine is repeated so often at most."""

SETUP_S = 300.0
"""Start and compile together; the slowest cold compile on two cores was seen at 137 s."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One workload's grid.

    `parts` are mappings from knob to values; `seeds` one per repeat; `window_s` what every process measures;
    `sentinel_every` so many runs apart stands the script as it is.
    """

    workload: str
    parts: tuple
    seeds: tuple
    window_s: float
    sentinel_every: int
    args: tuple = ()
    sha256: str = ""

    @property
    def knobs(self):
        """Knob -> all its values, in the order in which the parts name them."""
        found = {}
        for part in self.parts:
            for knob, values in part.items():
                found.setdefault(knob, {}).update(dict.fromkeys(_typed(v) for v in values))
        return {knob: tuple(value for _, value in values) for knob, values in found.items()}

    def wanted(self):
        """Every point of every part, duplicates included."""
        for part in self.parts:
            for values in itertools.product(*part.values()):
                yield dict(zip(part, values, strict=True))

    def request(self):
        """The grid as a search space is asked for."""
        return SpaceRequest(name=f"grid-{self.workload}", knobs=self.knobs, source="grid.json")

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
        "parts",
    }
    if unknown:
        raise UsageError(f"{path.name}: unknown key {min(unknown)}")
    parts = tuple(
        {knob: tuple(values) for knob, values in part["knobs"].items()} for part in raw.get("parts", ())
    )
    if not parts or not raw.get("seeds"):
        raise UsageError(f"{path.name} holds no parts or no seeds: there is nothing to record")
    return Grid(
        workload=raw["workload"],
        args=tuple(raw.get("args", ())),
        parts=parts,
        seeds=tuple(raw["seeds"]),
        window_s=float(raw["window_s"]),
        sentinel_every=int(raw.get("sentinel_every", 8)),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def valid_configs(grid, space):
    """(configs, left out): what can be had and what `best` may use, the script as it is first.

    Left out is told by the wanted point as text, with the reason. Points that come out as one
    configuration count once and are no loss.
    """
    found = {Config(): None}
    left_out = {}
    for wanted in grid.wanted():
        named = {k: v for k, v in wanted.items() if k in space.dimensions}
        missing = [k for k in wanted if k not in space.dimensions]
        unusual = [
            k for k in missing if wanted[k] not in (False, "off")
        ]  # a refused switch that is off anyway costs nothing
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


def slots(configs, seeds, every, name):
    """The whole plan: each repeat in a random order, the script as it is between, first and last."""
    plan = []
    for repeat, seed in enumerate(seeds):
        shuffled = list(configs)
        random.Random(f"{name}/{repeat}").shuffle(shuffled)
        line = []
        for start in range(0, len(shuffled), every):
            line.append((Config(), True))
            line += [(config, False) for config in shuffled[start : start + every]]
        line.append((Config(), True))
        plan += [Slot(repeat, order, config, seed, sentinel) for order, (config, sentinel) in enumerate(line)]
    return plan


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
    plain = re.sub(r"\((?:R|TM|C)\)|@.*$|\bCPU\b", " ", text, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "unknown"


def duration_s(text):
    """90s, 20m, 2h in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not found:
        raise UsageError(f'--limit "{text}" is no duration', hint="say 90s, 20m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]

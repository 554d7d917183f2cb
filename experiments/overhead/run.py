"""What does being watched cost a training loop? Hooks put in and taken out, block by block, in one process.

    python run.py                        # steps of 1, 10 and 100 ms, 60 blocks each: about 4 minutes
    python run.py --profile              # which functions of ours the time goes to, at 1 ms; no figures
    python run.py --apply                # what `apply` leaves in a training with loader workers of ours

The loop is the plainest there is (DataLoader, zero_grad, forward, backward, optimizer), with nothing to
carry out: what every trial pays, the baseline's included. With `--apply` it is a training with workers that
the search has added: what the script changes of what they have copied is watched to the end. The process's
own CPU time is compared, so that what others do on the machine counts as little as possible. It needs a quiet
machine all the same.
"""

import argparse
import cProfile
import datetime
import json
import os
import platform
import pstats
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.inspection.host import host_facts
from autotune.knobs.common import LOADER
from autotune.model.change import Change, Keyword
from autotune.model.config import Config
from autotune.model.trial import Fidelity, Segment
from autotune.protocol.plan import Plan
from autotune.trial.entry import trial_runtime
from autotune.trial.runtime.channel import Channel
from autotune.trial.runtime.undo import Undo

HERE = Path(__file__).resolve().parent
WIDTH, BATCH, BURN = 64, 32, 192
TRIMMED = 0.1
RESAMPLED = 4000
ABSENT = object()

# A window that never ends, and is looked at as often as a real one.
FIDELITY = Fidelity(
    min_window_s=1.0, max_window_s=1e6, min_steps=5, target_width=0.0, setup_s=1e6, deadline_s=1e6
)


# What `apply` watches for as long as the training runs.
APPLIED = tuple(
    Change(knob=name, value=value, spelling=Keyword(LOADER, name))
    for name, value in (("num_workers", 1), ("persistent_workers", True))
)


class Loop(nn.Module):
    """A small network whose forward pass takes as long as its argument says."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.burns = 0
        self.square = [torch.randn(BURN, BURN) for _ in range(3)]

    def forward(self, x):
        with torch.no_grad():
            for _ in range(self.burns):
                torch.mm(self.square[0], self.square[1], out=self.square[2])
        return self.layers(x)


class Recorded(Undo):
    """Remembers what stood where before it was replaced."""

    def __init__(self):
        super().__init__()
        self.before = {}

    def assign(self, owner, attribute, value):
        key = (id(owner), attribute)
        if key not in self.before:
            self.before[key] = (owner, attribute, vars(owner).get(attribute, ABSENT))
        super().assign(owner, attribute, value)


class Hooks:
    """All that a measured trial, or `apply`, puts into this process, to be taken out and put in again."""

    def __init__(self, folder, *, apply=False):
        undo = []
        trial_runtime.Undo = lambda: undo.append(Recorded()) or undo[-1]
        plan = Plan(
            nonce="overhead",
            script=__file__,
            argv=(),
            events_path=str(folder / "events.jsonl"),
            trial_dir=str(folder),
            changes=APPLIED if apply else (),
            segments=() if apply else (Segment(trial=0, config=Config(), fidelity=FIDELITY),),
            seed=0,
            measure=not apply,
        )
        channel = None if apply else Channel(folder / "events.jsonl", plan.nonce)
        self.session = trial_runtime.TrialRuntime(plan, channel)
        self.session.begin()
        self.undo = undo[0]
        self.taken = []

    def out(self):
        """Everything as without us."""
        self.taken = []
        for owner, attribute, before in self.undo.before.values():
            self.taken.append((owner, attribute, vars(owner).get(attribute, ABSENT)))
            _put(owner, attribute, before)
        optimizer, root = self.session.torch_hooks.optimizer, self.session.torch_hooks.root
        for cls, ours, plain in optimizer.hooked:
            plain.hooked = True
            self.taken.append((cls, "step", ours))
            cls.step = plain
        for call in root.calls:
            module = call.module()
            self.taken.append((module, "_compiled_call_impl", call))
            call.leave(module)

    def back(self):
        """As a trial has it."""
        for owner, attribute, ours in self.taken:
            if isinstance(owner, nn.Module):
                owner.__dict__[attribute] = ours
            else:
                _put(owner, attribute, ours)

    @property
    def measures(self):
        """The window is open, or the knobs are read as applied, and nothing of ours has failed."""
        recorder = self.session.recorder
        is_ready = recorder.phase == "window" if recorder.measures else recorder.acceptance.accepted
        return is_ready and not self.session.faults.off and not self.session.withdrawal.gone


def _put(owner, attribute, value):
    if value is ABSENT:
        if attribute in vars(owner):
            delattr(owner, attribute)
    else:
        setattr(owner, attribute, value)


def steps(model, optimizer, loader, count):
    """So many steps; CPU seconds and wall seconds of them."""
    done = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while done < count:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == count:
                break
    return time.process_time() - cpu, time.perf_counter() - wall


def tuned(model, optimizer, loader, wanted_s):
    """Burn so much that a step takes this long."""
    model.burns = 0
    bare_s = steps(model, optimizer, loader, 200)[1] / 200
    model.burns = 100
    burn_s = steps(model, optimizer, loader, 20)[1] / 20 - bare_s
    model.burns = max(0, round((wanted_s - bare_s) / (burn_s / 100)))


def interval(pairs, seed=0):
    """Trimmed mean of differences and the middle 95 % of its resampled values."""
    draw = random.Random(seed)
    means = sorted(trimmed(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLED))
    return trimmed(pairs), means[int(0.025 * RESAMPLED)], means[int(0.975 * RESAMPLED) - 1]


def trimmed(values):
    cut = int(TRIMMED * len(values))
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def compared(hooks, model, optimizer, loader, wanted_ms, options):
    """Blocks with and without hooks in turn, the first of each pair drawn by lot."""
    hooks.out()
    tuned(model, optimizer, loader, wanted_ms / 1e3)
    hooks.back()
    count = max(2, round(options.block_s * 1e3 / wanted_ms))
    draw, differences, walls, cpus = random.Random(wanted_ms), [], [], []
    for _ in range(options.blocks):
        spent = {}
        for watched in draw.sample((True, False), 2):
            if watched:
                spent[True], _ = steps(model, optimizer, loader, count)
                continue
            hooks.out()
            spent[False], wall_s = steps(model, optimizer, loader, count)
            hooks.back()
            walls.append(wall_s / count)
            cpus.append(spent[False] / count)
        differences.append((spent[True] - spent[False]) / count * 1e6)
    if not hooks.measures:
        phase, off = hooks.session.recorder.phase, hooks.session.faults.off
        raise SystemExit(f"the hooks do not measure: {phase}, {off}")
    value, low, high = interval(differences)
    step_us = statistics.median(cpus) * 1e6
    return {
        "wanted_ms": wanted_ms,
        "step_ms": round(statistics.median(walls) * 1e3, 3),
        "blocks": options.blocks,
        "steps_per_block": count,
        "overhead_us": [round(v, 2) for v in (value, low, high)],
        "overhead_percent_of_cpu": [round(100 * v / step_us, 3) for v in (value, low, high)],
    }


def profiled(hooks, model, optimizer, loader):
    """Print where the time of hooked steps goes."""
    hooks.out()
    tuned(model, optimizer, loader, 0.001)
    hooks.back()
    profile = cProfile.Profile()
    profile.enable()
    steps(model, optimizer, loader, 4000)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats("autotune|loader|optimizer", 40)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[1, 10, 100])
    parser.add_argument("--blocks", type=int, default=60, help="pairs of blocks per length of step")
    parser.add_argument("--block-s", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--apply", action="store_true", help="what `apply` watches, in place of a trial")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        hooks = Hooks(Path(folder), apply=options.apply)
        data = TensorDataset(torch.randn(64 * BATCH, WIDTH), torch.randn(64 * BATCH, 1))
        loader = DataLoader(data, batch_size=BATCH, shuffle=True)
        model = Loop()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        begun = time.perf_counter()
        while not hooks.measures and time.perf_counter() - begun < 60:
            steps(model, optimizer, loader, 100)
        if options.profile:
            profiled(hooks, model, optimizer, loader)
            return
        rows = [compared(hooks, model, optimizer, loader, ms, options) for ms in options.steps_ms]
    for row in rows:
        value, low, high = row["overhead_us"]
        share = row["overhead_percent_of_cpu"][0]
        print(f"{row['step_ms']:8.2f} ms a step: {value:6.1f} [{low:.1f}, {high:.1f}] us, {share:.2f} %")
    host = host_facts()
    now = datetime.datetime.now(datetime.timezone.utc)
    reported = {
        "arm": "apply" if options.apply else "trial",
        "created": now.isoformat(timespec="seconds"),
        "cpu": host.cpu_model,
        "cpus": host.cpus,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_1m": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        "steps": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{now:%Y-%m-%d-%H%M}{'-apply' if options.apply else ''}.json"
    path.write_text(json.dumps(reported, indent=1) + "\n")
    print(f"written: {path.name}")


if __name__ == "__main__":
    main()

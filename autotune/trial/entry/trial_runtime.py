"""Runtime of a trial: installs hooks when the script imports torch, applies changes, gathers facts."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from autotune import sdk
from autotune.errors import BackendError
from autotune.knobs.registry import builtin
from autotune.model import wire
from autotune.model.change import Keyword, Patch
from autotune.model.supported import UNSUPPORTED, torch_refusal
from autotune.model.trial import CEILINGS, NO_COMMUNICATION
from autotune.protocol.disturbed import DisturbanceReader
from autotune.protocol.rank_log import RankWriter, file_name
from autotune.trial.actuators.framework_keywords import Keywords
from autotune.trial.actuators.garbage_collector import Collector
from autotune.trial.actuators.hook_set import ModelHooks
from autotune.trial.actuators.model_exports import Exports
from autotune.trial.actuators.patches import TrialPatches
from autotune.trial.actuators.readings import Readings
from autotune.trial.actuators.withdrawal import Withdrawal
from autotune.trial.entry import ranks
from autotune.trial.entry.apply_watch import ApplyWatch
from autotune.trial.entry.run_facts import FactsReader, TorchHooks
from autotune.trial.entry.spawned_ranks import Spawning
from autotune.trial.hooks.data.h2d_copies import H2dCopies
from autotune.trial.hooks.data.loader import Loader
from autotune.trial.hooks.distributed.settings import Distributed
from autotune.trial.hooks.libraries.frameworks import Frameworks
from autotune.trial.hooks.model.compiling import Compile
from autotune.trial.hooks.model.rng_usage import LoopDraws
from autotune.trial.hooks.model.trained_modules import TrainedModules
from autotune.trial.hooks.step.losses import Losses
from autotune.trial.hooks.step.optimizer import Optimizer
from autotune.trial.loop import assignments
from autotune.trial.loop.replaced_constants import Constants
from autotune.trial.loop.schedules import Schedules
from autotune.trial.measure.communication import Communication
from autotune.trial.measure.rank_recorder import RankRecorder
from autotune.trial.measure.recorder import Recorder
from autotune.trial.measure.step_counter import StepCounter
from autotune.trial.runtime.child_processes import Children
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.imports import AfterImport
from autotune.trial.runtime.jax_compilation import Xla
from autotune.trial.runtime.memory import DeviceMemory
from autotune.trial.runtime.parsed_options import ParsedOptions
from autotune.trial.runtime.process import TrainingProcess
from autotune.trial.runtime.sdk_reports import stands_still
from autotune.trial.runtime.seeds import Seeds
from autotune.trial.runtime.state import RuntimeState
from autotune.trial.runtime.undo import Undo
from autotune.trial.runtime.user_modules import Modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

    from autotune.model.config import Value
    from autotune.model.facts import RunFacts
    from autotune.model.measurement import Reading
    from autotune.protocol.plan import Plan
    from autotune.trial.runtime.channel import Channel

_QUIET_STEPS = 2
_DETECT_STEPS = 12
_VALUE_CHARS = 64
_MOST_AWAITED = 4
"""Largest number of detection restarts because a parameter got its first gradient."""
_THREADS_NS = 5_000_000_000
"""After this much training in another thread, and none in the main thread, no more is expected."""
_IN_A_THREAD = (
    "no optimizer step was observed in the main thread, but in another thread of the script: "
    "training in threads cannot be measured; call the training function directly"
)


def _modules(plan: Plan) -> Modules | None:
    """Return the user's modules; None without a measurement or a working directory."""
    if not plan.measure:
        return None
    try:
        return Modules(plan.script, os.getcwd(), ours=[plan.trial_dir], environ=os.environ)
    except OSError:
        return None


class TrialRuntime:
    """One training process under observation.

    Args:
        plan: Program, changes and segments.
        channel: Event channel; None under `apply`.
    """

    def __init__(self, plan: Plan, channel: Channel | None) -> None:
        self.plan = plan
        self.channel = channel
        self.faults = Faults(Path(plan.trial_dir, "faults.log") if plan.trial_dir else None)
        self.state = RuntimeState(self.faults, plan.script)
        self.state.ranks = plan.ranks
        self.hooks = AfterImport()
        self.undo = Undo()
        self.knobs = builtin()
        self.memory = DeviceMemory()
        self.process = TrainingProcess()
        self.collector = Collector(self.state, self.undo)
        self.readings = Readings(plan.changes, self.knobs, self.state)
        self.frameworks = Frameworks(self.state, self.undo)
        self.keywords = Keywords(self.state, self.undo, self.readings, self.knobs)
        self.modules = _modules(plan)
        self.constants = Constants(plan.changes, plan.source or plan.script, self.state)
        self.patches: TrialPatches | None = None
        self.torch_hooks: TorchHooks | None = None
        self._defaults: dict[str, Any] = {}
        """The script's own values for names passed to `autotune.value`."""
        self._threads_ns = 0
        """Time of the first training step in another thread."""
        self._roots_at = (0, 0)
        self._reopened_at = 0
        self._awaited = 0
        self.recorder = Recorder(
            self.state,
            channel,
            plan.segments[0] if plan.segments else None,
            self.memory,
            readings=self.readings.compute,
            facts=self.facts,
            settled=self._settled,
            settle_root=self._settle_root,
        )
        self.withdrawal = Withdrawal(
            plan.changes, self.knobs, self.state, strict=plan.strict, end=self.recorder.ending.untuned
        )
        self.recorder.acceptance.withdrawal = None if plan.measure else self.withdrawal
        self.recorder.acceptance.hows = {change.knob: change.spelling.how for change in plan.changes}
        self.recorder.acceptance.patched = {
            change.knob for change in plan.changes if isinstance(change.spelling, (Patch, Keyword))
        }
        if plan.measure:
            self.readings.doubt = self._doubt
        self.state.keeps_losses = channel is not None
        self.children = Children(self.state, self.undo)
        self.options = ParsedOptions(self.state, self.undo)
        self.xla = Xla(self.state)
        self.recorder.sources.unseen = self._why_no_step
        self.recorder.sources.stop_timing_imports = self.hooks.stop_timing
        self.recorder.sources.disturbed = DisturbanceReader(plan.trial_dir if plan.measure else "").spans
        self.state.lost = self.recorder.acceptance.lost
        self.faults.on_fault = self.recorder.acceptance.fault
        self.boundary = StepCounter(self.state, self.recorder)
        self._facts = FactsReader(
            plan,
            self.state,
            boundary=self.boundary,
            readings=self.readings,
            frameworks=self.frameworks,
            process=self.process,
            memory=self.memory,
            options=self.options,
            modules=self.modules,
            faults=self.faults,
        )
        self._apply_watch = ApplyWatch(
            plan, self.state, self.undo, self.withdrawal, self.recorder.ending.untuned
        )
        if channel is not None:
            self.state.beat = channel.beat
            channel.before_flush = self.state.calm.leave
        # First of all callbacks for torch, as the others may fail on an unsupported version.
        self.hooks.on("torch", self._check_torch)

    def watch_rank(self, rank: int) -> None:
        """Log every step of this rank, where several processes train together."""
        writer = RankWriter(Path(self.plan.trial_dir, file_name(rank)))
        self.recorder.rank = RankRecorder(writer, self.memory, self.faults, ranks=self.state.ranks)
        self.state.keeps_losses = True
        self.hooks.on("torch", self._watch_communication)

    def _watch_communication(self, torch: Any) -> None:
        rank = self.recorder.rank
        if rank is not None:
            communication = Communication(self.state, self.undo, lambda: self.memory.on_cuda)
            self._guarded("communication", lambda: rank.watch(torch, communication))

    def joins(self, rank: int, count: int) -> None:
        """Become one of several ranks that the script starts itself."""
        if self.plan.ranks == count:
            return
        self.plan = replace(self.plan, ranks=count)
        self.state.ranks = count
        self.recorder.sources.probe = self.recorder.sources.ceilings = None
        torch = sys.modules.get("torch")
        if self.torch_hooks is not None and torch is not None:
            self.torch_hooks.distributed.install(torch)
        if self.plan.measure:
            self.watch_rank(rank)

    def leaves_knobs_to_ranks(self) -> None:
        """Leave reading back of knobs to the ranks, as this process trains nothing."""
        self.recorder.acceptance.patched.clear()

    def waits_for(self, processes: Sequence[Any]) -> NoReturn:
        """Leave measuring to rank 0 of these processes, and end with them."""
        if self.channel is not None:
            self.channel.close()
        ranks.wait_for(replace(self.plan, ranks=len(processes)), processes)

    def begin(self) -> None:
        """Register callbacks for the script's imports; import nothing."""
        self.constants.install(self.undo)
        if self.plan.measure:
            self.options.watch(self.hooks)
            self.hooks.start_timing()
            seeds = Seeds(self.plan.seed, self.state, self.undo)
            self.children.watch()
            self.xla.watch(self.hooks)
            seeds.begin(self.hooks)
            self.hooks.on("torch", lambda torch: self._guarded("seeds", lambda: seeds.torch(torch)))
        self.hooks.on("torch", lambda torch: self._guarded("torch", lambda: self._torch(torch)))
        self.frameworks.watch(self.hooks)
        if self.plan.ranks == 1:
            Spawning(self).watch()
        for change in self.plan.changes:
            spelling = change.spelling
            if not isinstance(spelling, Keyword) or spelling.target.startswith("autotune.sdk"):
                continue
            if not self._by_knob(change.knob, spelling):
                self.keywords.carry_out(change, spelling, self.hooks)
        sdk.attach(self)

    def _check_torch(self, torch: Any) -> None:
        """End the process if this PyTorch version is not supported."""
        reason = torch_refusal(str(getattr(torch, "__version__", "")))
        if not reason:
            return
        message, code = f"autotune {reason}", BackendError.exit_code
        if self.channel is None:
            sys.stderr.write(f"{message}\n")
            raise SystemExit(code)
        self.recorder.ending.broke(
            kind="crash_exit", error=UNSUPPORTED, message=message, tail=message, code=code
        )

    def _guarded(self, hook: str, action: Any) -> None:
        try:
            action()
        except Exception as error:
            self.faults.note(hook, error)

    def _by_knob(self, name: str, spelling: Keyword) -> bool:
        return name in self.knobs and spelling.target.startswith("torch.")

    def _torch(self, torch: Any) -> None:
        state, undo = self.state, self.undo
        loader = Loader(state, undo)
        compiling = Compile(state, undo, self.hooks, self.channel)
        root = TrainedModules(state, undo, compiling)
        # Changes by the user, with their own knob or for a real training, may have any size.
        as_it_was = self.plan.measure and all(c.knob in self.knobs for c in self.plan.changes)

        def parsed() -> None:
            if not root.inputs.calls:
                root.inputs.expect(self._facts.option_batch(), self.plan.changes, holds_rest=as_it_was)

        parsed()
        self.options.on_parsed = parsed
        if self.plan.measure:
            root.inputs.reported_now = self.boundary.reported_ratio
        loader.inputs = root.inputs
        losses = Losses(state, root)
        optimizer = Optimizer(state, undo, self.boundary, loader, root, losses)
        loader.overrides.sites = {*self.plan.sites, *(c.site for c in self.plan.changes if c.site)}
        compiling.on_own_function.append(root.drop_swapped)
        compiling.graphs.watch(losses.compiled)
        if not self.plan.measure:
            self._guarded("worker_watch", lambda: self._apply_watch.workers(torch, loader))
        loader.install(torch)
        compiling.install(torch)
        root.install(torch)
        losses.install(torch, undo.assign)
        distributed = Distributed(
            state, undo, self.hooks, watches=self.plan.measure and not self.plan.changes
        )
        distributed.exchange.accumulation = optimizer.accumulation
        probes = {segment.fidelity.probe for segment in self.plan.segments}
        distributed.parallel.is_silent = NO_COMMUNICATION in probes
        distributed.install(torch)
        optimizer.install(torch)
        model = ModelHooks(state, undo, self.hooks, root, compiling, self.boundary, optimizer.accumulation)
        model.install(torch)
        distributed.framework_settings = self.frameworks.settings
        distributed.parallel.on_construction.append(model.before_wrapping)
        exports = Exports(state, undo, root, loader, model.weights)
        exports.watch(self.hooks)
        if not self.plan.measure:
            watch = self._apply_watch
            exports.on_aside = watch.leave_out
            watch.loaders(loader)
            self._guarded("count_watch", lambda: watch.counts(torch, loader, optimizer))
        root.on_precision_ended = optimizer.end_scaling
        average = "The script averages weights, which needs more digits than bf16 has."
        optimizer.on_average = functools.partial(model.weights.end, average)
        self.memory.attach(torch)
        state.capturing = lambda: self.memory.capturing
        self.process.torch_imported()
        self.process.watch_threads(torch, state, undo)
        root.purposes.watch(self.hooks, undo)
        copies = H2dCopies(state, undo, torch)
        losses.samples = loader.last_samples
        loader.on_pinned = copies.fetched
        draws = LoopDraws(torch)
        loader.on_fetched, optimizer.on_backward = draws.fetched, draws.backward

        def observed() -> None:
            loader.on_fetched = optimizer.on_backward = None

        draws.on_complete = observed

        def started() -> None:
            losses.forget()
            draws.withdrawn()

        loader.on_started = started
        # In the baseline only: the result is a fact of the script, and the check takes time.
        loader.is_measured = self.plan.measure
        loader.looks_closely = self.plan.measure and not self.plan.changes
        schedules = Schedules(self.state.place) if loader.looks_closely else None
        if schedules is not None:
            self._guarded("schedules", lambda: schedules.install(torch, undo))

            def loop(frames: Sequence[FrameType]) -> None:
                self._guarded("schedules", lambda: schedules.note_loop(frames))
                self._guarded("own_pass", lambda: optimizer.own_pass.note(frames, root.inputs.batch_size))
                self._guarded("assignments", lambda: self._assigned(loader, frames))

            optimizer.on_loop = loop
        if self.channel is not None:
            self._wrap_save(torch)
        self.torch_hooks = TorchHooks(
            loader=loader,
            root=root,
            optimizer=optimizer,
            compiling=compiling,
            losses=losses,
            model=model,
            distributed=distributed,
            copies=copies,
            draws=draws,
            schedules=schedules,
        )
        self.boundary.loader, self.boundary.optimizer = loader, optimizer
        self.recorder.sources.loader = loader
        self.recorder.sources.skipped_steps = optimizer.skipped

        def window_opens() -> None:
            optimizer.window_opens()
            loader.window_opens()

        self.recorder.sources.window_opens = window_opens
        optimizer.on_constructed = optimizer.on_first_step = self._detect_roots_of
        if self.channel is not None:
            optimizer.on_threads = self._trains_in_a_thread
        self.frameworks.on_part = optimizer.part_begins
        self.recorder.sources.graph_breaks = compiling.graph_breaks
        if self.channel is not None and self.plan.segments and self.plan.segments[0].fidelity.probe:
            self._guarded("probe", lambda: self._prepare_probe(torch, loader, optimizer, root))
        self.patches = self.readings.patches = self.withdrawal.patches = TrialPatches(
            torch,
            undo,
            loader,
            root,
            compiling,
            optimizer,
            self.process,
            self.collector,
            copies,
            model,
            distributed,
            state,
        )
        for change in self.plan.changes:
            spelling = change.spelling
            if isinstance(spelling, Patch) or (
                isinstance(spelling, Keyword) and self._by_knob(change.knob, spelling)
            ):
                self._patch(change.knob, change.value)

    def _assigned(self, loader: Loader, frames: Sequence[FrameType]) -> None:
        """Record assignments of the loop that workers of the loader would miss."""
        for record in loader.records:
            iterator = record.iterator() if record.iterator is not None else None
            if iterator is None or not record.fetches:
                continue
            read = record.read_by_fetch(iterator)
            found = assignments.find(frames, read, record.loader(), self.state.place)
            if found is not None:
                record.note_change(found.when, found.text)

    def _prepare_probe(self, torch: Any, loader: Loader, optimizer: Optimizer, root: TrainedModules) -> None:
        """Prepare the probe that runs after the window; imports its modules only if requested."""
        if self.plan.ranks > 1:
            # A single rank is no faster on cached batches, as it waits for the others.
            return
        if self.plan.segments[0].fidelity.probe == CEILINGS:
            from autotune.trial.probe.ceiling_probe import CeilingProbe

            self.recorder.sources.ceilings = CeilingProbe(self.state, torch, root, self.memory)
            return
        if self.plan.segments[0].fidelity.under_nsys:
            from autotune.trial.probe.nsight_capture import Capture

            self.recorder.sources.probe = Capture(self.state, torch, self.memory)
            return
        from autotune.trial.probe.bottleneck_probe import Probe

        self.recorder.sources.probe = Probe(
            self.state,
            torch,
            loader,
            optimizer,
            root,
            self.memory,
            batches_per_step=self.boundary.batches_per_step,
            folder=Path(self.plan.trial_dir) if self.plan.segments[0].fidelity.probe == "profile" else None,
        )

    def _wrap_save(self, torch: Any) -> None:
        """Send a heartbeat before each checkpoint."""
        original, state = torch.save, self.state

        @functools.wraps(original)
        def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
            if state.here():
                state.alive()
            return original(obj, *args, **kwargs)

        self.undo.assign(torch, "save", save)

    def _patch(self, name: str, value: Value) -> None:
        knob = self.knobs.get(name)
        if knob is None or self.patches is None:
            self.state.refusals[name] = f"No knob is called {name}."
            return
        try:
            knob.patch(value, self.patches)
        except Exception as error:
            self.state.refusals[name] = f"{type(error).__name__}: {error}"
            self.faults.note(f"patch:{name}", error)

    def ended(self) -> None:
        """Restore the interpreter under `apply` after the script's end, for its exit handlers."""
        self._guarded("collector", self.collector.release)

    # sdk

    def sdk_step(self, samples: int | None, loss: object) -> None:
        """Implement `autotune.sdk.step`."""
        try:
            self.boundary.sdk_step(samples, loss)
        except Exception as error:
            self.faults.note("sdk", error)

    def sdk_value(self, name: str, default: Any) -> Any:
        """Return the value for this name: the plan's, else the default. Implements `autotune.sdk.value`."""
        wanted = next((change.value for change in self.plan.changes if change.knob == name), None)
        if wanted is not None:
            self.readings.requested[name] = wanted
        self._defaults.setdefault(name, default)
        found = default if wanted is None else wanted
        self._guarded("sdk_value", lambda: self._handed(name, found))
        return found

    def _handed(self, name: str, found: Any) -> None:
        from autotune.text.redact import is_secret_name

        if not is_secret_name(name):
            plain = isinstance(found, (bool, int, float, str))
            self.readings.handed.setdefault(name, found if plain else str(found)[:_VALUE_CHARS])

    def _doubt(self, name: str) -> str:
        """Return why the rate with this value is not valid, by the reported sample counts; may be empty."""
        if self.torch_hooks is not None and self.torch_hooks.loader.train is not None:
            return ""
        others = [value for other, value in self.readings.handed.items() if other != name]
        reported = self.boundary.reported_sizes if self.boundary.reports_samples else ()
        return stands_still(
            name, self._defaults.get(name), self.readings.requested.get(name), reported, others
        )

    def _why_no_step(self) -> str:
        """Return why the run had no step, if known."""
        if self.torch_hooks is not None and self.torch_hooks.optimizer.steps_in_threads:
            return _IN_A_THREAD
        reason = self.children.train()
        if reason or "torch" in sys.modules:
            return reason
        return "no step was observed: without PyTorch the script must call autotune.step() after each step"

    def _trains_in_a_thread(self) -> None:
        """End a run that would time out without a measurement, as it trains in a thread."""
        now_ns = time.perf_counter_ns()
        self._threads_ns = self._threads_ns or now_ns
        is_long = now_ns - self._threads_ns > _THREADS_NS
        if is_long and not self.state.steps and not self.state.began_ns:
            self._guarded(
                "threads", lambda: self.recorder.ending.broke(kind="no_metric", message=_IN_A_THREAD)
            )

    # Settling

    def _settle_root(self, steps: int) -> bool:
        """Return whether no new root appeared for two steps, or none is expected."""
        hooks = self.torch_hooks
        if hooks is None or not hooks.root.detecting:
            return True
        root = hooks.root
        count, since = self._roots_at
        if len(root.calls) != count:
            self._roots_at = (len(root.calls), steps)
            return False
        if steps - since < _QUIET_STEPS and steps - self._reopened_at < _DETECT_STEPS:
            return False
        root.settle()
        hooks.losses.settle()
        self._guarded("models", lambda: self._await_models(hooks))
        return True

    def _detect_roots_of(self, optimizer: Any) -> None:
        """Apply the changes also to the model of a later fold or phase."""
        self._reopen(p for group in optimizer.param_groups for p in group["params"])

    def _reopen(self, parameters: Iterable[Any]) -> None:
        hooks = self.torch_hooks
        if hooks is not None and hooks.root.reopen(parameters):
            steps = self.state.steps
            self._reopened_at, self._roots_at = steps, (len(hooks.root.calls), steps)
            self.recorder.reopen()

    def _await_models(self, hooks: TorchHooks) -> None:
        """Wait for models of an optimizer that no call has used yet; they may train later."""
        if self._awaited >= _MOST_AWAITED:
            return
        alive = [held for held in (ref() for ref in hooks.optimizer.stepped.values()) if held is not None]
        parameters = [p for held in alive for group in held.param_groups for p in group["params"]]
        self._awaited += hooks.root.await_gradient(parameters, self._reopen)

    def _settled(self, readings: tuple[Reading, ...], final: bool) -> None:
        hooks = self.torch_hooks
        if hooks is not None and not final:
            hooks.root.look_again()
        if hooks is not None and final and self.channel is None and self.recorder.rank is None:
            if not hooks.root.stays:
                # Without a measurement no hook is needed in the model any more.
                hooks.root.release()
            self._guarded("release", lambda: self._remove(hooks))
        if final and self.plan.status_path:
            self._guarded("status", lambda: self._write_status(readings))

    def _remove(self, hooks: TorchHooks) -> None:
        """Remove unneeded hooks under `apply`, once every knob was read as applied."""
        # Compiled code may have been traced through the hooks, and would be traced again.
        if (
            hooks.root.stays
            or hooks.root.compiles
            or any(self.knobs[knob].acts_at == "call" for knob in self.recorder.acceptance.patched)
        ):
            return
        steps = not self.state.at_step
        hooks.loader.let_go()
        hooks.optimizer.let_go(steps=steps)
        hooks.copies.let_go()
        if steps:
            self.boundary.release()

    def facts(self) -> RunFacts:
        """Return all facts of the run so far."""
        return self._facts.read(self.torch_hooks)

    def _write_status(self, readings: tuple[Reading, ...]) -> None:
        path = Path(self.plan.status_path)
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(wire.to_wire(readings)), encoding="utf-8")
        part.replace(path)

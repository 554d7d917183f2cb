"""Ray Tune as the loop: the only module that imports ray.

One Tune trial is one `Assignment`. The trainable supervises a guarded process and holds neither torch nor a
device, so its actor is reused. A failed trial is a result; an error in Tune means the loss of an actor or a
node. Ray's state is never read back.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import importlib
import logging
import math
import os
import secrets
import shlex
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
# Tune queries the head's resources to print them, and waits a minute for one that is lost.
os.environ.setdefault("TUNE_STATE_REFRESH_PERIOD", "1e9")
os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")

import ray
from ray import tune
from ray.experimental.internal_kv import internal_kv_get_gcs_client
from ray.tune.search import Searcher
from ray.util import get_current_placement_group, get_node_ip_address
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.driver.backends.local_ray import FOLDER, MARK, SNAPSHOTS, OwnRay, temporary
from autotune.driver.backends.node_placement import ClusterNode, NodePlacement
from autotune.driver.backends.ray_head import Head
from autotune.driver.backends.ray_keeper import Keeper
from autotune.driver.backends.wakeup import Wakeup, ring
from autotune.driver.host_memory import free_memory, node_limit
from autotune.errors import RayUnavailable
from autotune.launch.devices.claims import ClaimRequest
from autotune.launch.devices.device_care import LOCK_S, DeviceCare
from autotune.launch.gang import GangRunner, NodeReport, collected
from autotune.launch.process import LocalRunner
from autotune.launch.runner import Runner, TrialResult
from autotune.launch.workspace import isolation as enclosure
from autotune.model import wire
from autotune.model.distributed_launch import nodes_of, ranks_of
from autotune.model.trial import Assignment, Failure, FailureKind, Measurement, Stage
from autotune.shortage import address_space, shortage
from autotune.text.redact import redact, redact_args

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from autotune.driver.loop.session import Session
    from autotune.launch.gang import Witness
    from autotune.launch.result.host_samples import HostSamples
    from autotune.launch.result.process_reports import ProcessReports
    from autotune.model.study import StudySpec
    from autotune.model.trial import Outcome

log = logging.getLogger(__name__)

SCHEDULING_S = 60.0
"""Time limit for the start of a requested trial; later its resources will not become available."""

GOODBYE_S = 5.0
LEAVING_S = 1.0
"""Time for Ray's processes to end by themselves with their node."""

OBJECT_STORE_BYTES = 100 * 1024 * 1024
"""Only assignments and outcomes are transferred, some kilobytes each; Ray's minimum is 75 MB."""


ACCELERATOR = "accelerator_type:"
"""Prefix of the resource by which Ray names the type of a node's accelerators."""

_SPREAD = (Stage.INITIAL, Stage.REFINE, Stage.REFERENCE)
"""Stages whose trials may run on other nodes than the first."""

NO_TRIALS = '{"trial_data": []}'
"""Experiment state without trials, in Tune's format."""

STAGED = "staged"
"""Subfolder of the snapshots in which Tune prepares them."""

_STORAGE = "ray.train._internal.storage"
_NODE = "ray._private.node"
_SERVICES = "ray._private.services"
_ACTORS = "ray.tune.execution.class_cache"
_CONTROLLER = "ray.tune.execution.tune_controller"

LOOPBACK = "127.0.0.1"
"""Address at which all processes of a local Ray listen, as they run on this machine."""

HANDED_ON = frozenset({"RAY_CHDIR_TO_TRIAL_DIR"})
"""Variables that Tune may copy from the driver to its workers.

Ray logs such copies in a world-readable file, and Tune's own list contains AWS credentials. Trials get their
variables by `hand_over`.
"""

ASSIGNMENTS = b"autotune"
"""Namespace for the values of `hand_over` in the memory of Ray's head."""

AT_REST = {
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_raylet_report_resources_period_milliseconds": "500",
    "RAY_raylet_check_gc_period_milliseconds": "2000",
    "RAY_memory_monitor_refresh_ms": "1000",
    "RAY_metrics_report_interval_ms": "60000",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
}
"""Settings of a local Ray, unless the user has set them.

Ray's default niceness of its workers would let every other process on the machine preempt trials. That slows
a training far more than its share, most of all with as many threads as CPUs. Ray's idle polling, ten times a
second, would disturb timed trainings.
"""

REST_S = 1.0
"""Longest pause between Tune's polls while trials run; the wakeup ends it early. Tune's own is 0.1 s."""

AWAKE_S = 0.5
"""Time without pauses after a wakeup, which announces a result, and after a result."""


def _not_set(_handler: object) -> None:
    """Replacement for the function that sets signal handlers."""


def _not_started(*_args: object, **_more: object) -> None:
    """Replacement for functions that start processes unused on one machine with one job.

    Ray starts its dashboard's server also without a dashboard, and waits for it. The monitor is the cluster
    autoscaler's.
    """


def _keep() -> None:
    """Keep the signal handlers."""


def _same_host(host: str) -> str:
    """Replacement for the function that exchanges a loopback address for an external one."""
    return host


def _save_nothing(controller: Any) -> None:
    """Write an experiment without trials, as Tune reads the file back if it has run none."""
    place = Path(controller.experiment_state_path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(NO_TRIALS, encoding="utf-8")


def hand_over(assignment: Assignment) -> str:
    """Store an assignment in the memory of Ray's head until its worker collects it.

    It holds the user's environment and the script's arguments. Tune writes the configuration of every trial
    to files, so these must not be part of it.

    Returns:
        The key to collect it by.
    """
    key = secrets.token_hex(16)
    # Variables need not be valid text.
    text = wire.dumps(assignment).encode(errors="surrogatepass")
    _memory().internal_kv_put(key.encode(), text, True, ASSIGNMENTS)
    return key


def collect(key: str) -> Assignment:
    """Return an assignment that was handed over, and remove it from Ray.

    Raises:
        LookupError: It was collected or withdrawn before.
    """
    text = _memory().internal_kv_get(key.encode(), ASSIGNMENTS)
    if text is None:
        message = "Ray no longer has the assignment of this trial"
        raise LookupError(message)
    withdraw(key)
    return wire.loads(Assignment, text.decode(errors="surrogatepass"))


def withdraw(key: str) -> None:
    """Remove an assignment from Ray, if it is still there."""
    _memory().internal_kv_del(key.encode(), False, ASSIGNMENTS)


def _memory() -> Any:
    """Return the client of Ray's head that Tune uses for data of its workers."""
    return internal_kv_get_gcs_client()


class _Breaking:
    """Interrupts Tune's loop in the main thread, but never during a session call.

    A signal arrives between any two bytecodes. During a session call it only sets a flag, and the loop ends
    after that call.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._wanted = False
        self.error: Exception | None = None

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._depth -= 1
        if isinstance(error, Exception):
            # Tune would wrap it into its own error; the driver raises it unchanged.
            self.error = error
            raise KeyboardInterrupt from error
        if self._wanted and not self._depth:
            self._wanted = False
            raise KeyboardInterrupt

    def now(self) -> None:
        """Raise KeyboardInterrupt here, or at the end of the current session call."""
        if self._depth:
            self._wanted = True
        else:
            raise KeyboardInterrupt


class SessionSearcher(Searcher):
    """Adapter of `Session`; holds no state that the journal does not hold."""

    def __init__(
        self, session: Session, arm: Callable[[], None], placement: NodePlacement | None = None
    ) -> None:
        super().__init__()
        self._session = session
        self._arm = arm
        self._placement = placement
        self._nodes: dict[str, ClusterNode] = {}
        """Open trial id -> its node of a cluster."""
        self._is_starved = False
        self._open: dict[str, Assignment] = {}
        self._keys: dict[str, str] = {}
        """Trial id -> key of an assignment that may not have been collected."""
        self._begun: set[str] = set()
        self.breaking = _Breaking()
        self.bell: Wakeup | None = None
        self._woken_s = 0.0

    def rest(self) -> None:
        """Wait for the wakeup if all requested trials have started, and no result was recent."""
        now_s = time.monotonic()
        if self.bell is None or not self._open or self.waiting() or now_s - self._woken_s < AWAKE_S:
            return
        if self.bell.wait(REST_S):
            self._woken_s = time.monotonic()

    # Tune itself compares with FINISHED, a string, which its annotation omits.
    def suggest(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, trial_id: str
    ) -> dict[str, Any] | str | None:
        """Return the next assignment; None while there is none, FINISHED if there will be none."""
        # Tune has set its own handlers since the loop began.
        self._arm()
        with self.breaking:
            assignment, node = self._next()
        if assignment is None:
            return Searcher.FINISHED if self._session.is_over or self._session.stopping else None
        self._open[trial_id] = assignment
        if node is not None and self._placement is not None:
            self._nodes[trial_id] = node
            self._placement.begins(node)
        self._keys[trial_id] = key = hand_over(assignment)
        confirms = self._stage(assignment) is Stage.CONFIRM
        return {"assignment": key, "confirms": confirms, "node": "" if node is None else node.id}

    def _next(self) -> tuple[Assignment | None, ClusterNode | None]:
        """Return the next assignment and its node; no node where Ray chooses it."""
        placement = self._placement
        if placement is None:
            return self._session.ask(), None
        if note := placement.refresh():
            self._session.note(note)
        further = placement.unverified()
        if further is not None and all(self._stage(a) in _SPREAD for a in self._open.values()):
            reference = self._session.ask_reference(further.name)
            if reference is not None:
                return reference, further
        node = placement.room()
        self._is_starved = node is None and not self._open
        assignment = None if node is None else self._session.ask()
        if assignment is None:
            return None, None
        return assignment, node if self._stage(assignment) in _SPREAD else placement.home

    def _stage(self, assignment: Assignment) -> Stage:
        return next(t.stage for t in self._session.study.trials if t.number == assignment.trial)

    def _judge(self, trial_id: str, outcome: Outcome | None) -> None:
        """Use or refuse the node of a reference run."""
        node, assignment = self._nodes.get(trial_id), self._open[trial_id]
        if node is None or self._placement is None or self._stage(assignment) is not Stage.REFERENCE:
            return
        own = [t.measurement.throughput.value for t in self._session.study.baseline if t.measurement]
        read = outcome.throughput.value if isinstance(outcome, Measurement) else None
        if note := self._placement.judge(node, read, statistics.fmean(own)):
            self._session.note(note)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Handle one message of the trainable: its start, or an outcome."""
        assignment = self._open.get(trial_id)
        if assignment is None:
            return
        self._begun.add(trial_id)
        self._keys.pop(trial_id, None)
        with self.breaking:
            if result.get("begins"):
                node = self._nodes.get(trial_id)
                self._session.start(assignment, node="" if node is None else node.name)
            elif text := result.get("ended"):
                ended = wire.loads(TrialResult, text)
                self._session.tell(assignment.uid, ended)
                self._judge(trial_id, ended.outcome)
        # Another slot's result may be available as well, as wakeups are not counted.
        self._woken_s = time.monotonic()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Handle the end of a trial without data: segments without a result are lost and requested again."""
        if (key := self._keys.pop(trial_id, None)) is not None:
            withdraw(key)
        if trial_id in self._open:
            with self.breaking:
                if error:
                    self._judge(trial_id, None)
                self._session.lost(self._open.pop(trial_id).uid, "the Ray worker that ran it was lost")
        node = self._nodes.pop(trial_id, None)
        if node is not None and self._placement is not None:
            self._placement.ends(node)
            if error:
                self._placement.loses(node)
        self._woken_s = time.monotonic()

    def withdraw_all(self) -> None:
        """Remove uncollected assignments from Ray."""
        while self._keys:
            withdraw(self._keys.popitem()[1])

    def waiting(self) -> bool:
        """Return whether a requested trial has not started, or no node is left to request one for.

        One that waits for a trial on the same node is left out, as that ends within its own limit.
        """
        waiting = set(self._open) - self._begun
        busy = {self._nodes[i].id for i in self._begun & set(self._open) if i in self._nodes}
        return self._is_starved or any(i not in self._nodes or self._nodes[i].id not in busy for i in waiting)

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state, as Tune pickles a searcher into a snapshot that is never read back."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the journal holds the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: a search is resumed from the journal."""


class _Resting(tune.Callback):
    """Pauses Tune's loop while the searcher has no work."""

    def __init__(self, searcher: SessionSearcher) -> None:
        self._searcher = searcher

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state, like the searcher."""
        return {}

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Pause between two rounds."""
        self._searcher.rest()


class Launcher(tune.Trainable):
    """Runs one assignment in a guarded process; reports its start, outcomes and end."""

    def setup(self, config: dict[str, Any]) -> None:
        """Set up the actor, once."""
        self._runner: Runner | None = None
        self._made_for: tuple[Path, str, ClaimRequest | None] | None = None
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Accept the next assignment in the same actor."""
        self._take(new_config)
        return True

    def _take(self, config: dict[str, Any]) -> None:
        pinned = str(config["pinned_device"]) if config["confirms"] else ""
        self._is_ours = bool(config["is_ours"])
        assignment = on_our_devices(collect(str(config["assignment"])), pinned)
        # The assignment was made for another machine than this node.
        self._assignment = assignment if self._is_ours else on_this_node(assignment, int(config["at_once"]))
        self._outcomes: Iterator[TrialResult] | None = None
        self._study_dir = Path(config["study_dir"])
        self._isolation = str(config["isolation"])
        self._bell = str(config["bell"])
        self._request = wire.loads(ClaimRequest, config["request"]) if config["request"] else None
        self._at_once = int(config["at_once"])

    def step(self) -> dict[str, Any]:
        """Return the next message: first the start, then outcomes, last the end."""
        if self._outcomes is None:
            self._study_dir.mkdir(parents=True, exist_ok=True)
            self._outcomes = self._our_runner().run(self._assignment)
            return {"begins": True, "ended": ""}
        try:
            ended = next(self._outcomes, None)
        finally:
            ring(self._bell)
        if ended is None:
            return {"begins": False, "ended": "", "done": True}
        if not self._is_ours and (note := niceness_note(os.getpriority(os.PRIO_PROCESS, 0))):
            ended = replace(ended, notes=(*ended.notes, note))
        return {"begins": False, "ended": wire.dumps(ended)}

    def _our_runner(self) -> Runner:
        """Return the runner of this actor, which retains fork servers between trials."""
        wanted = (self._study_dir, self._isolation, self._request)
        if self._runner is None or self._made_for != wanted:
            self.cleanup()
            self._runner = self._gang() if self._assignment.launch.nodes > 1 else self._local_runner()
            self._made_for = wanted
        return self._runner

    def _local_runner(self, witness: Witness | None = None) -> LocalRunner:
        return LocalRunner(
            study_dir=self._study_dir,
            isolation=self._isolation,
            free_memory=free_memory,
            device_care=DeviceCare(request=self._request),
            witness=witness,
        )

    def _gang(self) -> GangRunner:
        """Return the runner for this node and the other bundles of this actor's placement group."""
        request = "" if self._request is None else wire.dumps(self._request)
        config = (str(self._study_dir), self._isolation, request, socket.gethostname(), self._at_once)
        nodes = self._assignment.launch.nodes
        members = [OtherNode(bundle, nodes, config) for bundle in range(1, nodes)]
        address = get_node_ip_address()
        return GangRunner(self._local_runner, members, address=address, study_dir=self._study_dir)

    def cleanup(self) -> None:
        """Release the runner before the actor ends."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Do nothing: a trial is never continued."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: there are no checkpoints."""


class NodeActor:
    """Runs the parts of trials that belong to one node other than the first.

    Args:
        study_dir: Where the parts write on this node.
        isolation: Handed to the runner.
        request: For whom this machine is claimed; empty for none.
        first_host: Name of the first node's machine, which has claimed itself.
        at_once: Trials that run at once on the whole cluster.
    """

    def __init__(self, study_dir: str, isolation: str, request: str, first_host: str, at_once: int) -> None:
        self._study_dir = Path(study_dir)
        self._at_once = at_once
        self._reports: ProcessReports | None = None
        is_claimed = not request or socket.gethostname() == first_host
        claim = None if is_claimed else wire.loads(ClaimRequest, request)
        self._runner = LocalRunner(
            study_dir=self._study_dir,
            isolation=isolation,
            free_memory=free_memory,
            device_care=DeviceCare(request=claim),
            witness=self._note,
        )

    def _note(self, assignment: Assignment, reports: ProcessReports, seen: HostSamples) -> None:
        self._reports = reports

    def run(self, key: str) -> str:
        """Run the part that was handed over, and return a `NodeReport`."""
        part = on_this_node(on_our_devices(collect(key), ""), self._at_once)
        self._study_dir.mkdir(parents=True, exist_ok=True)
        self._reports = None
        ended = [result.outcome for result in self._runner.run(part)]
        failure = next((outcome for outcome in ended if isinstance(outcome, Failure)), None)
        assert failure is not None, "no rank of this machine measures"
        if self._reports is None:
            return wire.dumps(NodeReport(failure=failure))
        return wire.dumps(collected(self._study_dir, part, self._reports, failure))

    def stop(self) -> None:
        """End the part that runs, if there is one."""
        self._runner.stop()


class OtherNode:
    """A bundle of this actor's placement group, as `autotune.launch.gang.Member`.

    Args:
        bundle: Its number; 0 is the actor's own.
        nodes: Number of bundles.
        config: Arguments of `NodeActor`.
    """

    def __init__(self, bundle: int, nodes: int, config: tuple[str, str, str, str, int]) -> None:
        gpus = len(ray.get_gpu_ids())
        group = get_current_placement_group()
        assert group is not None, "Tune starts a trial of several machines in a placement group"
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        remote: Any = ray.remote
        # One call runs a part, another one may stop it.
        made = remote(num_cpus=1, num_gpus=gpus, max_concurrency=2, scheduling_strategy=strategy)(NodeActor)
        self._actor = made.remote(*config)
        self._name = f"machine {bundle + 1} of {nodes}"
        self._running: Any = None
        self._report: NodeReport | None = None

    def start(self, part: Assignment) -> None:
        """See `Member.start`."""
        self._report = None
        # Not as an argument, which other users of the cluster may be able to read.
        self._running = self._actor.run.remote(hand_over(part))

    def wait(self, seconds: float) -> NodeReport | None:
        """See `Member.wait`; a node that is gone has a report."""
        if self._report is None and self._running is not None:
            ready, _ = ray.wait([self._running], timeout=seconds)
            if ready:
                self._report = self._ended()
        return self._report

    def stop(self) -> None:
        """See `Member.stop`."""
        if self._report is None:
            self._actor.stop.remote()

    def _ended(self) -> NodeReport:
        try:
            return wire.loads(NodeReport, ray.get(self._running))
        except Exception as error:  # noqa: BLE001 (any error of Ray means that this part of the trial is lost)
            lost = f"{self._name} was lost: {str(error).splitlines()[0] if str(error) else error!r}"
            return NodeReport(failure=Failure(kind=FailureKind.INFRA_LOST, message=lost))


def node_request(spec: StudySpec) -> ClaimRequest:
    """Return the request by which a trial claims its cluster node; it waits as long as for its devices."""
    request = ClaimRequest.of(spec)
    return request if spec.wait_s is not None else replace(request, wait_s=min(request.wait_s, LOCK_S))


def niceness_note(niceness: int) -> str:
    """Return a message about trials with low priority; empty if they have none.

    On an existing cluster the niceness cannot be changed from here.
    """
    if niceness <= 0:
        return ""
    return (
        f"this Ray runs trials at a niceness of {niceness}, so everything else on its nodes comes before "
        "them and its threads are slower; start the nodes with RAY_worker_niceness=0"
    )


def on_our_devices(assignment: Assignment, pinned: str) -> Assignment:
    """Return the assignment restricted to the devices that Ray gave this actor.

    Args:
        assignment: Assignment of the session.
        pinned: Devices to use instead if all belong to this Ray and no other trial runs. Devices of one kind
            differ by some per cent, and a pair must not compare two of them.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not ray.get_gpu_ids() or not given:
        return assignment
    launch = assignment.launch
    visible = pinned or given
    return replace(assignment, launch=replace(launch, env={**launch.env, "CUDA_VISIBLE_DEVICES": visible}))


def on_this_node(assignment: Assignment, at_once: int) -> Assignment:
    """Return the assignment with its share of this node's memory, within the search's limit.

    Args:
        assignment: Assignment of the session.
        at_once: Concurrent trials on the whole cluster.
    """
    if at_once > 1:
        here = ray.get_runtime_context().get_node_id()
        have = next((node["Resources"] for node in ray.nodes() if node["NodeID"] == here), {})
        at_once = min(at_once, int(have.get("GPU" if ray.get_gpu_ids() else "CPU", 1)))
    limit_bytes = node_limit(assignment.memory_limit_bytes, at_once)
    return replace(assignment, memory_limit_bytes=limit_bytes)


def cluster_nodes(gpus: int, concurrency: int, accelerator: str) -> list[ClusterNode]:
    """Return the living nodes of the cluster that can hold a trial.

    Args:
        gpus: Devices of one trial.
        concurrency: Requested number of concurrent trials; 0 if none was.
        accelerator: Required type of accelerator, by Ray's name; empty for any.
    """
    own = ray.get_runtime_context().get_node_id()
    fit = [
        (node, node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
        and node["Resources"].get("CPU", 0) >= 1
        and node["Resources"].get("GPU", 0) >= gpus
        and (not accelerator or ACCELERATOR + accelerator in node["Resources"])
    ]
    addresses = Counter(node["NodeManagerAddress"] for node, _ in fit)
    found: list[ClusterNode] = []
    for node, have in fit:
        name = str(node["NodeManagerAddress"])
        kinds = sorted(k.removeprefix(ACCELERATOR) for k in have if k.startswith(ACCELERATOR))
        devices = f"{have['GPU']:g} GPUs {' '.join(kinds)}".rstrip() + ", " if gpus else ""
        found.append(
            ClusterNode(
                id=node["NodeID"],
                name=name if addresses[name] == 1 else f"{name} ({node['NodeID'][:6]})",
                hardware=f"{devices}{have['CPU']:g} CPUs",
                slots=int(have["GPU"]) // gpus if gpus else max(1, math.ceil(concurrency / len(fit))),
                is_own=node["NodeID"] == own,
            )
        )
    return found


def _places(bundles: list[dict[str, int | float]], config: dict[str, Any]) -> Any:
    """Return the resources of a trial: one bundle on its node, or one on each of several nodes."""
    if len(bundles) > 1:
        return tune.PlacementGroupFactory(bundles, strategy="STRICT_SPREAD")
    if not config.get("node"):
        return tune.PlacementGroupFactory(bundles)
    return tune.PlacementGroupFactory(bundles, bundle_label_selector=[{"ray.io/node-id": config["node"]}])


class RayDriver:
    """Runs a session by Ray Tune, on a local Ray or on an existing cluster.

    Args:
        session: Session to run.
        study_dir: Folder of trials on their node.
        isolation: Passed to the runner.
        address: Address of an existing cluster; empty starts a local Ray that ends with this driver.
        concurrency: Concurrent trials; 0 = one per GPU, one on a machine without.
        lost: Called when Ray has died, from another thread. The main thread may be blocked in a call to the
            lost head.
    """

    def __init__(
        self,
        session: Session,
        *,
        study_dir: Path,
        isolation: str,
        address: str = "",
        concurrency: int = 0,
        lost: Callable[[RayUnavailable], None] = lambda _: None,
    ) -> None:
        self._session = session
        self._study_dir = study_dir
        self._isolation = isolation
        self._address = address
        self._concurrency = concurrency
        self._lost = lost
        self._temp = ""
        self._scratch = ""
        self._searcher: SessionSearcher | None = None
        self._broken = ""
        self._hint = ""
        self._needs = "1 CPU"
        self._own: OwnRay | None = None
        self._keeper: Keeper | None = None
        self._head: Head | None = None
        self._bell: Wakeup | None = None
        self._raised = False
        self._over = threading.Event()

    def connect(self) -> None:
        """Start or connect to Ray.

        Raises:
            RayUnavailable: With the local authentication mode in the message.
        """
        try:
            # Ray's own handler would raise SystemExit anywhere in this process.
            with _command_without_secrets(), _replaced("set_sigterm_handler", _not_set):
                if self._address:
                    ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
                    self._head = _head()
                else:
                    self._start_local()
        except Exception as error:
            # Ray raises the bare class if its node does not start in time.
            where = redact(self._address) or "a local Ray"
            lacks = shortage(error, places=(self._temp,) if self._temp else ())
            limited = address_space()
            if lacks is not None:
                raise RayUnavailable(
                    f"{where} could not be reached: {lacks.message}", hint=lacks.hint
                ) from error
            message = f"{where} could not be reached: {str(error).splitlines()[0] if str(error) else error!r}"
            mode = os.environ.get("RAY_AUTH_MODE", "unset")
            hint = (
                f"RAY_AUTH_MODE is {mode} on this side; the cluster's must be the same. Or: --driver inline"
            )
            if limited and not self._address:
                hint = f"{limited}, and Ray needs more: ulimit -v unlimited. Or: --driver inline"
            raise RayUnavailable(message, hint=hint) from error

    def _start_local(self) -> None:
        # Sockets are created below this folder, and their paths are limited to 107 bytes. Ray makes its
        # folder world-writable (sockets, logs, sessions), so its parent is accessible to this user only.
        self._temp = tempfile.mkdtemp(prefix=FOLDER, dir=temporary())
        self._keeper = Keeper(self._temp, self._study_dir)
        os.environ[MARK] = self._temp
        added = [name for name in AT_REST if name not in os.environ]
        os.environ.update({name: AT_REST[name] for name in added})
        try:
            with (
                _replaced("start_api_server", _not_started, owner="Node", module=_NODE),
                _replaced("start_monitor", _not_started, owner="Node", module=_NODE),
                _replaced("resolve_ip_for_localhost", _same_host, module=_SERVICES),
            ):
                self._init_local()
        except BaseException:
            self._let_go()
            raise
        finally:
            # Later child processes of this process are not Ray's.
            for name in (MARK, *added):
                os.environ.pop(name, None)
        self._own = OwnRay(os.getpid(), self._temp)
        with contextlib.suppress(OSError):
            self._bell = Wakeup(Path(self._temp))

    def _init_local(self) -> None:
        ray.init(
            # Explicit, as without an address Ray joins any cluster that it finds.
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(Path(self._temp, "r")),
        )

    def run(self, arm: Callable[[], None] = _keep) -> None:
        """Run until no trial is left.

        Args:
            arm: Installs the signal handlers again.

        Raises:
            RayUnavailable: Nothing could be scheduled; names the missing resource.
        """
        spec = self._session.study.spec
        nodes = nodes_of(spec.launcher)
        # Processes that train together take a device each, as far as there are as many.
        gpus = min(ranks_of(spec.launcher), int(ray.cluster_resources().get("GPU", 0)) // nodes)
        self._needs = f"1 CPU and {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "1 CPU"
        self._needs += f" of type {spec.accelerator_type}" if spec.accelerator_type else ""
        self._needs += f" on each of {nodes} nodes" if nodes > 1 else ""
        placement = self._placement(gpus) if self._address and nodes == 1 else None
        slots = self._slots(gpus, nodes) if placement is None else placement.most
        searcher = SessionSearcher(self._session, arm, placement)
        searcher.bell = self._bell
        threading.Thread(target=self._watch, args=(searcher,), daemon=True).start()
        bundle: dict[str, int | float] = {"CPU": 1, "GPU": gpus}
        if spec.accelerator_type:
            bundle[ACCELERATOR + spec.accelerator_type] = 0.001
        trainable = tune.with_resources(Launcher, functools.partial(_places, [bundle] * nodes))
        tuner = tune.Tuner(
            trainable,
            param_space={
                "study_dir": str(self._study_dir),
                "isolation": self._isolation,
                "pinned_device": self._pinned_devices(gpus),
                "bell": "" if self._bell is None else self._bell.path,
                "is_ours": self._own is not None,
                # With a local Ray, the search has claimed the machine.
                "request": "" if self._own else wire.dumps(node_request(self._session.study.spec)),
                "at_once": slots,
            },
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                num_samples=-1,
                max_concurrent_trials=slots,
                # A placement group that has lost a node is not used again.
                reuse_actors=nodes == 1,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=self._snapshots(),
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                callbacks=[_Resting(searcher)],
                verbose=0,
            ),
        )
        try:
            self._searcher = searcher
            staged = str(Path(self._snapshots(), STAGED))
            with (
                _Quiet(),
                _replaced("_get_ray_train_session_dir", lambda: staged, module=_STORAGE),
                _replaced("save_to_dir", _save_nothing, owner="TuneController", module=_CONTROLLER),
                _replaced("ENV_VARS_TO_PROPAGATE", HANDED_ON, module=_ACTORS),
            ):
                tuner.fit()
        except KeyboardInterrupt:
            if searcher.breaking.error is not None:
                raise searcher.breaking.error from None
            if not self._session.stopping and not self._broken:
                raise
        finally:
            self._searcher = None
            self._over.set()
            if self._address and not self._broken:
                # A lost head's memory is lost as well, and a local Ray ends with this driver.
                searcher.withdraw_all()
        if self._broken:
            raise RayUnavailable(self._broken, hint=self._hint)

    def _snapshots(self) -> str:
        """Return a folder accessible to this user only, removed with this driver or at the next start.

        Tune writes unused files, and stages them in the folder of a Ray session, which is world-readable.
        """
        if not self._scratch:
            place = self._study_dir / SNAPSHOTS
            enclosure.remove(place)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.chmod(0o700)
            self._scratch = str(place)
        return self._scratch

    def _pinned_devices(self, gpus: int) -> str:
        """Return the devices for pairs: the first ones of a local Ray; empty on a cluster."""
        if self._address:
            return ""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(max(1, gpus))))
        return ",".join(word.strip() for word in visible.split(",")[: max(1, gpus)])

    def _placement(self, gpus: int) -> NodePlacement:
        """Return the choice of nodes for trials of one machine, with the cluster's present nodes."""
        accelerator = self._session.study.spec.accelerator_type
        placement = NodePlacement(
            lambda: cluster_nodes(gpus, self._concurrency, accelerator),
            limit=self._concurrency or (0 if gpus else 1),
        )
        types = sorted({k.removeprefix(ACCELERATOR) for k in ray.cluster_resources() if ACCELERATOR in k})
        if accelerator and accelerator not in types:
            raise RayUnavailable(
                f"no node of the cluster has accelerators of type {accelerator}",
                hint=f"it has: {', '.join(types) or 'none'}",
            )
        if note := placement.refresh():
            self._session.note(note)
        return placement

    def _slots(self, gpus: int, nodes: int = 1) -> int:
        if self._concurrency or nodes > 1:
            return self._concurrency or 1
        return max(1, int(ray.cluster_resources().get("GPU", 1)) // gpus) if gpus else 1

    def interrupt(self) -> None:
        """Break Tune's loop. For signal handlers of the main thread."""
        searcher, self._searcher = self._searcher, None
        if searcher is not None:
            searcher.breaking.now()

    def breaks_off(self) -> bool:
        """Break Tune's loop if this driver raised the current interrupt; return False if the user did.

        For signal handlers of the main thread.
        """
        raised, self._raised = self._raised, False
        if raised:
            self.interrupt()
        return raised

    def _dead_part(self) -> str:
        """Return the part of a local Ray that has died, or "". A failed check is repeated."""
        try:
            return self._own.look() if self._own is not None else ""
        except Exception:
            log.exception("could not inspect the local Ray")
            return ""

    def _death(self) -> tuple[str, str]:
        """Return the part of Ray that has died, and a remedy; empty if it is alive."""
        if part := self._dead_part():
            return (
                f"the {part} of the local Ray has ended",
                "autotune resume continues; or use --driver inline",
            )
        if self._head is not None and self._head.look():
            return (
                f"the head of the cluster ({self._head.address}) no longer answers",
                "autotune resume continues when the cluster is back; or use --driver inline",
            )
        return "", ""

    def _watch(self, searcher: SessionSearcher) -> None:
        """Raise errors for a trial that cannot be scheduled, and for a Ray that has died.

        Tune waits indefinitely for the former. For the latter, Ray waits a minute and then ends this process
        without further writes.
        """
        waited_s = 0.0
        while not self._over.wait(1.0):
            why, hint = self._death()
            if why and self._searcher is not None:
                self._lost(RayUnavailable(why, hint=hint))
                self._break(why, hint)
                return
            waited_s = waited_s + 1.0 if searcher.waiting() else 0.0
            patience_s = min(SCHEDULING_S, max(1.0, self._session.remaining_s))
            if waited_s >= patience_s and self._searcher is not None:
                self._break(
                    f"no trial could start within {patience_s:.0f} s: it needs {self._needs}, "
                    f"free are {_free()}",
                    "free the resource, add a node, or use --driver inline",
                )
                return

    def _break(self, why: str, hint: str) -> None:
        self._broken, self._hint = why, hint
        self._session.stop("backend")
        self._raised = True
        _thread.interrupt_main()
        if self._bell is not None:
            # During a wait this only sets a flag, which is not checked.
            ring(self._bell.path)

    def close(self) -> None:
        """Disconnect; end a local Ray, but no other."""
        own = self._own
        if own is not None and not (self._dead_part() or self._dead_part()):
            ray.shutdown()
        else:
            # Without its head, disconnecting may block for Ray's own timeout; the state of an existing
            # cluster's head is unknown here.
            if own is not None:
                own.end(0.0)
            goodbye = threading.Thread(target=ray.shutdown, daemon=True)
            goodbye.start()
            goodbye.join(GOODBYE_S)
        if own is not None:
            own.end(LEAVING_S)
        if self._bell is not None:
            self._bell.close()
        self._let_go()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _let_go(self) -> None:
        """End the remaining processes of a local Ray and remove its folder."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()


def _command_without_secrets() -> contextlib.AbstractContextManager[None]:
    """Hide the driver's command line, which Ray shows to all users of a cluster."""
    return _replaced("get_entrypoint_name", lambda: shlex.join(redact_args(sys.argv)))


@contextlib.contextmanager
def _replaced(
    name: str, stand_in: object, *, module: str = "ray._private.utils", owner: str = ""
) -> Generator[None, None, None]:
    """Replace one of Ray's helpers temporarily; do nothing if it does not exist."""
    try:
        place: Any = importlib.import_module(module)
        place = getattr(place, owner) if owner else place
        original = getattr(place, name)
    except (ImportError, AttributeError):
        yield
        return
    setattr(place, name, stand_in)
    try:
        yield
    finally:
        setattr(place, name, original)


def _head() -> Head | None:
    """Return the head of the joined cluster; None if Ray does not report its address."""
    try:
        # If not connected, Ray would start a local one to answer.
        return Head(str(ray.get_runtime_context().gcs_address)) if ray.is_initialized() else None
    except Exception:
        log.exception("the head of the cluster cannot be inspected")
        return None


def _free() -> str:
    try:
        have = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
    except Exception:
        log.exception("Ray did not report free resources")
        return "unknown"
    return " and ".join(f"{count:g} {name}" for name, count in sorted(have.items())) or "none"


class _Quiet:
    """Suppresses Tune's output: stdout is for the answer, stderr for autotune's progress."""

    def __enter__(self) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.tune").setLevel(logging.ERROR)
        self._stdout = sys.stdout
        self._null = Path(os.devnull).open("w", encoding="utf-8")
        sys.stdout = self._null

    def __exit__(self, *_: object) -> None:
        sys.stdout = self._stdout
        self._null.close()

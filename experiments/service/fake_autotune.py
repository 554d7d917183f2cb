"""The real `autotune` command whose trials run nothing: real journal, resume and reports, made-up figures.

    python fake_autotune.py search ...      AUTOTUNE words as usual

``FAKE_RUN_S`` is the real time that a trial takes, in seconds. Clock and figures are simulated. With
``FAKE_DRIVER=ray`` trials run in real Ray actors of the cluster, and only their figures are simulated;
``FAKE_PATIENCE_S`` is how long a search waits for them to start. Trials on a node with the resource ``slow``
are 1.3 times as long.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from autotune.cli.main import main
from autotune.clock import SimulatedClock
from autotune.driver import tune
from autotune.launch.fake import COMPUTE_BOUND, FakeRunner
from autotune.store.outbox import SERVICE

ON_RAY = os.environ.get("FAKE_DRIVER") == "ray"
RUN_S = float(os.environ.get("FAKE_RUN_S", "0.3"))
CLOCK = SimulatedClock()
WORLD = replace(COMPUTE_BOUND, gains={"precision": {"bf16": 0.5}})


class SlowRunner(FakeRunner):
    """A fake runner that takes real time, in which a signal or a kill may come."""

    def __init__(self, *, slowdown: float = 1.0, **_more: Any) -> None:
        super().__init__(replace(WORLD, compute_s=WORLD.compute_s * slowdown), CLOCK)

    def run(self, assignment: Any) -> Any:
        end_s = time.monotonic() + RUN_S
        while time.monotonic() < end_s and not getattr(self, "requested", False):
            time.sleep(0.02)
        yield from super().run(assignment)

    def stop(self) -> None:
        self.requested = True
        super().stop()


class ServiceOnly(tune.Syncer):
    """Sends to the service as always, and nothing to MLflow."""

    def start(self) -> None:
        if self._sends == SERVICE:
            super().start()

    def warm_up(self, timeout_s: float) -> bool:
        return True

    def flush(self, deadline_s: float) -> int:
        return super().flush(deadline_s) if self._sends == SERVICE else 0


class NoWatchdog:
    """The clock is simulated, so a deadline in real time means nothing."""

    def __init__(self, **_more: object) -> None:
        pass

    def start(self) -> None: ...
    def disarm(self) -> None: ...
    def bring_forward(self, seconds: float) -> None: ...


def on_ray() -> None:
    """Replace what an actor runs; Ray sends classes of this script by value, and nothing to import."""
    import ray

    from autotune.driver.backends import ray_tune

    class FakeLauncher(ray_tune.Launcher):
        def _our_runner(self) -> Any:
            if self._runner is None:
                here = ray.get_runtime_context().get_node_id()
                is_slow = any("slow" in n["Resources"] for n in ray.nodes() if n["NodeID"] == here)
                self._runner = SlowRunner(slowdown=1.3 if is_slow else 1.0)  # pyright: ignore[reportAttributeAccessIssue]
            return self._runner

    ray_tune.Launcher = FakeLauncher  # type: ignore[misc]
    ray_tune.SCHEDULING_S = float(os.environ.get("FAKE_PATIENCE_S", ray_tune.SCHEDULING_S))  # type: ignore[misc]


tune.Syncer = ServiceOnly  # type: ignore[misc]
tune.HardWall = NoWatchdog  # type: ignore[misc,assignment]
if not ON_RAY:
    tune.LocalRunner = SlowRunner  # type: ignore[misc,assignment]
    tune.SystemClock = lambda: CLOCK  # type: ignore[misc,assignment]
tune.MachineLock = SimpleNamespace(of_machine=lambda *_: None)  # type: ignore[misc,assignment]
tune.LoadCheck = SimpleNamespace(of_machine=lambda *_: None)  # type: ignore[misc,assignment]

if __name__ == "__main__":
    words = sys.argv[1:]
    if ON_RAY:
        on_ray()
    elif words[:1] == ["search"] and "--driver" in words:
        words[words.index("--driver") + 1] = "inline"
    sys.argv[1:] = words
    sys.exit(main())

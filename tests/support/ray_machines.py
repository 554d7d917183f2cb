"""Ray nodes of this machine by `ray.cluster_utils`, in a process of their own that takes orders."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from autotune.launch.guard import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ENV = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
START_S = 120.0
_CODE = """
import json
import sys
from pathlib import Path
from ray.cluster_utils import Cluster
folder, nodes = Path(sys.argv[1]), json.loads(sys.argv[2])
def args(node):
    own = {k: v for k, v in node.items() if k not in ("num_cpus", "num_gpus")}
    known = {k: v for k, v in node.items() if k not in own}
    return {**known, "resources": own, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**args(nodes[0]), "include_dashboard": False})
added = [cluster.add_node(**args(node)) for node in nodes[1:]]
cluster.wait_for_nodes()
draft = folder / "address.part"
draft.write_text(cluster.address)
draft.rename(folder / "address")
for line in sys.stdin:
    if line == "kill\\n":
        cluster.remove_node(added.pop(), allow_graceful=False)
    if line == "add\\n":
        added.append(cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20))
    print("done", flush=True)
"""


class Machines:
    """A head and further nodes; `close` ends what it started and nothing else.

    Args:
        folder: For its address.
        nodes: Resources of each, the head first; or their number, with one CPU each.
    """

    def __init__(self, folder: Path, nodes: int | Sequence[Mapping[str, float]]) -> None:
        given = [{"num_cpus": 1}] * nodes if isinstance(nodes, int) else [dict(node) for node in nodes]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(folder), json.dumps(given)],
            env={**os.environ, **ENV},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        end_s = time.monotonic() + START_S
        while not (folder / "address").exists():
            if self._process.poll() is not None or time.monotonic() > end_s:
                self.close()
                raise RuntimeError("Ray's nodes did not start")
            time.sleep(0.2)
        self.address = (folder / "address").read_text()

    def kill_node(self) -> None:
        """SIGKILL the node that was added last."""
        self._order("kill")

    def add_node(self) -> None:
        """Add one with one CPU."""
        self._order("add")

    def _order(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        while self._process.stdout.readline().strip() != "done":
            assert self._process.poll() is None

    def close(self) -> None:
        """End every process that this one started."""
        theirs = process_tree.descendants(self._process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        process_tree.send(theirs, signal.SIGKILL)
        with self._process:  # closes its pipes
            pass

"""Several processes that train together: started without torchrun, measured by the first, ended as one."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.launch.direct_run import run_plain
from autotune.launch.guard import process_tree
from autotune.launch.process import LocalRunner
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.change import Change, Flag, Launcher
from autotune.model.config import Config
from autotune.model.distributed_launch import several
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Failure, FailureKind, Fidelity, Segment
from autotune.protocol.events import Broke, Done
from autotune.space.launch_command import build_launch

if TYPE_CHECKING:
    from autotune.model.trial import Launch, Outcome

TRAIN = """
import argparse, os, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--at-thirty", default="")
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 24), torch.randn(512, 1))
loader = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data))
model = DDP(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
steps = 0
while steps < args.steps:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        steps += 1
        if steps == 30 and rank == 1:
            exec(args.at_thirty)
        if steps == args.steps:
            break
with open(f"rank{rank}.txt", "w") as file:
    print(dist.get_world_size(), steps, os.environ["OMP_NUM_THREADS"], sorted(os.environ) , file=file)
dist.destroy_process_group()
"""
ENDS_WITHOUT_TORCH = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    exec(sys.argv[1])
time.sleep(60)
"""
SHORT = Fidelity(
    min_window_s=0.2, max_window_s=1.0, min_steps=10, target_width=0.5, setup_s=60.0, deadline_s=90.0
)
torch_trial = [pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(300)]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "train.py"
    path.parent.mkdir()
    path.write_text(TRAIN)
    return path


def launch(
    script: Path, *args: str, batch: int = 0, measure: bool = True, changes: tuple[Change, ...] = ()
) -> Launch:
    change = Change(knob="batch_size", value=batch, spelling=Flag(("--batch-size",)), delivered=str(batch))
    kept = {"PATH", "HOME", "LANG"}
    return build_launch(
        script=str(script),
        args=args,
        python=sys.executable,
        cwd=str(script.parent),
        env={name: value for name, value in os.environ.items() if name in kept},
        changes=(change,) if batch else changes,
        launcher=several(2),
        measure=measure,
        protect=measure,
    )


def outcome(tmp_path: Path, started: Launch, *, ranks: int = 2) -> Outcome:
    runner = LocalRunner(study_dir=tmp_path / "study", progress_floor_s=8.0, space_floor_bytes=1)
    assignment = Assignment(
        uid=f"t0000-a1-{os.getpid() % 2**24:06x}",
        study_id="ranks",
        attempt=1,
        launch=started,
        segments=(Segment(trial=0, config=Config(), fidelity=SHORT),),
    )
    (ended,) = runner.run(assignment)
    assert process_tree.marked(assignment.uid) == []
    if isinstance(ended.outcome, Measurement):
        assert ended.facts is not None
        assert ended.facts.ranks == ranks
        assert ended.facts.model is not None
    return ended.outcome


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("raise MemoryError()", FailureKind.OOM_HOST, "rank 1 of 2"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            FailureKind.CRASH_SIGNAL,
            "rank 1 of 2 was ended by SIGSEGV",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", FailureKind.OOM_HOST, "rank 1 of 2 was ended by SIGKILL"),
        (
            "os.kill(os.getpid(), signal.SIGTERM)",
            FailureKind.CRASH_SIGNAL,
            "rank 1 of 2 was ended by SIGTERM",
        ),
        ("sys.exit('no data')", FailureKind.CRASH_EXIT, "rank 1 of 2 ended with code 1"),
        ("os._exit(9)", FailureKind.CRASH_EXIT, "rank 1 of 2 ended with code 9"),
    ],
)
@pytest.mark.thorough
def test_the_one_that_ends_is_named_and_nobody_is_left(
    script: Path, tmp_path: Path, code: str, kind: FailureKind, message: str
) -> None:
    script.write_text(ENDS_WITHOUT_TORCH)
    found = outcome(tmp_path, launch(script, code))
    assert isinstance(found, Failure), found
    assert (found.kind, message in found.message) == (kind, True), found.message


class TestTrial:
    pytestmark = torch_trial

    def test_samples_are_those_of_all_processes(self, script: Path, tmp_path: Path) -> None:
        found = outcome(tmp_path, launch(script, batch=8))
        assert isinstance(found, Measurement), found
        assert found.effective_batch == 16
        assert found.throughput.unit == "samples/s"
        per_step = found.throughput.value * found.step_time_s.value
        assert per_step == pytest.approx(16, rel=0.02)
        assert found.loss[-1].samples % 16 == 0
        assert not list(script.parent.glob("rank*.txt"))

    @pytest.mark.parametrize(
        ("code", "kind", "message"),
        [
            (
                "raise ValueError('no such thing')",
                FailureKind.CRASH_EXIT,
                "ValueError: no such thing (rank 1",
            ),
            ("os._exit(0)", FailureKind.CRASH_EXIT, "rank 1 of 2 had ended before the first one"),
            (
                "time.sleep(600)",
                FailureKind.TIMEOUT_PROGRESS,
                "the others wait for rank 1 of 2, which is at <string>:1",
            ),
        ],
    )
    def test_the_one_that_fails_is_named_and_nobody_is_left(
        self, script: Path, tmp_path: Path, code: str, kind: FailureKind, message: str
    ) -> None:
        script.write_text(TRAIN.replace("steps == 30", "steps == 8"))
        found = outcome(tmp_path, launch(script, "--at-thirty", code))
        assert isinstance(found, Failure), found
        assert (found.kind, message in found.message) == (kind, True), found.message

    @pytest.mark.parametrize("count", [1, 3])
    def test_another_number_of_processes_is_read_back_on_all_of_them(
        self, script: Path, tmp_path: Path, count: int
    ) -> None:
        change = Change(knob="processes", value=count, spelling=Launcher())
        started = launch(script, "--batch-size", "8", changes=(change,))
        found = outcome(tmp_path, started, ranks=count)
        assert isinstance(found, Measurement), found
        # 512 samples do not divide by 3 processes: the last batch of a pass is smaller.
        assert found.effective_batch == pytest.approx(8 * count, rel=0.05)
        assert len(found.ranks) == (count if count > 1 else 0)

    def test_a_script_that_keeps_its_group_smaller_is_refused(self, script: Path, tmp_path: Path) -> None:
        group = "dist.init_process_group('gloo', init_method='tcp://localhost:0', rank=0, world_size=1)"
        script.write_text(TRAIN.replace('dist.init_process_group("gloo")', group))
        change = Change(knob="processes", value=3, spelling=Launcher())
        found = outcome(tmp_path, launch(script, changes=(change,)))
        assert isinstance(found, Failure), found
        assert (found.kind, found.evidence["knob"]) == (FailureKind.CONFIG_REJECTED, "processes")
        assert "Requested 3, found 1." in found.message

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("raise ValueError('no such thing')", FailureKind.CRASH_EXIT),
            ("raise MemoryError()", FailureKind.OOM_HOST),
        ],
    )
    def test_the_first_rank_is_named_as_well(
        self, script: Path, tmp_path: Path, code: str, kind: FailureKind
    ) -> None:
        script.write_text(TRAIN.replace("steps == 30 and rank == 1", "steps == 8 and rank == 0"))
        found = outcome(tmp_path, launch(script, "--at-thirty", code))
        assert isinstance(found, Failure), found
        assert (found.kind, "(rank 0 of 2)" in found.message) == (kind, True), found.message

    def test_what_all_of_them_refuse_is_reported_as_with_one(self, script: Path, tmp_path: Path) -> None:
        # The first one is not the first to say so.
        script.write_text(
            TRAIN.replace("args = parser", "time.sleep(os.environ['RANK'] == '0')\nargs = parser")
        )
        found = outcome(tmp_path, launch(script, "--nonsense", "1"))
        assert isinstance(found, Failure), found
        assert (found.kind, "unrecognized" in found.message) == (FailureKind.CONFIG_REJECTED, True), found

    def test_a_port_that_another_program_takes_first_is_no_fault_of_the_config(
        self, script: Path, tmp_path: Path
    ) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", 0), dualstack_ipv6=both, family=family) as taken:
            started = launch(script)
            port = str(taken.getsockname()[1])
            found = outcome(tmp_path, replace(started, env={**started.env, "MASTER_PORT": port}))
        assert isinstance(found, Failure), found
        assert found.kind is FailureKind.INFRA_LOST, found.message


class TestApply:
    pytestmark = torch_trial

    def test_every_process_runs_to_its_end(self, script: Path, tmp_path: Path) -> None:
        assert run_plain(launch(script, "--steps", "40", batch=8, measure=False), tmp_path / "plan") == 0
        for rank in (0, 1):
            message = (script.parent / f"rank{rank}.txt").read_text()
            assert message.startswith("2 40 1 ")
            assert "AUTOTUNE_RANK" not in message

    def test_the_code_of_the_one_that_fails_is_the_code(self, script: Path, tmp_path: Path) -> None:
        words = ("--steps", "40", "--at-thirty", "os._exit(9)")
        assert run_plain(launch(script, *words, measure=False), tmp_path / "plan") == 9
        assert not list(script.parent.glob("rank*.txt"))


ASKED = """
import os, signal, sys, time
open(f"up{os.environ['RANK']}.txt", "w").close()
while not (os.path.exists("up0.txt") and os.path.exists("up1.txt")):
    time.sleep(0.01)
try:
    if os.environ["RANK"] == "0":
        os.kill(ORDER, signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    if os.environ["RANK"] == "0":
        time.sleep(0.7)
        open("saved.txt", "w").close()
    sys.exit(130)
"""


SIGNALLED = """
import os, signal, time
rank, got = os.environ["RANK"], []
signal.signal(signal.SIGNAL, lambda number, frame: got.append(number))
open(f"up{rank}.txt", "w").close()
while not (os.path.exists("up0.txt") and os.path.exists("up1.txt")):
    time.sleep(0.01)
if rank == "0":
    os.kill(os.getppid(), signal.SIGNAL)
while not got:
    time.sleep(0.01)
open(f"got{rank}.txt", "w").close()
"""
WRITES = """
import os, sys
rank = os.environ["RANK"]
os.makedirs("checkpoints", exist_ok=True)
with open(f"checkpoints/step9.rank{rank}", "w") as file:
    file.write("weights")
os.write(1, f"rank {rank} trains\\n".encode())
os.write(2, f"rank {rank} warns\\n".encode())
"""


class TestAsked:
    """Somebody asks for the end of what `apply` runs; its last checkpoint takes longer than the others."""

    pytestmark = pytest.mark.timeout(60)

    def test_who_still_writes_its_checkpoint_is_left_to_it(self, script: Path, tmp_path: Path) -> None:
        script.write_text(ASKED.replace("ORDER", "os.getppid()"))
        assert run_plain(launch(script, measure=False), tmp_path / "plan") == 130
        assert (script.parent / "saved.txt").exists()

    def test_nothing_of_ours_runs_where_python_would_drop_the_request(
        self, script: Path, tmp_path: Path
    ) -> None:
        script.write_text("import gc; open('callbacks.txt', 'w').write(repr(gc.callbacks))")
        assert run_plain(replace(launch(script, measure=False), ranks=1), tmp_path / "plan") == 0
        assert (script.parent / "callbacks.txt").read_text() == "[]"

    @pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
    def test_a_signal_reaches_every_rank(self, script: Path, tmp_path: Path, name: str) -> None:
        script.write_text(SIGNALLED.replace("SIGNAL", name))
        assert run_plain(launch(script, measure=False), tmp_path / "plan") == 0
        assert [(script.parent / f"got{rank}.txt").exists() for rank in (0, 1)] == [True, True]

    def test_checkpoints_and_output_are_where_the_script_writes_them(
        self, script: Path, tmp_path: Path
    ) -> None:
        script.write_text(WRITES)
        started = f"launch(Path({str(script)!r}), measure=False), Path({str(tmp_path / 'plan')!r})"
        words = f"from tests.launch.test_ranks import *; sys.exit(run_plain({started}))"
        done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
        assert sorted(done.stdout.split("\n")) == ["", "rank 0 trains", "rank 1 trains"]
        assert sorted(done.stderr.split("\n")) == ["", "rank 0 warns", "rank 1 warns"]
        for rank in (0, 1):
            assert (script.parent / "checkpoints" / f"step9.rank{rank}").read_text() == "weights"

    def test_a_terminal_shows_all_of_them_and_none_twice(self, script: Path, tmp_path: Path) -> None:
        script.write_text(ASKED.replace("os.kill(ORDER, signal.SIGINT)", "os.write(2, b'up')"))
        started = f"launch(Path({str(script)!r}), measure=False), Path({str(tmp_path / 'plan')!r})"
        words = f"from tests.launch.test_ranks import *; sys.exit(run_plain({started}))"
        pid, terminal = pty.fork()
        if not pid:
            os.execv(sys.executable, [sys.executable, "-c", words])
        message = b""
        while b"up" not in message:
            message += os.read(terminal, 1024)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(status) == 130
        assert (script.parent / "saved.txt").exists()


@pytest.mark.parametrize("count", [1, 2])
def test_the_code_is_known_where_a_parent_has_children_forgotten(
    script: Path, tmp_path: Path, count: int
) -> None:
    script.write_text("import sys; sys.exit(7)")
    kept = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        started = replace(launch(script, measure=False), ranks=count)
        assert run_plain(started, tmp_path / "plan") == 7
    finally:
        signal.signal(signal.SIGCHLD, kept)


def broke(message: str, rank: int = 0) -> Broke:
    return Broke(kind="crash_exit", error="RuntimeError", message=message, tail="", phase="", rank=rank)


LOST = broke("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")
OWN = broke("CUDA out of memory", rank=1)


@pytest.mark.parametrize("events", [(LOST, OWN), (OWN, LOST)])
def test_who_failed_by_itself_is_believed_before_who_lost_it(events: tuple[Broke, ...]) -> None:
    reported = ProcessReports()
    for event in events:
        reported.take(event)
    assert reported.broke == OWN


def test_of_two_that_failed_by_themselves_the_first_counts() -> None:
    reported = ProcessReports()
    reported.take(OWN)
    reported.take(broke("something else"))
    assert reported.broke == OWN


def test_who_fails_once_the_first_is_done_fails_for_that() -> None:
    reported = ProcessReports()
    reported.take(Done(why="measured", steps=10))
    reported.take(OWN)
    assert reported.broke is None

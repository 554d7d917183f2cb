"""Knobs around the process and its loader, in real processes; what the script itself sees is the proof."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.inspection.host import host_facts
from autotune.knobs.registry import builtin
from autotune.model.change import Change, Env, Keyword, Patch
from autotune.model.environment_variables import with_setting
from autotune.space.launch_command import build_launch
from autotune.testing.knobs import facts

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

LOADER = "torch.utils.data.DataLoader"


def keyword(name: str, value: Any, knob: str = "") -> Change:
    return Change(knob=knob or name, value=value, spelling=Keyword(LOADER, name))


def patch(knob: str, value: Any) -> Change:
    return Change(knob=knob, value=value, spelling=Patch())


def variable(knob: str, value: Any, name: str) -> Change:
    """As `choose` makes it on this machine."""
    text = builtin()[knob].environment(value, Env(name), facts(host=host_facts()))
    return Change(knob=knob, value=value, spelling=Env(name), delivered=text or "")


def status(ran: Any, knob: str) -> tuple[str, Any]:
    """What an applied run has read of a knob."""
    readings = json.loads((ran.folder / "status.json").read_text())
    return next((r["status"], r["found"]) for r in readings if r["knob"] == knob)


LOOP = (
    PRELUDE
    + """
model = nn.Linear(64, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for i in range(steps):
        opt.zero_grad()
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        opt.step()
"""
)

MAPPED = (
    LOOP
    + """
train(12)
import ctypes
preloaded = ctypes.CDLL(os.environ.get("LD_PRELOAD", "").split(":")[0] or None)
def allocated():
    # Bytes by jemalloc in this thread. The address of malloc may be that of a stub in the interpreter.
    value, size = ctypes.c_uint64(), ctypes.c_size_t(8)
    if hasattr(preloaded, "mallctl"):
        read = (ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
        preloaded.mallctl(b"thread.allocated", *read)
    return value.value
before = allocated()
keep = torch.randn(1 << 23)
serves = allocated() - before
marked = sum(l.startswith("VmFlags") and "hg" in l.split() for l in open("/proc/self/smaps"))
reported(serves=serves, marked=marked, preload=os.environ.get("LD_PRELOAD", ""),
     tunables=os.environ.get("GLIBC_TUNABLES", ""))
"""
)


def a_jemalloc() -> str:
    """One that is installed, or the one that Ray brings along."""
    found = host_facts().allocators.get("jemalloc")
    spec = importlib.util.find_spec("ray")
    own = Path(spec.origin).parent / "core/libjemalloc.so" if spec and spec.origin else None
    if found is None and (own is None or not own.is_file()):
        pytest.skip("no jemalloc is installed")
    return found or str(own)


def test_a_preloaded_allocator_serves_the_process_beside_what_the_user_preloads(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    jemalloc = a_jemalloc()
    other = tmp_path / "libempty.so"
    # Of the system, as those that come with PyTorch may need others that only PyTorch finds.
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    other.symlink_to(next(name for name in mapped if Path(name).name.startswith("libm.so")))
    change = Change(knob="malloc", value="jemalloc", spelling=Env("LD_PRELOAD"), delivered=jemalloc)
    launch = build_launch(
        script="t.py", args=(), python="p", cwd="/", env={"LD_PRELOAD": str(other)}, changes=[change]
    )
    assert launch.env["LD_PRELOAD"] == f"{jemalloc}:{other}"
    ran = run(MAPPED, changes=[change], measure=False, env=dict(launch.env))
    assert ran.code == 0, ran.err
    assert ran.reported["serves"] >= 4 << 23, "bytes of the tensor"
    assert status(ran, "malloc") == ("applied", "jemalloc")


def test_a_library_that_is_not_there_ends_an_applied_run_before_it_trains_on(run: Callable[..., Any]) -> None:
    change = Change(knob="malloc", value="jemalloc", spelling=Env("LD_PRELOAD"), delivered="/none/libj.so")
    ran = run(MAPPED, changes=[change], measure=False, env={"LD_PRELOAD": "/none/libj.so"})
    assert ran.code == 6
    assert "malloc=jemalloc was not applied" in ran.err
    assert ran.out == ""


@pytest.mark.skipif(host_facts().huge_pages != "madvise", reason="the kernel does not wait to be requested")
def test_glibc_asks_for_huge_pages_and_the_memory_is_marked(run: Callable[..., Any]) -> None:
    change = variable("malloc", "glibc_hugepages", "GLIBC_TUNABLES")
    before = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=3"}
    env = with_setting(before, change.spelling.text, change.delivered)
    ran = run(MAPPED, changes=[change], measure=False, env=env)
    assert ran.code == 0, ran.err
    assert ran.reported["tunables"] == "glibc.malloc.arena_max=3:glibc.malloc.hugetlb=1"
    assert ran.reported["marked"] > 0
    assert status(ran, "malloc") == ("applied", "glibc_hugepages")
    plain = run(MAPPED)
    assert plain.reported["marked"] == 0
    assert plain.facts.values["malloc"] == "glibc"
    assert plain.facts.openmp == "gnu"
    assert plain.facts.values["wait_policy"] == "unset"
    assert plain.facts.values["gc_control"] == "auto"


WAITING = (
    LOOP
    + """
import time
def others_ms():
    main = str(os.getpid())
    return sum(int(open(f"/proc/self/task/{t}/schedstat").read().split()[0]) / 1e6
               for t in os.listdir("/proc/self/task") if t != main)
train(8)
x = torch.randn(400_000)
(x * 2).sum()
before = others_ms()
for _ in range(40):
    (x * 2).sum()
    time.sleep(0.01)
spent = others_ms() - before
train(4)
reported(spent=spent, environ=open("/proc/self/environ").read().count("OMP_WAIT_POLICY=PASSIVE"))
"""
)


@pytest.mark.skipif(host_facts().cpus < 2, reason="one core")
def test_threads_that_wait_passively_do_not_burn_the_cores(run: Callable[..., Any]) -> None:
    change = variable("wait_policy", "PASSIVE", "OMP_WAIT_POLICY")
    two = {"OMP_NUM_THREADS": "2"}
    spins = run(WAITING, env=two)
    sleeps = run(WAITING, changes=[change], measure=False, env={**two, "OMP_WAIT_POLICY": "PASSIVE"})
    assert sleeps.code == 0, sleeps.err
    assert sleeps.reported["environ"] == 1
    assert status(sleeps, "wait_policy") == ("applied", "PASSIVE")
    assert sleeps.reported["spent"] < 0.5 * spins.reported["spent"]


def test_a_script_that_sets_the_policy_above_its_import_is_found_out(run: Callable[..., Any]) -> None:
    text = 'import os\nos.environ["OMP_WAIT_POLICY"] = "ACTIVE"\n' + LOOP + "\ntrain(30)\n"
    change = variable("wait_policy", "PASSIVE", "OMP_WAIT_POLICY")
    ran = run(text, changes=[change], measure=False, env={"OMP_WAIT_POLICY": "PASSIVE"})
    assert ran.code == 6
    assert "found ACTIVE" in ran.err


WORKERS = (
    PRELUDE
    + """
class Rows(Dataset):
    def __len__(self): return 96
    def __getitem__(self, i):
        return torch.tensor([os.getpid(), os.getppid(), int(__name__ == "__mp_main__")]), torch.randn(4)
if __name__ == "__main__":
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    train = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=1)
    seen = set()
    for where, x in train:
        seen |= {tuple(w) for w in where.tolist()}
        opt.zero_grad(); model(x).sum().backward(); opt.step()
    print(json.dumps(dict(seen=sorted(seen), main=os.getpid())))
"""
)


@pytest.mark.parametrize(
    ("method", "child_of_main", "imports_again"),
    [("fork", True, False), ("forkserver", False, True), ("spawn", True, True)],
)
def test_workers_start_as_requested(
    run: Callable[..., Any], method: str, child_of_main: bool, imports_again: bool
) -> None:
    change = keyword("multiprocessing_context", method, knob="mp_context")
    ran = run(WORKERS, changes=[change], measure=False)
    assert ran.code == 0, ran.err
    ((worker, parent, again),) = ran.reported["seen"]
    assert worker != ran.reported["main"]
    assert (parent == ran.reported["main"]) is child_of_main
    assert bool(again) is imports_again
    assert status(ran, "mp_context") == ("applied", method)


def test_the_baseline_finds_out_whether_its_dataset_could_be_sent(run: Callable[..., Any]) -> None:
    fine = run(WORKERS).facts.loader
    assert (fine.mp_context, fine.unsendable, fine.own_code) == ("fork", "", True)
    locked = WORKERS.replace("DataLoader(Rows()", "DataLoader(rows").replace(
        "    train =",
        "    import threading\n    rows = Rows()\n    rows.lock = threading.Lock()\n    train =",
    )
    found = run(locked).facts.loader.unsendable
    assert found is not None
    assert "TypeError: cannot pickle" in found
    inside = WORKERS.replace("class Rows", "if __name__ == '__main__':\n  class Rows").replace(
        "    def __", "      def __"
    )
    inside = inside.replace("        return torch", "          return torch")
    found = run(inside).facts.loader.unsendable
    assert found == "Rows exists only where the script runs as a program, not where it is imported."


def test_what_pickling_runs_leaves_no_trace_in_the_process(run: Callable[..., Any]) -> None:
    text = WORKERS.replace("num_workers=1", "num_workers=0").replace(
        "    def __len__",
        "    handle = 1\n"
        "    def __getstate__(self):\n"
        "        self.handle = None; print('sent'); open('sent.txt', 'w'); return self.__dict__\n"
        "    def __len__",
    )
    text = text.replace("    print(json", "    assert train.dataset.handle == 1\n    print(json")
    ran = run(text)
    assert ran.done is not None, ran.err
    assert ran.facts.loader.unsendable == ""
    assert "sent" not in ran.out


UNEVEN = (
    PRELUDE
    + """
import time
class Rows(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        time.sleep(0.15 if i == 0 else 0.002)
        return torch.tensor([float(i)])
model = nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-6)
train = DataLoader(Rows(), batch_size=2, num_workers=2)
firsts = []
for x in train:
    firsts.append(int(x[0]))
    opt.zero_grad(); model(x).sum().backward(); opt.step()
reported(firsts=firsts)
"""
)


def test_a_slow_batch_is_waited_for_only_in_order(run: Callable[..., Any]) -> None:
    free = run(UNEVEN, changes=[keyword("in_order", False)], measure=False)
    assert free.code == 0, free.err
    assert sorted(free.reported["firsts"]) == list(range(0, 40, 2))
    assert free.reported["firsts"][0] != 0
    assert status(free, "in_order") == ("applied", False)
    ordered = run(UNEVEN)
    assert ordered.reported["firsts"] == list(range(0, 40, 2))
    assert ordered.facts.values["in_order"] is True


COLLECTED = """
import gc
counts = [0, 0, 0]
def collected(phase, info):
    if phase == "stop": counts[info["generation"]] += 1
gc.callbacks.append(collected)
class Knot:
    alive = 0
    def __init__(self): self.me = self; Knot.alive += 1
    def __del__(self): Knot.alive -= 1
"""
STEPS = """
train(5)
counts[:] = [0, 0, 0]
for _ in range(210):
    keep = [[] for _ in range(3000)]
    Knot()
    train(1)
is_frozen = lambda: gc.get_freeze_count() > 2_000  # Python 3.12 counts its immortal objects as well
within = list(counts), is_frozen(), gc.get_threshold(), Knot.alive
import atexit
now = lambda: [is_frozen(), gc.get_threshold(), gc.isenabled()]
atexit.register(lambda: reported(within=within, after=now()))
"""


def test_garbage_is_looked_for_between_steps_alone_and_as_before_at_the_end(run: Callable[..., Any]) -> None:
    text = LOOP + COLLECTED + STEPS
    plain = run(text, bare=True)
    counts, frozen, threshold, alive = plain.reported["within"]
    assert not frozen
    assert counts[0] > 400
    ran = run(text, changes=[patch("gc_control", "boundary")], measure=False)
    assert ran.code == 0, ran.err
    counts, frozen, now, alive = ran.reported["within"]
    assert frozen
    assert now[0] > threshold[0]
    assert counts[0] + counts[1] + counts[2] == 210
    assert counts[1] in (20, 21)
    assert counts[2] == 1
    assert alive <= 1
    assert ran.reported["after"] == [False, threshold, True]
    assert status(ran, "gc_control") == ("applied", "boundary")


def test_frozen_objects_are_left_out_and_the_rest_is_collected_as_ever(run: Callable[..., Any]) -> None:
    text = LOOP + COLLECTED + STEPS
    ran = run(text, changes=[patch("gc_control", "freeze")], measure=False)
    assert ran.code == 0, ran.err
    counts, frozen, now, alive = ran.reported["within"]
    assert frozen
    assert counts[0] > 400
    assert alive < 60
    assert ran.reported["after"] == [False, now, True]
    assert status(ran, "gc_control") == ("applied", "freeze")


def test_a_script_that_turns_collection_off_itself_says_so_in_the_baseline(run: Callable[..., Any]) -> None:
    ran = run(LOOP + "\nimport gc\ngc.disable()\ntrain(12)\n")
    assert ran.facts.values["gc_control"] == "own"

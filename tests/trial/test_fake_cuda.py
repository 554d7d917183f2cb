"""The stand-in for `torch.cuda` has the names and signatures of the real one; scripts run under it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_cuda import World
from trial_kit import PRELUDE, SHORT

from autotune.launch.result.host_samples import HostSamples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

SUPPORT = str(Path(__file__).resolve().parents[1] / "support")


def names(function: Any) -> list[tuple[str, Any]]:
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


def test_functions_have_the_signatures_of_torch() -> None:
    import torch

    fake = World().module()
    for name, function in vars(fake).items():
        if name != "Event":
            assert names(function) == names(getattr(torch.cuda, name)), name


def test_events_have_the_signatures_of_torch() -> None:
    import torch

    fake = World().module().Event
    ours = {n for n, f in vars(fake).items() if inspect.isfunction(f)} | {"__new__"}
    # PyTorch 2.6 does not know it yet.
    later = {"external"} - set(inspect.signature(torch.cuda.Event.__new__).parameters)
    for name in ours - {"__init__"}:
        known = [parameter for parameter in names(getattr(fake, name)) if parameter[0] not in later]
        assert known == names(vars(torch.cuda.Event)[name]), name


def test_memory_figures_have_the_names_of_torch() -> None:
    import torch

    reported = torch.cuda.memory_stats.__doc__
    for name, figure in World().module().memory_stats_as_nested_dict().items():
        assert f'"{name}' in reported
        if isinstance(figure, dict):
            assert set(figure["all"]) == {"current", "peak", "allocated", "freed"}


def test_running_out_of_memory_raises_what_torch_raises() -> None:
    import torch

    from autotune.trial.runtime.exception_kind import kind_of

    world = World(total_bytes=100)
    world.allocate(60)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        world.allocate(60)
    assert kind_of(raised.value) == "oom_cuda"
    of_device = getattr(torch, "AcceleratorError", RuntimeError)  # what it was before it had a class
    assert kind_of(of_device("CUDA error: out of memory")) == "oom_cuda"
    assert kind_of(of_device("CUDA error: device-side assert triggered")) == "cuda_fatal"


TRAINS = (
    PRELUDE
    + f"""
sys.path.insert(0, {SUPPORT!r})
import fake_cuda
model = nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
train = DataLoader(TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,))), batch_size=8)
device = fake_cuda.install(torch, queue=8)
device.allocate(3 * fake_cuda.GIB)
steps = 0
while True:
    for x, y in train:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        device.launch(0.02)
        opt.step()
        steps += 1
        BODY
    with torch.no_grad():
        for x, y in train:
            model(x)
            device.launch(0.002)
            break
"""
)


def measured(ran: Any) -> Measurement:
    reported = ProcessReports()
    for event in ran.events:
        reported.take(event)
    found = measure(ran.closed, reported, HostSamples(start_ns=0))
    assert isinstance(found, Measurement), found
    return found


def test_a_real_script_is_timed_by_the_device_it_keeps_busy(run: Callable[..., Any]) -> None:
    """On the host a step is about a millisecond; the device is eight steps behind and takes 20 ms."""
    ran = run(TRAINS.replace("BODY", "pass"), fidelity=SHORT)
    assert ran.faults == ""
    assert ran.done.why == "measured", (ran.broke, ran.err)
    assert ran.closed.clock == "device"
    found = measured(ran)
    # Only its own lateness can make this device slower; nothing makes it faster.
    assert 0.7 * 8 / 0.02 < found.throughput.value < 1.01 * 8 / 0.02
    assert found.data_wait_frac < 0.2
    assert found.memory.peak_bytes == 3 * 1024**3
    assert [d.name for d in ran.facts.devices] == ["NVIDIA Fake"]


def test_an_out_of_memory_of_a_real_script_says_how_much_there_was(run: Callable[..., Any]) -> None:
    ran = run(TRAINS.replace("BODY", "device.allocate(9 * fake_cuda.GIB)"), fidelity=SHORT)
    assert (ran.broke.kind, ran.broke.error) == ("oom_cuda", "OutOfMemoryError")
    assert ran.broke.peak_bytes == 21 * 1024**3
    assert ran.code != 0


def test_a_poisoned_context_is_no_error_of_the_tools(run: Callable[..., Any]) -> None:
    error = "getattr(torch, 'AcceleratorError', RuntimeError)"
    body = f"device.error = {error}('CUDA error: an illegal memory access was encountered')"
    ran = run(TRAINS.replace("BODY", f"if steps == 9: {body}"), fidelity=SHORT)
    assert ran.broke.kind == "cuda_fatal"
    assert "illegal memory access" in ran.broke.message
    assert ran.faults == "" or "boundary" in ran.faults


NEWER = (
    PRELUDE
    + """
torch.backends.cuda.matmul.fp32_precision = "tf32"
model = nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(20):
    opt.zero_grad(); model(torch.randn(4, 8)).sum().backward(); opt.step()
"""
)


def test_a_script_that_sets_tf32_by_the_newer_interface_is_read_by_it(run: Callable[..., Any]) -> None:
    """The older one raises then."""
    import torch

    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this PyTorch has the older interface alone")
    ran = run(NEWER)
    assert ran.faults == ""
    assert ran.facts.values["tf32"] == "high"
    assert not ran.facts.deterministic
    ieee = run(NEWER.replace('"tf32"', '"ieee"'))
    assert ieee.facts.values["tf32"] == "highest"


@pytest.mark.parametrize(
    "requested", ["torch.use_deterministic_algorithms(True)", "torch.backends.cudnn.deterministic = True"]
)
def test_a_script_that_wants_the_same_from_run_to_run_is_seen(
    run: Callable[..., Any], requested: str
) -> None:
    ran = run(NEWER.replace('torch.backends.cuda.matmul.fp32_precision = "tf32"', requested))
    assert ran.faults == ""
    assert ran.facts.deterministic


SCALED = (
    PRELUDE
    + """
model = nn.Linear(8, 2)
opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=FUSED)
train = DataLoader(TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,))), batch_size=8)
scaler = torch.amp.GradScaler("cpu", growth_interval=10**9, backoff_factor=0.999)
steps = 0
model.weight.register_hook(lambda g: g * float("inf") if steps % 4 == 0 else g)
while True:
    for x, y in train:
        opt.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        steps += 1
        scaler.step(opt); scaler.update()
"""
)


@pytest.mark.parametrize("fused", [True, False])
def test_steps_that_a_scaler_skips_are_counted_in_the_window_alone(
    run: Callable[..., Any], fused: bool
) -> None:
    """A fused kernel is called in any case and skips by itself."""
    ran = run(SCALED.replace("FUSED", str(fused)), fidelity=SHORT)
    assert ran.faults == ""
    assert ran.done.why == "measured", (ran.broke, ran.err)
    steps = ran.closed.counters["window_steps"]
    assert steps >= sum(ran.closed.begin_ns < r.t_ns <= ran.closed.end_ns for r in ran.rows)
    assert ran.closed.skipped_scaler_steps == pytest.approx(steps / 4, abs=2)
    assert ran.facts.own_scaler

"""What a script says and asks itself, from the two calls to a measurement: real processes without PyTorch."""

import functools
import subprocess
import sys

import pytest
from trial_kit import LONG, SHORT, runner

import autotune
from autotune import sdk
from autotune.launch.result.host_samples import HostSamples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.model.change import Change, Keyword
from autotune.model.measurement import Measurement

BATCH = Keyword("autotune.sdk.value", "batch")

TRAIN = """
import itertools, sys, time
import autotune
batch = autotune.value("batch", 4)
for step in itertools.count(1):
    time.sleep(0.002)
    autotune.step(samples=batch, loss=1.0 / step)
    assert not {"torch", "numpy"} & set(sys.modules)
"""


class Wanted:
    """Stands for a trial that wants one value under every name."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.steps = []

    def sdk_value(self, name, default):
        return self.wanted

    def sdk_step(self, samples, loss):
        self.steps.append((samples, loss))


@pytest.fixture
def trial():
    def begin(wanted=None):
        session = Wanted(wanted)
        sdk.attach(session)
        return session

    yield begin
    sdk.attach(None)


@pytest.fixture
def run(tmp_path):
    return functools.partial(runner(tmp_path), cold=True)


def measured(ran):
    reported = ProcessReports()
    for event in ran.events:
        reported.take(event)
    found = measure(ran.closed, reported, HostSamples(start_ns=ran.rows[0].t_ns))
    assert isinstance(found, Measurement), found
    return found


# The calls


def test_outside_of_a_trial_nothing_happens():
    assert autotune.value("batch", 64) == 64
    assert autotune.step(samples=64, loss=object()) is None


def test_inside_of_one_they_are_handed_on(trial):
    session = trial(8)
    assert autotune.value("batch", 64) == 8
    autotune.step(samples=8, loss=0.5)
    autotune.step()
    assert session.steps == [(8, 0.5), (None, None)]


@pytest.mark.parametrize(
    ("wanted", "default", "handed"),
    [
        (128, 64, 128),
        ("128", 64, 128),
        (128.0, 64, 128),
        (0.5, 64, 0.5),
        ("auto", 64, "auto"),
        (1, 0.1, 1.0),
        ("1e-3", 0.1, 0.001),
        ("off", True, False),
        (1, False, True),
        ("maybe", True, "maybe"),
        (16, "8", "16"),
        (True, "false", "true"),
        (True, 0, True),
        ("bf16", None, "bf16"),
    ],
)
def test_a_value_comes_as_the_defaults_kind_where_that_says_the_same(trial, wanted, default, handed):
    trial(wanted)
    found = autotune.value("x", default)
    assert (found, type(found)) == (handed, type(handed))


def test_the_calls_load_the_standard_library_only():
    code = (
        "import sys; before = {n.split('.')[0] for n in sys.modules}; import autotune;"
        "autotune.value('x', 1); autotune.step();"
        "print({n.split('.')[0] for n in sys.modules} - before - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'autotune'}\n"


# A process


def test_an_endless_script_is_measured_by_what_it_says(run):
    ran = run(TRAIN, changes=[Change(knob="batch", value=8, spelling=BATCH)], fidelity=SHORT)
    assert (ran.code, ran.faults) == (0, ""), ran.err
    assert ran.done.why == "measured"
    assert ran.reading("batch").status == "applied"
    assert (ran.facts.samples_source, ran.facts.effective_batch) == ("reported", 8)
    assert ran.facts.without_torch
    assert ran.facts.loader is ran.facts.model is ran.facts.optimizer is None
    found = measured(ran)
    assert found.throughput.unit == "samples/s"
    assert 0 < found.throughput.value <= 8 / 0.002
    assert found.effective_batch == 8
    losses = [point.loss for point in found.loss]
    assert losses == sorted(losses, reverse=True)
    assert found.loss[-1].samples == 8 * len(ran.rows)


def test_what_the_script_has_itself_is_known_from_its_first_run(run):
    text = """
    import autotune
    autotune.value("batch", 4); autotune.value("jit", False); autotune.value("dtype", None)
    autotune.value("password", "hidden"); autotune.value("precision", "mine")
    for step in range(9):
        autotune.step(samples=4)
    """
    ran = run(text)
    assert ran.facts.values == {"batch": 4, "jit": False, "dtype": "None"}
    assert ran.done.why == "script_end"


def test_samples_that_stay_whatever_the_batch_is_are_no_rate(run):
    changes = [Change(knob="batch", value=8, spelling=BATCH)]
    ran = run(TRAIN.replace("samples=batch", "samples=4"), changes=changes, fidelity=SHORT)
    assert (ran.broke.kind, ran.broke.knob) == ("config_rejected", "batch")
    assert "with batch=8 as well" in ran.broke.message
    applied = TRAIN.replace("samples=batch", "samples=4").replace("itertools.count(1)", "range(1, 40)")
    assert run(applied, changes=changes, measure=False).code == 0, "a real training goes on"


def test_without_samples_steps_are_what_is_counted(run):
    ran = run(TRAIN.replace("samples=batch, ", ""), fidelity=SHORT)
    found = measured(ran)
    assert found.throughput.unit == "steps/s"
    assert found.loss[-1].samples == len(ran.rows)


@pytest.mark.thorough
def test_a_script_that_ends_before_is_measured_as_far_as_it_came(run):
    ran = run(TRAIN.replace("itertools.count(1)", "range(1, 900)"), fidelity=LONG)
    assert ran.closed.ended == "script_end"
    assert measured(ran).steps < 899


def test_a_script_without_reports_gets_the_name_of_the_call(run):
    ran = run("print('trained')")
    assert ran.broke.kind == "no_metric"
    assert "autotune.step()" in ran.broke.message


def test_a_loss_that_is_no_number_is_left_out_and_the_script_goes_on(run):
    ran = run(TRAIN.replace("1.0 / step", "object()"), fidelity=SHORT)
    assert ran.done.why == "measured"
    assert ran.closed.loss == ()
    assert "reported_loss" in ran.faults


def test_samples_that_are_no_number_end_the_trial_at_once(run):
    ran = run(TRAIN.replace("samples=batch", "samples='many'"))
    assert ran.broke.kind == "no_metric"
    assert "many" in ran.broke.message


def test_a_loss_that_is_no_number_any_more_ends_the_trial(run):
    ran = run(TRAIN.replace("1.0 / step", "1.0 if step < 9 else float('nan')"))
    assert ran.broke.kind == "diverged"
    assert len(ran.rows) < 20


def test_steps_of_all_threads_count(run):
    text = """
    import threading
    import autotune
    def serve():
        for _ in range(50):
            autotune.step(samples=2)
    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    """
    ran = run(text)
    assert (len(ran.rows), ran.done.steps) == (200, 200)
    stamps = [row.t_ns for row in ran.rows]
    assert stamps == sorted(stamps)


def test_a_child_of_the_script_says_nothing(run):
    text = """
    import os
    import autotune
    for step in range(9):
        autotune.step(samples=2)
        if step == 4 and not os.fork():
            autotune.step(samples=99)
            os._exit(0)
    os.wait()
    """
    assert [row.samples for row in run(text).rows] == [2] * 9


def test_apply_hands_the_value_on_and_measures_nothing(run):
    text = """
    import autotune
    batch = autotune.value("batch", 4)
    class Array:
        block_until_ready = None
        def __float__(self):
            raise AssertionError("nobody needs it")
    for step in range(30):
        autotune.step(samples=batch, loss=Array())
    print("trained with", batch)
    """
    change = Change(knob="batch", value=16, spelling=BATCH)
    ran = run(text, changes=[change], measure=False)
    assert (ran.code, ran.out) == (0, "trained with 16\n"), ran.err
    assert not ran.faults
    never = run("import autotune; autotune.step()", changes=[change], measure=False)
    assert never.code == 6
    assert "batch=16 was not applied" in never.err


JAX = {
    "__init__.py": "from jax import monitoring\n",
    "monitoring.py": (
        "listeners = []\n"
        "def register_event_duration_secs_listener(reported):\n"
        "    listeners.append(reported)\n"
        "def record(event, seconds, **more):\n"
        "    for reported in listeners: reported(event, seconds, **more)\n"
    ),
}


def test_steps_in_which_jax_says_that_it_compiles_are_marked(run, tmp_path):
    (tmp_path / "jax").mkdir()
    for name, text in JAX.items():
        (tmp_path / "jax" / name).write_text(text)
    text = """
    import autotune, jax.monitoring
    for step in range(9):
        autotune.step(samples=2)
        if step == 5:
            jax.monitoring.record("/jax/core/compile/jaxpr_trace_duration", 0.1, fun_name="f")
        if step == 6:
            jax.monitoring.record("/jax/core/compile/backend_compile_duration", 0.1, fun_name="f")
    """
    ran = run(text)
    assert ran.faults == ""
    assert [row.mark & 2 for row in ran.rows] == [0, 0, 0, 0, 0, 0, 0, 2, 0]


def test_seeds_of_tensorflow_are_those_of_the_trial(run, tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("from tensorflow import random\n")
    (tmp_path / "tensorflow" / "random.py").write_text(
        "seeds = []\ndef set_seed(seed):\n    seeds.append(seed)\n"
    )
    text = """
    import autotune
    import tensorflow as tf
    tf.random.set_seed(5)
    print(tf.random.seeds)
    autotune.step()
    """
    assert run(text, seed=3).out == "[3, 8]\n"
    assert run(text, bare=True).out == "[5]\n"

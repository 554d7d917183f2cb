"""Other trackers receive every trial and the answer; a search never depends on them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from cli_fakes import FakeTune
from study_fakes import study

from autotune.errors import UsageError
from autotune.integrations import TensorBoard, WeightsAndBiases
from autotune.integrations import figures as module
from autotune.integrations.figures import trial_figures


class Writer:
    """Stands for `tensorboardX.SummaryWriter`."""

    made = None

    def __init__(self, folder):
        Writer.made, self.folder = self, folder
        self.scalars, self.hparams, self.texts, self.is_closed = [], [], [], False

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def add_hparams(self, knobs, metrics, name):
        self.hparams.append((knobs, metrics, name))

    def add_text(self, name, text, step):
        self.texts.append((name, text, step))

    def close(self):
        self.is_closed = True


class Wandb:
    """Stands for the module `wandb`."""

    def __init__(self):
        self.rows, self.summary, self.is_finished, self.given = [], {}, False, {}
        self.metrics, self.Settings = {}, dict

    def init(self, **given):
        self.given = given
        return self

    def define_metric(self, name, summary):
        self.metrics[name] = summary

    def log(self, row, step):
        self.rows.append((step, row))

    def finish(self):
        self.is_finished = True


@pytest.fixture
def packages(monkeypatch):
    found = {"tensorboardX": SimpleNamespace(SummaryWriter=Writer), "wandb": Wandb()}
    monkeypatch.setattr(module, "importlib", SimpleNamespace(import_module=found.__getitem__))
    return found


def listened(listener):
    made = study(stopped="finished")
    listener.study_began(made)
    for trial in made.trials:
        listener.trial_ended(made, trial)
    listener.study_ended(made)
    return made


def test_a_measured_trial_has_figures_and_a_failed_one_has_none():
    made = study()
    figures = trial_figures(made, made.trials[3])
    assert figures["throughput"] == pytest.approx(200.0, rel=0.02)
    assert figures["single_run_speedup"] == pytest.approx(2.0, rel=0.02)
    assert figures["peak_memory_gib"] > 0
    assert trial_figures(made, made.trials[4]) == {}


def test_tensorboard_gets_scalars_hparams_and_failures(packages, tmp_path):
    made = listened(TensorBoard(tmp_path))
    writer = Writer.made
    assert writer.folder == f"{tmp_path}/{made.spec.label}"
    assert {step for name, _, step in writer.scalars if name == "trial/throughput"} == {0, 1, 2, 3, 5}
    assert [name for _, _, name in writer.hparams] == ["t0000", "t0001", "t0002", "t0003", "t0005"]
    assert writer.hparams[3][0]["precision"] == "bf16"
    ((_, text, step),) = writer.texts
    assert (step, "out of host memory" in text) == (4, True)
    assert writer.is_closed


def test_wandb_gets_a_step_per_trial_and_the_answer(packages):
    made = listened(WeightsAndBiases("tuning"))
    run = packages["wandb"]
    assert (run.given["project"], run.given["name"]) == ("tuning", made.spec.label)
    assert [step for step, _ in run.rows] == [0, 1, 2, 3, 4, 5]
    assert run.rows[3][1]["knob/precision"] == "bf16"
    assert run.rows[4][1]["failure"] == "out of host memory"
    assert set(run.summary) == {"answer"}
    assert run.metrics == {"*": "none"}
    assert run.is_finished


def test_a_resumed_search_continues_its_run(packages):
    made = listened(WeightsAndBiases("tuning"))
    assert packages["wandb"].given["id"] == made.spec.study_id
    assert packages["wandb"].given["resume"] == "allow"


@pytest.mark.parametrize("tracker", [TensorBoard, WeightsAndBiases])
def test_a_package_that_is_missing_is_named_before_anything_runs(monkeypatch, tracker):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(module, "importlib", SimpleNamespace(import_module=missing))
    with pytest.raises(UsageError, match="is not installed here\nhint: pip install "):
        tracker("x")


def test_the_command_line_passes_them_on(packages, monkeypatch, tmp_path, capsys):
    import autotune.driver
    from autotune.cli.main import run

    fake = FakeTune()
    monkeypatch.setitem(sys.modules, "autotune.driver.tune", fake)
    monkeypatch.setattr(autotune.driver, "tune", fake, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert run(["search", "train.py", "--driver", "inline", "--tensorboard", "tb", "--wandb", "p"]) == 0
    assert Writer.made.folder.startswith("tb/")
    assert packages["wandb"].is_finished


def test_real_event_files_are_written(tmp_path):
    pytest.importorskip("tensorboardX")
    made = listened(TensorBoard(tmp_path))
    files = list((tmp_path / made.spec.label).rglob("events.out.tfevents.*"))
    written = b"".join(path.read_bytes() for path in files)
    assert len(files) == 6
    assert all(text in written for text in (b"trial/throughput", b"precision", b"out of host memory"))


REAL_RUN = """
from study_fakes import study
from autotune.integrations import WeightsAndBiases

listener, made = WeightsAndBiases("tuning"), study(stopped="finished")
listener.study_began(made)
for trial in made.trials:
    listener.trial_ended(made, trial)
listener.study_ended(made)
"""


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_a_real_offline_run_holds_trials_and_answer_but_not_the_command_line(tmp_path):
    # A process of its own: wandb writes the end of its file when the process ends.
    environment = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", REAL_RUN, "--api-key", "hunter2"]
    subprocess.run(command, env={**os.environ, **environment}, cwd=tmp_path, check=True, timeout=100)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    written = file.read_bytes()
    for text in (b"single_run_speedup", b"knob/precision", b"out of host memory", b"Inconclusive: 4 other"):
        assert text in written
    assert b"hunter2" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

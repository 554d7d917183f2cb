"""`autotune.tune`: the same search from Python, in anybody's program."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from cli_fakes import FakeTune, ended
from study_fakes import good_answer, no_answer, open_answer

import autotune
import autotune.driver
from autotune.errors import InvalidBudget, ScriptError, StudyNotFound, UsageError
from autotune.report.listener import Listener

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTune:
    """A driver that runs nothing, and a folder with a script."""
    found = FakeTune()
    monkeypatch.setitem(sys.modules, "autotune.driver.tune", found)
    monkeypatch.setattr(autotune.driver, "tune", found, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return found


def test_what_is_requested_becomes_the_same_spec_as_on_the_command_line(
    fake: FakeTune, tmp_path: Path
) -> None:
    autotune.tune(
        tmp_path / "train.py",
        budget="10m",
        args=["--lr", 1e-3],
        space="quick",
        set={"num_workers": [0, 2], "pin_memory": [True]},
        fix={"precision": "bf16"},
        max_memory=2 * 1024**3,
        trials=9,
        output_arg=["--out-dir"],
        out=tmp_path / "sub.yaml",
    )
    autotune.tune(command="python -u train.py --lr 0.001", budget=90)
    first, second = fake.specs
    assert (first.script, first.args) == (str(tmp_path / "train.py"), ("--lr", "0.001"))
    assert first.space.knobs["num_workers"] == (0, 2)
    assert first.space.knobs["pin_memory"] == (True,)
    assert first.space.fixed == {"precision": "bf16"}
    assert (first.max_memory_bytes, first.budget.trials, first.driver) == (2 * 1024**3, 9, "inline")
    assert (first.output_args, first.out) == (("--out-dir",), str(tmp_path / "sub.yaml"))
    assert (second.script, second.args, second.options) == (first.script, first.args, ("-u",))
    assert second.budget.seconds == 90


def test_the_result_holds_picks_path_and_reason(fake: FakeTune, tmp_path: Path) -> None:
    found = autotune.tune("train.py", budget="10m")
    assert found.is_better
    assert found.best.config["precision"] == "bf16"
    assert found.speedup.value == 2.0
    assert dict(found.safe.config) == {"num_workers": 4}
    assert found.fastest is None
    assert (found.reason, found.exit_code) == ("faster", 0)
    assert found.path == tmp_path / "best.yaml"
    assert len(found.study.trials) == 6
    data = found.to_dict()
    assert data["schema"] == "autotune.result/v1"
    assert data["picks"]["best"]["speedup"]["value"] == 2.0
    assert str(found).startswith("Faster: 2.00x")
    assert "2.00x faster" in repr(found)


@pytest.mark.parametrize(
    ("code", "answer", "reason"),
    [
        (1, no_answer(), "nothing_faster"),
        (8, open_answer(), "inconclusive"),
        (130, good_answer(), "interrupted"),
        (75, good_answer(), "stopped"),
        (2, good_answer(), "script_changed"),
    ],
)
def test_why_it_ended_is_reported_in_a_word(fake: FakeTune, code: int, answer: Any, reason: str) -> None:
    fake.end = lambda spec: ended(spec, answer=answer, code=code)
    assert autotune.tune("train.py", budget="10m").reason == reason


def test_it_is_silent_unless_requested(fake: FakeTune, capfd: pytest.CaptureFixture[str]) -> None:
    autotune.tune("train.py", budget="10m")
    assert capfd.readouterr() == ("", "")
    autotune.tune("train.py", budget="10m", progress=True)
    out, err = capfd.readouterr()
    assert (out, err[:11]) == ("", "study train")
    stream = io.StringIO()
    autotune.tune("train.py", budget="10m", progress=stream)
    assert stream.getvalue().startswith("study train")


def test_what_goes_wrong_beside_it_is_left_to_the_logging_of_the_program() -> None:
    """Without a handler Python itself would print it, tracebacks included."""
    code = (
        "import logging, autotune; autotune.tune\n"
        "logging.getLogger('autotune.driver.sinks.sync').warning('MLflow is away')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_listener_of_ones_own_is_reported(fake: FakeTune) -> None:
    class Mine(Listener):
        began = 0

        def study_began(self, study: Any) -> None:
            self.began += 1

    mine = Mine()
    autotune.tune("train.py", budget="10m", progress=mine)
    autotune.tune("train.py", budget="10m", progress=[mine])
    assert mine.began == 2


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ({"budget": "10m"}, UsageError, "no script is given"),
        ({"script": "trian.py", "budget": "10m"}, UsageError, "no script trian.py"),
        ({"script": "train.py", "budget": "10"}, InvalidBudget, "no unit"),
        ({"script": "train.py", "budget": 3}, InvalidBudget, "too short"),
        ({"script": "train.py", "command": "x", "budget": "10m"}, UsageError, "both a script and a command"),
        ({"command": "python train.py", "args": ["x"], "budget": "10m"}, UsageError, "both a command and"),
        ({"script": "train.py", "budget": "10m", "driver": "dask"}, UsageError, "--driver"),
        ({"script": "train.py", "budget": "10m", "args": "--name 'x"}, UsageError, "cannot be read"),
        ({"script": "train.py", "budget": "10m", "set": ["precision"]}, UsageError, "set is not a mapping"),
        ({"script": "train.py", "budget": "10m", "set": {"threads": None}}, UsageError, "cannot be None"),
        ({"script": "train.py", "budget": "10m", "fix": {"x": "a,b"}}, UsageError, "contains a comma"),
        ({"script": "train.py", "budget": None}, UsageError, "budget cannot be None"),
        ({"script": "train.py", "budget": "10m", "trials": "x"}, UsageError, "trials cannot be 'x'"),
        ({"script": "train.py", "budget": "10m", "seed": True}, UsageError, "seed cannot be True"),
        ({"script": "train.py", "budget": "10m", "knob": 3}, UsageError, "knob cannot be 3"),
        ({"script": "train.py", "budget": "10m", "args": 3}, UsageError, "args cannot be 3"),
        ({"script": "train.py", "budget": "10m", "price_per_hour": "2"}, UsageError, "cannot be '2'"),
    ],
)
def test_errors_are_those_of_the_tree(
    fake: FakeTune, words: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as raised:
        autotune.tune(**words)
    assert isinstance(raised.value, autotune.AutotuneError)
    assert fake.specs == []


def test_an_error_of_the_search_comes_through(fake: FakeTune) -> None:
    def failing(spec: Any) -> Any:
        raise ScriptError("train.py fails by itself")

    fake.end = failing
    with pytest.raises(ScriptError):
        autotune.tune("train.py", budget="10m")


def test_variables_and_files_of_the_command_line_do_not_count(
    fake: FakeTune, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOTUNE_TRIALS", "3")
    (tmp_path / "pyproject.toml").write_text("[tool.autotune]\nseed = 7\n")
    autotune.tune("train.py", budget="10m")
    assert (fake.specs[0].budget.trials, fake.specs[0].seed) == (None, 0)


def test_it_works_in_a_thread_and_inside_a_running_event_loop(fake: FakeTune) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(autotune.tune("train.py", budget="10m")))
    thread.start()
    thread.join()

    async def cell() -> Any:
        return autotune.tune("train.py", budget="10m")

    found.append(asyncio.run(cell()))
    assert [each.reason for each in found] == ["faster", "faster"]
    assert fake.owned == [False, False]


def test_one_text_is_one_and_not_its_letters(fake: FakeTune) -> None:
    autotune.tune("train.py", budget="10m", args="--epochs 2 --name 'a b'", output_arg="--out-dir")
    autotune.tune("train.py", budget="10m", set={"num_workers": 4, "precision": "bf16"}, knob="threads")
    autotune.tune("train.py", budget="10m", space="dataloader", allow="in_order")
    first, second, third = fake.specs
    assert first.args == ("--epochs", "2", "--name", "a b")
    assert first.output_args == ("--out-dir",)
    assert {knob: set(c.knobs[knob]) for c in second.space.candidates for knob in c.knobs} == {
        "threads": set(),
        "num_workers": {4},
        "precision": {"bf16"},
    }
    assert third.space.allowed == ("in_order",)


def test_a_ray_of_the_program_is_neither_taken_nor_ended(
    fake: FakeTune, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(UsageError, match="already connected to Ray"):
        autotune.tune("train.py", budget="10m", driver="ray")
    assert autotune.tune("train.py", budget="10m").reason == "faster"
    ray.is_initialized = lambda: False
    assert autotune.tune("train.py", budget="10m", driver="ray").reason == "faster"
    assert [spec.driver for spec in fake.specs] == ["inline", "ray"]


def test_ray_drives_from_the_main_thread_alone(fake: FakeTune) -> None:
    """Its loop is broken by an interrupt, which reaches the main thread and no other."""
    reported: list[UsageError] = []

    def search() -> None:
        try:
            autotune.tune("train.py", budget="10m", driver="ray")
        except UsageError as error:
            reported.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert [error.message for error in reported] == ['driver="ray" works in the main thread only']
    assert fake.specs == []


def test_the_root_offers_its_names_and_nothing_else() -> None:
    assert sorted(autotune.__all__) == autotune.__all__
    assert set(autotune.__all__) <= set(dir(autotune))
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        _ = autotune.tuna  # pyright: ignore[reportAttributeAccessIssue]


def test_deprecated_names_still_work_and_warn(fake: FakeTune) -> None:
    with pytest.warns(DeprecationWarning, match="sets is now called set"):
        autotune.tune("train.py", space="quick", sets={"num_workers": [0, 2]})
    assert fake.specs[0].space.knobs["num_workers"] == (0, 2)
    assert fake.specs[0].budget.seconds == 600
    with pytest.raises(TypeError, match="unexpected keyword argument 'bugdet'"):
        autotune.tune("train.py", bugdet="1m")


def test_an_error_prints_its_hint() -> None:
    with pytest.raises(UsageError) as caught:
        autotune.tune("trian.py")
    assert str(caught.value).endswith('\nhint: Did you mean "train.py"?')
    assert "hint" not in caught.value.message


def test_a_notebook_shows_a_card_that_fetches_nothing(fake: FakeTune) -> None:
    shown = autotune.tune("train.py")._repr_html_()
    assert "2.00x" in shown
    assert "<code>autotune apply best.yaml" in shown
    assert "http" not in shown
    assert "<script" not in shown


def test_trials_are_a_data_frame_and_a_figure(fake: FakeTune) -> None:
    pytest.importorskip("pandas")
    found = autotune.tune("train.py")
    table = found.trials
    assert list(table["trial"]) == [0, 1, 2, 3, 4, 5]
    assert table["speedup"].max() == pytest.approx(2.0, rel=0.05)
    assert list(table[table["state"] == "oom_host"]["trial"]) == [4]
    pytest.importorskip("matplotlib")
    figure = found.plot()
    (axes,) = figure.axes
    assert axes.get_xlabel() == "trial"
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_study_is_loaded_from_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from journaled import journaled

    monkeypatch.undo()
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    journaled(tmp_path / "train.py", label="mine")
    found = autotune.load("mine")
    assert found.study.spec.label == "mine"
    assert (found.reason, found.speedup.value) == ("faster", pytest.approx(2.0, rel=0.02))
    assert autotune.load().study.spec.study_id == found.study.spec.study_id
    with pytest.raises(StudyNotFound):
        autotune.load("other")


def test_a_search_is_resumed_by_its_name(
    fake: FakeTune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from journaled import journaled

    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    folder = journaled(tmp_path / "train.py", label="mine")
    autotune.resume("mine", budget="5m", trials=3)
    assert fake.resumed == [(folder, 300.0, 3)]
    assert fake.owned == [False]


def test_a_search_below_an_active_mlflow_run_is_nested_there(
    fake: FakeTune, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = SimpleNamespace(info=SimpleNamespace(run_id="abc"))
    module = SimpleNamespace(active_run=lambda: active, get_tracking_uri=lambda: "sqlite:///mine.db")
    monkeypatch.setitem(sys.modules, "mlflow", module)
    autotune.tune("train.py", mlflow_tag="team=vision")
    autotune.tune("train.py", tracking_uri="http://x")
    first, second = fake.specs
    assert (first.mlflow_parent_run, first.tracking_uri) == ("abc", "sqlite:///mine.db")
    assert first.mlflow_tags == ("team=vision",)
    assert (second.mlflow_parent_run, second.tracking_uri) == ("", "http://x")
    with pytest.raises(UsageError, match="reserved name"):
        autotune.tune("train.py", mlflow_tag="mlflow.user=me")


def samples_per_byte(measurement: autotune.Measurement) -> float:
    return measurement.throughput.value / measurement.memory.peak_bytes


def test_an_objective_of_ones_own_selects_among_confirmed_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from journaled import FAST, LEAN, journaled

    monkeypatch.undo()
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("")
    journaled(tmp_path / "train.py", label="mine")
    found = autotune.load("mine")
    lean = found.select(samples_per_byte, out=tmp_path / "lean.yaml")
    assert (found.best.config, lean.best.config) == (FAST, LEAN)
    assert (lean.is_better, lean.speedup.value) == (True, pytest.approx(1.5, rel=0.02))
    assert "num_workers=2" in lean.path.read_text(encoding="utf-8").splitlines()[0]
    assert found.select(lambda measurement: measurement.throughput.value).best.config == FAST


def test_a_search_with_an_objective_of_ones_own_ends_with_its_selection(
    fake: FakeTune, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []

    def select(found: Any, objective: Any, *, out: str) -> str:
        chosen.append((objective, out))
        return "selected"

    monkeypatch.setattr("autotune.driver.api.Tuned.select", select)
    assert autotune.tune("train.py", objective=samples_per_byte) == "selected"
    assert fake.specs[0].objective == "throughput"
    assert chosen == [(samples_per_byte, fake.specs[0].out)]

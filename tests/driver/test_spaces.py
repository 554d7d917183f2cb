"""Spaces on their way through a search: one that the first run chooses, and knobs that a user declares."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from inline_search import on_one_processor

from autotune.answer.pick import answer
from autotune.cli.main import run as command
from autotune.clock import SimulatedClock
from autotune.config_files.presets import load_space
from autotune.driver.backends.inline import InlineDriver
from autotune.driver.loop.planner import Planner
from autotune.driver.loop.session import Session
from autotune.driver.result import changes_of
from autotune.driver.tune import plan_search
from autotune.export.best_config import write_best
from autotune.knobs.registry import knobs_for
from autotune.launch.fake import COMPUTE_BOUND, INPUT_BOUND, FakeRunner, World
from autotune.model.change import Flag
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import Facts
from autotune.model.study import Budget, DeclaredSpec, SpaceRequest, Study, StudySpec
from autotune.model.trial import Stage
from autotune.model.wire import from_wire, to_wire
from autotune.report.listener import Listener
from autotune.report.text.answer_screen import answer_screen
from autotune.report.text.study_notes import note
from autotune.search.stages import Staged
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.testing.knobs import CPU_HOST

SCRIPT = """\
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--fused-loss", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.1)
parser.parse_args()
print("ARGV", sys.argv[1:])
"""
FUSED = DeclaredSpec(
    name="fused_loss", effect=Effect.NUMERIC, values=(0, 1), spelling=Flag(("--fused-loss",))
)
WORLD = replace(COMPUTE_BOUND, gains={"fused_loss": {1: 0.5}, "precision": {"bf16": 1.2}})
OWN = SpaceRequest(
    name="mine",
    knobs={"fused_loss": (), "precision": ("fp32", "bf16")},
    declared=(FUSED,),
    source="mine.yaml",
)


class Heard(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, study: Study, text: str) -> None:
        self.notes.append(text)


class Searched:
    """A search in a folder, in a world without processes; it can be stopped and gone on with."""

    def __init__(self, folder: Path, space: SpaceRequest, world: World, **more: object) -> None:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.world, self.clock, self.heard = world, SimulatedClock(), Heard()
        self.spec = StudySpec(
            study_id="01HZZZZZZZZZZZZZZZZZZZZZZZ",
            label="train",
            script=str(script),
            args=("--lr", "0.2"),
            cwd=str(folder),
            python=sys.executable,
            space=space,
            budget=Budget(seconds=240.0),
            **more,  # type: ignore[arg-type]
        )
        self.facts = plan_search(self.spec).facts
        self.path = folder / "journal.db"
        with Journal.create(self.path) as journal:
            opened = {"spec": self.spec, "wall_s": 0.0, "host": "", "pid": 1, "version": "0"}
            journal.append("opened", f"opened/{journal.epoch}", to_wire(opened))
            journal.append("inspected", "inspected/1", to_wire({"facts": self.facts}))

    def run(self, *, trials: int | None = None) -> Study:
        with Journal.open(self.path) as journal:
            knobs = knobs_for(fold(journal.entries()).spec.space)
            planner = Planner(knobs=knobs, environ={}, memory_limit_bytes=0)
            study = fold(journal.entries(), build=planner.space)
            budget = Budget(seconds=240.0, trials=trials)
            study = replace(study, stopped="", spec=replace(study.spec, budget=budget))
            session = Session(
                journal=journal,
                study=study,
                strategy=Staged(),
                planner=planner,
                clock=self.clock,
                listeners=[self.heard],
            )
            InlineDriver(session, FakeRunner(self.world, self.clock)).run()
            return session.close()

    def folded(self) -> Study:
        with Journal.read(self.path) as journal:
            return fold(journal.entries(), build=_built)


def _built(spec, facts):  # type: ignore[no-untyped-def]
    return Planner(knobs=knobs_for(spec.space), environ={}, memory_limit_bytes=0).space(spec, facts)


def test_a_declared_option_wins_is_written_and_applied_without_the_space_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Searched(tmp_path, OWN, WORLD).run()
    found = answer(study)
    assert found.best.config == Config({"fused_loss": 1})
    assert "fused_loss: delivered, effect not read." in found.best.reasons
    assert "fused_loss: delivered, effect not read." in answer_screen(study, found, details=True)
    best = write_best(tmp_path / "best.yaml", study, found, changes_of(study))
    (change,) = best.picks["best"].changes
    assert (change.how, change.spelling, change.delivered) == ("flag", "--fused-loss", "1")
    assert best.baseline.knobs["fused_loss"] == 0
    monkeypatch.chdir(tmp_path)
    assert command(["apply", "best.yaml", "--print-env"]) == 0
    assert capfd.readouterr().out.endswith("train.py --lr 0.2 --fused-loss=1\n")
    assert command(["apply", "best.yaml"]) == 0
    assert "ARGV ['--lr', '0.2', '--fused-loss=1']" in capfd.readouterr().out


def test_a_study_with_declared_knobs_folds_to_what_it_was_and_goes_on(tmp_path: Path) -> None:
    search = Searched(tmp_path, OWN, WORLD)
    first = search.run(trials=10)
    assert any(t.config.get("fused_loss") == 1 for t in first.trials)
    again = search.folded()
    assert again.spec.space == OWN
    assert again.trials == first.trials
    assert again.space is not None
    assert first.space is not None
    assert again.space.dimensions == first.space.dimensions
    assert answer(search.run()).best.config == Config({"fused_loss": 1})


def test_a_script_that_waits_gets_its_declared_knobs_tried_beside_those_of_the_loader(tmp_path: Path) -> None:
    knobs = {"num_workers": (0, 2), "precision": (), "channels_last": (), "fused_loss": ()}
    study = Searched(tmp_path, replace(OWN, knobs=knobs), INPUT_BOUND).run(trials=14)
    tried = [t.config for t in study.finished(Stage.INITIAL)]
    assert tried[:2] == [Config({"num_workers": 2}), Config({"num_workers": 2, "fused_loss": 1})]


def test_an_option_that_the_script_lacks_is_left_alone_with_the_reason(tmp_path: Path) -> None:
    other = replace(FUSED, spelling=Flag(("--fused-los",)))
    study = Searched(tmp_path, replace(OWN, declared=(other,)), WORLD).run(trials=3)
    assert "has no option --fused-los" in study.refusals["fused_loss"]


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    on_one_processor(monkeypatch)


@pytest.fixture
def auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpaceRequest:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return load_space("auto", cwd=str(tmp_path))


def test_the_first_run_chooses_the_space_says_so_and_a_resumed_study_has_the_same(
    tmp_path: Path, auto: SpaceRequest
) -> None:
    search = Searched(tmp_path, auto, COMPUTE_BOUND)
    first = search.run(trials=3)
    assert first.spec.space == replace(
        next(c for c in auto.candidates if c.name == "cpu"), reason="training runs on the CPU"
    )
    assert search.heard.notes == ["space cpu: training runs on the CPU"]
    assert first.space is not None
    assert set(first.space.dimensions) <= set(first.spec.space.knobs) | {"accumulation"}
    again = search.folded()
    assert again.spec.space == first.spec.space
    assert again.space is not None
    assert again.space.dimensions == first.space.dimensions
    done = search.run()
    assert len(search.heard.notes) == 1
    found = answer(done)
    assert found.is_better
    assert "  space     cpu, as training runs on the CPU" in answer_screen(done, found, details=True)
    assert "- Search space: cpu, as training runs on the CPU." in note(done, found)
    best = write_best(tmp_path / "best.yaml", done, found, changes_of(done))
    assert (best.provenance.space, best.provenance.space_reason) == ("cpu", "training runs on the CPU")


def test_a_dry_run_names_the_likely_space(tmp_path: Path, auto: SpaceRequest) -> None:
    search = Searched(tmp_path, auto, COMPUTE_BOUND)
    plan = plan_search(search.spec)
    assert plan.request.name == ("default" if plan.facts.host.has_cuda else "cpu")
    assert plan.spec.space is auto
    assert plan.space.dimensions


def test_a_search_uses_only_options_that_its_sub_command_takes(tmp_path: Path, auto: SpaceRequest) -> None:
    search = Searched(tmp_path, auto, COMPUTE_BOUND)
    (tmp_path / "train.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\ncommands = parser.add_subparsers()\n"
        "commands.add_parser('train').add_argument('--epochs', type=int)\n"
        "commands.add_parser('predict').add_argument('--num-workers', type=int)\n"
    )
    plans = {verb: plan_search(replace(search.spec, args=(verb,))) for verb in ("train", "predict")}
    assert plans["train"].ways["num_workers"] == "torch.utils.data.DataLoader:num_workers"
    assert plans["predict"].ways["num_workers"] == "--num-workers"


def test_what_changes_the_training_is_tried_only_where_it_was_allowed(tmp_path: Path) -> None:
    """The world's loss falls alike, so what is faster reaches a loss sooner."""
    wild = replace(FUSED, effect=Effect.TRAINING)
    shut = replace(OWN, declared=(wild,), knobs={"precision": ("fp32", "bf16")}, withheld=("fused_loss",))
    (tmp_path / "a").mkdir()
    study = Searched(tmp_path / "a", shut, WORLD).run()
    assert all("fused_loss" not in t.config for t in study.trials)
    assert "--allow fused_loss" in study.refusals["fused_loss"]
    assert (
        "no other effective batch" in answer_screen(study, answer(study), details=True)
        or not answer(study).is_better
    )
    allowed = replace(OWN, declared=(wild,), allowed=("fused_loss",))
    for rule in ("explore", "keep"):
        (tmp_path / rule).mkdir()
        found = answer(Searched(tmp_path / rule, allowed, WORLD, effective_batch=rule).run())
        assert found.best.config.is_baseline
        assert found.fastest is not None
        assert found.fastest.config == Config({"fused_loss": 1})
        assert "It changes the training itself: fused loss." in found.fastest.reasons


def test_values_that_cannot_be_had_here_are_reported_once_the_script_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.driver.tune.host_facts", lambda: CPU_HOST)
    requested = replace(OWN, knobs={"fused_loss": (), "precision": ("fp32", "bf16", "fp16")})
    search = Searched(tmp_path, requested, WORLD)
    assert plan_search(search.spec).not_here == ("precision=fp16",)
    search.run(trials=3)
    assert search.heard.notes == ["not applicable here: precision=fp16"]


def test_advice_is_kept_with_what_was_inspected_and_a_study_without_it_has_none(tmp_path: Path) -> None:
    search = Searched(tmp_path, OWN, WORLD)
    loop = "for x in data:\n    loss = model(x)\n    loss.backward()\n    torch.save(model, 'last.pt')\n"
    (tmp_path / "train.py").write_text(loop)
    facts = plan_search(search.spec).facts
    assert [hint.place for hint in facts.advice] == ["train.py:4"]
    wired = to_wire(facts)
    assert from_wire(Facts, wired) == facts
    del wired["advice"]
    assert from_wire(Facts, wired).advice == ()

"""Scripts of every kind: what is applied, what is refused, and whether the training is still the same."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from preloaded import preloaded
from zoo import (
    GAPS,
    KNOBS,
    PATH_TOLERANCE,
    ROOT,
    SCRIPTS,
    World,
    distance,
    is_failure,
    known_gaps,
    last_common,
    load,
)
from zoo_table import page, read_results

from autotune.model.facts import COUNTED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

ZOO = load()
GAP = known_gaps()
SAMPLE = {
    "plain_argparse.py": ("batch_size", "accumulation", "num_workers"),
    "ragged_last.py": ("accumulation",),
    "sum_loss.py": ("accumulation", "fused_optimizer"),
    "bce_sigmoid.py": ("precision",),
    "bce_logits.py": ("precision",),
    "cnn_batchnorm.py": ("channels_last",),
    "gan.py": ("accumulation", "effective_batch"),
    "lm_seq_first.py": ("batch_size", "accumulation"),
    "iterable_unsharded.py": ("num_workers",),
    "own_scaler.py": ("accumulation",),
    "step_counted.py": ("accumulation",),
    "package_module/digits/train.py": ("batch_size",),
}
"""What runs without being requested: the cells that harm most where they go wrong."""
ENDINGS = {name: script for name, script in ZOO.items() if script.ending}
MEASURED = [name for name, script in ZOO.items() if not script.ending]


def marked(script: str, test: str, *, quick: bool):
    """One case with its marks: slow outside the sample, expected to fail where the gap is known."""
    marks = [pytest.mark.torch, pytest.mark.timeout(600)]
    marks += [] if quick else [pytest.mark.slow]
    missing = ZOO[script].missing
    marks += [pytest.mark.skip(reason=f"{', '.join(missing)} is not installed")] if missing else []
    if (script, test) in GAP:
        marks.append(pytest.mark.xfail(strict=True, reason=GAP[script, test]))
    return marks


def cells():
    for name, script in ZOO.items():
        for knob in script.knobs:
            quick = knob in SAMPLE.get(name, ())
            yield pytest.param(name, knob, id=f"{name}-{knob}", marks=marked(name, knob, quick=quick))


def scripts(names: list[str], test: str):
    return [
        pytest.param(name, id=name, marks=marked(name, test, quick=name in SAMPLE or not ZOO[name].knobs))
        for name in names
    ]


def forked(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str], folder: Path, timeout_s: float
) -> tuple[int, str]:
    """Exit code (124: not ended in time) and stderr of an observed run in a fork that has PyTorch loaded."""
    try:
        ended = preloaded().run(["-m", "zoo_observer", *words], env=env, cwd=cwd, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return 124, f"not ended after {timeout_s:g} s"
    return ended.returncode, ended.stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], World]:
    """A script that has been looked at; once per script."""
    known: dict[str, World] = {}

    def of(name: str) -> World:
        if name not in known:
            known[name] = World(ZOO[name], tmp_path_factory.mktemp("zoo"), start=forked)
            known[name].look()
        return known[name]

    return of


@pytest.mark.parametrize(("script", "knob"), list(cells()))
def test_a_knob_is_applied_or_refused_as_expected(world, script, knob):
    cell = world(script).cell(knob)
    if "no bf16 in hardware" in cell.reason and knob == "precision":
        pytest.skip("this processor has no bf16, so nothing is applied")
    assert cell.verdict == "ok", cell


@pytest.mark.parametrize("script", scripts(MEASURED, "steps"))
def test_steps_and_samples_are_counted_as_by_hand(world, script):
    seen, wanted = world(script), ZOO[script]
    if wanted.steps is not None:
        assert seen.bare["steps"] == wanted.steps or seen.bare["backwards"] == wanted.steps
        assert seen.reported["steps"] == wanted.steps
    if wanted.samples is not None and seen.facts.run.samples_source in COUNTED:
        assert seen.reported["samples"] == wanted.samples


@pytest.mark.parametrize("script", scripts(MEASURED, "nothing"))
def test_a_run_with_nothing_changed_trains_the_same(world, script):
    seen = world(script)
    assert seen.baseline_seen["steps"] == seen.bare["steps"]
    assert seen.baseline_seen["last"] == seen.bare["last"]
    assert seen.baseline_seen["losses"] == seen.bare["losses"]


@pytest.mark.parametrize("script", scripts(list(ENDINGS), "ending"))
def test_a_script_that_cannot_be_measured_says_why(script, tmp_path):
    outcome = World(ZOO[script], tmp_path).ending()
    assert is_failure(outcome), outcome
    label = {"script_error": "crash_exit"}.get(ZOO[script].ending, ZOO[script].ending)
    assert outcome.kind.label == label, outcome
    assert outcome.message


# What holds without running any of them


def test_every_script_has_its_expectations():
    parts = {"config_module/config.py", "config_module/model.py", "configurator.py"}
    parts |= {
        "package_module/digits/__init__.py",
        "package_module/digits/data.py",
        "const_settings/settings.py",
    }
    parts |= {"configurator_file/configurator.py", "configurator_file/config/small.py"}
    parts |= {"lmdb_three_deep/lmdb.py"}
    found = {path.relative_to(SCRIPTS).as_posix() for path in SCRIPTS.rglob("*.py")}
    assert found - parts == set(ZOO)


def test_every_expectation_is_whole():
    for name, script in ZOO.items():
        if script.ending in ("warmup_short", "no_metric", "script_error") and not script.knobs:
            continue
        assert tuple(script.knobs) == KNOBS, name
        assert all(expected.means or expected.refused for expected in script.knobs.values()), name
        accumulates = bool(script.knobs["accumulation"].means)
        assert accumulates or script.same_path is None or script.same_path is False, name


def test_no_script_knows_of_the_tuner():
    for path in SCRIPTS.rglob("*.py"):
        assert "autotune" not in path.read_text(encoding="utf-8").lower(), path


def test_every_known_gap_is_a_cell_and_has_a_cause():
    for script, test in GAP:
        assert script in ZOO, script
        assert test in (*ZOO[script].knobs, "steps", "nothing", "ending"), test
    groups = yaml.safe_load(GAPS.read_text(encoding="utf-8")) or []
    assert all(len(group["cause"]) > 20 and group["cells"] for group in groups)


def test_paths_are_distinguished_by_how_far_they_went():
    trained = {"first": [0.0, 0.0], "last": [3.0, 4.0]}
    assert distance(trained, trained) == 0.0
    assert distance({"first": [0.0, 0.0], "last": [3.0, 3.0]}, trained) == pytest.approx(0.2)
    assert distance({"first": [0.0], "last": [3.0]}, trained) is None
    assert distance({}, trained) is None
    # A parameter that joined later, as by add_param_group.
    joined = {"first": [0.0], "last": [3.0, 4.0]}
    assert distance(joined, joined) == 0.0
    assert distance({**joined, "last": [3.0, 1.0]}, joined) == pytest.approx(1.0)
    assert PATH_TOLERANCE < 0.2


def test_paths_are_compared_where_both_were_looked_at():
    path = {"1": [0.0, 0.0], "4": [3.0, 4.0], "8": [6.0, 8.0]}
    trained = {"first": [0.0, 0.0], "last": [9.0, 9.0], "path": path}
    other = {"last": [0.0, 0.0], "path": {"2": [1.0, 1.0], "4": [3.0, 3.0], "8": [6.0, 8.0]}}
    assert distance(other, trained, 4) == pytest.approx(0.2)
    assert distance(other, trained, 2) is None
    assert last_common(other, trained, 7) == 4
    assert last_common(other, trained, 100) == 8
    assert last_common(other, trained, 3) == 0


def test_the_table_in_the_documentation_is_that_of_the_results():
    assert (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8") == page(ZOO, read_results())

"""CONTRIBUTING's recipe "Add a knob", followed to the letter for two kinds of knobs, in a copy."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.knobs.base import Knob

ROOT = Path(__file__).parents[2]
KNOWN = {
    "name",
    "effect",
    "spellings",
    "family",
    "rank",
    "prior",
    "late_harms",
    "acts_at",
    "domain",
    "settle",
}
RECIPE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Add a knob")[1].split("\n## ")[0]

KNOB = '''"""Whether oneDNN's kernels are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect
from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.config import Value
    from autotune.model.facts import Facts


class Onednn(Knob):
    """Whether oneDNN's kernels are used.

    Effect: NUMERIC (other kernels round differently). Unit: on or off. Source: torch.backends docs.
    """

    name: ClassVar[str] = "onednn"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "kernels"
    rank: ClassVar[int] = 65
    spellings: ClassVar[Sequence[Spelling]] = (Patch(),)

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)

    def refuse(self, facts: Facts) -> str | None:
        if facts.run is not None and facts.run.model is not None and facts.run.model.device == "cuda":
            return "oneDNN has kernels for the CPU only, and training runs on a device."
        return None

    def patch(self, value: Value, patches: Patches) -> None:
        patches.assign(patches.torch.backends.mkldnn, "enabled", value)

    def seen(self, patches: Patches) -> Value | None:
        return bool(patches.torch.backends.mkldnn.enabled)
'''
CONTRACT = """from autotune.knobs.kernels.onednn import Onednn
from autotune.knobs.registry import builtin
from autotune.testing.knobs import KnobContract


class TestOnednn(KnobContract):
    knob = Onednn()
    torch_parts = {"backends.mkldnn.enabled": True}


def test_it_is_known():
    names = list(builtin())
    assert names.index("channels_last") < names.index("onednn") < names.index("batch_size")
"""

ONEDNN = "autotune/knobs/kernels/onednn.py"

ACTUATOR = '''"""Whether backward passes use threads of their own."""

from __future__ import annotations

from typing import Any


class BackwardThreads:
    """Implements the knob `backward_threads`."""

    def __init__(self, state: Any, undo: Any, torch: Any) -> None:
        self._undo = undo
        self._engine = torch._C

    def set(self, on: bool) -> None:
        """Use threads, or not."""
        switch = self._engine._set_multithreading_enabled
        self._undo.call(switch, on, undo=self._engine._is_multithreading_enabled())

    def observed(self) -> bool:
        """Return whether threads are used."""
        return bool(self._engine._is_multithreading_enabled())
'''
ACTUATED = (
    KNOB.replace("Whether oneDNN's kernels are used", "Whether backward passes use threads of their own")
    .replace("class Onednn", "class BackwardThreads")
    .replace('"onednn"', '"backward_threads"')
    .replace('    family: ClassVar[str] = "kernels"', '    family: ClassVar[str] = "threads"')
    .replace('patches.assign(patches.torch.backends.mkldnn, "enabled", value)', "_hook(patches).set(value)")
    .replace("bool(patches.torch.backends.mkldnn.enabled)", "_hook(patches).observed()")
    + """

def _hook(patches: Patches):
    return patches.hook("autotune.trial.actuators.backward_threads:BackwardThreads")
"""
)
ACTUATED_CONTRACT = """from types import SimpleNamespace

from autotune.knobs.host.backward_threads import BackwardThreads
from autotune.testing.knobs import KnobContract
from autotune.trial.actuators import backward_threads


class Engine:
    on = True

    def _set_multithreading_enabled(self, on):
        self.on = on

    def _is_multithreading_enabled(self):
        return self.on


class TestBackwardThreads(KnobContract):
    knob = BackwardThreads()
    hooks = {
        "autotune.trial.actuators.backward_threads:BackwardThreads": lambda patches: (
            backward_threads.BackwardThreads(None, patches, SimpleNamespace(_C=Engine()))
        )
    }
"""


def replaced(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def copy(tmp_path):
    """A copy of the package in which a knob was added, by its module and its test alone."""
    ours = tmp_path / "clone"
    shutil.copytree(ROOT / "autotune", ours / "autotune", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "search_spaces", ours / "search_spaces")
    (ours / ONEDNN).write_text(KNOB, encoding="utf-8")
    (ours / "tests").mkdir()
    (ours / "tests" / "test_onednn.py").write_text(CONTRACT, encoding="utf-8")
    return ours


def run(copy, *words, timeout_s=100, cwd=None):
    """A module of the copy, in a process of its own."""
    given = {**os.environ, "PYTHONPATH": str(copy), "AUTOTUNE_HOME": str(copy / "home")}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, env=given, cwd=cwd or copy, capture_output=True, text=True, timeout=timeout_s
    )


def contract(copy, file="tests/test_onednn.py"):
    done = run(copy, "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(copy), file)
    return done.returncode, done.stdout


def test_the_recipe_names_what_there_is():
    words = set(re.findall(r"`([^`]+)`", RECIPE))
    attributes = {re.split(r"[(\s]", word)[0] for word in words if re.fullmatch(r"\w+(\(.*\))?", word)}
    for name in ("name", "effect", "spellings", "rank", "prior", "late_harms", "acts_at", "domain", "refuse"):
        assert name in attributes, f"the recipe says nothing of {name}"
    for name in ("settle", "patch", "seen", "resolve", "own"):
        assert name in attributes, f"the recipe says nothing of {name}"
    assert all(hasattr(Knob, name) or name in Knob.__annotations__ for name in KNOWN & attributes)
    for path in (
        "autotune/knobs/<group>/<name>.py",
        "tests/knobs/<group>/test_<name>.py",
        "autotune/trial/actuators/<name>.py",
        "docs/knobs.md",
    ):
        assert path in words
        shown = path.replace("<group>", "numerics").replace("actuators/<name>", "actuators/float8")
        assert (ROOT / shown.replace("<name>", "precision")).is_file(), path
    assert "def reference(" in (ROOT / "noxfile.py").read_text(encoding="utf-8"), "nox -s reference"


@pytest.mark.thorough
def test_a_knob_that_follows_the_recipe_keeps_the_contract_and_is_offered_everywhere(copy):
    code, message = contract(copy)
    assert code == 0, message
    page = copy / "knobs.md"
    done = run(copy, "autotune.testing.reference", str(page))
    assert done.returncode == 0, done.stderr
    section = page.read_text(encoding="utf-8").split("\n## onednn\n")[1].split("\n## ")[0]
    assert "Whether oneDNN's kernels are used" in section
    assert "NUMERIC" in section
    assert "- oneDNN has kernels for the CPU only" in section, "its refusals are found without being listed"
    listed = run(copy, "autotune", "inspect", "--knobs").stdout
    assert "onednn" in listed
    (copy / "mine.yaml").write_text("schema: autotune.space/v1\nknobs: {onednn: [maybe]}\n")
    refused = run(copy, "autotune", "spaces", "validate", "mine.yaml")
    assert (refused.returncode, "mine.yaml:2: onednn has no value maybe" in refused.stderr) == (2, True)
    (copy / "mine.yaml").write_text("schema: autotune.space/v1\nknobs: {onednn: auto}\n")
    assert run(copy, "autotune", "spaces", "validate", "mine.yaml").returncode == 0


@pytest.mark.thorough
def test_a_knob_with_an_actuator_of_its_own_is_one_more_module(copy):
    (copy / "autotune/trial/actuators/backward_threads.py").write_text(ACTUATOR, encoding="utf-8")
    (copy / "autotune/knobs/host/backward_threads.py").write_text(ACTUATED, encoding="utf-8")
    (copy / "tests/test_backward_threads.py").write_text(ACTUATED_CONTRACT, encoding="utf-8")
    code, message = contract(copy, "tests/test_backward_threads.py")
    assert code == 0, message


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("right", "wrong", "reported"),
    [
        (
            "return bool(patches.torch.backends.mkldnn.enabled)",
            "return None",
            "test_what_it_patches_is_read_back",
        ),
        (
            'patches.assign(patches.torch.backends.mkldnn, "enabled", value)',
            "patches.torch.backends.mkldnn.enabled = value",
            "what it patched is not undone",
        ),
        (
            '"oneDNN has kernels for the CPU only, and training runs on a device."',
            '"CPU only"',
            "whole_sentence",
        ),
        (" Source: torch.backends docs.", "", "test_it_says_what_it_is"),
    ],
    ids=["not read back", "not undone", "no sentence", "no source"],
)
def test_a_knob_that_leaves_a_step_out_is_found(copy, right, wrong, reported):
    replaced(copy / ONEDNN, right, wrong)
    code, message = contract(copy)
    assert code == 1, message
    assert reported in message


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_a_knob_that_follows_the_recipe_is_searched_and_seen_in_real_processes(copy, tmp_path):
    shutil.copy(ROOT / "tests" / "scripts" / "plain_loop.py", tmp_path / "train.py")
    search = ("search", "--script", "train.py", "--budget", "6m", "--trials", "4", "--driver", "inline")
    done = run(
        copy, "autotune", *search, "--knob", "onednn", "--json", "--quiet", timeout_s=500, cwd=tmp_path
    )
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["baseline"]["knobs"]["onednn"] is True, "read in the script's own process"
    shown = json.loads(run(copy, "autotune", "show", "--json", cwd=tmp_path).stdout)
    off = [t for t in shown["trials"] if t["config"] == {"onednn": False}]
    assert off, shown["trials"]
    assert any(t["outcome"]["_"] == "Measurement" for t in off), "off was in force, or it would not be ranked"

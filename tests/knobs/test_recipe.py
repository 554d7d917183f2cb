"""CONTRIBUTING's recipe "Add a knob", followed to the letter in a copy of the package."""

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
CONTRACT = """from autotune.knobs.onednn import Onednn
from autotune.knobs.registry import builtin
from autotune.testing.knobs import KnobContract


class TestOnednn(KnobContract):
    knob = Onednn()


def test_it_is_known():
    assert isinstance(builtin()["onednn"], Onednn)
"""


def replaced(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def copy(tmp_path):
    """A copy of the package in which steps 1 to 5 were taken."""
    ours = tmp_path / "clone"
    shutil.copytree(ROOT / "autotune", ours / "autotune", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "search_spaces", ours / "search_spaces")
    knobs = ours / "autotune" / "knobs"
    (knobs / "onednn.py").write_text(KNOB, encoding="utf-8")
    registry = knobs / "registry.py"
    imported = "from autotune.knobs.loader.num_workers import NumWorkers\n"
    replaced(registry, imported, imported + "from autotune.knobs.onednn import Onednn\n")
    replaced(registry, "    ChannelsLast,\n", "    ChannelsLast,\n    Onednn,\n")
    made = ours / "autotune" / "testing" / "knobs.py"
    part = "mkldnn=SimpleNamespace(enabled=True)"
    replaced(
        made,
        "backends=SimpleNamespace(cudnn=self.cudnn)",
        f"backends=SimpleNamespace(cudnn=self.cudnn, {part})",
    )
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


def contract(copy):
    done = run(copy, "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(copy), "tests/test_onednn.py")
    return done.returncode, done.stdout


def test_the_recipe_names_what_there_is():
    words = set(re.findall(r"`([^`]+)`", RECIPE))
    attributes = {re.split(r"[(\s]", word)[0] for word in words if re.fullmatch(r"\w+(\(.*\))?", word)}
    for name in ("name", "effect", "spellings", "domain", "refuse", "settle", "patch", "seen"):
        assert name in attributes, f"the recipe says nothing of {name}"
        assert hasattr(Knob, name) or name in Knob.__annotations__, name
    for path in (
        "autotune/knobs/<name>.py",
        "knobs/registry.py",
        "tests/knobs/test_<name>.py",
        "docs/knobs.md",
    ):
        assert path in words
        shown = path.replace("<name>", "precision")
        assert (ROOT / shown).is_file() or (ROOT / "autotune" / shown).is_file(), path
    assert "def reference(" in (ROOT / "noxfile.py").read_text(encoding="utf-8"), "nox -s reference"


@pytest.mark.thorough
def test_a_knob_that_follows_the_recipe_keeps_the_contract_and_is_offered_everywhere(copy):
    code, said = contract(copy)
    assert code == 0, said
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
@pytest.mark.parametrize(
    ("right", "wrong", "told"),
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
def test_a_knob_that_leaves_a_step_out_is_found(copy, right, wrong, told):
    replaced(copy / "autotune" / "knobs" / "onednn.py", right, wrong)
    code, said = contract(copy)
    assert code == 1, said
    assert told in said


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

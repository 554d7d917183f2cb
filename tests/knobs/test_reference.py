"""The page of all knobs."""

import functools
from pathlib import Path

from autotune.knobs.base import Knob
from autotune.knobs.compile.compile_mode import CompileMode
from autotune.knobs.loader.num_workers import NumWorkers
from autotune.knobs.registry import builtin
from autotune.model.effect import Effect
from autotune.testing import reference

PAGE = Path(__file__).parents[2] / "docs/knobs.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.reference(), "run `nox -s reference`"


@functools.cache
def whole() -> str:
    return reference.reference()


def section(name: str) -> str:
    return whole().split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_every_knob_has_a_section_and_a_row_of_the_index() -> None:
    page = reference.reference()
    names = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    rows = [line for line in page.splitlines() if line.startswith("| [`")]
    assert names == [row.split("`")[1] for row in rows] == list(builtin())
    for row, knob in zip(rows, builtin().values(), strict=True):
        assert row.endswith(f"| {knob.effect.name} |")
        # Several effects are a list of their own, the usual one first.
        effects = section(knob.name).split("- **Effect on the training:**")[1]
        assert effects.removeprefix("\n    -").startswith(f" {knob.effect.name}")


def test_a_section_lists_values_delivery_requirements_and_refusals() -> None:
    workers = section("num_workers")
    assert "- **Values:** `0`, `1`, `2`" in workers
    assert "an option of the script, such as `--num-workers`" in workers
    assert "- No training DataLoader was seen: batches come from elsewhere." in workers
    for knob in builtin().values():
        assert ("- **Requires:**" in section(knob.name)) is bool(knob.requires)
        for text in reference.refusals(knob):
            assert f"\n- {text.replace('``', '`')}" in section(knob.name)


def test_sentences_are_found_wherever_a_knob_takes_them_from() -> None:
    found = reference.refusals(NumWorkers())
    assert "No training DataLoader was seen: batches come from elsewhere." in found
    assert any(text.startswith("The dataset holds an open ...: workers") for text in found)
    assert all(text.endswith(".") for text in found)


def test_a_docstring_is_no_refusal() -> None:
    class Plain(Knob):
        """A knob of this test."""

        name, effect, spellings = "plain", Effect.EXACT, ()

        def domain(self, facts):
            return ()

    assert reference.refusals(Plain()) == []


def test_the_command_writes_the_page(tmp_path) -> None:
    reference.main([str(tmp_path / "knobs.md")])
    assert (tmp_path / "knobs.md").read_text(encoding="utf-8") == reference.reference()


def test_a_refusal_may_begin_with_a_name_and_constants_of_its_module_are_spelled_out() -> None:
    found = reference.refusals(CompileMode())
    assert "torch.compile needs a C++ compiler (g++ or clang++), and none was found." in found
    zeros = next(text for text in found if "set_to_none=True" in text)
    assert zeros.startswith("... records CUDA graphs, and each replay overwrites the previous gradients")
    assert zeros.count("...") == 1

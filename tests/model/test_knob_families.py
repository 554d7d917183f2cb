"""Knob families: which apply to a script, and which were measured."""

from autotune.knobs.registry import builtin
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.knob_families import DECISIVE, FAMILIES, applicable, families_of, without
from autotune.model.space import Dimension, SearchSpace


def test_every_built_in_knob_names_a_family_of_the_list():
    assert all(knob.family in FAMILIES and knob.family != "own" for knob in builtin().values())
    assert set(FAMILIES) >= DECISIVE


def test_a_family_applies_only_where_a_free_knob_of_it_leaves_the_training_unchanged():
    space = SearchSpace(
        dimensions={
            "precision": Dimension(knob="precision", values=("fp32", "bf16"), own="fp32", family="precision"),
            "pinned": Dimension(knob="pinned", values=(1, 2), own=1, family="threads"),
            "batch": Dimension(knob="batch", values=(8, 16), own=8, effect=Effect.TRAINING, family="batch"),
            "fused": Dimension(knob="fused", values=(False, True), own=False, family="optimizer"),
        },
        fixed=Config({"pinned": 2}),
    )
    assert applicable(space) == {"precision"}
    assert families_of(space, Config({"precision": "bf16", "unknown": 1})) == {"precision"}


def test_a_family_left_out_of_a_space_is_left_out_of_its_starts_as_well():
    space = SearchSpace(
        dimensions={
            "precision": Dimension(knob="precision", values=("fp32", "bf16"), own="fp32", family="precision"),
            "workers": Dimension(knob="workers", values=(0, 2), own=0, family="loader"),
        },
        starts=(Config({"precision": "bf16", "workers": 2}), Config({"workers": 2})),
    )
    smaller = without(space, {"loader"})
    assert [d.knob for d in smaller.free()] == ["precision"]
    assert smaller.starts == (Config({"precision": "bf16"}),)
    assert without(space, {"loader", "precision"}) == space, "nothing would be left to try"
    assert without(space, frozenset()) == space

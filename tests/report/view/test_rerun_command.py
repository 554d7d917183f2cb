"""The search as it would be typed again: the same limits, the same space, or nothing."""

import itertools
import shlex
from dataclasses import replace

import pytest
from study_fakes import spec, study

from autotune.config_files.presets import load_space
from autotune.model.config import Config
from autotune.model.study import Budget
from autotune.model.trial import StartPolicy
from autotune.report.view.rerun_command import memory_text, pinned_command, search_command, space_words


def words(**changes):
    given = {"space": load_space("quick", cwd="/project"), "out": "", "driver": "ray", **changes}
    return shlex.split(search_command(study(spec=spec(**given))).partition(" -- ")[0])


NARROWED = {
    "none": {},
    "knob": {"only": ("precision", "num_workers")},
    "set": {"sets": ("num_workers=2,4",)},
    "set alone": {"sets": ("num_workers=1",), "only": ("num_workers",)},
    "fix": {"fixes": ("precision=bf16",)},
    "allow": {"allow": ("optimizer_state",)},
    "all": {"sets": ("num_workers=2,4",), "fixes": ("precision=bf16",), "only": ("pin_memory",)},
}


@pytest.mark.parametrize("name", ["quick", "auto"])
@pytest.mark.parametrize("options", NARROWED.values(), ids=NARROWED)
def test_its_options_ask_for_the_same_space(name, options, tmp_path):
    if "allow" in options:
        locked = load_space("gpu_transformer", cwd=str(tmp_path)).withheld
        options = {"allow": locked[:1]}
    space = load_space(name, cwd=str(tmp_path), **options)
    message = space_words(space, str(tmp_path))
    assert message is not None
    pairs = list(zip(message[::2], message[1::2], strict=True))
    parts = {
        key: tuple(text for option, text in pairs if option == given)
        for key, given in (("sets", "--set"), ("fixes", "--fix"), ("only", "--knob"), ("allow", "--allow"))
    }
    assert load_space(dict(pairs).get("--space", "auto"), cwd=str(tmp_path), **parts) == space
    assert bool(options) == any(parts.values())
    if name == "auto":
        taken = replace(space.candidates[0], reason="the first run showed it")
        assert space_words(taken, str(tmp_path)) == message
        # What the first run's figures have added is added again by them.
        more = replace(taken, knobs={**taken.knobs, "gc_control": ("auto", "freeze")}, added=("gc_control",))
        assert space_words(more, str(tmp_path)) == message


def test_a_space_that_cannot_be_named_from_here_leaves_the_command_out(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("schema: autotune.space/v1\nname: odd\nknobs:\n  num_workers: [2, 4]\n")
    space = load_space(str(file), cwd=str(tmp_path))
    assert space_words(space, str(tmp_path)) == ["--space", "mine.yaml"]
    assert space_words(space, "/project") is None
    assert search_command(study(spec=spec(space=space))) == ""
    file.write_text(file.read_text().replace("4", "8").replace("[2", "[1"))
    shrunk = replace(space, memory_bytes=5)
    assert space_words(shrunk, str(tmp_path)) is None, "no option says that"


def test_what_the_user_limited_stays_limited():
    message = words(
        max_memory_bytes=6 << 30,
        run_steps=500,
        effective_batch="keep",
        output_args=("--out-dir",),
        ray_address="ray://head:10001",
        concurrency=2,
        sampler="tpe",
        transfer="off",
        start=StartPolicy.COLD,
        price_per_hour=2.5,
        keep_loggers=True,
        profile=True,
        budget=Budget(seconds=600.0, trials=30),
    )
    for option, value in (
        ("--max-memory", "6144MiB"),
        ("--run-steps", "500"),
        ("--effective-batch", "keep"),
        ("--address", "ray://head:10001"),
        ("--concurrency", "2"),
        ("--sampler", "tpe"),
        ("--transfer", "off"),
        ("--start", "cold"),
        ("--price-per-hour", "2.5"),
        ("--trials", "30"),
    ):
        assert message[message.index(option) + 1] == value
    assert {"--output-arg=--out-dir", "--keep-loggers", "--profile"} <= set(message)


def test_options_that_are_as_they_come_are_left_out():
    assert words() == ["autotune", "search", "--budget", "600s", "--space", "quick"]


@pytest.mark.parametrize(("size", "text"), [(6 << 30, "6144MiB"), (1 << 20, "1MiB"), (1234567, "1234567B")])
def test_an_amount_of_memory_is_exact(size, text):
    from autotune.config_files.memory import memory_bytes

    assert memory_text(size) == text
    assert memory_bytes(text) == size


@pytest.mark.parametrize("name", ["quick", "auto"])
@pytest.mark.parametrize("options", NARROWED.values(), ids=NARROWED)
def test_a_pinned_configuration_takes_the_place_of_what_was_searched(name, options):
    if "allow" in options:
        options = {}
    space = load_space(name, cwd="/project", **options)
    config = Config({"num_workers": 2, "precision": "bf16", "accumulation": 2})
    message = shlex.split(pinned_command(study(spec=spec(space=space)), config).partition(" -- ")[0])
    fixes, sets, only = (
        tuple(text for option, text in itertools.pairwise(message) if option == given)
        for given in ("--fix", "--set", "--knob")
    )
    assert set(fixes) == {"num_workers=2", "precision=bf16"}, "what follows from other knobs is left to them"
    again = load_space(name, cwd="/project", fixes=fixes, sets=sets, only=only)
    taken = again.candidates[0] if again.candidates else again
    assert dict(taken.fixed) == {"num_workers": 2, "precision": "bf16"}

"""Search spaces by name or file, what they inherit, and the options that narrow them."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.answer.space_selection import CANDIDATES
from autotune.config_files.presets import built_in, find_spaces, load_space, locate, problems, read_space
from autotune.errors import InvalidSpace, UnknownKnob, UsageError
from autotune.knobs.registry import builtin, needs_permission
from autotune.model.change import Env, Flag, Keyword
from autotune.model.effect import Effect
from autotune.model.study import DeclaredSpec, SpaceRequest
from autotune.model.wire import dumps, loads
from autotune.space.build_space import build_space
from autotune.testing.knobs import GPU_HOST, GPU_RUN, facts

ROOT = Path(__file__).parents[2]
PRESETS = ["cpu", "dataloader", "default", "distributed", "gpu_transformer", "gpu_vision", "memory", "quick"]

HEAD = "schema: autotune.space/v1\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def write(folder, text, name="mine.yaml"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_presets_are_there_and_valid(here) -> None:
    names = [found.name for found in find_spaces(cwd=str(here))]
    assert names == PRESETS
    for name in names:
        request = load_space(name, cwd=str(here))
        assert problems(name, cwd=str(here)) == []
        assert request.starts
        assert read_space(locate(name, cwd=str(here))).description
        assert set(request.knobs) <= set(builtin())
        assert loads(SpaceRequest, dumps(request)) == request


def test_a_preset_as_it_comes_is_found_whatever_the_user_has_of_its_name(here) -> None:
    mine = write(here / "config" / "autotune" / "search_spaces", HEAD + "knobs: {tf32: auto}\n", "cpu.yaml")
    assert str(locate("cpu", cwd=str(here))) == mine
    assert built_in("cpu") != Path(mine)
    assert "precision" in load_space(str(built_in("cpu")), cwd=str(here)).knobs
    with pytest.raises(InvalidSpace, match="has no preset"):
        built_in("../cpu")


def test_presets_are_valid_from_an_installed_wheel(tmp_path) -> None:
    """In a wheel the files lie inside the package, and nothing of the checkout is beside it."""
    shutil.copytree(ROOT / "autotune", tmp_path / "autotune", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "search_spaces", tmp_path / "autotune" / "search_spaces")
    code = (
        "import autotune, sys; from autotune.config_files.presets import find_spaces, problems\n"
        "found = find_spaces(cwd='/')\n"
        "assert all('autotune/search_spaces' in str(f.path) for f in found)\n"
        "print([f.name for f in found], [p for f in found for p in problems(f.name, cwd='/')])"
    )
    environ = {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, cwd="/")
    assert done.stdout.strip() == f"{PRESETS} []", done.stderr


def test_every_knob_that_keeps_the_training_is_in_a_preset(here) -> None:
    spaces = [load_space(name, cwd=str(here)) for name in PRESETS]
    named = {knob for space in spaces for knob in space.knobs}
    # The number of processes decides on devices that others may use, so it is searched by name only.
    by_name = {"processes"}
    assert {name for name, knob in builtin().items() if not needs_permission(knob)} - by_name == named
    held = {knob for space in spaces for knob in space.withheld}
    assert {name for name, knob in builtin().items() if needs_permission(knob)} == held


@pytest.mark.parametrize(("short", "name"), [("vision", "gpu_vision"), ("transformer", "gpu_transformer")])
def test_a_short_name_means_the_preset_unless_a_file_has_it(here, short, name) -> None:
    assert load_space(short, cwd=str(here)) == load_space(name, cwd=str(here))
    write(here, HEAD + f"extends: {short}", f"search_spaces/{short}.yaml")
    assert load_space(short, cwd=str(here)).knobs == load_space(name, cwd=str(here)).knobs
    assert load_space(short, cwd=str(here)).name == short


def test_auto_holds_its_candidates_and_narrows_each(here) -> None:
    request = load_space("auto", cwd=str(here), sets=["num_workers=0,2"], fixes=["precision=bf16"])
    assert tuple(c.name for c in request.candidates) == CANDIDATES
    assert not request.knobs
    assert all(c.knobs["num_workers"] == (0, 2) and c.fixed for c in request.candidates)
    assert loads(SpaceRequest, dumps(request)) == request


def test_auto_takes_the_users_own_file_of_a_candidates_name(here) -> None:
    write(here, HEAD + "name: mine\nknobs: {threads: [1]}", "search_spaces/cpu.yaml")
    request = load_space("auto", cwd=str(here))
    assert {c.name: c.knobs for c in request.candidates}["cpu"] == {"threads": (1,)}


@pytest.mark.parametrize("option", [{"sets": ["mine=1"]}, {"only": ["mine"]}, {"fixes": ["mine=2"]}])
def test_what_one_candidate_alone_declares_takes_that_space_by_name(here, option) -> None:
    line = "extends: quick\ndeclare: [{name: mine, effect: EXACT, values: [1, 2], flag: --mine}]"
    write(here, HEAD + line, "search_spaces/cpu.yaml")
    with pytest.raises(UsageError, match="mine is declared for cpu alone") as caught:
        load_space("auto", cwd=str(here), **option)
    assert caught.value.hint == "Name the space: --space cpu"
    assert load_space("cpu", cwd=str(here), **option).declared


def test_candidates_that_declare_one_name_differently_are_refused(here) -> None:
    for name, flag in (("cpu", "--a"), ("memory", "--b")):
        line = "declare: [{name: mine, effect: EXACT, values: [1, 2], flag: FLAG}]"
        write(here, HEAD + line.replace("FLAG", flag), f"search_spaces/{name}.yaml")
    with pytest.raises(InvalidSpace, match="declare mine differently"):
        load_space("auto", cwd=str(here))


def test_quick_holds_exact_knobs_only(here) -> None:
    assert {builtin()[k].effect for k in load_space("quick", cwd=str(here)).knobs} == {Effect.EXACT}


def test_unquoted_off_is_a_mode_and_no_boolean(here) -> None:
    assert load_space("default", cwd=str(here)).knobs["compile_mode"] == ("off", "default", "reduce-overhead")


def test_entries_are_lists_ranges_auto_and_null(here) -> None:
    path = write(
        here,
        HEAD
        + """name: hour
extends: default
knobs:
  num_workers: {low: 0, high: 8, step: 4}
  batch_size: [x0.5, x2]
  threads: auto
  tf32: ~
start:
  - {num_workers: 4}
""",
    )
    request = load_space(path, cwd="/")
    assert (request.name, request.source) == ("hour", "mine.yaml")
    assert request.knobs["num_workers"] == (0, 4, 8)
    assert request.knobs["batch_size"] == ("x0.5", "x2")
    assert request.knobs["threads"] == ()
    assert "tf32" not in request.knobs
    assert request.knobs["compile_mode"] == ("off", "default", "reduce-overhead")
    assert request.starts == ({"num_workers": 4},)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("knobs: {}", "no schema is given", "schema: autotune.space/v1"),
        ("schema: autotune.space/v2", 'mine.yaml:1: schema "autotune.space/v2"', "v1"),
        (HEAD + "knob: {}", 'mine.yaml:2: unknown key "knob"', 'Did you mean "knobs"?'),
        (HEAD + "objectives: {}", "mine.yaml:2: objectives", "Remove"),
        (
            HEAD + "knobs:\n  precison: [bf16]",
            'mine.yaml:3: there is no knob "precison"',
            'Did you mean "precision"?',
        ),
        (HEAD + "start:\n  - {num_worker: 2}", 'mine.yaml:3: there is no knob "num_worker"', "num_workers"),
        (HEAD + "knobs:\n  threads: 4", "mine.yaml:3: knobs.threads: an entry is a list", ""),
        (HEAD + "knobs:\n  threads: {low: 1}", "mine.yaml:3: knobs.threads: an entry is a list", ""),
        (HEAD + "knobs:\n  threads:\n    - 1\n    - [2]", "mine.yaml:5: knobs.threads", ""),
        (
            HEAD + "knobs:\n  threads: {low: 9, high: 1}",
            "mine.yaml:3: threads has to have 1 to 1000 values",
            "",
        ),
        (HEAD + "knobs:\n  threads: {low: 0, high: 999999999999}", "1 to 1000 values", ""),
        (HEAD + "knobs:\n  threads: {low: 0, high: 9999999999999999999}", "threads", ""),
        (HEAD + "start: {a: 1}", "mine.yaml:2: start", ""),
        (HEAD + "extends: defualt", 'extends "defualt", which does not exist', 'Did you mean "default"?'),
        (HEAD + "extends: ./mine.yaml", "extends itself", ""),
        ("- a", "is not a mapping", "schema"),
        ("", "is not a mapping", "schema"),
    ],
)
def test_a_malformed_file_is_refused_with_line_and_remedy(here, text, message, hint) -> None:
    with pytest.raises((InvalidSpace, UnknownKnob)) as caught:
        load_space(write(here, text), cwd="/")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_binary_and_huge_files_are_refused(here) -> None:
    (here / "b.yaml").write_bytes(b"\xff\xfe\x00")
    (here / "h.yaml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(InvalidSpace, match="not UTF-8 text"):
        load_space("./b.yaml", cwd=str(here))
    with pytest.raises(InvalidSpace, match=r"larger than 128 KiB"):
        load_space("./h.yaml", cwd=str(here))


OWN = """declare:
  - {name: fused_loss, effect: NUMERIC, values: [0, 1], flag: "--fused-loss", help: One kernel.}
  - {name: algo, effect: EXACT, values: [Ring, Tree], env: NCCL_ALGO}
  - {name: shuffle_once, effect: TRAINING, values: [false, true], keyword: "torch.randperm:once"}
"""


def test_declared_knobs_take_part_first_and_travel_as_data(here) -> None:
    request = load_space(write(here, HEAD + "extends: quick\n" + OWN), cwd="/")
    assert list(request.knobs)[:3] == ["fused_loss", "algo", "num_workers"]
    assert request.declared[:2] == (
        DeclaredSpec(
            name="fused_loss", effect=Effect.NUMERIC, values=(0, 1), spelling=Flag(("--fused-loss",)),
            help="One kernel.",
        ),
        DeclaredSpec(name="algo", effect=Effect.EXACT, values=("Ring", "Tree"), spelling=Env("NCCL_ALGO")),
    )  # fmt: skip
    assert request.declared[2].spelling == Keyword("torch.randperm", "once")
    assert loads(SpaceRequest, dumps(request)) == request


def test_a_space_knows_that_the_user_has_left_knobs_out(here) -> None:
    assert not load_space("cpu", cwd=str(here)).narrowed
    assert load_space("cpu", cwd=str(here), only=["threads"]).narrowed
    assert all(c.narrowed for c in load_space("auto", cwd=str(here), only=["threads"]).candidates)
    (here / "less.yaml").write_text("schema: autotune.space/v1\nextends: cpu\nknobs: {malloc: ~}\n")
    assert load_space("./less.yaml", cwd=str(here)).narrowed


def test_a_declared_knob_is_placed_narrowed_and_dropped_like_any_other(here) -> None:
    write(here, HEAD + "extends: quick\n" + OWN, "base.yaml")
    request = load_space(
        write(here, HEAD + "extends: ./base.yaml\nknobs:\n  algo: ~\n  fused_loss: [1]"), cwd="/"
    )
    assert request.knobs["fused_loss"] == (1,)
    assert "algo" not in request.knobs


def test_set_fix_and_knob_know_declared_knobs(here) -> None:
    path = write(here, HEAD + "extends: quick\n" + OWN)
    assert load_space(path, cwd="/", only=["fused_loss"]).knobs == {"fused_loss": ()}
    request = load_space(path, cwd="/", sets=["algo=Tree"], fixes=["fused_loss=1"])
    assert (request.knobs["algo"], request.fixed) == (("Tree",), {"fused_loss": 1})
    with pytest.raises(UsageError, match="algo is declared without the value Mesh"):
        load_space(path, cwd="/", sets=["algo=Mesh"])


def test_what_changes_the_training_waits_for_permission(here) -> None:
    path = write(here, HEAD + "extends: quick\n" + OWN)
    shut = load_space(path, cwd="/")
    assert "shuffle_once" not in shut.knobs
    assert shut.withheld == ("shuffle_once",)
    for options in ({"only": ["shuffle_once"]}, {"fixes": ["shuffle_once=true"]}):
        with pytest.raises(UsageError) as caught:
            load_space(path, cwd="/", **options)
        assert caught.value.hint == "Add --allow shuffle_once."
    opened = load_space(path, cwd="/", allow=["shuffle_once"])
    assert opened.knobs["shuffle_once"] == ()
    assert (opened.allowed, opened.withheld) == (("shuffle_once",), ())
    assert load_space(path, cwd="/", only=["threads"], allow=["shuffle_once"]).knobs.keys() == {
        "threads",
        "shuffle_once",
    }


def test_allowed_only_gives_the_values_of_what_is_allowed(here) -> None:
    text = HEAD + "knobs: {threads: auto}\nallowed_only: {mine: [2]}\n"
    text += "declare: [{name: mine, effect: TRAINING, values: [1, 2], env: MINE}]"
    assert load_space(write(here, text), cwd="/").knobs == {"threads": ()}
    assert load_space(write(here, text), cwd="/", allow=["mine"]).knobs["mine"] == ()
    text = text.replace("auto}", "auto, mine: ~}")
    assert load_space(write(here, text), cwd="/", allow=["mine"]).knobs["mine"] == (2,)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("tf32", "changes the rounding alone and needs no permission", "Leave it out"),
        ("threads", "leaves the training unchanged and needs no permission", "Leave it out"),
        ("effective_batch", "has an option of its own", "--effective-batch"),
        ("precison", '--allow: there is no knob "precison"', "precision"),
    ],
)
def test_permission_is_given_to_what_needs_it_only(here, name, message, hint) -> None:
    with pytest.raises(UsageError) as caught:
        load_space("quick", cwd=str(here), allow=[name])
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_what_a_rule_refuses_takes_permission_though_it_changes_the_rounding_alone(here) -> None:
    request = load_space("default", cwd=str(here), allow=["precision"])
    assert request.allowed == ("precision",)
    assert request.knobs["precision"] == load_space("default", cwd=str(here)).knobs["precision"]


def test_two_knobs_cannot_pull_at_one_variable(here) -> None:
    text = HEAD + "knobs: {threads: auto}\ndeclare: [{name: mine, effect: EXACT, values: [1, 2], %s}]"
    with pytest.raises(InvalidSpace) as caught:
        load_space(write(here, text % "env: OMP_NUM_THREADS"), cwd="/")
    assert "mine.yaml:3: mine sets OMP_NUM_THREADS, and so does the built-in threads" in caught.value.message
    assert "threads: ~" in caught.value.hint
    load_space(write(here, (text % "env: OMP_NUM_THREADS").replace("threads: auto", "threads: ~")), cwd="/")


def test_a_bound_on_memory_is_a_share_or_an_amount(here) -> None:
    text = HEAD + "extends: quick\nconstraints: {peak_memory: {at_most: %s}}"
    for written, bound in (("0.92", (None, 0.92)), ("6GiB", (6 << 30, None)), ("80%", (None, 0.8))):
        request = load_space(write(here, text % written), cwd="/")
        assert (request.memory_bytes, request.memory_frac) == bound


def test_a_name_is_looked_up_here_first_then_in_the_users_folder(here) -> None:
    write(here, HEAD + "knobs: {threads: [1]}", "config/autotune/search_spaces/quick.yaml")
    assert load_space("quick", cwd=str(here)).knobs == {"threads": (1,)}
    write(here, HEAD + "extends: quick\nknobs: {threads: [2]}", "search_spaces/quick.yaml")
    assert load_space("quick", cwd=str(here)).knobs == {"threads": (2,)}


@pytest.mark.parametrize(
    ("name", "hint"), [("defualt", 'Did you mean "default"?'), ("../../etc/passwd", ""), ("", "Known are")]
)
def test_an_unknown_space_is_an_error(here, name, hint) -> None:
    with pytest.raises(InvalidSpace) as caught:
        load_space(name, cwd=str(here))
    assert hint in caught.value.hint


def test_set_fix_and_knob_narrow(here) -> None:
    request = load_space(
        "quick", cwd=str(here), sets=["num_workers=2,4"], fixes=["precision=bf16"], only=["threads"]
    )
    assert request.knobs == {"threads": (), "num_workers": (2, 4)}
    assert request.fixed == {"precision": "bf16"}


def test_set_values_are_read_like_those_of_a_file(here) -> None:
    request = load_space(
        "quick", cwd=str(here), sets=["compile_mode=off,default", "pin_memory=true", "batch_size=x2,64"]
    )
    assert request.knobs["compile_mode"] == ("off", "default")
    assert request.knobs["pin_memory"] == (True,)
    assert request.knobs["batch_size"] == ("x2", 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": ["num_workers"]}, "has no value"),
        ({"sets": ["=4"]}, "has no value"),
        ({"sets": ["num_workers=2,"]}, "empty value"),
        ({"sets": ["num_workers=2", "num_workers=4"]}, "twice"),
        ({"sets": ["num_workers=2"], "fixes": ["num_workers=4"]}, "both set and fixed"),
        ({"fixes": ["num_workers=2,4"]}, "several values"),
        ({"fixes": ["workers=2"]}, 'there is no knob "workers"'),
        ({"sets": ["precision=bf16,fp61"]}, "precision has no value fp61"),
        ({"fixes": ["num_workers=many"]}, "num_workers has no value many"),
        ({"only": ["precison"]}, '--knob: there is no knob "precison"'),
    ],
)
def test_options_that_contradict_themselves_are_refused(here, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        load_space("quick", cwd=str(here), **options)


def test_the_example_of_the_documentation_is_valid(here) -> None:
    text = (ROOT / "docs" / "spaces.md").read_text(encoding="utf-8")
    example = text.split("```yaml\n")[1].split("```")[0]
    path = write(here, example)
    assert problems(path, cwd="/") == []
    assert "in_order" in load_space(path, cwd="/", allow=["in_order"]).knobs


def test_the_default_space_finds_cuda_graphs_where_there_are_any_and_drops_them_elsewhere(here) -> None:
    request = load_space("default", cwd=str(here))
    on_gpu, _ = build_space(request, facts(host=GPU_HOST, run=GPU_RUN), builtin())
    assert "reduce-overhead" in on_gpu.dimensions["compile_mode"].values
    on_cpu, _ = build_space(request, facts(), builtin())
    assert on_cpu.dimensions["compile_mode"].values == ("off", "default")
    varying = facts(host=GPU_HOST, run=replace(GPU_RUN, input_shapes_vary=True))
    assert build_space(request, varying, builtin())[0].dimensions["compile_mode"].values == ("off", "default")


def test_the_quick_space_tries_the_allocator_on_a_device_alone(here) -> None:
    request = load_space("quick", cwd=str(here))
    known = facts(host=GPU_HOST, run=replace(GPU_RUN, values={**GPU_RUN.values, "allocator": "default"}))
    assert build_space(request, known, builtin())[0].dimensions["allocator"].values == (
        "default",
        "expandable_segments",
    )
    assert "allocator" in build_space(request, facts(), builtin())[1]


def test_a_relative_xdg_folder_is_passed_over_as_its_specification_says(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "relative" / "autotune" / "search_spaces", HEAD + "extends: default\n", "wrong.yaml")
    write(tmp_path / ".config" / "autotune" / "search_spaces", HEAD + "extends: default\n", "right.yaml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    names = [found.name for found in find_spaces(cwd=str(tmp_path))]
    assert "right" in names
    assert "wrong" not in names


def test_a_pipe_among_space_files_is_not_waited_for(tmp_path) -> None:
    folder = tmp_path / "search_spaces"
    folder.mkdir()
    os.mkfifo(folder / "mine.yaml")
    assert "mine" not in [found.name for found in find_spaces(cwd=str(tmp_path))]
    with pytest.raises(InvalidSpace, match="there is no search space"):
        load_space("mine", cwd=str(tmp_path))

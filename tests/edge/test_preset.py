"""Search space files and the options that narrow them."""

import pytest

from autotune.core.effect import Effect
from autotune.core.study import SpaceRequest
from autotune.core.wire import dumps, loads
from autotune.edge.preset import find_spaces, load_space
from autotune.errors import InvalidSpace, UnknownKnob, UsageError
from autotune.knobs.registry import builtin

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
    assert names == ["cpu", "dataloader", "default", "gpu_transformer", "gpu_vision", "quick"]
    for name in names:
        request = load_space(name, cwd=str(here))
        assert request.starts
        assert set(request.knobs) <= set(builtin())
        assert loads(SpaceRequest, dumps(request)) == request


def test_default_holds_every_knob(here) -> None:
    assert set(load_space("default", cwd=str(here)).knobs) == set(builtin())


def test_quick_holds_exact_knobs_only(here) -> None:
    assert {builtin()[k].effect for k in load_space("quick", cwd=str(here)).knobs} == {Effect.EXACT}


def test_unquoted_off_is_a_mode_and_no_boolean(here) -> None:
    assert load_space("default", cwd=str(here)).knobs["compile_mode"] == ("off", "default")


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
    assert request.knobs["compile_mode"] == ("off", "default")
    assert request.starts == ({"num_workers": 4},)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("knobs: {}", "no schema is given", "schema: autotune.space/v1"),
        ("schema: autotune.space/v2", 'mine.yaml:1: schema "autotune.space/v2"', "v1"),
        (HEAD + "knob: {}", 'mine.yaml:2: unknown key "knob"', 'Did you mean "knobs"?'),
        (HEAD + "declare: []", "mine.yaml:2: declaring knobs of your own", "Remove declare."),
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
        (HEAD + "start: {a: 1}", "mine.yaml:2: start", ""),
        (HEAD + "extends: defualt", 'extends "defualt", which does not exist', 'Did you mean "default"?'),
        (HEAD + "extends: ./mine.yaml", "extends itself", ""),
        ("- a", "holds no mapping", "schema"),
        ("", "holds no mapping", "schema"),
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
    with pytest.raises(InvalidSpace, match=r"larger than 1 MiB"):
        load_space("./h.yaml", cwd=str(here))


def test_knobs_that_need_permission_are_left_out_with_a_note(here) -> None:
    request = load_space(
        write(here, HEAD + "knobs: {threads: auto}\nallowed_only: {fp8: [off, tensorwise]}"), cwd="/"
    )
    assert set(request.knobs) == {"threads"}
    assert "fp8 changes training" in request.notes[0]


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
        ({"only": ["precison"]}, '--knob: there is no knob "precison"'),
    ],
)
def test_options_that_contradict_themselves_are_refused(here, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        load_space("quick", cwd=str(here), **options)

"""What is wrong with a space file, all of it, by line."""

import re
import time

import pytest

from autotune.config_files.presets import load_space, problems
from autotune.errors import InvalidSpace, UnknownKnob
from autotune.launch.workspace.compile_caches import VARIABLES

HEAD = "schema: autotune.space/v1\n"
DECLARE = HEAD + "declare:\n  - {name: mine, effect: EXACT, values: [1, 2], flag: --mine}\n"


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def look(text, name="mine.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return problems(str(tmp_path / name), cwd=str(tmp_path))

    return look


def test_a_sound_file_has_no_problems(found) -> None:
    assert found(DECLARE + "knobs: {mine: [2], precision: [bf16]}\nstart: [{mine: 2}]") == []


def test_everything_that_is_wrong_is_reported_at_once_in_the_order_of_lines(found) -> None:
    reported = found(
        HEAD
        + """knob: {}
knobs:
  precison: [bf16]
  threads: 4
declare:
  - {name: mine, values: [1], flags: --x}
allowed_only: {precision: [bf16]}
start:
  - {num_worker: 2}
"""
    )
    assert [problem.message for problem in reported] == [
        'mine.yaml:2: unknown key "knob"',
        "mine.yaml:5: knobs.threads: an entry is a list of values, auto, {low, high, step} or null",
        "mine.yaml:7: declare.0: effect is missing",
        'mine.yaml:7: declare.0.flags: unknown key "flags"',
        'mine.yaml:4: there is no knob "precison"',
        "mine.yaml:7: declare.0: it has no delivery",
        "mine.yaml:8: precision needs no permission",
        'mine.yaml:10: there is no knob "num_worker"',
    ]
    assert all(problem.hint for problem in reported if "an entry is" not in problem.message)


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("effect: EXACT, ", "", "declare.0: effect is missing", "EXACT, NUMERIC or TRAINING"),
        ("EXACT", "EXAKT", "declare.0.effect: effect has to be one of EXACT", 'Did you mean "EXACT"?'),
        ("values: [1, 2], ", "", "declare.0: values is missing", ""),
        ("[1, 2]", "[]", "1 to 1000 values", ""),
        ("[1, 2]", "3", "values are a list", ""),
        ("[1, 2]", "[1, {a: 1}]", "values are a list", ""),
        ("[1, 2]", "[1, '1']", "the value 1 is listed twice", ""),
        ("[1, 2]", '[1, ""]', "one line of printable text", ""),
        ("[1, 2]", '[1, "a\\nb"]', "one line of printable text", ""),
        ("[1, 2]", "{low: 2, high: 1}", "1 to 1000 values from low to high", ""),
        (", flag: --mine", "", "has no delivery", "flag, env, keyword"),
        ("--mine", "--mine, env: MINE", "it has 2 deliveries: flag, env", "one delivery"),
        ("--mine", "mine", 'flag "mine" is not an option of the script', "--fused-loss"),
        ("--mine", '"--mine=3"', "is not an option of the script", ""),
        ("--mine", '"--mine; rm -rf x"', "is not an option of the script", ""),
        ("flag: --mine", "env: a-b", "is not a variable of the environment", "NCCL_ALGO"),
        ("flag: --mine", "env: AUTOTUNE_PLAN", "a variable of autotune", ""),
        ("flag: --mine", "keyword: foreach", "path and its keyword", "torch.optim.AdamW:foreach"),
        ("flag: --mine", 'keyword: "a.b(c):d"', "path and its keyword", ""),
        (
            "flag: --mine",
            'keyword: "autotune.sdk.value:other"',
            "part of autotune",
            "autotune.sdk.value:mine",
        ),
        ("flag: --mine", "flagg: --mine", 'unknown key "flagg"', 'Did you mean "flag"?'),
        ("name: mine", "name: precision", "precision is a built-in knob", "my_precision"),
        ("name: mine", "name: my-knob", '"my-knob" is not a valid name', "Lower case"),
        ("name: mine, ", "", "declare.0: name is missing", ""),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused_with_line_and_remedy(
    found, old, new, message, hint
) -> None:
    assert old in DECLARE
    reported = found(DECLARE.replace(old, new))
    assert [p for p in reported if message in p.message and hint in p.hint], [
        (p.message, p.hint) for p in reported
    ]
    assert all(p.message.startswith("mine.yaml:3: ") for p in reported)


def test_two_declarations_of_one_name_or_one_option_are_refused(found) -> None:
    again = "  - {name: mine, effect: EXACT, values: [1], env: MINE}\n"
    (problem,) = found(DECLARE + again)
    assert problem.message == "mine.yaml:4: mine is declared twice, first at mine.yaml:3"
    (problem,) = found(
        DECLARE + again.replace("name: mine", "name: other").replace("env: MINE", "flag: --mine")
    )
    assert problem.message == "mine.yaml:4: other and mine both set --mine"


def test_values_outside_of_a_declaration_are_refused(found) -> None:
    (problem,) = found(DECLARE + "knobs: {mine: [3]}")
    assert problem.message == "mine.yaml:4: mine is declared without the value 3"
    assert problem.hint == "Declared are: 1, 2."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{peak_memory: {at_most: 1.5}}",
            "mine.yaml:2: constraints.peak_memory.at_most: a number is a share",
        ),
        ("{peak_memory: {at_most: true}}", "a number is a share"),
        ("{peak_memory: {at_most: 6}}", "a number is a share"),
        ("{peak_memory: {at_most: 6 parsecs}}", '"parsecs" is not a unit of memory'),
        ("{peak_memory: {}}", "at_most is missing"),
        ("{loss: {at_most: 1}}", 'unknown key "loss"'),
    ],
)
def test_a_bound_that_is_none_is_refused(found, text, message) -> None:
    reported = found(HEAD + f"constraints: {text}")
    assert any(message in p.message for p in reported), [p.message for p in reported]


def test_objectives_are_refused_with_a_sentence(found) -> None:
    (problem,) = found(HEAD + "objectives: {maximize: [throughput]}")
    assert problem.message == "mine.yaml:2: objectives are not set in a space file by this version"


def test_problems_of_a_parent_are_found_too_and_named_by_its_file(found, tmp_path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD + "knobs: {threds: [1]}")
    reported = found(HEAD + "extends: ./base.yaml\nknobs: {precison: [bf16]}")
    assert [p.message for p in reported] == [
        'base.yaml:2: there is no knob "threds"',
        'mine.yaml:3: there is no knob "precison"',
    ]
    with pytest.raises(UnknownKnob, match="threds"):
        load_space("./mine.yaml", cwd=str(tmp_path))


def test_what_extends_nothing_is_reported_with_its_line(found) -> None:
    (problem,) = found(HEAD + "extends: qick")
    assert isinstance(problem, InvalidSpace)
    assert problem.message == 'mine.yaml:2: extends "qick", which does not exist'
    assert problem.hint == 'Did you mean "quick"?'


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("values: [" + ",".join(map(str, range(15_000))) + "]", "expected 1 to 1000 values"),
        ("values: {low: 1, high: 9999999999999999999}", "1 to 1000 values from low to high"),
        ("values: {low: -9999999999999999999, high: 1, step: 3}", "values are a list, or {low, high, step}"),
    ],
)
def test_more_values_than_can_be_tried_are_reported_at_once(found, entry, says) -> None:
    began = time.process_time()
    reported = found(f"{HEAD}declare:\n- name: mine\n  effect: EXACT\n  flag: --mine\n  {entry}\n")
    assert time.process_time() - began < 2
    assert [problem.message for problem in reported if says in problem.message]


@pytest.mark.parametrize(
    ("entry", "message", "hint"),
    [
        ("precision: []", "knobs.precision: it has no values", "auto"),
        ("precision: [bf16, bnf16]", "precision has no value bnf16", 'Did you mean "bf16"?'),
        ("precision: {low: 0, high: 2}", "precision has no value 0", "fp32, bf16"),
        ("compile_mode: [off, auto]", "compile_mode has no value auto", "default"),
        ("num_workers: [2, -3]", "num_workers has no value -3", "numbers (processes)"),
        ("num_workers: {low: -1, high: 2}", "num_workers has no value -1", "numbers (processes)"),
        ("pin_memory: [maybe]", "pin_memory has no value maybe", "true"),
        ("batch_size: [x0]", "batch_size has no value x0", "numbers (samples)"),
        ("batch_size: [x1e308]", "batch_size has no value x1e308", "numbers (samples)"),
        ("memory_budget: [0.5, 1.5]", "memory_budget has no value 1.5", "numbers (share)"),
        ("accumulation: [2]", "accumulation follows from other knobs", "accumulation: auto"),
    ],
)
def test_a_value_that_can_mean_nothing_is_reported_with_its_line(found, entry, message, hint) -> None:
    (problem,) = found(HEAD + "knobs:\n  " + entry)
    assert problem.message.startswith(f"mine.yaml:3: {message}")
    assert hint in problem.hint


@pytest.mark.parametrize(
    "entry",
    [
        "num_workers: [asis, 0, x2, cores_per_gpu, cores_per_gpu_max16]",
        "threads: [physical, physical-1, physical_minus_workers, half, 1]",
        "batch_size: [x0.5, x1.5, 48]",
        "effective_batch: [x8, 4096]",
        "precision: [no, 32-true, bfloat16, fp16]",
        "fused_optimizer: [asis, fused]",
        "pin_memory: [0, 1, off, true]",
        "tf32: [medium, on]",
        "wait_policy: [unset, passive, ACTIVE]",
        "malloc: [glibc, jemalloc, tcmalloc, glibc_hugepages]",
        "memory_budget: [1, 0.25]",
        "attention_backend: [auto, flash, efficient, cudnn, math]",
        "activation_checkpointing: [true, selective]",
        "compile_shapes: [dynamic, false]",
        "accumulation: auto",
    ],
)
def test_values_that_another_machine_or_script_may_have_are_sound(found, entry) -> None:
    assert found(HEAD + "knobs:\n  " + entry) == []


def test_values_of_starts_have_to_mean_something_too(found) -> None:
    reported = found(DECLARE + "knobs: {precision: auto}\nstart:\n  - {precision: bf61}\n  - {mine: 9}")
    assert [(p.message, p.hint) for p in reported] == [
        ("mine.yaml:6: precision has no value bf61", 'Did you mean "bf16"?'),
        ("mine.yaml:7: mine is declared without the value 9", "Declared are: 1, 2."),
    ]


def test_a_file_that_names_no_knob_is_none(found) -> None:
    (problem,) = found(HEAD + "description: Later.")
    assert problem.message == "mine.yaml: it has no knobs, so there is nothing to search"
    assert found(HEAD + "allowed_only: {in_order: [true, false]}") == []


@pytest.mark.parametrize("name", [*VARIABLES, "TMPDIR", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"])
def test_what_every_trial_gets_from_us_cannot_be_declared(found, name) -> None:
    (problem,) = found(DECLARE.replace("flag: --mine", f"env: {name}"))
    assert problem.message == f"mine.yaml:3: declare.0: {name} is set for each trial by autotune"


@pytest.mark.parametrize(
    ("way", "values", "message"),
    [
        ("env: LD_PRELOAD", "[a, b]", "LD_PRELOAD decides which code runs and cannot be a knob"),
        ("env: LD_LIBRARY_PATH", "[a, b]", "LD_LIBRARY_PATH decides which code runs"),
        ("env: PYTHONSTARTUP", "[a, b]", "PYTHONSTARTUP decides which code runs"),
        ("env: BASH_ENV", "[a, b]", "BASH_ENV decides which code runs"),
        ("env: PATH", "[a, b]", "PATH decides which code runs"),
        ("env: NCCL_NET_PLUGIN", "[a, b]", "NCCL_NET_PLUGIN decides which code runs"),
        ("env: MINE", "[a, /tmp/evil.so]", "A value of MINE names a file, which could be code"),
        (
            'keyword: "subprocess.Popen:shell"',
            "[true, false]",
            "subprocess.Popen:shell decides which code runs",
        ),
        (
            'keyword: "torch.load:weights_only"',
            "[true, false]",
            "torch.load:weights_only decides which code runs",
        ),
    ],
)
def test_a_space_of_somebody_else_declares_nothing_that_decides_which_code_runs(
    found, way, values, message
) -> None:
    text = DECLARE.replace("flag: --mine", way)
    text = re.sub(r"values: \[[^\]]*\]", f"values: {values}", text)
    (problem,) = found(text)
    assert problem.message.startswith(f"mine.yaml:3: declare.0: {message}")
    assert problem.hint == "Set it before autotune, for all trials."


@pytest.mark.parametrize(
    "name", ["NCCL_ALGO", "PYTHONMALLOC", "PYTHON_GIL", "KMP_AFFINITY", "MKL_NUM_THREADS"]
)
def test_other_variables_can_be_declared(found, name) -> None:
    assert found(DECLARE.replace("flag: --mine", f"env: {name}")) == []

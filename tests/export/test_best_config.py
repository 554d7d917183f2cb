"""best.yaml: what is written is what is read, and nothing is ever lost."""

import math
import os
import re
import stat
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from study_fakes import BEST, changes_of, facts, good_answer, no_answer, pick, ratio, spec, study

from autotune.errors import UnknownKnob, UsageError, did_you_mean
from autotune.export import files, write
from autotune.export.best_config import (
    BestConfig,
    build_best,
    core_changes,
    differences,
    parse,
    read_best,
    render,
    save,
    write_best,
)
from autotune.export.parts import ChangePart
from autotune.knobs.registry import builtin
from autotune.model.change import Keyword
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate


def built(**fields):
    return build_best(study(**fields), good_answer(), changes_of)


def test_what_is_written_is_read_back_equal(tmp_path):
    path = tmp_path / "best.yaml"
    written = write_best(path, study(), good_answer(), changes_of)
    assert [c.knob for c in written.picks["safe"].contributions] == ["num_workers"]
    assert read_best(path) == written
    assert [c.name for c in tmp_path.iterdir()] == ["best.yaml"]


def test_learning_rate_advice_stands_with_its_pick():
    message = "Learning rate: the effective batch is 8 times your script's, and this ran with your rate."
    wild = Config({"batch_size": 64})
    answer = good_answer(fastest=pick("fastest", wild, ratio(2.6), effect=Effect.TRAINING, advice=message))
    best = parse(render(build_best(study(), answer, changes_of)), source="best.yaml")
    assert (best.picks["fastest"].advice, best.picks["best"].advice) == (message, "")


def test_the_changes_come_back_as_they_were():
    best = parse(render(built()), source="best.yaml")
    assert core_changes(best.picks["best"]) == changes_of(BEST)


def test_a_keyword_on_another_module_keeps_its_defining_module():
    def moved(config):
        return [
            type(c)(knob=c.knob, value=c.value, spelling=Keyword("a.b.C", "x", "a._b"), site=c.site)
            for c in changes_of(config)
        ]

    best = parse(render(build_best(study(), good_answer(), moved)), source="best.yaml")
    assert core_changes(best.picks["safe"])[0].spelling == Keyword("a.b.C", "x", "a._b")


def test_knobs_of_a_pick_are_complete():
    knobs = built().picks["safe"].knobs
    assert knobs == {
        "num_workers": 4,
        "precision": "fp32",
        "batch_size": 32,
        "threads": 1,
        "compile_mode": "off",
    }


def test_values_of_communication_stand_in_the_file_of_several_processes_alone():
    def knobs(ranks):
        known = facts()
        values = {**known.run.values, "processes": ranks, "nccl_algo": "default", "ddp_bucket_cap_mb": 25}
        run = replace(known.run, values=values, ranks=ranks)
        return set(built(facts=replace(known, run=run)).baseline.knobs)

    several = {"processes", "nccl_algo", "ddp_bucket_cap_mb"}
    assert several <= knobs(2)
    assert not several & knobs(1)
    assert "precision" in knobs(1)


def test_the_file_begins_with_the_gain_what_changes_and_how_to_apply_it():
    head = [line for line in render(built(), name="fast.yaml").splitlines() if line.startswith("#")]
    assert head == [
        "# 2.00x [1.95, 2.05] in 6 pairs of fresh runs: precision=bf16 batch_size=64 num_workers=4 threads=2",
        "# Peak memory 1.00 GiB; your script 2.00 GiB.",
        "# Apply: autotune apply fast.yaml -- python train.py --lr 1e-3",
        "# Made by autotune 0.1.0; the evidence is below.",
    ]


def test_without_a_gain_the_first_line_says_so_and_the_picks_are_the_baseline():
    best = build_best(study(better=False), no_answer(), changes_of)
    assert render(best).splitlines()[0] == "# Nothing is faster: the picks are your unchanged script."
    assert best.picks["best"].changes == []
    assert best.picks["best"].speedup.value == 1.0
    assert not best.is_better


def test_a_value_with_a_line_break_ends_no_comment():
    best = built()
    change = best.picks["best"].changes[0].model_copy(update={"value": "a\npick: safe"})
    pick = best.picks["best"].model_copy(update={"changes": [change]})
    text = render(best.model_copy(update={"picks": {**best.picks, "best": pick}}))
    assert yaml.safe_load(text)["pick"] == "best"
    assert text.count("\npick: ") == 1


def test_texts_that_yaml_would_read_otherwise_are_quoted():
    text = render(
        built(
            spec=spec(args=("--mode", "no", "--lr", "1e-3", "--x", "off", "0x10", "1_000", "12:30", "null"))
        )
    )
    argv = next(line for line in text.splitlines() if "argv" in line)
    for word in ("no", "1e-3", "off", "0x10", "1_000", "12:30", "null"):
        assert f'"{word}"' in argv
    # Readers of both YAML 1.1 and 1.2 agree then.
    assert yaml.safe_load(text)["study"]["argv"] == parse(text, source="x").study.argv


def test_an_existing_file_is_kept_beside(tmp_path):
    path = tmp_path / "best.yaml"
    path.write_text("mine\n")
    write_best(path, study(), good_answer(), changes_of)
    other = study(spec=spec(study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1C"))
    write_best(path, other, good_answer(), changes_of)
    assert (tmp_path / "best.1.yaml").read_text() == "mine\n"
    assert read_best(tmp_path / "best.2.yaml").study.id.endswith("1B")
    assert read_best(path).study.id.endswith("1C")


def test_an_unedited_file_of_the_same_study_is_replaced(tmp_path):
    path = tmp_path / "best.yaml"
    write_best(path, study(better=False), no_answer(), changes_of)
    write_best(path, study(), good_answer(), changes_of)
    assert [c.name for c in tmp_path.iterdir()] == ["best.yaml"]


def test_an_edited_file_of_the_same_study_is_kept(tmp_path):
    path = tmp_path / "best.yaml"
    write_best(path, study(), good_answer(), changes_of)
    path.write_text(path.read_text().replace("pick: best", "pick: safe"))
    write_best(path, study(), good_answer(), changes_of)
    assert read_best(tmp_path / "best.1.yaml").pick == "safe"


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "best.yaml"
    path.write_text("mine\n")
    monkeypatch.setattr(files.os, "fsync", lambda _fd: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        write_best(path, study(), good_answer(), changes_of)
    assert path.read_text() == "mine\n"
    assert [c.name for c in tmp_path.iterdir()] == ["best.yaml"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("my train.py", "Apply: autotune apply 'a b.yaml' -- python 'my train.py' --lr 1e-3"),
        ("a\nb: [.py", "Apply: autotune apply 'a b.yaml'"),
        ("bell\x07\x1b[2J.py", "Apply: autotune apply 'a b.yaml'"),
        ("line\u2028sep.py", "Apply: autotune apply 'a b.yaml'"),
    ],
)
def test_whatever_the_script_is_called_its_answer_is_written(tmp_path, script, message):
    path = tmp_path / "a b.yaml"
    written = write_best(path, study(spec=spec(script=f"/project/{script}")), good_answer(), changes_of)
    assert read_best(path) == written
    assert written.study.script == script
    head = [line for line in path.read_text(encoding="utf-8").split("\n") if line.startswith("#")]
    assert f"# {message}" in head


def test_what_a_link_points_to_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "shared").mkdir()
    link = tmp_path / "best.yaml"
    link.symlink_to("shared/target.yaml")
    for label in ("a", "b"):
        write_best(link, study(spec=spec(label=label)), good_answer(), changes_of)
        assert link.is_symlink()
        assert read_best(tmp_path / "shared" / "target.yaml").study.label == label


def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="no regular file"):
            files.write_whole(path, "x", keep=False)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
    assert {c.name for c in tmp_path.iterdir()} == {"pipe", "link"}


def test_text_that_does_not_read_back_as_meant_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "best.yaml"
    other = built(spec=spec(label="another"))
    monkeypatch.setattr(write, "parse", lambda text, source: other)
    with pytest.raises(UsageError, match="read back"):
        save(path, built())
    assert not path.exists()


def test_a_change_inside_the_process_has_to_be_of_a_knob_that_is_here():
    text = render(built()).replace("{knob: precision, how: patch", "{knob: precisoin, how: patch")
    with pytest.raises(UnknownKnob, match='there is no knob "precisoin"') as caught:
        core_changes(parse(text, source="best.yaml").picks["best"])
    assert caught.value.hint == 'Did you mean "precision"?'


def test_infinite_interval_ends_are_left_out():
    once = Estimate(value=1.5, low=-math.inf, high=math.inf, n=1, unit="ratio")
    best = build_best(study(), good_answer(best=pick("best", BEST, once)), changes_of)
    assert best.picks["best"].speedup.low is None
    assert "inf" not in render(best)
    assert parse(render(best), source="x") == best


@pytest.mark.parametrize(
    ("before", "after", "message", "hint"),
    [
        ("\npick:", "\npik:", 'unknown key "pik"', 'Did you mean "pick"?'),
        (
            "pick: best",
            "pick: bets",
            "best.yaml:7: pick: expected one of safe, best, fastest",
            "found 'bets'. Did you mean \"best\"?",
        ),
        ("\nbaseline:", "\nbaseliine:", 'best.yaml:12: unknown key "baseliine"', 'Did you mean "baseline"?'),
        ("\nschema:", "\nshcema:", "schema is None", 'is "shcema" meant to be schema?'),
        (
            "    trial: 3",
            "    trail: 3",
            'best.yaml:18: unknown key "picks.best.trail"',
            'Did you mean "trial"?',
        ),
        ("    trial: 3\n", "", "picks.best.trial is missing", "the search wrote"),
        (
            "    effect: NUMERIC",
            "    effect: NUMERC",
            "effect: expected one of EXACT, NUMERIC",
            'Did you mean "NUMERIC"?',
        ),
        (
            "how: patch",
            "how: ptch",
            "changes.2.how: expected one of flag, env, keyword, patch",
            'Did you mean "patch"?',
        ),
        (
            "precision: bf16, batch",
            "precisoin: bf16, batch",
            'best.yaml:20: there is no knob "precisoin"',
            'Did you mean "precision"?',
        ),
        (
            "precision: bf16, batch",
            "precision: [1], batch",
            "best.yaml:20: picks.best.knobs.precision: expected text, a number",
            "found [1]",
        ),
        ("is_better: true", "is_better: maybe", "8: is_better: expected true or false", "found 'maybe'"),
        ("autotune.config/v1.1", "autotune.config/v2", "v2 is not one", "install"),
        ("autotune.config/v1.1", "autotune.space/v1", "schema is 'autotune.space/v1'", "is this a file"),
        ("trial: 3", "trial: three", "picks.best.trial", "three"),
        ("how: flag", "how: telepathy", "changes.0.how", "telepathy"),
        ("pick: best", "pick: best\npick: safe", "twice", ""),
        ("pick: best", "pick: !!python/name:os.system best", "tags are not allowed", ""),
    ],
)
def test_a_wrong_file_is_refused_with_what_and_where(before, after, message, hint):
    text = render(built())
    assert before in text
    with pytest.raises(UsageError) as caught:
        parse(text.replace(before, after, 1), source="best.yaml")
    assert message in caught.value.message
    assert "best.yaml" in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("how", "spelling", "also", "what"),
    [
        ("env", "A=1; touch x; B", [], "variable"),
        ("env", "", [], "variable"),
        ("env", "1ST", [], "variable"),
        ("keyword", "torch.utils.data.DataLoader:x=print(1), y", [], "keyword"),
        ("keyword", "torch.utils.data.DataLoader:lambda", [], "keyword"),
        ("keyword", "num-workers", [], "keyword"),
        ("flag", "train.py", [], "option"),
        ("flag", "--batch size", [], "option"),
        ("flag", "--batch;reboot", [], "option"),
        ("flag", "--batch\n", [], "option"),
        ("flag", "--batch-size", ["data/"], "option"),
    ],
)
def test_a_name_that_is_none_of_its_kind_is_refused_before_it_is_written_anywhere(how, spelling, also, what):
    change = ChangePart(knob="mine", how=how, spelling=spelling, also=also, value=1, delivered="1")
    changed = built().picks["best"].model_copy(update={"changes": [change]})
    with pytest.raises(UsageError) as caught:
        core_changes(changed)
    assert "mine" in caught.value.message
    assert f"names no {what}" in caught.value.message
    assert "best.yaml" in caught.value.hint


@pytest.mark.parametrize(
    ("how", "spelling"),
    [
        ("env", "_NCCL_ALGO2"),
        ("keyword", "transformers.TrainingArguments:optim"),
        ("flag", "-b"),
        ("flag", "--trainer.max_steps"),
        ("flag", "--model/lr:x"),
    ],
)
def test_every_usual_name_comes_through(how, spelling):
    change = ChangePart(knob="mine", how=how, spelling=spelling, value=1, delivered="1")
    (found,) = core_changes(built().picks["best"].model_copy(update={"changes": [change]}))
    assert found.spelling.text == spelling


def test_unknown_keys_of_a_newer_minor_version_are_passed_over():
    text = (
        render(built())
        .replace("autotune.config/v1.1", "autotune.config/v1.7")
        .replace("\npick:", "\nnew: [1]\npick:")
    )
    text = text.replace("trial: 3", "trial: 3\n    shiny: 1", 1)
    best = parse(text, source="best.yaml")
    assert best.picks["best"].trial == 3
    started = text.replace("study: {", "study: {launcher: sh -c reboot, ", 1)
    with pytest.raises(UsageError, match="is not a launcher"):
        parse(started, source="best.yaml")


@pytest.mark.parametrize("text", ["", "[1, 2]", "just words", "a: [", "\x00"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(UsageError):
        parse(text, source="best.yaml")


def test_a_missing_file_and_a_binary_one_are_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_best(tmp_path / "no.yaml")
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        read_best(tmp_path / "bin.yaml")


@pytest.mark.timeout(20)
def test_a_pipe_that_nothing_writes_to_is_not_waited_for(tmp_path):
    pipe = tmp_path / "best.yaml"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is no best"):
        read_best(pipe)


def test_a_pick_that_is_not_there_is_refused():
    with pytest.raises(UsageError) as caught:
        built().chosen("fastest")
    assert "best, safe" in caught.value.hint


def test_differences_name_the_part():
    best, here = built(), facts().host
    assert differences(best, here, torch="2.13.0", script_sha256="ab" * 32) == {}
    assert set(differences(best, here, torch="2.9.0", script_sha256="cd" * 32)) == {"torch", "script"}
    assert differences(best, here, torch=None, script_sha256="ab" * 32) == {}


def test_secrets_do_not_reach_the_file(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary_123")
    args = ("--api-key", "canary-a", "--epochs", "3", "url?t=hf_canary_123")
    given = study(spec=spec(args=args))
    best = build_best(given, good_answer(), changes_of)
    assert best.study.argv == ["--api-key", "<redacted>", "--epochs", "3", "url?t=<redacted:HF_TOKEN>"]
    assert "canary" not in render(best)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
VALUES = st.one_of(
    st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False), WORDS
)


@settings(max_examples=50, deadline=None)
@given(
    argv=st.lists(
        st.one_of(WORDS, st.sampled_from(["off", "NO", "1e-3", ".5", "=", "<<", "- a", "# b", "a: b", " x "]))
    ),
    knobs=st.dictionaries(WORDS.filter(lambda name: not did_you_mean(name, builtin())), VALUES, max_size=4),
    speedup=st.floats(0.01, 100.0),
)
def test_any_content_survives_the_file(argv, knobs, speedup):
    data = build_best(study(), good_answer(best=pick("best", BEST, ratio(speedup))), changes_of).data()
    data["study"]["argv"] = argv
    data["picks"]["best"]["knobs"] = knobs
    best = BestConfig.model_validate(data)
    again = parse(render(best), source="best.yaml")
    assert again == best
    assert [type(v) for v in again.picks["best"].knobs.values()] == [type(v) for v in knobs.values()]


def test_the_file_is_readable(tmp_path):
    lines = render(built()).splitlines()
    assert max(map(len, lines)) < 400
    assert any(
        re.match(
            r"    speedup: \{value: 2.0, low: 1.95, high: 2.05, n: 6, unit: ratio, confidence: 0.95\}", line
        )
        for line in lines
    )

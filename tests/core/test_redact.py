"""Secrets go, everything else stays as it is."""

from __future__ import annotations

import json
import shlex

import pytest

from autotune.core.redact import (
    is_incomplete,
    missing_names,
    redact,
    redact_args,
    redact_data,
    restore,
    secret_values,
)

ENVIRON = {
    "WANDB_API_KEY": "canary-0123456789",
    "DB_PASSWORD": 'quo"te\\canary',
    "SENTRY_DSN": "https://canary@sentry.example/1",
    "MY_SECRET": "canary-0123456789-longer",
    "AWS_CREDENTIALS": "canary-ümlaut",
    "SHORT_KEY": "abc",
    "TOKENIZERS_PARALLELISM": "falsefalse",
    "GPG_KEY_DIR": "/home/me/keys",
    "SECRET_MODE": "default",
    "HOME": "/home/me",
}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("--key canary-0123456789!", "--key <redacted:WANDB_API_KEY>!"),
        ("canary-0123456789-longer", "<redacted:MY_SECRET>"),
        ("http://me:pw12@host:5000/x", "http://<redacted>@host:5000/x"),
        ("https://tok3n@github.com/a/b", "https://<redacted>@github.com/a/b"),
        ("ssh://git@github.com/a/b", "ssh://git@github.com/a/b"),
        ("train.py --hf-token=abc --lr 0.1", "train.py --hf-token=<redacted> --lr 0.1"),
        ("--api_key s3 --epochs 2", "--api_key <redacted> --epochs 2"),
        ("HF_TOKEN=hunter22 python x.py", "HF_TOKEN=<redacted> python x.py"),
        ('{"password": "x y"}', '{"password": "<redacted>"}'),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer <redacted>"),
        ("pushed with hf_" + "a" * 34, "pushed with <redacted>"),
    ],
)
def test_a_secret_is_replaced(text: str, clean: str) -> None:
    assert redact(text, ENVIRON) == clean
    assert is_incomplete(clean) == ("git@" not in clean)


@pytest.mark.parametrize(
    "text",
    [
        "train.py --num-tokens=1024 --max-tokens 512 --tokenizer gpt2 --key-dim 64 --passes 3",
        "compile_mode=default precision=bf16 TOKENIZERS_PARALLELISM=falsefalse /home/me/keys/a abc",
        "torch.utils.data.DataLoader:num_workers train.py:124",
        "loss: 0.25, 12:30:01, https://example.com/a?b=c",
        "",
    ],
)
def test_ordinary_words_are_left_alone(text: str) -> None:
    assert redact(text, ENVIRON) == text


def test_redacting_twice_changes_nothing() -> None:
    text = "--token x HF_TOKEN=hunter22 http://a:b@c/ canary-0123456789"
    assert redact(redact(text, ENVIRON), ENVIRON) == redact(text, ENVIRON)


def test_a_list_of_arguments_loses_the_item_after_a_secret_option() -> None:
    args = ["train.py", "--hf-token", "whatever", "--epochs", "3", "--token", "--flag"]
    assert redact_data(args, {}) == [
        "train.py",
        "--hf-token",
        "<redacted>",
        "--epochs",
        "3",
        "--token",
        "--flag",
    ]


def test_field_names_and_class_names_survive_any_variable() -> None:
    hostile = {"X_SECRET": "outcome", "Y_TOKEN": "Measurement", "Z_KEY": "throughput"}
    data = {"_": "Measurement", "outcome": {"throughput": "the outcome"}}
    assert redact_data(data, hostile) == {
        "_": "Measurement",
        "outcome": {"throughput": "the <redacted:X_SECRET>"},
    }


def test_whoever_has_the_variable_gets_the_text_back() -> None:
    clean = redact("--key=canary-0123456789", ENVIRON)
    assert restore(clean, ENVIRON) == "--key=canary-0123456789"
    assert restore(clean, {}) == clean
    assert is_incomplete(clean)


def test_arguments_lose_the_values_of_secret_options():
    environ = {"HF_TOKEN": "hf_canary_123", "HOME_KEY_DIR": "/some/folder", "A_KEY": "short"}
    args = [
        "--api-key",
        "canary-a",
        "--hf-token=canary-b",
        "--wandb-token",
        "canary-c",
        "url?t=hf_canary_123",
    ]
    assert redact_args(args, environ) == [
        "--api-key", "<redacted>", "--hf-token=<redacted>", "--wandb-token", "<redacted>",
        "url?t=<redacted:HF_TOKEN>",
    ]  # fmt: skip
    assert redact_args(["--max-tokens", "64", "--tokenizer", "bpe"], environ) == [
        "--max-tokens",
        "64",
        "--tokenizer",
        "bpe",
    ]


def test_a_text_says_which_variables_it_lacks() -> None:
    assert missing_names(redact("--key=canary-0123456789 --x=canary-0123456789-longer", ENVIRON)) == [
        "WANDB_API_KEY",
        "MY_SECRET",
    ]


CANARY = "canary"
HARD = ["p@ss!canary$", "a canary b", "-canary", "--p@canary", "it's canary", 'say "canary"', "#canary&"]


@pytest.mark.parametrize("value", HARD)
@pytest.mark.parametrize("option", ["--password", "--db.api-key", "-token"])
def test_no_value_of_a_secret_option_survives_whatever_its_characters(option: str, value: str) -> None:
    for given in ([option, value], [f"{option}={value}"]):
        args = ["train.py", *given, "--lr", "0.1"]
        clean = redact_args(args, {})
        assert CANARY not in " ".join(clean)
        assert clean[-2:] == ["--lr", "0.1"]
        quoted = shlex.join(args)
        assert CANARY not in shlex.join(clean)
        # A list as Python prints it, and a line as a shell has it, as they stand in a log.
        assert CANARY not in redact(f"run {args}", {})
        assert CANARY not in redact(f"run {quoted} | tee", {})
        assert shlex.split(redact(quoted, {}))[-2:] == ["--lr", "0.1"]


def test_the_option_behind_a_secret_switch_stays() -> None:
    args = ["--use-auth-token", "--lr", "0.1", "--token", "-v", "--token", "--out=a b", "--token", "--", "x"]
    assert redact_args(args, {}) == args
    assert redact("usage: train.py [--token] [--lr LR] --token --out=x", {}).count("redacted") == 0


def test_an_assignment_of_a_secret_in_an_argument_is_redacted_whole() -> None:
    args = ["+wandb.api_key=a canary", "HF_TOKEN=cana", "model.layers=3", "tokenizer=canary"]
    assert redact_args(args, {}) == ["+wandb.api_key=<redacted>", "HF_TOKEN=<redacted>", *args[2:]]


def test_json_stays_json() -> None:
    data = {"cmd": "x --token abc", "log": 'ran "--password=a b" and --token "c d" ok', "n": ["--token", "x"]}
    clean = json.loads(redact(json.dumps(data), {}))
    assert clean["cmd"] == "x --token <redacted>"
    assert clean["n"] == ["--token", "<redacted>"]
    assert "c d" not in clean["log"]


def test_secrets_of_a_command_line_are_known_where_they_stand_alone() -> None:
    args = ["--password", "p@ss canary$", "--api-key=canary-2", "--token", "abc", "--lr", "default"]
    known = secret_values(args)
    assert known == ("p@ss canary$", "canary-2")
    text = "Namespace(password='p@ss canary$', key='canary-2', lr='default')"
    assert redact(text, {}, known=known) == "Namespace(password='<redacted>', key='<redacted>', lr='default')"

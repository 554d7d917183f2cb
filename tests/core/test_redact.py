"""Secrets go, everything else stays as it is."""

from __future__ import annotations

import pytest

from autotune.core.redact import is_incomplete, missing_names, redact, redact_args, redact_data, restore

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

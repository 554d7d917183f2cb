"""Secrets stay out of whatever is written; everything else stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.core.trial import Failure, FailureKind
from autotune.errors import UsageError
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.outbox import OutboxRow
from autotune.store.redact import is_incomplete, redact, redact_data, restore, with_secrets

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made

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


def test_a_resumed_search_needs_the_secrets_of_its_arguments_again() -> None:
    spec = made.spec(args=("--key", "<redacted:MY_SECRET>"), tracking_uri="http://<redacted>@h")
    assert with_secrets(spec, ENVIRON).args == ("--key", ENVIRON["MY_SECRET"])
    with pytest.raises(UsageError) as caught:
        with_secrets(spec, {})
    assert caught.value.hint == "Set MY_SECRET as before."
    with pytest.raises(UsageError, match="<redacted>"):
        with_secrets(made.spec(args=("--hf-token=<redacted>",)), ENVIRON)


def test_no_canary_reaches_the_disk(tmp_path: Path) -> None:
    canaries = [v for k, v in ENVIRON.items() if "canary" in v]
    args = tuple(f"--x={c}" for c in canaries)
    failure = Failure(
        kind=FailureKind.CRASH_EXIT, message=canaries[0], evidence={"log_tail": "\n".join(canaries)}
    )
    outcomes = (*made.OUTCOMES[:1], (*made.OUTCOMES[2][:2], failure))
    row = OutboxRow(sink="mlflow", op="x", key="x", payload={"deep": [{"er": canaries[1]}]})
    with Journal.create(tmp_path, ballast_bytes=0, environ=ENVIRON) as journal:
        for event in made.events(outcomes=outcomes, args=args, tracking_uri="http://u:canary@h"):
            journal.append(event.kind, event.uid, event.data, outbox=[*event.outbox, row])
        journal.append("noted", "n", {"text": canaries[2]})
        study = fold(journal.entries())
        files = [f.read_bytes() for f in tmp_path.iterdir() if f.is_file()]
    files += [f.read_bytes() for f in tmp_path.iterdir() if f.is_file()]
    assert len(files) >= 3
    assert b"train-1121-1002" in b"".join(files), "the bytes looked at are the journal's"
    assert [data.count(b"canary") + data.count("ümlaut".encode()) for data in files] == [0] * len(files)
    assert study.spec.args[0] == "--x=<redacted:WANDB_API_KEY>"
    assert [restore(a, ENVIRON) for a in study.spec.args] == list(args)

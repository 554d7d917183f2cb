"""Secrets stay out of the journal, and a resumed search asks for them again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.model.trial import Failure, FailureKind
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.outbox import OutboxRow
from autotune.store.redact import with_secrets
from autotune.text.redact import restore

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


def test_a_resumed_search_finds_the_script_whose_path_holds_a_secret() -> None:
    secret = ENVIRON["MY_SECRET"]
    paths = {"script": "train.py", "source": "cli.py", "cwd": "", "python": "bin/python", "out": "best.yaml"}
    spec = made.spec(**{name: f"/x/<redacted:MY_SECRET>/{end}" for name, end in paths.items()})
    found = with_secrets(spec, ENVIRON)
    assert {name: getattr(found, name) for name in paths} == {n: f"/x/{secret}/{e}" for n, e in paths.items()}
    with pytest.raises(UsageError, match="a path of the command held a secret") as caught:
        with_secrets(spec, {})
    assert caught.value.hint == "Set MY_SECRET as before."

"""Documents and names that somebody hostile wrote are refused soon, and nothing in them is run."""

from __future__ import annotations

import pytest
import yaml
from faultbed import documents
from faultbed.common import added

from autotune.config_files import space_file
from autotune.config_files import yaml as ours

pytestmark = pytest.mark.timeout(1800)

CASES = {case["key"]: case for case in documents.cases()}


@pytest.mark.thorough
def test_every_hostile_document_and_name_is_refused(injected, is_clean) -> None:
    counts = [injected(documents, case) for case in documents.sample()]
    is_clean(added(counts))
    assert len(counts) > 100


def test_with_a_loader_that_knows_tags_a_document_is_run(injected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_file, "load", lambda text, **_: yaml.load(text, yaml.UnsafeLoader))
    count = injected(documents, CASES["space/python object"])
    assert "what it says was run" in count.notes


@pytest.mark.slow  # seconds until the parser gives up
def test_without_bounds_a_deep_document_breaks_the_parser(injected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_checked_events", lambda text, *_: list(ours.yaml.parse(text)))
    count = injected(documents, CASES["space/deep lists"])
    assert "RecursionError" in count.notes[0]


@pytest.mark.slow  # seconds of growing
def test_without_a_bound_on_what_aliases_stand_for_a_document_grows(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "MAX_NODES", 3_000_000)
    monkeypatch.setattr(documents, "LIMIT_S", 0.5)
    monkeypatch.setitem(documents.YAML, "billion laughs", documents.laughs(6))
    assert not injected(documents, CASES["space/billion laughs"]).survived

"""The JSON Schemas are those of the files, and the copies for editors are up to date."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("which", "name"), [("space", "autotune.space/v1"), ("config", "autotune.config/v1")]
)
def test_the_schema_of_a_file_is_the_one_that_is_shipped(cli, which, name):
    code, out, err = cli("schema", which)
    assert (code, err) == (0, "")
    made = json.loads(out)
    assert made["title"] == name
    assert made["properties"]["schema"]
    assert made["additionalProperties"] is False
    kept = ROOT / "docs" / "schemas" / f"{which}.schema.json"
    if os.environ.get("UPDATE_GOLDEN"):
        kept.write_text(out, encoding="utf-8")
    assert kept.read_text(encoding="utf-8") == out


def test_every_key_of_a_preset_is_in_the_schema(cli):
    import yaml

    known = json.loads(cli("schema", "space")[1])["properties"]
    for path in (ROOT / "search_spaces").glob("*.yaml"):
        assert set(yaml.safe_load(path.read_text(encoding="utf-8"))) <= set(known)


def test_another_word_ends_with_2(cli):
    assert cli("schema", "spaces")[0] == 2

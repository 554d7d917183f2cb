"""The JSON Schemas are those of the files, and the copies for editors are up to date."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("which", "name"), [("space", "autotune.space/v1"), ("config", "autotune.config/v1.1")]
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


def faults_of(cli, which, data):
    """What a validator, as editors have one, says of a file."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(cli("schema", which)[1])
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return [error.message for error in kind(schema).iter_errors(data)]


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_editor_accepts_every_preset(cli, path):
    from autotune.config_files.yaml import load

    assert faults_of(cli, "space", load(path.read_text(encoding="utf-8"), source=path.name)) == []


def test_an_editor_accepts_what_the_documentation_shows_and_refuses_what_the_loader_refuses(cli):
    from autotune.config_files.yaml import load

    text = (ROOT / "docs" / "spaces.md").read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    assert faults_of(cli, "space", load(text, source="spaces.md")) == []
    for bad in ("knobs: {precision: []}", "knob: {}", "knobs: {threads: 4}", "start: {precision: bf16}"):
        assert faults_of(cli, "space", load(f"schema: autotune.space/v1\n{bad}", source="bad.yaml")), bad


def test_an_editor_accepts_a_best_yaml(cli):
    from study_fakes import changes_of, good_answer, study

    from autotune.config_files.yaml import load
    from autotune.export.best_config import build_best, render

    text = render(build_best(study(), good_answer(), changes_of))
    assert faults_of(cli, "config", load(text, source="best.yaml")) == []

"""The documentation site: generated pages are current, all pages are in the navigation, links work."""

import json
import posixpath
import re

import cli_reference
import decision_index
import pytest
import site_links
import yaml
from documents import DOCUMENTS, ROOT

from autotune.cli.main import _command
from autotune.config_files.settings import KEYS

DOCS = ROOT / "docs"
PAGES = {"docs/guides/gpu.md": "guides/gpu.md", "docs/knobs.md": "knobs.md", "README.md": "index.md"}


class _Navigation(yaml.SafeLoader):
    """Reads mkdocs.yml without the Python objects that it names for MkDocs."""


_Navigation.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def addresses(entry):
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from addresses(value)
    else:
        for item in entry:
            yield from addresses(item)


def test_the_reference_of_the_commands_is_current():
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert page == cli_reference.reference(), "run `nox -s reference`"


def test_the_index_of_the_decisions_is_current():
    page = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert page == decision_index.index(), "run `nox -s reference`"


def test_every_command_has_a_section_with_its_options():
    page = cli_reference.reference()
    for name, command in _command().commands.items():
        if not command.hidden:
            assert f"## autotune {name}" in page
    search = page.split("## autotune search\n")[1].split("\n## ")[0]
    assert "autotune search [OPTIONS]" in search
    assert "Variable: `AUTOTUNE_MAX_MEMORY`." in search
    assert "| Cluster | |" in search


def test_writing_the_pages_is_what_the_session_does(tmp_path):
    pages = {cli_reference: cli_reference.reference(), decision_index: decision_index.index()}
    for module, made in pages.items():
        module.main([str(tmp_path / "page.md")])
        assert (tmp_path / "page.md").read_text(encoding="utf-8") == made


@pytest.mark.parametrize(
    ("text", "state", "note"),
    [
        ("**Question.** Why?", "accepted", ""),
        ("Status: accepted.", "accepted", ""),
        ("**Status.** Accepted. Replaces\nthe rule of 6.\n\nMore.", "accepted", "Replaces the rule of 6."),
        ("Status: superseded in part by [2](0002.md).", "superseded in part", "By [2](0002.md)."),
    ],
)
def test_a_decision_has_a_state_and_a_note(tmp_path, text, state, note):
    (tmp_path / "0001-a.md").write_text(f"# 1. A | B\n\n{text}\n")
    (found,) = decision_index.decisions(tmp_path)
    assert (found.number, found.title, found.state, found.note) == (1, "A | B", state, note)


@pytest.mark.parametrize("text", ["# 2. Another number\n", "No title\n", "# 1. A\n\nStatus: perhaps.\n"])
def test_a_decision_without_number_or_known_state_is_an_error(tmp_path, text):
    (tmp_path / "0001-a.md").write_text(text)
    with pytest.raises(ValueError, match=r"0001-a\.md"):
        decision_index.decisions(tmp_path)


def test_every_setting_and_every_key_of_a_file_is_documented():
    settings = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if not re.search(rf"^\|.*`{key}`.*\|", settings, re.MULTILINE)] == []
    for page, schema in (("space_file.md", "space"), ("best_yaml.md", "config")):
        text = (DOCS / "reference" / page).read_text(encoding="utf-8")
        fields = json.loads((DOCS / "schemas" / f"{schema}.schema.json").read_text())["properties"]
        assert [key for key in fields if not re.search(rf"^\|.*`{key}`.*\|", text, re.MULTILINE)] == []


def test_every_experiment_is_listed():
    text = (DOCS / "evidence.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\(\.\./experiments/(\w+)/README\.md\)", text))
    assert listed == {page.parent.name for page in (ROOT / "experiments").glob("*/README.md")}


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Navigation)
    listed = list(addresses(config["nav"]))
    pages = [site_links.RENAMED.get(p.name) or posixpath.relpath(p, DOCS) for p in DOCUMENTS]
    assert sorted(listed) == sorted([*pages, "decisions/README.md", "changelog.md"])


@pytest.mark.parametrize(
    ("address", "text", "expected"),
    [
        ("guides/gpu.md", "[k](../knobs.md#tf32)", "[k](../knobs.md#tf32)"),
        ("index.md", "[k](docs/knobs.md)", "[k](knobs.md)"),
        ("guides/gpu.md", "[r](../../README.md)", "[r](../index.md)"),
        (
            "knobs.md",
            "[1.2x [1.1, 1.3]](../tests/test_site.py) and [t](#tf32)",
            "1.2x [1.1, 1.3] and [t](#tf32)",
        ),
        ("knobs.md", "[s](https://example.org/a)", "[s](https://example.org/a)"),
        ("knobs.md", "| `a\\|b<c` |", "| <code>a&#124;b&lt;c</code> |"),
        ("knobs.md", "[n](nowhere.md)", "[n](nowhere.md)"),
        ("index.md", "![Licence](https://example.org/a.svg)", "Licence"),
        ("knobs.md", "```\n[k](../tests/test_site.py)\n```\n", "```\n[k](../tests/test_site.py)\n```\n"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(address, text, expected):
    assert site_links.rewritten(text, address, PAGES, "") == expected


def test_a_link_to_a_file_outside_the_site_goes_to_the_repository_if_it_has_an_address():
    found = site_links.rewritten(
        "[t](../tests/test_site.py)", "knobs.md", PAGES, "https://example.org/autotune/"
    )
    assert found == "[t](https://example.org/autotune/blob/main/tests/test_site.py)"


def test_every_address_of_the_site_leads_back_to_its_source():
    for source, address in PAGES.items():
        assert site_links.source_of(address) == source
    assert site_links.source_of("experiments/gpu/README.md") == "experiments/gpu/README.md"

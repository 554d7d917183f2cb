"""No character that a terminal obeys, or that nobody sees, is left in a text of others."""

import json
import sys
import unicodedata

import pytest

from autotune.text.printable import one_line, visible

CONTROLS = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp") and chr(code) not in "\n\t"
]
NAMED = {
    "ESC": "\x1b",
    "BEL": "\x07",
    "carriage return": "\r",
    "delete": "\x7f",
    "C1 CSI": "\x9b",
    "right-to-left override": "\u202e",
    "right-to-left isolate": "\u2067",
    "zero width space": "\u200b",
    "zero width joiner": "\u200d",
    "byte order mark": "\ufeff",
    "soft hyphen": "\u00ad",
    "line separator": "\u2028",
    "tag": "\U000e0041",
}


def test_every_control_and_format_character_becomes_plain_ascii():
    for character in CONTROLS:
        shown = visible(f"a{character}b")
        assert shown.isascii()
        assert shown.isprintable()


@pytest.mark.parametrize("name", NAMED)
def test_what_is_escaped_reads_back_from_json(name):
    assert NAMED[name] in CONTROLS
    assert json.loads(f'"{visible(NAMED[name])}"') == NAMED[name]


def test_json_stays_json_and_says_the_same():
    data = {"a\u202eb": ["\x1b[31m", "back\\\u202eslash", "line\nbreak", "\U000e0041"]}
    text = visible(json.dumps(data, ensure_ascii=False, indent=2))
    assert json.loads(text) == data
    assert "\u202e" not in text


@pytest.mark.parametrize(
    "text", ["", "plain", "Größe 束 naïve", "a\tb\nc\n", "1\u00a0000 \u202f%", "100 µs ± 2 · …"]
)
def test_text_stays_unchanged(text):
    assert visible(text) == text


def test_one_line_is_one():
    assert one_line("a\nb\tc\x1b[2J\r\n") == "a b c\\u001b[2J\\r "

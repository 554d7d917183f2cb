"""The parts of the documents: blocks, commands, links, headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
SITE = [
    ROOT / "CHANGELOG.md",
    *sorted(DECISIONS.glob("*.md")),
    *sorted(p for p in (ROOT / "experiments").rglob("*.md") if "work" not in p.relative_to(ROOT).parts[:-1]),
]
"""Pages of the site beside `DOCUMENTS`."""
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if DECISIONS not in page.parents),
]
"""Every page for users; decisions are records and keep their words."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r"(?:\.venv/bin/)?autotune")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line of the file on which it begins."""

    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [Block(m.group(1), m.group(2), text[: m.start()].count("\n") + 1) for m in _FENCE.finditer(text)]


def commands(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and words behind `autotune` of each command in a block."""
    for block in blocks(path):
        if block.language in ("", "sh"):
            for number, line in _whole_lines(block):
                for words in _parts(line):
                    if _PROGRAM.fullmatch(words[0]):
                        # Where the output goes, the shell decides.
                        yield number, words[1 : words.index(">") if ">" in words else None]


def _whole_lines(block: Block) -> Iterator[tuple[int, str]]:
    """Number and text of each line; a line that ends with a backslash goes on in the next one."""
    begun, number = "", 0
    for at, line in enumerate(block.text.splitlines(), block.line + 1):
        number = number if begun else at
        if line.endswith("\\"):
            begun += line[:-1]
        else:
            yield number, begun + line
            begun = ""


def inline_commands(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The same for `code` in sentences and tables."""
    text = _FENCE.sub(lambda m: "\n" * m.group().count("\n"), path.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        for code in re.findall(r"`(autotune [^`]+)`", line):
            words = shlex.split(code.replace("...", "").replace("\\|", "|"))
            if words[1:]:
                yield number, words[1:]


def links(path: Path) -> Iterator[tuple[str, str]]:
    """File and anchor of each link that stays in the repository."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


def slugs(path: Path) -> set[str]:
    """Anchors of the headings of a document."""
    heads = re.findall(r"^#+ (.+)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def _parts(line: str) -> Iterator[list[str]]:
    """The commands of a line, without comments and variables before them."""
    if not re.match(r"[\w./-]+( |$)|\w+=", line):
        return
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return  # output with a quotation mark of its own
    part: list[str] = []
    for word in [*words, "&&"]:
        if word == "&&":
            while part and re.match(r"\w+=", part[0]):
                part = part[1:]
            if part:
                yield part
            part = []
        else:
            part.append(word)

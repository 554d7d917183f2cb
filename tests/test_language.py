"""Texts for users and docstrings: line length, sentence length, and words that this project does not use."""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache

import pytest
from documents import DOCUMENTS, ROOT

from autotune.cli.main import _command
from autotune.compare.disturbances import MARKS
from autotune.model.trial import FailureKind

README = ROOT / "README.md"
GOLDEN = ROOT / "tests" / "golden"
"""Texts that people see, compared with those of the program by other tests."""
MOST_CHARACTERS, MOST_LINES, MOST_WORDS, LONGEST_SENTENCE = 120, 130, 900, 25

BANNED = {
    r"told|tells|telling": "reported, logged, shown",
    r"said|says? so": "reported, named",
    r"as it is": "unchanged, the baseline",
    r"whoever|who(?= (?:is|has|was|may) (?:confirmed|overtaken|gained))": "a noun",
    r"looks? at the data|second looks?|looked at \w+ times": "replicates, interim analyses",
    r"tak(?:e|en|es|ing) apart": "ablated, ablation",
    r"wish|wishes|re-?pick(?:s|ed)?": "selection criteria, reselect",
    r"tame|(?<!in )bold|lawful|frugal": "training-preserving, training-changing, eligible, within budget",
    r"re-?deals?|deal(?:s|t) (?:anew|out)": "changes the random streams",
    r"overtake[ns]?|overtook|overtaking": "a challenger replaces a finalist",
    r"chances? of a false (?:win|gain|claim)": "family-wise error rate",
    r"rounds otherwise|were flagged|no_metric|crash_exit|foretold": "differs by rounding, flags, its message",
}
"""Pattern -> what to write instead."""

PERSONIFIED = (
    r"tells?|told|telling|say|says|said|knows?|wants?|wanted|stands?|hears?|asks|asked|looks?|looked|"
    r"who|whom|whoever|nobody|anew|wish(?:es)?|tame|lawful|frugal|lent|reckons?"
)
"""Words that no message, hint, note or label of the program uses; code does not speak, see or want."""

HELP_EXCEPTIONS: set[str] = set()
"""Help texts that still fail, as ``command`` or ``command --option``. To be emptied."""

CODE_LONGEST_SENTENCE = 30

PRIVATE_WORDS = (
    r"told|tells|telling|said|says|saying|hears|heard|knows|knew|promises?|promised|wants?|wanted|asked|asking|"
    r"whoever|nobody|somebody|anybody|everybody|ours|theirs|anew|anyhow|goes on|as it is|as they are|"
    r"stands?(?! for\b)|stood|(?:looks?|looked|looking) (?:at|for)|takes? apart|taken apart|wish|wishes|"
    r"tame|lawful|frugal|overtakes?|overtaken|re-?deals?|zygote|foretold"
)
"""Words of the old private language, and verbs of persons, in docstrings and comments of the package."""

SUMMARY_OPENINGS = (
    r"What|Of|Whether|Who|Whose|Whom|Where|When|How|Why|Which|That|It|Its|They|Their|The|A|An|One|Those|These|This|"
    r"Nothing|Something|None|So|As|In|At|By|For|From|With|Without|Under|Called|Told"
)
"""First words of a function's summary that are not an imperative. Properties may open with a noun phrase."""

OTHER_OPENINGS = r"What|Of|Who|Whose|Whom|Where|How|Why|Which|That|It|Its|They"
"""The same for modules, classes and attributes, whose summary is a noun phrase or a sentence."""

UNCLEAN_PACKAGES: set[str] = set()
"""Folders below ``autotune`` that still fail. To be emptied: a folder may not come back."""

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def prose(markdown):
    """The text without blocks, comments, code and addresses; links and pictures by their text."""
    text = _COMMENT.sub("", _FENCE.sub("", markdown))
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`|https?://\S+", "CODE", text)


def without_tables(text):
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|"))


def paragraphs(text):
    """Paragraphs, items of lists, headings and cells of tables, each in one line."""
    text = _ROW.sub(lambda m: "\n\n" + m[1].replace("|", "\n\n") + "\n\n", text)
    text = re.sub(r"^\s*(?:[-*]|\d+\.|#+) ", "\n\n", text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def long_sentences(text, longest=LONGEST_SENTENCE):
    parts = [item for part in paragraphs(text) for item in _items(part)]
    found = [s for part in parts for s in re.split(r"(?<=[.!?])[\"*)]*\s+", part)]
    return [sentence for sentence in found if len(words(sentence)) > longest]


def _items(paragraph):
    """A list of exit codes is a list, also in a help text."""
    return paragraph.split(";") if paragraph.startswith("Exit codes: ") else [paragraph]


def words(text):
    return re.findall(r"[A-Za-z0-9][\w.,%'/+-]*", text)


def banned(text):
    flat = " ".join(text.split())
    return [
        f"'{match.group()}' (write: {instead})"
        for pattern, instead in BANNED.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", flat, re.IGNORECASE)
    ]


def readme():
    return README.read_text(encoding="utf-8")


def test_lines_of_the_readme_fit_a_page():
    assert [line for line in readme().splitlines() if len(line) > MOST_CHARACTERS] == []


def test_the_readme_is_read_in_one_sitting():
    assert len(readme().splitlines()) <= MOST_LINES
    assert len(words(without_tables(prose(readme())))) <= MOST_WORDS


def test_sentences_of_the_readme_are_short():
    assert long_sentences(prose(readme())) == []


PAGES = [path for path in DOCUMENTS if path.name != "cli.md"]  # made from the help texts, which have a test


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_a_page_uses_the_words_of_the_field(path):
    assert banned(prose(path.read_text(encoding="utf-8"))) == []


def help_texts():
    """Command or option -> its help."""
    stack = [("", _command())]
    while stack:
        path, command = stack.pop()
        if command.hidden:
            continue
        # A block that begins with click's mark is an example or a table.
        parts = re.split(r"\n\s*\n", (command.help or "").strip())
        yield path or "autotune", "\n\n".join(part for part in parts if not part.lstrip(" ").startswith("\b"))
        for parameter in command.params:
            if getattr(parameter, "help", None):
                yield f"{path} {parameter.opts[0]}".strip(), parameter.help
        stack += [(f"{path} {name}".strip(), c) for name, c in getattr(command, "commands", {}).items()]


HELP = dict(help_texts())


def faults(text):
    plain = prose(text)
    marks = ["the mark of a kept paragraph is not escaped: no raw docstring"] if "\\b" in text else []
    return [
        *marks,
        *banned(plain),
        *(f"more than {LONGEST_SENTENCE} words: {s}" for s in long_sentences(plain)),
    ]


@pytest.mark.parametrize("name", sorted(HELP.keys() - HELP_EXCEPTIONS))
def test_a_help_text_is_short_and_plain(name):
    assert faults(HELP[name]) == []


PACKAGE = ROOT / "autotune"
MODULES = sorted(PACKAGE.rglob("*.py"))


def messages(source: str) -> Iterator[str]:
    """Texts of a module with two words or more: no docstrings, and no programs for another interpreter."""
    tree = ast.parse(source)
    skipped = {
        id(node.value)
        for owner in ast.walk(tree)
        if isinstance(body := getattr(owner, "body", None), list)
        for node in body
        if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(value) for value in node.values}
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        if " " in text.strip() and not re.search(r"^\s*(?:import|def) |<text ", text, re.MULTILINE):
            yield " ".join(text.split())


def personified(source: str) -> list[str]:
    found = [(text, re.findall(rf"\b(?:{PERSONIFIED})\b", text)) for text in messages(source)]
    return [f"{', '.join(hits)}: {text}" for text, hits in found if hits]


@pytest.mark.thorough
def test_messages_use_plain_words():
    found = {path.relative_to(PACKAGE): personified(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_personified_messages_are_found():
    source = '''"""A module that tells."""\nX = "it tells"\nraise E(f"{x} knows no {y}", hint="say it")\n'''
    assert sorted(personified(source)) == ["knows: X knows no X", "say: say it", "tells: it tells"]
    assert personified('"""It tells."""\nX = "tells"\ndef f():\n    """Say so."""\n') == []


def test_screens_show_words_and_no_internal_label():
    labels = {kind.label for kind in FailureKind} | set(MARKS)
    labels = {label for label in labels if "_" in label}
    screens = {path.name: path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.txt")}
    assert {"report.txt", "screen_gain.txt", "progress.txt"} <= screens.keys()
    assert [(name, label) for name, text in screens.items() for label in labels if label in text] == []


def test_an_exception_is_a_help_text_that_fails():
    assert {name for name in HELP_EXCEPTIONS if not faults(HELP.get(name, ""))} == set()


def test_faults_are_found():
    assert len(faults("The user is told as it is. " + "word " * 26)) == 3
    assert banned("Entries in bold, and what Ray reports.") == []
    assert long_sentences("One two.\n\n- " + "item " * 20 + "\n- " + "item " * 20) == []
    assert long_sentences("| " + "cell " * 20 + "| " + "cell " * 20 + "|") == []
    assert prose("A [link [1]](x.md), `told` and\n```\ntold\n```\n").split() == [
        "A",
        "link",
        "[1],",
        "CODE",
        "and",
    ]


PACKAGE = ROOT / "autotune"
FOLDERS = sorted({path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")})

_ENTRY = re.compile(r"^ {4}\*{0,2}\w[\w, *]*:(?=\s)", re.MULTILINE)
_SECTION = re.compile(r"^(?:Args|Returns|Raises|Yields):$", re.MULTILINE)
_DIRECTIVE = re.compile(r"(?:noqa|pyright|type|pragma|fmt)\b")


def without_layout(docstring):
    """Prose of a docstring, without code and blocks that click keeps; a section's entry is a paragraph."""
    docstring = re.sub(r"^\\b\n(?:.+\n?)+", "\n", docstring, flags=re.MULTILINE)
    text = re.sub(r"::\n\n(?:[ ]{4}.*\n|\n)+|^\s*(?:>>>|\.\.\. ).*$", "\n", docstring, flags=re.MULTILINE)
    text = _SECTION.sub("\n", _ENTRY.sub("\n\n", text))
    return re.sub(r"``[^`]*``|`[^`]*`|https?://\S+", "CODE", text)


def is_property(node):
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def docstrings(tree):
    """Line, banned openings and text of every docstring, those of attributes included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for number, statement in enumerate(body if isinstance(body, list) else []):
            value = getattr(statement, "value", None)
            if not isinstance(statement, ast.Expr) or not isinstance(getattr(value, "value", None), str):
                continue
            is_function = number == 0 and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            openings = SUMMARY_OPENINGS if is_function and not is_property(node) else OTHER_OPENINGS
            yield statement.lineno, openings, inspect.cleandoc(value.value)


def comments(source):
    """Line and text of every comment; lines that follow each other are one."""
    block, last = [], (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(text):
            continue
        if block and token.start == (last[0] + 1, last[1]):
            block[1] += f" {text}"
        else:
            if block:
                yield tuple(block)
            block = [token.start[0], text]
        last = token.start
    if block:
        yield tuple(block)


def code_faults(source):
    """Faults of the docstrings and comments of a file, each with its line."""
    texts = [(line, openings, text) for line, openings, text in docstrings(ast.parse(source))]
    for line, openings, text in [*texts, *((line, "(?!)", text) for line, text in comments(source))]:
        plain = without_layout(text)
        if found := re.match(rf"(?:{openings})\b", text):
            yield f"{line}: begins with {found.group()!r}: {text.splitlines()[0]}"
        for found in re.finditer(rf"\b(?:{PRIVATE_WORDS})\b", " ".join(plain.split()), re.IGNORECASE):
            yield f"{line}: {found.group()!r}"
        for sentence in long_sentences(plain, CODE_LONGEST_SENTENCE):
            yield f"{line}: more than {CODE_LONGEST_SENTENCE} words: {sentence}"


@cache
def faults_in(folder):
    return [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in sorted((PACKAGE / folder).glob("*.py"))
        for fault in code_faults(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder not in UNCLEAN_PACKAGES])
def test_docstrings_and_comments_are_short_and_plain(folder):
    assert faults_in(folder) == []


PRIVATE_NAMES = re.compile(
    r"_?(?:told|tells|said|says|asked|hears|foretold|foretells)(?:_.*)?|\w+_(?:told|asked|said)"
)


def private_names(source):
    """Line and text of the names that are private words; `ask` and `tell` are Optuna's."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    names = (token for token in tokens if token.type == tokenize.NAME)
    return [f"{token.start[0]}: {token.string}" for token in names if PRIVATE_NAMES.fullmatch(token.string)]


def test_names_are_words_of_the_field():
    found = {path.relative_to(PACKAGE): private_names(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}


def test_private_names_are_found():
    source = "told = x._said\ndef is_asked(told_of): session.tell(told_of)\n"
    assert private_names(source) == ["1: told", "1: _said", "2: is_asked", "2: told_of", "2: told_of"]


def test_an_unclean_package_is_one_that_fails():
    assert {folder for folder in UNCLEAN_PACKAGES if folder not in FOLDERS or not faults_in(folder)} == set()


def test_faults_of_code_are_found():
    long = " ".join(["word"] * 31)
    source = f'''"""What it is."""

LIMIT_S = 1.0
"""Of a trial, {long}."""


class Reader:
    """A reader."""

    @property
    def size(self):
        """Whether it is large."""

    def read(self, path):
        """Whether a file is there.

        Args:
            told: The file, `asked` for.
        """
        # Nobody knows.
        # {long}.
'''
    assert without_layout(f"Sums.\n\n\\b\nautotune {long}\nautotune\n\nMore.").split() == ["Sums.", "More."]
    found = [fault.split(": ")[:2] for fault in code_faults(source)]
    long_one = f"more than {CODE_LONGEST_SENTENCE} words"
    assert found == [
        ["1", "begins with 'What'"],
        ["4", "begins with 'Of'"],
        ["4", long_one],
        ["15", "begins with 'Whether'"],
        ["20", "'Nobody'"],
        ["20", "'knows'"],
        ["20", long_one],
    ]


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def long_lines(markdown):
    """Lines beyond the limit, without tables and blocks."""
    return [
        line for line in without_tables(_FENCE.sub("", markdown)).splitlines() if len(line) > MOST_CHARACTERS
    ]


@pytest.mark.parametrize("path", DECISIONS, ids=[path.stem[:4] for path in DECISIONS])
def test_lines_of_a_decision_fit_a_page_and_its_sections_are_marked(path):
    text = path.read_text(encoding="utf-8")
    assert long_lines(text) == []
    assert re.search(r"^\*\*(?:Question|Decision|Answer)\b|^## ", text, re.MULTILINE)
    assert re.search(r"^(?:\*\*Status\.\*\*|Status:) ", text, re.MULTILINE)


def test_a_long_line_of_a_decision_is_found():
    line = "word " * 25
    assert long_lines(f"{line}\n| {line} |\n```\n{line}\n```\n") == [line]

"""Redaction of secrets in texts and data: the journal, best.yaml, logs and every message.

Secrets are: values of environment variables with a secret-like name; user information in a URL; values of
options or assignments with such a name; and a few unmistakable token formats. A value is replaced by a
placeholder that names its variable. So a resume in an environment with the variable gets the same command
line back (`restore`).

Next to its name a secret is redacted whatever its length. Alone it is recognized by its value. Six characters
or more are redacted everywhere. Three to five are redacted only in free text (script output, messages, logs),
as a separate word, and ordinary words or small numbers in quotes only. One or two characters are never
redacted (docs/decisions/0021).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

MARK = "<redacted>"
_MIN_LENGTH = 6
_SHORTEST = 3
_NAME = re.compile(
    r"TOKEN|KEY|SECRET|PASS|CRED|DSN|JWT|COOKIE|WEBHOOK|CONN(?:ECTION)?_?STR|AUTHORIZATION|(?:^|_)AUTH$|_PWD$",
    re.IGNORECASE,
)
# Variables that look secret by name but say how or where; redacting their values would eat words.
_HOW = re.compile(r"^TOKENIZERS_|^KEYBOARD|^BYPASS", re.IGNORECASE)
_PLACE = re.compile(r"_(DIR|FILE|HOME)$", re.IGNORECASE)
_STRICT_NAME = re.compile(
    r"(?i)(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASS|PASSPHRASE|CREDENTIALS?|DSN)$"
)
# Words that the journal itself is written in. A password of that kind protects nothing anyway, and
# replacing it would make every event unreadable.
_WORDS = frozenset(
    [
        "default",
        "disabled",
        "enabled",
        "reduce-overhead",
        "max-autotune",
        "max-autotune-no-cudagraphs",
        "float32",
        "float16",
        "bfloat16",
        "python",
        "baseline",
        "confirm",
        "refine",
        "finished",
        "running",
        "physical",
        "segment",
        "maximize",
        "minimize",
        "numeric",
        "training",
        "throughput",
        "peak_memory",
        "explore",
        "staged",
        "inline",
        "measurement",
        "failure",
        "unknown",
        "applied",
        "refused",
        "not_reached",
        "signal",
        "interrupted",
        "samples",
        "samples/s",
        "steady",
        "drifting",
        "loader",
        "redacted",
    ]
)
# What logs and messages are written in. A secret of that kind would take a hole out of every line.
_ORDINARY = frozenset(
    re.findall(
        r"\S+",
        "the and for not you all are but was has had its new now one two out off use end run set get "
        "put add max min sum avg mean std dim size step steps loss epoch batch train test valid eval model "
        "data time info warn error debug true false none null nan inf yes cpu cuda gpu rank seed adam adamw "
        "sgd bf16 fp16 fp32 fp64 tf32 fp8 int int8 float bool str list dict file files line lines path name "
        "names type types value key keys user users root home host port log logs with from this that then "
        "when what into done best last first next prev start stop begin total per rate left right save load "
        "read write open close call code exit main init self args torch numpy json yaml http https www com "
        "org net txt csv more less than been have will can could may must only also each both same such most "
        "some any many very well over after under trial pair pairs knob knobs safe lower upper high low mid "
        "via usr lib bin tmp var etc opt dev proc sys src env conda venv pip py3 asis eager xpu mps nccl "
        "gloo auto",
    )
)
_NUMBER = re.compile(r"\d{1,3}|[\d.eE+-]*\.[\d.eE+-]*")
_OWN_KEY = re.compile(r"[a-z_]*")
_USERINFO = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)([^\s/@'\"<>]+)@")
# Kinds of token that models are made of.
_NO_SECRETS = (
    *("pad", "eos", "bos", "unk", "sep", "cls", "mask", "image", "video", "audio", "start", "stop", "end"),
    *("next", "last", "first", "max", "min", "num", "special", "additional", "decoder", "forced", "prefix"),
    "suffix",
)
_TOKEN = "".join(f"(?<!{kind}[-_.])" for kind in _NO_SECRETS) + "token"
_OPTION_NAMES = (
    r"(?:[a-z0-9]+[-_.])*(?:api[-_]?key|access[-_]?key|secret[-_]?key|private[-_]?key|auth[-_]?key|"
    r"password|passwd|passphrase|secret|credentials?|dsn|(?:api|auth|access|hf|hub|github|gitlab|bearer|"
    rf"wandb|session)[-_]?token|{_TOKEN}|"
    r"(?:account|anthropic|comet|encryption|hf|hub|license|neptune|openai|wandb)[-_]?key|"
    r"auth|authorization|bearer|cookies?|jwt|pwd|conn(?:ection)?[-_]?str(?:ing)?|webhook(?:[-_]?url)?)"
)
# These are switches, and what follows them is another option.
_SWITCH = (
    r"(?:use|no|with|without|enable|disable|is|has|skip|print|show|ask|prompt|require|needs?|save|allow)"
)
# Behind a secret option, an option: the secret one is a switch, or lacks its value. A value that
# begins with a dash and has not this form is a value; digits and capitals in it speak for one.
_PLAIN_OPTION = r"(?:(?-i:--[a-z][a-z_.]*(?:-[a-z_.]+)*)|-[A-Za-z]|--)"
_ANY_OPTION = r"(?:--[A-Za-z][\w.]*(?:-[\w.]+)*|-[A-Za-z]|--)"
_VALUED = rf"--?(?!{_SWITCH}[-_]){_OPTION_NAMES}"
_SWITCHED = rf"--?(?={_SWITCH}[-_]){_OPTION_NAMES}"
# In a sentence about an option: "--password is no script".
_PROSE = (
    r"(?:is|was|are|has|had|needs|and|or|not|nor|in|to|for|of|must|may|can|cannot|takes|"
    r"names|means|which|that)"
)
# A word as a shell has it, or as JSON has that. A quote in the middle may be the end of a JSON text.
_WORD = r"'[^'\n]*'(?:\"'\"'[^'\n]*')*|\"(?:[^\"\\\n]|\\.)*\"|\\\"(?:[^\"\\\n]|\\[^\"\n])*\\\"|[^\s'\"]+"


def _two_words(option: str, next_option: str) -> re.Pattern[str]:
    """Option and value as two words of a line, or joined by ``=``."""
    end = r"(?:=\S*)?(?:[\s\])},;:'\"]|$)"
    return re.compile(rf"(?i)(?<![\w-])({option})(=|\s+(?!{next_option}{end}|{_PROSE}\s))({_WORD})")


def _two_items(option: str, next_option: str) -> re.Pattern[str]:
    """Option and value as two items of a list."""
    return re.compile(
        rf"(?i)((['\"]){option}\2,\s*)(?!['\"]{next_option}(?:=[^'\"]*)?['\"])(['\"])(?:\\.|(?!\3)[^\\])+\3"
    )


_OPTION = (_two_words(_VALUED, _PLAIN_OPTION), _two_words(_SWITCHED, _ANY_OPTION))
_OPTION_LISTED = (_two_items(_VALUED, _PLAIN_OPTION), _two_items(_SWITCHED, _ANY_OPTION))
# Option and value in one pair of quotes.
_OPTION_QUOTED = re.compile(
    rf"(?i)(?<![\w'\"\\])(?:(')(--?{_OPTION_NAMES}=)[^'\n]+'(?:\"'\"'[^'\n]*')*|"
    rf"(\")(--?{_OPTION_NAMES}=)(?:[^\"\\\n]|\\.)+\")"
)
_OPTION_ALONE = re.compile(rf"(?i)^--?{_OPTION_NAMES}$")
_SWITCH_ALONE = re.compile(rf"(?i)^--?{_SWITCH}[-_]")
_GIVEN = re.compile(rf"(?is)^((?:--?|[+~]*(?:[\w./@]+\.)?){_OPTION_NAMES}=)(.+)$")
_ASSIGNMENT = re.compile(
    r"\b([A-Z][A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASS|CREDENTIALS?|DSN))=([^\s'\"<>]{6,})"
)
_FIELD = re.compile(rf"(?i)([\"']{_OPTION_NAMES}[\"']\s*:\s*)([\"'])([^\"']+)\2")
_BEARER = re.compile(
    r"(?i)\b(?:(authorization:\s*\w+)\s+(?!<redacted)([^\s'\"<>]+)|(bearer)\s+([A-Za-z0-9._~+/=-]{6,}))"
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16})\b"
)
# As programs print their settings: ``Namespace(password='x')``, ``?api_key=x&``, ``password: x``.
_SETTING = re.compile(
    rf"(?i)(?<![\w.<-])({_OPTION_NAMES}\s?=\s?)"
    r"(?!<redacted)(?:(['\"])((?:\\.|(?!\2)[^\\\n])+)\2|([^\s'\"<>,;&)\]}]+))"
)
_LABELLED = re.compile(
    r"(?i)\b((?:\w+[-_])?(?:password|passwd|passphrase|api[-_]?key|access[-_]?key|secret[-_]?key|"
    r"private[-_]?key|auth[-_]?token)\s?:\s+)(?!<redacted)([^\s'\"<>,;)\]}]+)"
)
_PLACEHOLDER = re.compile(r"<redacted:([A-Za-z_][A-Za-z0-9_]*)>")

_learned: tuple[str, ...] = ()


@contextlib.contextmanager
def learned(args: Sequence[str]) -> Generator[None]:
    """Treat the values of secret options in this command line as secrets anywhere, within this context.

    So an error or a log line that quotes the command, from any thread, is redacted. It applies to the whole
    process, like its environment.
    """
    global _learned  # noqa: PLW0603 (threads of ours and of libraries log, and inherit no context)
    before = _learned
    _learned = tuple(sorted({*before, *secret_values(args)}, key=len, reverse=True))
    try:
        yield
    finally:
        _learned = before


def redact(
    text: str, environ: Mapping[str, str] | None = None, *, known: Sequence[str] = (), free: bool = False
) -> str:
    """Return the text without secrets.

    Args:
        text: Anything that is about to be written.
        environ: Where the secrets are looked up; this process's environment by default.
        known: Further secrets, longest first: what `secret_values` finds on a command line. The text is
            a free one then.
        free: It is what a script printed, a message, a line of a log: something that people read, and no
            value that a program reads again. Short secrets and settings go as well.
    """
    environ = os.environ if environ is None else environ
    values = _pattern(_secrets(environ))
    if values is not None:
        pattern, names = values
        text = pattern.sub(lambda m: f"<redacted:{names[m.group(0)]}>", text)
    alone = {*known, *_learned}
    for value in sorted(alone, key=len, reverse=True):
        if len(value) >= _MIN_LENGTH:
            for spelling in _spellings(value):
                text = text.replace(spelling, MARK)
    free = free or bool(known)
    if free:
        short = _short_pattern(
            frozenset(v for v in (*alone, *_short_secrets(environ)) if len(v) < _MIN_LENGTH)
        )
        if short is not None:
            text = short.sub(_without_short, text)
    # Every pattern below needs one of these; most strings are short and have none.
    if "://" in text:
        text = _USERINFO.sub(_without_userinfo, text)
    if "=" in text:
        text = _ASSIGNMENT.sub(lambda m: f"{m.group(1)}={MARK}", text)
    if "-" in text:
        for listed in _OPTION_LISTED:
            text = listed.sub(rf"\1\3{MARK}\3", text)
        text = _OPTION_QUOTED.sub(_without_quoted, text)
        for option in _OPTION:
            text = option.sub(_without_value, text)
    if ":" in text:
        text = _FIELD.sub(_without_field, text)
    if free and "=" in text:
        text = _SETTING.sub(_without_setting, text)
    if free and ":" in text:
        text = _LABELLED.sub(rf"\1{MARK}", text)
    text = _BEARER.sub(lambda m: f"{m.group(1) or m.group(3)} {MARK}", text)
    return _SHAPES.sub(MARK, text)


def redact_data(data: Any, environ: Mapping[str, str] | None = None) -> Any:
    """JSON-ready data with every string in it redacted; numbers and our own field names are left alone.

    In a list, the item after an option that is called like a secret (``--hf-token``) is redacted too.
    """
    if isinstance(data, str):
        return redact(data, environ)
    if isinstance(data, Mapping):
        # Field names and the class name under "_" must survive any value of any variable.
        return {
            key if _OWN_KEY.fullmatch(key) else redact(key, environ): (
                value if key == "_" else redact_data(value, environ)
            )
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return _redact_sequence(data, environ)
    return data


def redact_args(args: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a command line without secrets, the words after options that are called like one included."""
    return [str(arg) for arg in _redact_sequence(args, environ)]


def secret_values(args: Sequence[str]) -> tuple[str, ...]:
    """Return the values of secret-like options in a command line, longest first.

    A script that prints its arguments, or an error that quotes them, shows these without their option. Values
    that are too short or too common to be distinguished from other text are left out.
    """
    found: set[str] = set()
    secret = ""
    for arg in args:
        given = _GIVEN.match(arg)
        if given is not None:
            found.add(given.group(2))
        elif secret and not _is_option(arg, secret):
            found.add(arg)
        secret = arg if _OPTION_ALONE.match(arg) is not None else ""
        found |= {url.group(2).partition(":")[2] for url in _USERINFO.finditer(arg)}
    usable = (v for v in found if len(v) >= _SHORTEST and v.lower() not in _WORDS and not is_incomplete(v))
    return tuple(sorted(usable, key=lambda v: (-len(v), v)))


def plain_secrets(args: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return secrets to be removed from any text, longest first, in all spellings.

    For programs without these rules; short secrets need them, and are left out.
    """
    values = {*secret_values(args), *(value for _, value in _secrets(environ))}
    found = {word for value in values if len(value) >= _MIN_LENGTH for word in _spellings(value)}
    return tuple(sorted(found, key=lambda word: (-len(word), word)))


def is_secret_name(name: str) -> bool:
    """Return whether an option, a variable or a keyword is called like a secret."""
    is_option = _OPTION_ALONE.match("--" + name.lstrip("-")) is not None
    if re.search(r"(?i)token$", name) is not None:
        return is_option
    return is_option or (name.isupper() and _STRICT_NAME.search(name) is not None and not _HOW.search(name))


def secret_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables whose values are secrets."""
    short = [name for name, value in environ.items() if value in set(_short_secrets({name: value}))]
    return sorted({*short, *(name for name, _ in _secrets(environ))})


def restore(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Placeholders that name a variable, replaced by its value where the environment has it."""
    source = os.environ if environ is None else environ
    return _PLACEHOLDER.sub(lambda m: source.get(m.group(1)) or m.group(0), text)


def is_incomplete(text: str) -> bool:
    """Return whether a secret is missing from the text, so that it cannot be used."""
    return MARK in text or _PLACEHOLDER.search(text) is not None


def missing_names(text: str) -> list[str]:
    """Return the variables that `restore` would need for this text."""
    return _PLACEHOLDER.findall(text)


def _redact_sequence(items: Sequence[Any], environ: Mapping[str, str] | None) -> list[Any]:
    done: list[Any] = []
    secret = ""
    for item in items:
        clean = redact_data(item, environ)
        if isinstance(item, str) and (given := _GIVEN.match(item)):
            # The pattern for texts ends at a space.
            clean = given.group(1) + _hidden(redact(given.group(2), environ))
        elif isinstance(item, str) and secret and not _is_option(item, secret):
            clean = _hidden(str(clean))
        done.append(clean)
        secret = item if isinstance(item, str) and _OPTION_ALONE.match(item) is not None else ""
    return done


def _hidden(value: str) -> str:
    """Return the value of a secret option; it stays where the environment can give it back."""
    return value if _PLACEHOLDER.search(value) else MARK


def _is_option(word: str, before: str) -> bool:
    """Return whether the word behind this secret option is an option and not its value."""
    form = _ANY_OPTION if _SWITCH_ALONE.match(before) else _PLAIN_OPTION
    name = word if word.startswith("--=") else word.partition("=")[0]
    return re.fullmatch(f"(?i){form}", name) is not None


def _secrets(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted(
            (name, value)
            for name, value in environ.items()
            if _NAME.search(name)
            and len(value) >= _MIN_LENGTH
            and value.lower() not in _WORDS
            and not _HOW.search(name)
            and not (_PLACE.search(name) and value.startswith(("/", "~", ".")))
        )
    )


def _short_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Short values of variables that are called like a secret and nothing else."""
    for name, value in environ.items():
        if _SHORTEST <= len(value) < _MIN_LENGTH and _STRICT_NAME.search(name) and not _HOW.search(name):
            yield value


def _spellings(value: str) -> set[str]:
    """Return the text, and its forms in Python and JSON string literals, with escaped quotes."""
    return {value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


@functools.lru_cache(maxsize=8)
def _pattern(secrets: tuple[tuple[str, str], ...]) -> tuple[re.Pattern[str], dict[str, str]] | None:
    if not secrets:
        return None
    names = {spelling: name for name, value in reversed(secrets) for spelling in _spellings(value)}
    # Longest first: a value that begins with another one is replaced whole.
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(re.escape(value) for value in longest_first)), names


@functools.lru_cache(maxsize=8)
def _short_pattern(values: frozenset[str]) -> re.Pattern[str] | None:
    """Finds short secrets: as words of their own, ordinary ones between quotes; and what to pass over."""
    if not values:
        return None
    words = sorted(values, key=lambda v: (-len(v), v))
    usual = "|".join(re.escape(v) for v in words if _is_ordinary(v))
    others = "|".join(re.escape(v) for v in words if not _is_ordinary(v))
    parts = [r"(?P<done><redacted[^>\s]*>)"]
    parts += [rf"(?<!\w)(?:{others})(?!\w)"] if others else []
    parts += [rf"(?P<quote>['\"])(?:{usual})(?P=quote)"] if usual else []
    return re.compile("|".join(parts))


def _is_ordinary(value: str) -> bool:
    return value.lower() in _ORDINARY or value.lower() in _WORDS or _NUMBER.fullmatch(value) is not None


def _without_short(match: re.Match[str]) -> str:
    if match.group("done"):
        return match.group(0)
    quote = match.groupdict().get("quote") or ""
    return f"{quote}{MARK}{quote}"


def _without_userinfo(match: re.Match[str]) -> str:
    if match.group(2) == "git" or is_incomplete(match.group(2)):
        return match.group(0)
    return f"{match.group(1)}{MARK}@"


def _without_field(match: re.Match[str]) -> str:
    if is_incomplete(match.group(3)):
        return match.group(0)
    return f"{match.group(1)}{match.group(2)}{MARK}{match.group(2)}"


def _without_setting(match: re.Match[str]) -> str:
    if is_incomplete(match.group(0)):
        return match.group(0)
    quote = match.group(2) or ""
    return f"{match.group(1)}{quote}{MARK}{quote}"


def _without_quoted(match: re.Match[str]) -> str:
    if is_incomplete(match.group(0)):
        return match.group(0)
    quote, option = match.group(1) or match.group(3), match.group(2) or match.group(4)
    return f"{quote}{option}{MARK}{quote}"


def _without_value(match: re.Match[str]) -> str:
    if is_incomplete(match.group(3)):
        return match.group(0)
    return f"{match.group(1)}{match.group(2)}{MARK}"

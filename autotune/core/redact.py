"""Secrets out of texts and data: the journal, best.yaml and every message go through here.

What counts as a secret: the value of an environment variable whose name looks like one (at least
six characters), user information in a URL, the value of an option or assignment that is called
like a secret, and a few token formats that are unmistakable. A value is replaced by a placeholder
that names its variable, so that whoever resumes a search in an environment that still has the
variable gets the same command line back (`restore`).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

MARK = "<redacted>"
_MIN_LENGTH = 6
_NAME = re.compile(r"TOKEN|KEY|SECRET|PASS|CRED|DSN", re.IGNORECASE)
# Variables that look secret by name but say how or where; redacting their values would eat words.
_HOW = re.compile(r"^TOKENIZERS_|^KEYBOARD|^BYPASS", re.IGNORECASE)
_PLACE = re.compile(r"_(DIR|FILE|HOME)$", re.IGNORECASE)
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
    ]
)
_OWN_KEY = re.compile(r"[a-z_]*")
_USERINFO = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)([^\s/@'\"<>]+)@")
_OPTION_NAMES = (
    r"(?:[a-z0-9]+[-_.])*(?:api[-_]?key|access[-_]?key|secret[-_]?key|private[-_]?key|auth[-_]?key|"
    r"password|passwd|passphrase|secret|credentials?|dsn|(?:api|auth|access|hf|hub|github|gitlab|bearer|"
    r"wandb|session)[-_]?token|token)"
)
# Behind a secret option, an option: the secret one is a switch, or lacks its value. A value that
# begins with a dash and has not this form is a value.
_NEXT_OPTION = r"(?:--[A-Za-z][\w.]*(?:-[\w.]+)*|-[A-Za-z]|--)"
# A word as a shell has it, or as JSON has that. A quote in the middle may be the end of a JSON text.
_WORD = r"'[^'\n]*'(?:\"'\"'[^'\n]*')*|\"(?:[^\"\\\n]|\\.)*\"|\\\"(?:[^\"\\\n]|\\[^\"\n])*\\\"|[^\s'\"]+"
_OPTION = re.compile(
    rf"(?i)(?<![\w-])(--?{_OPTION_NAMES})(=|\s+(?!{_NEXT_OPTION}(?:=\S*)?(?:[\s\])}},;:'\"]|$)))({_WORD})"
)
# Option and value in one pair of quotes, and the two as items of a list.
_OPTION_QUOTED = re.compile(
    rf"(?i)(?<![\w'\"\\])(?:(')(--?{_OPTION_NAMES}=)[^'\n]+'(?:\"'\"'[^'\n]*')*|"
    rf"(\")(--?{_OPTION_NAMES}=)(?:[^\"\\\n]|\\.)+\")"
)
_OPTION_LISTED = re.compile(
    rf"(?i)((['\"])--?{_OPTION_NAMES}\2,\s*)(?!['\"]{_NEXT_OPTION}(?:=[^'\"]*)?['\"])"
    r"(['\"])(?:\\.|(?!\3)[^\\])+\3"
)
_OPTION_ALONE = re.compile(rf"(?i)^--?{_OPTION_NAMES}$")
_GIVEN = re.compile(rf"(?is)^((?:--?|[+~]*(?:[\w./@]+\.)?){_OPTION_NAMES}=)(.+)$")
_ASSIGNMENT = re.compile(
    r"\b([A-Z][A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASS|CREDENTIALS?|DSN))=([^\s'\"<>]{6,})"
)
_FIELD = re.compile(rf"(?i)([\"']{_OPTION_NAMES}[\"']\s*:\s*)([\"'])([^\"']+)\2")
_BEARER = re.compile(r"(?i)\b(authorization:\s*\w+|bearer)\s+([A-Za-z0-9._~+/=-]{6,})")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16})\b"
)
_PLACEHOLDER = re.compile(r"<redacted:([A-Za-z_][A-Za-z0-9_]*)>")


def redact(text: str, environ: Mapping[str, str] | None = None, *, known: Sequence[str] = ()) -> str:
    """The text without secrets.

    Args:
        text: Anything that is about to be written.
        environ: Where the secrets are looked up; this process's environment by default.
        known: Further secrets, longest first: what `secret_values` finds on a command line.
    """
    values = _pattern(_secrets(os.environ if environ is None else environ))
    if values is not None:
        pattern, names = values
        text = pattern.sub(lambda m: f"<redacted:{names[m.group(0)]}>", text)
    for value in known:
        text = text.replace(value, MARK)
    # Every pattern below needs one of these; most strings are short and have none.
    if "://" in text:
        text = _USERINFO.sub(_without_userinfo, text)
    if "=" in text:
        text = _ASSIGNMENT.sub(lambda m: f"{m.group(1)}={MARK}", text)
    if "-" in text:
        text = _OPTION_LISTED.sub(rf"\1\3{MARK}\3", text)
        text = _OPTION_QUOTED.sub(_without_quoted, text)
        text = _OPTION.sub(_without_value, text)
    if ":" in text:
        text = _FIELD.sub(rf"\1\2{MARK}\2", text)
    text = _BEARER.sub(lambda m: f"{m.group(1)} {MARK}", text)
    return _SHAPES.sub(MARK, text)


def redact_data(data: Any, environ: Mapping[str, str] | None = None) -> Any:
    """JSON-ready data with every string in it redacted; numbers and our own field names are left alone.

    In a list, the item after an option that is called like a secret (``--hf-token``) is redacted too.
    """
    if isinstance(data, str):
        return redact(data, environ)
    if isinstance(data, Mapping):
        # Field names and the class name under "_" are ours and must survive any value of any variable.
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
    """A command line without secrets, the words after options that are called like one included."""
    return [str(arg) for arg in _redact_sequence(args, environ)]


def secret_values(args: Sequence[str]) -> tuple[str, ...]:
    """What a command line gives to options that are called like a secret, longest first.

    A script that prints its arguments, or an error that quotes them, shows these without their option.
    Values that are too short or too common to be told from other text are left out.
    """
    found: set[str] = set()
    follows = False
    for arg in args:
        given = _GIVEN.match(arg)
        if given is not None:
            found.add(given.group(2))
        elif follows and not _is_option(arg):
            found.add(arg)
        follows = _OPTION_ALONE.match(arg) is not None
    usable = (v for v in found if len(v) >= _MIN_LENGTH and v.lower() not in _WORDS and not is_incomplete(v))
    return tuple(sorted(usable, key=len, reverse=True))


def restore(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Placeholders that name a variable, replaced by its value where the environment has it."""
    source = os.environ if environ is None else environ
    return _PLACEHOLDER.sub(lambda m: source.get(m.group(1)) or m.group(0), text)


def is_incomplete(text: str) -> bool:
    """Whether a secret is missing from the text, so that it cannot be used as it is."""
    return MARK in text or _PLACEHOLDER.search(text) is not None


def missing_names(text: str) -> list[str]:
    """The variables that `restore` would need for this text."""
    return _PLACEHOLDER.findall(text)


def _redact_sequence(items: Sequence[Any], environ: Mapping[str, str] | None) -> list[Any]:
    done: list[Any] = []
    follows = False
    for item in items:
        clean = redact_data(item, environ)
        if isinstance(item, str) and (given := _GIVEN.match(item)):
            # The pattern for texts ends at a space.
            clean = given.group(1) + _hidden(redact(given.group(2), environ))
        elif isinstance(item, str) and follows and not _is_option(item):
            clean = _hidden(str(clean))
        done.append(clean)
        follows = isinstance(item, str) and _OPTION_ALONE.match(item) is not None
    return done


def _hidden(value: str) -> str:
    """The value of a secret option; it stays where the environment can give it back."""
    return value if _PLACEHOLDER.search(value) else MARK


def _is_option(word: str) -> bool:
    return re.fullmatch(_NEXT_OPTION, word.partition("=")[0]) is not None


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


@functools.lru_cache(maxsize=8)
def _pattern(secrets: tuple[tuple[str, str], ...]) -> tuple[re.Pattern[str], dict[str, str]] | None:
    if not secrets:
        return None
    names = {value: name for name, value in reversed(secrets)}
    # Longest first: a value that begins with another one is replaced whole.
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(re.escape(value) for value in longest_first)), names


def _without_userinfo(match: re.Match[str]) -> str:
    if match.group(2) == "git" or is_incomplete(match.group(2)):
        return match.group(0)
    return f"{match.group(1)}{MARK}@"


def _without_quoted(match: re.Match[str]) -> str:
    if is_incomplete(match.group(0)):
        return match.group(0)
    quote, option = match.group(1) or match.group(3), match.group(2) or match.group(4)
    return f"{quote}{option}{MARK}{quote}"


def _without_value(match: re.Match[str]) -> str:
    if is_incomplete(match.group(3)):
        return match.group(0)
    return f"{match.group(1)}{match.group(2)}{MARK}"

"""Documents that somebody hostile wrote: each is refused by a sentence, soon, and nothing of it is run."""

import itertools
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.config_files.presets import locate, problems
from autotune.errors import AutotuneError
from autotune.export.read import read_best
from autotune.store import paths
from faultbed.common import Case, Count

NAME = "documents"
TITLE = "hostile documents and names"
LIMIT_S = 5.0
"""Of this process's own time: a busy machine is no fault of a document's."""
MEMORY_BYTES = 256 << 20


def laughs(levels: int) -> str:
    """Nine times the line before it, so many times over."""
    first = 'a: &a ["x","x","x","x","x","x","x","x","x"]\n'
    names = "abcdefghij"[: levels + 1]
    return first + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in itertools.pairwise(names))


_TOUCH = "touch {folder}/was_here"
YAML = {
    "billion laughs": laughs(8),
    "quadratic": "a: &a " + "x" * 50_000 + "\nb: [" + ",".join(["*a"] * 99) + "]",
    "merged laughs": "a: &a {x: 1}\nb: &b {<<: [*a, *a, *a, *a]}\nc: {<<: [*b, *b, *b, *b]}\nd: [*c, *c]",
    "recursive": "a: &a [*a]",
    "recursive mapping": "a: &a {b: *a}",
    "many aliases": "a: &x 1\nb: [" + ", ".join(["*x"] * 101) + "]",
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep mappings": "{a: " * 3000 + "}" * 3000,
    "deep indentation": "".join(" " * i + "a:\n" for i in range(300)) + " " * 300 + "1",
    "deep block lists": "- " * 2000 + "1",
    "python object": f"a: !!python/object/apply:os.system ['{_TOUCH}']",
    "python new": f"a: !!python/object/new:os.system ['{_TOUCH}']",
    "python name": "a: !!python/name:os.system",
    "python module": "a: !!python/module:os",
    "own tag": "a: !evil 1",
    "verbatim tag": "a: !<tag:yaml.org,2002:python/object/apply:os.system> ['id']",
    "tag directive": "%TAG ! tag:yaml.org,2002:python/\n---\na: !name:os.system",
    "binary": "a: !!binary R0lGODlhDAAMAIQAAP==",
    "set": "a: !!set {b, c}",
    "string tag": "a: !!str 1",
    "huge": "x" * (2 << 20),
    "many lines": "\n" * 200_000,
    "many values": "[" + "1," * 60_000 + "1]",
    "long key": "? " + "k" * 2000 + "\n: 1",
    "duplicate keys": "knobs: {}\nknobs: {}",
    "list as key": "[a, b]: 1",
    "two documents": "a: 1\n---\nb: 2",
    "unclosed": "a: [1, 2",
    "unknown alias": "a: *nowhere",
    "nul": "a: \0",
    "escapes": 'a: "\\x41\\ud800"',
    "not utf-8": b"a: \xff\xfe",
    "utf-16": "a: 1".encode("utf-16"),
    "big number": "a: " + "9" * 100_000,
    "tabs": "a:\n\t- 1",
    "empty": "",
    "scalar": "just words",
    "endless quote": 'a: "' + "b\\\n" * 15_000,
    "control characters": "a: \x1b[31mred\x07",
    "parent of itself": "extends: {name}",
    "parent outside": "extends: ../../../../../etc/passwd",
    "parent by address": "extends: http://127.0.0.1:1/x.yaml",
}
"""What a person might hand on as a search space, or as a best.yaml."""

NAMES = (
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/etc/passwd",
    "a/../../b",
    "a\0b",
    "#/../../x",
    "http:///#/../x",
    "-rf",
    "--help",
    "a b",
    "a\nb",
    "$(id)",
    "`id`",
    "a;id",
    "'",
    '"',
    "\u202egnp.exe",
    "x" * 300,
    "",
    ".",
    "..",
)
"""What a person might give as an id of a study, or as its label."""


def cases() -> list[Case]:
    """Everything, read in every place where it can be read."""
    return [
        *({"key": f"{how}/{name}", "how": how, "name": name} for how in ("space", "best") for name in YAML),
        *({"key": f"id/{n}", "how": "id", "name": str(n)} for n in range(len(NAMES))),
    ]


def sample() -> list[Case]:
    """All of it: it takes a second."""
    return cases()


def run(case: Case, folder: Path) -> Count:
    """One document, or one name."""
    folder.mkdir(parents=True, exist_ok=True)
    count = Count(injected=1)
    how, name = str(case["how"]), str(case["name"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begun = time.process_time()
    if how == "id":
        problem = _name(NAMES[int(name)])
    else:
        path = folder / "hostile.yaml"
        content = YAML[name]
        if isinstance(content, str):
            content = content.replace("{folder}", str(folder)).replace("{name}", path.name)
            path.write_text(content, encoding="utf-8", errors="surrogatepass")
        else:
            path.write_bytes(content)
        problem = _refused(lambda: _as_space(path) if how == "space" else read_best(path))
    count.seconds = time.process_time() - begun
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if problem:
        count.notes.append(problem)
    if count.seconds > LIMIT_S:
        count.notes.append(f"it took {count.seconds:.1f} s")
    if grown > MEMORY_BYTES:
        count.notes.append(f"it took {grown >> 20} MiB")
    if (folder / "was_here").exists():
        count.notes.append("what it says was run")
    count.survived = int(not count.notes)
    return count


def _as_space(path: Path) -> str:
    """What would be taken; raises the first of what is wrong."""
    for problem in problems(str(path), cwd=str(path.parent)):
        raise problem
    return "a space"


def _refused(act: Callable[[], Any]) -> str:
    """Empty where it was refused by one of our own errors."""
    try:
        found = act()
    except AutotuneError as error:
        return "" if error.message else "it was refused without a word"
    except Exception as error:  # noqa: BLE001 (an error here is the fault under test)
        return f"{type(error).__name__}: {error}"[:200]
    return f"it was taken as {str(found)[:100]}"


def _name(name: str) -> str:
    """Empty where it can become no path."""
    if paths.is_study_id(name):
        return "it was taken for an id"
    home = str(paths.home())
    try:
        found = str(paths.study_dir(name))
    except AutotuneError:
        found = ""
    if found:
        return f"it became {found}, home is {home}"
    if paths.is_label(name) and ("/" in name or name in ("", "..") or "\0" in name):
        return "it may be a label"
    try:
        locate(name, cwd="/nowhere")
    except AutotuneError:
        return ""
    except Exception as error:  # noqa: BLE001 (an error here is the fault under test)
        return f"as a space: {type(error).__name__}: {error}"
    return ""

"""MkDocs hooks: pages from outside `docs/`, and links that work both in the repository and in the site.

The sources link to each other as files of the repository. In the site a link to another page is relative to
the page. A link to a file that is not part of the site goes to `repo_url`, or becomes plain text without one.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
RENAMED: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages at the root of the repository, by their address in the site."""
_CODE_WITH_BAR: Final = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root and those of the experiments, where `experiments/*/work` is left out."""
    from mkdocs.structure.files import File

    found = [Path(name) for name in RENAMED]
    found += [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "experiments").rglob("*.md"))
        if "work" not in path.relative_to(ROOT).parts[:-1]
    ]
    for path in found:
        address = RENAMED.get(path.as_posix(), path.as_posix())
        files.append(File.generated(config, address, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page."""
    pages = {source_of(file.src_uri): file.src_uri for file in files}
    return rewritten(markdown, page.file.src_uri, pages, config.repo_url or "")


def source_of(address: str) -> str:
    """Return the path in the repository of a file of the site."""
    renamed = {new: old for old, new in RENAMED.items()}
    if address in renamed:
        return renamed[address]
    return address if address.startswith("experiments/") else f"docs/{address}"


def rewritten(markdown: str, address: str, pages: dict[str, str], repo_url: str) -> str:
    """Return the text of a page with the links of the site.

    Args:
        markdown: The source.
        address: Of the page in the site, ``guides/gpu.md``.
        pages: Path in the repository -> address in the site, of every file of the site.
        repo_url: Address of the repository; empty without one.
    """

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            # A picture from elsewhere, such as a badge, would be a request of every reader: its text remains.
            return text if image else match.group()
        path, hash_, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(address)), path))
        new = pages.get(found) or pages.get(f"{found}/README.md")
        if new is not None:
            near = posixpath.relpath(new, posixpath.dirname(address) or ".")
            return f"{image}[{text}]({near}{hash_}{anchor})"
        if not (ROOT / found).exists():
            return match.group()  # MkDocs reports the broken link
        return f"[{text}]({repo_url.rstrip('/')}/blob/main/{found})" if repo_url else text

    parts: list[Any] = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _code(_LINK.sub(link, part)) for part in parts)


def _code(text: str) -> str:
    """Write code with an escaped bar as HTML: in a table, Python-Markdown would show the backslash."""

    def element(match: re.Match[str]) -> str:
        shown = html.escape(match[1].replace("\\|", "|")).replace("|", "&#124;")
        return f"<code>{shown}</code>"

    return _CODE_WITH_BAR.sub(element, text)

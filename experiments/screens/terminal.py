"""Pictures of a real terminal: a command typed into tmux, what stands on the screen then, drawn as SVG."""

import html
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

COLUMNS = 110
CELL, LINE, EDGE = 8.4, 19, 14
"""Pixels: a character's width at 14 pixels, a line's height, the margin."""
BACK, INK, SOFT, GOOD, BAD = "#0d1117", "#e6edf3", "#9aa4af", "#4ac26b", "#ff7b72"
"""Each colour has a contrast of at least 4.5 to the ground (WCAG 2.2, 1.4.3)."""
_COLOURS = {"2": SOFT, "31": BAD, "32": GOOD}
_STYLE = re.compile(r"\x1b\[([0-9;]*)m")


class Terminal:
    """A tmux server of its own with one window; use it as a context.

    Args:
        folder: In which commands are typed.
        environment: Of the shell.
        rows: Height of the window.
    """

    def __init__(self, folder, environment, *, columns=COLUMNS, rows=60):
        self._sockets = tempfile.mkdtemp(prefix="screens-")
        self._tmux = ["tmux", "-S", f"{self._sockets}/socket", "-f", "/dev/null"]
        shell = "env PS1='$ ' PROMPT_COMMAND= bash --norc --noprofile"
        size = ["-x", str(columns), "-y", str(rows)]
        self._environment = {**os.environ, **environment, "TERM": "screen-256color", "LC_ALL": "C.UTF-8"}
        self._environment.pop("TMUX", None)
        self._call("new-session", "-d", "-s", "screen", "-c", str(folder), *size, shell)
        self._call("set-option", "-g", "status", "off")

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._call("kill-server")
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _call(self, *words):
        done = subprocess.run(
            [*self._tmux, *words], env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def define(self, name, command):
        """Let a word that is typed run a command; the definition is not on the screen."""
        self._type(f"{name}() {{ {command}; }}; clear")
        self._wait(lambda lines: lines[:1] == ["$"], 20.0)

    def run(self, command, *, until="", timeout_s=120.0):
        """Type a command; return the screen, with styles, when it has ended or shows a text.

        Raises:
            AssertionError: Neither happened in time; with the screen.
        """
        self._type(command)
        if until:
            return self._wait(lambda lines: any(until in line for line in lines), timeout_s)
        return self._wait(lambda lines: len(lines) > 1 and lines[-1] == "$", timeout_s)[:-1]

    def interrupt(self):
        """Press Ctrl-C and clear the screen."""
        self._call("send-keys", "C-c", "")
        time.sleep(1.0)
        self._type("clear")
        time.sleep(0.5)

    def _type(self, text):
        self._call("send-keys", "-l", text)
        self._call("send-keys", "Enter")

    def _wait(self, is_there, timeout_s):
        until, before = time.monotonic() + timeout_s, None
        while time.monotonic() < until:
            time.sleep(0.3)
            styled = self._call("capture-pane", "-e", "-p", "-J").rstrip("\n").split("\n")
            plain = [_STYLE.sub("", line).rstrip() for line in styled]
            while plain and not plain[-1]:
                plain.pop()
            if plain == before and is_there(plain):
                return styled[: len(plain)]
            before = plain
        raise AssertionError("the screen shows:\n" + "\n".join(before or []))


def plain(lines):
    """The text of a screen."""
    return "\n".join(_STYLE.sub("", line).rstrip() for line in lines) + "\n"


def hidden(lines, prefix):
    """The screen without a folder's name."""
    return [line.replace(prefix, "") for line in lines] if prefix else lines


def svg(lines, title, *, columns=COLUMNS):
    """A screen as a picture; each line has the width of its cells in any font."""
    shown = _pieces(list(_folded(lines, columns)))
    rows = [_row(pieces, EDGE + LINE * (i + 1) - 5) for i, pieces in enumerate(shown)]
    width, height = 2 * EDGE + CELL * columns, 2 * EDGE + LINE * len(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" font-size="14" '
        'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace">'
        f"<title>{html.escape(title)}</title>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def _folded(lines, columns):
    """Lines that a terminal breaks, broken; none of ours has a style where it is broken."""
    for line in lines:
        text = _STYLE.sub("", line)
        if len(text) <= columns:
            yield line
        else:
            yield from (text[i : i + columns] for i in range(0, len(text), columns))


def _pieces(lines):
    """For each line its texts, each with colour and weight; tmux lets a style go on in the next line."""
    colour, weight = INK, ""
    for line in lines:
        pieces, at = [], 0
        for match in [*_STYLE.finditer(line), None]:
            if text := line[at : match.start() if match else len(line)]:
                pieces.append((text, colour, weight))
            if match is None:
                break
            at = match.end()
            for code in match.group(1).split(";"):
                if code in ("", "0", "22", "39"):
                    colour, weight = INK, ""
                elif code == "1":
                    weight = "bold"
                elif code in _COLOURS:
                    colour = _COLOURS[code]
        yield pieces


def _row(pieces, y):
    shown, x = [], 0
    for text, colour, weight in pieces:
        # Several spaces would be drawn as one.
        for match in re.finditer(r"\S+(?: \S+)*", text):
            bold = f' font-weight="{weight}"' if weight else ""
            shown.append(
                f'<text x="{EDGE + CELL * (x + match.start()):.1f}" y="{y}" fill="{colour}"{bold} '
                f'textLength="{CELL * len(match.group()):.1f}" lengthAdjust="spacingAndGlyphs">'
                f"{html.escape(match.group(), quote=False)}</text>"
            )
        x += len(text)
    return "".join(shown)


def command(words):
    """Words as they are typed."""
    return " ".join(shlex.quote(str(word)) for word in words)


def found():
    """Whether there is a tmux on this machine."""
    return shutil.which("tmux") is not None


def write_block(page, name, text):
    """Replace the text between ``<!-- screen: NAME -->`` and ``<!-- end of screen -->`` of a page."""
    path = Path(page)
    old = path.read_text(encoding="utf-8")
    pattern = rf"(<!-- screen: {re.escape(name)} -->\n```\n).*?(```\n<!-- end of screen -->)"
    new, count = re.subn(pattern, lambda m: m[1] + text + m[2], old, flags=re.DOTALL)
    if new != old:
        path.write_text(new, encoding="utf-8")
    return count

"""So much of a terminal as our view needs: what stands on the screen after some output."""

from __future__ import annotations

import re

TOKEN = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])|\x1b.|[\s\S]")


class Terminal:
    """A screen of characters; unknown control sequences are kept in `unknown`.

    Args:
        columns, rows: Its size.
        reflows: On another width, lines that were broken or would be are laid out anew, as most
            terminals do; else they are cut off.
    """

    def __init__(self, columns: int, rows: int, *, reflows: bool = True) -> None:
        self.columns, self.rows, self.reflows = columns, rows, reflows
        self.cells: list[str] = [""]
        self.row = self.column = 0
        self.unknown: list[str] = []
        self.modes: list[str] = []
        self.colours = 0

    def feed(self, text: str) -> None:
        """Take some output."""
        for token in TOKEN.finditer(text):
            private, number, letter = token.groups()
            if letter is None:
                self._put(token.group())
            elif private:
                self.modes.append(token.group())
            elif letter == "m":
                self.colours += 1
            elif letter == "A":
                self.row = max(self._top(), self.row - int(number or 1))
            elif letter == "K":
                self.cells[self.row] = self.cells[self.row][: self.column]
            elif letter == "J":
                self.cells[self.row] = self.cells[self.row][: self.column]
                del self.cells[self.row + 1 :]
            else:
                self.unknown.append(token.group())

    def resize(self, columns: int, rows: int) -> None:
        """As when a person drags the corner of the window."""
        before, self.columns, self.rows = self.cells, columns, rows
        self.cells = []
        for number, line in enumerate(before):
            if number == self.row:
                self.row = len(self.cells)
            pieces = [line[i : i + columns] for i in range(0, len(line), columns)] or [""]
            self.cells += pieces if self.reflows else pieces[:1]
        self.column = min(self.column, columns - 1)

    def lines(self) -> list[str]:
        """Everything that stands there, what was scrolled away included."""
        kept = [line.rstrip() for line in self.cells]
        while kept and not kept[-1]:
            kept.pop()
        return kept

    def visible(self) -> list[str]:
        """What a person sees: the last rows, without what was scrolled away."""
        kept = [line.rstrip() for line in self.cells[self._top() :]]
        while kept and not kept[-1]:
            kept.pop()
        return kept

    def _top(self) -> int:
        return max(0, len(self.cells) - self.rows)

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row += 1
            while self.row >= len(self.cells):
                self.cells.append("")
        elif char.isprintable():
            if self.column >= self.columns:
                self.column = 0
                self._put("\n")
            line = self.cells[self.row].ljust(self.column)
            self.cells[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1
        else:
            self.unknown.append(char)

"""What the simulated proofs share: bounds on a share, results that can be gone on with, a chart.

Standard library and autotune's own values only.
"""

import argparse
import ast
import concurrent.futures
import datetime
import fcntl
import hashlib
import json
import math
import os
import platform
import sys
import time
from pathlib import Path

import autotune
from autotune.config_files.duration import duration_s

PACKAGE = Path(autotune.__file__).parent
CONFIDENCE = 0.95


def upper_bound(hits, n, confidence=CONFIDENCE):
    """One-sided upper bound on a share (Clopper and Pearson, 1934)."""
    return 1.0 if hits >= n else _solved(lambda p: _at_most(hits, n, p) - (1.0 - confidence))


def lower_bound(hits, n, confidence=CONFIDENCE):
    """One-sided lower bound on a share."""
    return 1.0 - upper_bound(n - hits, n, confidence)


def interval(hits, n, confidence=CONFIDENCE):
    """Two-sided interval of a share."""
    half = 0.5 + confidence / 2.0
    return lower_bound(hits, n, half), upper_bound(hits, n, half)


def _at_most(k, n, p):
    """P(X <= k) of a binomial variable, 0 < p < 1, by the shorter tail."""
    if k > n - 1 - k:
        return 1.0 - _at_most(n - 1 - k, n, 1.0 - p) if k < n else 1.0
    whole = math.lgamma(n + 1)
    return math.fsum(
        math.exp(
            whole - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        )
        for i in range(k + 1)
    )


def _solved(falling):
    low, high = 1e-12, 1.0 - 1e-12
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if falling(middle) > 0.0 else (low, middle)
    return high


def sources_sha256(*parts):
    """Of the code whose change makes earlier figures those of another program; words in it do not count."""
    found = hashlib.sha256()
    for part in parts:
        for path in sorted(part.rglob("*.py")) if part.is_dir() else [part]:
            found.update(path.name.encode() + b"\0" + _code(path).encode())
    return found.hexdigest()


def _code(path):
    """Without comments and docstrings, in one layout."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            body[:1] = [] if len(body) > 1 else [ast.Pass()]
    return ast.unparse(tree)


def machine():
    """In words, without names of machines or people."""
    model = platform.machine()
    flags = ""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        flags = next((line for line in lines if line.startswith("flags")), "")
    except (OSError, StopIteration):
        pass
    amx = " with AMX" if "amx_tile" in flags else ""
    return f"{len(os.sched_getaffinity(0))}-core CPU machine, {model}{amx}"


class Ledger:
    """Lines of JSON: what the figures are of, then one line per piece of work that is done.

    A torn last line is cut off and done again. Results of other sources or settings are not mixed in:
    `--new` begins again; `reads` shows them all the same.
    """

    def __init__(self, path, identity, *, new=False, reads=False):
        self.path, self.identity = path, identity
        self.header = {
            "identity": identity,
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "python": platform.python_version(),
        }
        self.lines = {}
        self._lock = None
        if not reads:
            # Two writers would cut off each other's lines.
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.parent, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self.close()
                raise SystemExit(f"{path.name} is being written by another process") from None
        data = b"" if new or not path.exists() else path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        lines = [json.loads(line) for line in whole.decode().splitlines()]
        if lines:
            self.header = lines[0]
            if self.header["identity"] != identity:
                why = f"{path.name} holds figures of other sources or settings"
                if not reads:
                    self.close()
                    raise SystemExit(f"{why}; --new begins again")
                print(f"{why} than those that are here now")
        for line in lines[1:]:
            self.lines[line["case"], line["part"]] = line
        self._whole = len(whole)

    def close(self):
        """Let others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def add(self, line):
        """Append one piece and have it on disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self._whole
        with self.path.open("r+b" if not fresh else "wb") as file:
            file.truncate(self._whole)
            file.seek(0, os.SEEK_END)
            if fresh:
                file.write(json.dumps(self.header).encode() + b"\n")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._whole = file.tell()
        self.lines[line["case"], line["part"]] = line

    def totals(self):
        """Case -> sums over its pieces; figures that are lists are joined."""
        found = {}
        for (case, _), line in sorted(self.lines.items(), key=lambda item: (item[0][0], item[0][1])):
            sums = found.setdefault(case, {})
            for key, value in line.items():
                if key in ("case", "part"):
                    continue
                sums[key] = sums[key] + value if key in sums else value
        return found


def options(doc, **more):
    """The options that every proof has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--limit", default="", metavar="20m", help="end cleanly before this much time is over")
    made.add_argument("--jobs", type=int, default=1, help="processes at once")
    made.add_argument("--list", action="store_true", help="what is done and what it says; runs nothing")
    made.add_argument("--new", action="store_true", help="begin again")
    made.add_argument("--only", default="", help="cases whose name holds this word")
    made.add_argument("--out", type=Path, help="result file")
    for name, value in more.items():
        made.add_argument(f"--{name}", type=type(value), default=value)
    return made


def carry_out(ledger, units, work, *, jobs, limit):
    """Do what is not done yet, `work(case, part)` -> figures; stops in time and can be run again.

    Returns:
        Whether all is done.
    """
    ends_s = time.monotonic() + (duration_s(limit) if limit else math.inf)
    left = [unit for unit in units if unit not in ledger.lines]
    slowest_s = 0.0
    if jobs <= 1:
        for unit in left:
            began_s = time.monotonic()
            if began_s + 1.2 * slowest_s > ends_s:
                break
            ledger.add({"case": unit[0], "part": unit[1], **work(*unit)})
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            _say(ledger, units)
    else:
        with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
            waiting, queue = {}, iter(left)
            while True:
                while len(waiting) < jobs and time.monotonic() + 1.2 * slowest_s < ends_s:
                    unit = next(queue, None)
                    if unit is None:
                        break
                    waiting[pool.submit(work, *unit)] = unit, time.monotonic()
                if not waiting:
                    break
                done, _ = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
                for future in done:
                    unit, began_s = waiting.pop(future)
                    ledger.add({"case": unit[0], "part": unit[1], **future.result()})
                    slowest_s = max(slowest_s, time.monotonic() - began_s)
                    _say(ledger, units)
    return all(unit in ledger.lines for unit in units)


def _say(ledger, units):
    done = sum(unit in ledger.lines for unit in units)
    print(f"{done}/{len(units)}", file=sys.stderr, flush=True)


# A chart without a library for charts ------------------------------------------------------------

_COLOURS = ("#0b6e4f", "#1f77b4", "#d62728", "#ff7f0e", "#7f7f7f", "#9467bd")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 60, 46, 230, 52


def line_chart(title, x_label, series, ticks, *, level=None):
    """Shares over ratios, both as text of an SVG file.

    `series` maps a name to points (ratio, share); the axis of ratios is logarithmic; `level` is a share
    that is marked.
    """
    low, high = math.log(ticks[0]), math.log(ticks[-1])
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(ratio):
        return _LEFT + wide * (math.log(ratio) - low) / (high - low)

    def y(share):
        return _TOP + tall * (1.0 - share)

    bottom = _TOP + tall
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{_escaped(title)}</text>',
        _words(_LEFT + wide / 2, _HEIGHT - 10, x_label, "middle"),
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        out.append(_line(_LEFT, y(share), _LEFT + wide, y(share), 'stroke="#ddd"'))
        out.append(_words(_LEFT - 8, y(share) + 4, f"{share:.0%}", "end"))
    for tick in ticks:
        out.append(_line(x(tick), bottom, x(tick), bottom + 5, 'stroke="#555"'))
        out.append(_words(x(tick), bottom + 19, f"{tick:g}", "middle"))
    if level is not None:
        out.append(_line(_LEFT, y(level), _LEFT + wide, y(level), 'stroke="#555" stroke-dasharray="4 4"'))
    for k, (name, points) in enumerate(series.items()):
        colour = _COLOURS[k % len(_COLOURS)]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in sorted(points))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in points]
        at, side = _TOP + 14 + 20 * k, _WIDTH - _RIGHT + 14
        out.append(_line(side, at - 4, side + 22, at - 4, f'stroke="{colour}" stroke-width="2"'))
        out.append(_words(side + 28, at, name, "start"))
    return "\n".join([*out, "</svg>", ""])


def _line(x, y, to_x, to_y, style):
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" {style}/>'


def _words(x, y, text, anchor):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escaped(text)}</text>'


def _escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
